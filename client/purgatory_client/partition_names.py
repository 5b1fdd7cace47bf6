"""Names of partitions: "orders-3" in text, ("orders", 3) in code.

The partition number follows the last "-", so topics may contain dashes ("read-model-0" is partition 0 of "read-model").
Names that begin with one of WHOLE_PREFIXES come from sources without partitions and may contain dashes:
"pg/main/replica-1" is partition 0 of the topic "pg/main/replica-1". The daemon limits the length; only names that are
ambiguous or cannot be sent are refused here.
"""

from functools import lru_cache
from typing import Final

from purgatory_client.argument_checks import checked_type, integer, shown, whole_number
from purgatory_client.errors import InvalidRequest

PartitionName = tuple[str, int]
"""(topic, partition)."""

WHOLE_PREFIXES: Final = ("pg/", "mysql/", "redis/", "poll/")
"""Prefixes of names without a partition number."""

_PARTITION_MAX: Final = 2**31 - 1


def partition_name(name: str | PartitionName) -> PartitionName:
    """The (topic, partition) of "orders-3" or of a pair. Raises InvalidRequest for anything else."""
    if isinstance(name, str):
        return _parse(name)
    try:
        topic, partition = name
    except (TypeError, ValueError):
        raise InvalidRequest("topic_partition", f"{name!r}; give 'orders-3' or ('orders', 3)") from None
    return _checked(topic, integer(partition, "topic_partition.partition"))


def format_partition(topic: str, partition: int) -> str:
    """The text form. A topic under one of WHOLE_PREFIXES has only partition 0, which is omitted."""
    return topic if topic.startswith(WHOLE_PREFIXES) and partition == 0 else f"{topic}-{partition}"


def checked_key(key: str) -> str:
    """The key of a signal. Raises InvalidRequest for anything but a text that can be encoded as UTF-8."""
    _check_utf8(key, "key")
    return key


@lru_cache(maxsize=65_536)
def _parse(name: str) -> PartitionName:
    if name.startswith(WHOLE_PREFIXES):
        return _checked(name, 0)
    topic, _, number = name.rpartition("-")
    partition = whole_number(number)
    if not topic or partition is None:
        raise InvalidRequest(
            "topic_partition",
            f"{name!r} is not a partition; write the topic, a dash and the partition number, like 'orders-3'",
        )
    return _checked(topic, partition)


def _checked(topic: str, partition: int) -> PartitionName:
    if not 0 <= partition <= _PARTITION_MAX:
        name = f"{topic}-{shown(partition)}"
        raise InvalidRequest("topic_partition.partition", f"{name!r}: must be from 0 to {_PARTITION_MAX}")
    _check_utf8(topic, "topic_partition.topic")
    return topic, partition


def _check_utf8(text: str, field: str) -> None:
    try:
        checked_type(text, str, field, "give a text").encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(field, f"{text!r} is not valid text: {error.reason}") from error
