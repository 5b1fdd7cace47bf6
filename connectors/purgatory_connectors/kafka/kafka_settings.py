"""Settings of a Kafka source, read from a URI, a file of librdkafka settings and the environment.

    kafka://b1:9092,b2:9092?label=kafka&topics=orders,pay*&groups=^bill.*$&config=/etc/purgatory/kafka.properties

Settings with secrets are read from the file, whose lines are `key=value`, or from variables such as
PURGATORY_KAFKA_SASL_PASSWORD for sasl.password. They are not accepted in the URI, which every user of the machine can
read.
"""

import logging
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from purgatory_client.sources.source_names import KAFKA

from purgatory.source_uri import SourceUri
from purgatory_connectors.errors import SourceRefused

ENVIRONMENT_PREFIX: Final = "PURGATORY_KAFKA_"
OPTIONS: Final = ("label", "topics", "groups", "config", "low-latency", "commits", "isolation", "poll-ms")
GROUP_ID: Final = "purgatory-source"
"""Required by librdkafka. The source neither joins this group nor commits to it."""

RESERVED: Final = {
    "bootstrap.servers", "group.id", "enable.auto.commit", "isolation.level", "auto.offset.reset",
    "enable.partition.eof",
}  # fmt: skip
"""Settings that the source sets itself."""

QUICK: Final[dict[str, Any]] = {
    "socket.timeout.ms": 4_000,  # give up on a broker that hangs; the library's default is a minute
    "topic.metadata.refresh.interval.ms": 10_000,
    "reconnect.backoff.max.ms": 2_000,
    "socket.nagle.disable": True,
    "log_level": 2,  # hide the line per connection attempt; the source's own reports contain the outcome
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "allow.auto.create.topics": False,
    "group.id": GROUP_ID,
}


class NameSelection:
    """Selects names by patterns: "orders" matches that name, "orders*" matches names with that prefix, "^ord.*s$" is a
    regular expression that must match the whole name. Without patterns, all names match.

    Raises SourceRefused for an invalid regular expression.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns: Final = tuple(pattern for pattern in patterns if pattern)
        self._names = frozenset(one for one in self.patterns if not one.startswith("^") and not one.endswith("*"))
        self._prefixes = tuple(one[:-1] for one in self.patterns if one.endswith("*") and not one.startswith("^"))
        try:
            self._expressions = [re.compile(one) for one in self.patterns if one.startswith("^")]
        except re.error as error:
            raise SourceRefused(f"{error.pattern!r} is not a regular expression: {error}") from error
        self.matches: Final = lru_cache(maxsize=65_536)(self._matches)

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def _matches(self, name: str) -> bool:
        if not self.patterns or name in self._names or name.startswith(self._prefixes):
            return True
        return any(expression.fullmatch(name) for expression in self._expressions)


@dataclass(frozen=True)
class KafkaSettings:
    """Settings of the source.

    Attributes:
        commits: How committed offsets are read: "read" reads `__consumer_offsets`, "poll" polls groups, "auto" reads
            the topic if that is allowed and polls otherwise.
        isolation: Which records count as visible when the source checks whether a group has anything left to read.
        configuration: librdkafka's settings.
    """

    brokers: str
    label: str = "kafka"
    topics: NameSelection = field(default_factory=NameSelection)
    groups: NameSelection = field(default_factory=NameSelection)
    low_latency: NameSelection | None = None
    commits: str = "auto"
    isolation: str = "read_committed"
    poll_ms: int = 50
    configuration: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_uri(cls, uri: SourceUri) -> "KafkaSettings":
        """Read the settings from an address. Raises SourceRefused if they are invalid."""
        uri.check_options(OPTIONS)
        configuration = uri.config(ENVIRONMENT_PREFIX)
        reserved = sorted(RESERVED & configuration.keys())
        if reserved:
            raise SourceRefused(f"{reserved[0]} cannot be set for a Kafka source: it sets that itself")
        low_latency = uri.listed("low-latency")
        return cls(
            brokers=",".join(uri.hosts),
            label=_label(uri.options.get("label", KAFKA)),
            topics=NameSelection(uri.listed("topics")),
            groups=NameSelection(uri.listed("groups")),
            low_latency=NameSelection(low_latency) if low_latency else None,
            commits=uri.choice("commits", "auto", "read", "poll"),
            isolation=uri.choice("isolation", "read_committed", "read_uncommitted"),
            poll_ms=uri.number("poll-ms", 50, 5, 10_000),
            configuration=configuration,
        )

    @property
    def name(self) -> str:
        """Name in status output and metrics. It leaves out the options, which may be long."""
        return f"{self.label}://{self.brokers}"[:249]

    def selects(self, group: str | None, topic: str) -> bool:
        """Whether the source watches this topic, and this group unless it is None."""
        return self.topics.matches(topic) and (group is None or self.groups.matches(group))

    def librdkafka(self, **own: Any) -> dict[str, Any]:  # noqa: ANN401 - librdkafka's own values: text, numbers, calls
        """Configuration for a librdkafka client. `own`: further keys, with "_" for "."."""
        made = QUICK | {"bootstrap.servers": self.brokers, "client.id": "purgatory-source"} | dict(self.configuration)
        made["logger"] = logging.getLogger("purgatory_connectors.kafka.librdkafka")
        return made | {key if key == "error_cb" else key.replace("_", "."): value for key, value in own.items()}

    def aiokafka(self) -> dict[str, Any] | None:
        """Configuration for aiokafka. None: aiokafka does not support this login method, so groups cannot be polled."""
        given = {key.lower(): value for key, value in self.configuration.items()}
        protocol = given.get("security.protocol", "PLAINTEXT").upper()
        made: dict[str, Any] = {"bootstrap_servers": self.brokers.split(","), "security_protocol": protocol}
        made |= {"client_id": "purgatory-source", "request_timeout_ms": 4_000}
        if "SSL" in protocol:
            made["ssl_context"] = _ssl_context(given)
        if "SASL" in protocol:
            mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "PLAIN")).upper()
            if mechanism not in {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}:
                return None
            made |= {"sasl_mechanism": mechanism, "sasl_plain_username": given.get("sasl.username")}
            made["sasl_plain_password"] = given.get("sasl.password")
        return made


def _ssl_context(given: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=given.get("ssl.ca.location"))
        if "ssl.certificate.location" in given:
            context.load_cert_chain(
                given["ssl.certificate.location"], given.get("ssl.key.location"), given.get("ssl.key.password")
            )
    except OSError as error:
        raise SourceRefused(f"the certificates of the Kafka source cannot be read: {error}") from error
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if given.get("enable.ssl.certificate.verification") == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _label(label: str) -> str:
    if not label or "/" in label or label == "pg":
        raise SourceRefused(f"label={label!r}: give a name without a slash, and not pg, which is PostgreSQL's")
    return label
