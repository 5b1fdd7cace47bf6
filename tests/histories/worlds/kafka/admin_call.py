"""Runs one AdminClient call in a process of its own, because the client aborts its process if a coordinator dies.

Its arguments are BOOTSTRAP, and `delete GROUP`, `alter GROUP TOPIC PARTITION OFFSET`, `drop TOPIC`, `create TOPIC
PARTITIONS` or `grow TOPIC PARTITIONS`. The exit code is 0 only if a broker has acknowledged
the call, or if a change to a topic had already taken effect by an earlier, unanswered call.
"""

import sys
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

REQUEST_S: Final = 8.0
DONE_ALREADY: Final = {
    "drop": KafkaError.UNKNOWN_TOPIC_OR_PART,
    "create": KafkaError.TOPIC_ALREADY_EXISTS,
    "grow": KafkaError.INVALID_PARTITIONS,
}


def main(bootstrap: str, action: str, name: str, *where: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 4000})
    if action == "delete":
        admin.delete_consumer_groups([name], request_timeout=REQUEST_S)[name].result()
        return 0
    if action == "alter":
        topic, partition, offset = where
        wanted = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, int(partition), int(offset))])
        altered = admin.alter_consumer_group_offsets([wanted], request_timeout=REQUEST_S)[name].result()
        return 0 if all(one.error is None for one in altered.topic_partitions) else 1
    if action == "drop":
        calls = admin.delete_topics([name], operation_timeout=REQUEST_S, request_timeout=REQUEST_S)
    elif action == "create":
        calls = admin.create_topics([NewTopic(name, int(where[0]), 3)], operation_timeout=REQUEST_S)
    else:
        calls = admin.create_partitions([NewPartitions(name, int(where[0]))], operation_timeout=REQUEST_S)
    try:
        calls[name].result()
    except KafkaException as error:
        if error.args[0].code() != DONE_ALREADY[action]:
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
