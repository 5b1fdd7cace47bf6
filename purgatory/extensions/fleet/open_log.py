"""Opens the log that a setting names. The client libraries are extras, imported only here."""

from typing import Final

from purgatory_connectors.errors import SourceError
from purgatory_connectors.uri import SourceUri

from purgatory.fleet.errors import LogRefused
from purgatory.fleet.replicated_log import ReplicatedLog

SCHEMES: Final = ("kafka", "postgresql")
KAFKA_PREFIX: Final = "PURGATORY_FLEET_KAFKA_"
"""Environment variables with further settings of librdkafka, such as the login."""


def open_log(uri: str, shard: int = 0) -> ReplicatedLog:
    """Open a log. Connections are made when needed.

    Args:
        uri: kafka://HOST:PORT/TOPIC or postgresql://HOST:PORT/DATABASE.
        shard: Which of the fleet's shards.

    Raises:
        LogRefused: The URI or a setting in its file is wrong, or the client library is not installed.
    """
    scheme = uri.partition("://")[0]
    extra = {"kafka": "kafka", "postgresql": "postgres"}.get(scheme)
    try:
        if extra == "kafka":
            from purgatory.fleet.kafka_log import KafkaLog  # noqa: PLC0415 - an extra

            parsed = SourceUri.parse(uri)
            if not parsed.path:
                raise LogRefused("kafka://HOST:PORT/TOPIC must name a topic")
            return KafkaLog(",".join(parsed.hosts), parsed.path, shard, parsed.config(KAFKA_PREFIX))
        if extra == "postgres":
            from purgatory.fleet.postgres_log import PostgresLog  # noqa: PLC0415 - an extra

            return PostgresLog(uri, shard)
    except ModuleNotFoundError as missing:
        raise LogRefused(f"needs {missing.name}: pip install 'purgatory-waits[{extra}]'") from None
    except SourceError as error:
        raise LogRefused(str(error)) from None
    raise LogRefused(f"must begin with {' or '.join(f'{one}://' for one in SCHEMES)}")
