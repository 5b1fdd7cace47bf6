"""Opens the log that the setting `fleet.log` names."""

from purgatory.replicated_log.errors import LogRefused
from purgatory.replicated_log.replicated_log import ReplicatedLog
from purgatory.source_uri import SourceUri, SourceUriInvalid


def open_log(url: str, shard: int = 0) -> ReplicatedLog:
    """Open a log. Nothing is connected yet.

    Args:
        url: "kafka://host:9092,host:9092/TOPIC?config=FILE" or "postgresql://host/database". The file contains further
            settings of librdkafka, such as a login; PURGATORY_KAFKA_SASL_PASSWORD sets sasl.password.
        shard: The shard of this daemon.

    Raises:
        LogRefused: The address is invalid, or the client library is not installed.
    """
    kind = url.partition("://")[0]
    try:
        if kind in {"postgres", "postgresql"}:
            from purgatory.replicated_log.postgres_log import PostgresLog  # noqa: PLC0415 - an extra

            return PostgresLog(url, shard)
        if kind == "kafka":
            from purgatory.replicated_log.kafka_log import KafkaLog  # noqa: PLC0415 - an extra

            uri = SourceUri.parse(url)
            uri.check_options(("config",))
            if not uri.path or "/" in uri.path:
                raise LogRefused("fleet.log: name the topic: kafka://HOST:PORT/TOPIC")
            return KafkaLog(",".join(uri.hosts), uri.path, shard, uri.config("PURGATORY_KAFKA_"))
    except ModuleNotFoundError as error:
        extra = "kafka" if kind == "kafka" else "postgres"
        raise LogRefused(f"fleet.log needs {error.name}: pip install 'purgatory-waits[{extra}]'") from None
    except SourceUriInvalid as error:
        raise LogRefused(f"fleet.log: {error}") from None
    raise LogRefused("fleet.log: must begin with kafka:// or postgresql://")
