"""Names of the marks of Kafka and PostgreSQL sources (docs/sources.md).

`kafka/TOPIC` is the high watermark of a topic; `kafka/stable:TOPIC` is its last stable offset, which is the limit for
readers of committed records; `kafka/GROUP/TOPIC` is the committed offset of a consumer group, which is the next offset
it will read; `kafka/share:GROUP/TOPIC` is the start offset of a share group. With several clusters, each has a label in
place of `kafka`. Topic names contain no "/", and it is escaped in group names, so the kinds of names cannot be
confused, unless the id of a consumer group begins with "share:".
"""

from typing import Final
from urllib.parse import quote, unquote

from purgatory_client.argument_checks import checked_type
from purgatory_client.errors import InvalidRequest

KAFKA: Final = "kafka"
"""The default label of a cluster."""

STABLE: Final = "stable:"
"""Prefix of a topic in the name of its last stable offset; a topic name contains no ":"."""

SHARE: Final = "share:"
"""Prefix of a share group in the name of its start offsets."""

_PLAIN: Final = " !\"#$&'()*+,:;<=>?@[\\]^`{|}~"
"""Characters left unescaped, with letters, digits and "_.-": all of ASCII except "/", "%" and control characters."""
_ESCAPES: Final = {code: quote(chr(code), safe=_PLAIN) for code in range(128)}


def kafka_topic(topic: str, label: str = KAFKA) -> str:
    """The name of a topic's marks, without a partition number: "kafka/orders"."""
    return f"{_checked(label, 'label')}/{_checked(topic, 'topic')}"


def kafka_stable(topic: str, label: str = KAFKA) -> str:
    """The name of the marks of a topic's last stable offsets, without a partition number: "kafka/stable:orders"."""
    return f"{_checked(label, 'label')}/{STABLE}{_checked(topic, 'topic')}"


def kafka_group(group: str, topic: str, label: str = KAFKA) -> str:
    """The name of a consumer group's marks on a topic, without a partition number: "kafka/billing/orders"."""
    return f"{_checked(label, 'label')}/{escaped_group(group)}/{_checked(topic, 'topic')}"


def kafka_share(group: str, topic: str, label: str = KAFKA) -> str:
    """The name of a share group's marks on a topic, without a partition number: "kafka/share:workers/orders"."""
    return f"{_checked(label, 'label')}/{SHARE}{escaped_group(group)}/{_checked(topic, 'topic')}"


def escaped_group(group: str) -> str:
    """Escape a group id for use in a name: "/", "%" and control characters as %2F, other ASCII characters unchanged.

    Characters beyond ASCII are unchanged too: the limit counts characters, and an escaped one would take six to twelve.
    """
    if not checked_type(group, str, "group", "give a text"):
        raise InvalidRequest("group", "a consumer group needs an id; give the group.id of the consumers")
    return group.translate(_ESCAPES)


def unescaped_group(part: str) -> str:
    """The inverse of `escaped_group`."""
    return unquote(part)


def _checked(name: str, field: str) -> str:
    if not checked_type(name, str, field, "give a text") or "/" in name:
        raise InvalidRequest(field, f"{name!r} cannot be part of a name; it must not be empty nor contain a slash")
    return name
