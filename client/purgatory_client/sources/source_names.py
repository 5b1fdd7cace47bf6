"""Names under which the sources of Kafka and PostgreSQL keep their marks (docs/sources.md).

`kafka/TOPIC` is a topic, whose high watermark the mark is; `kafka/stable:TOPIC` its last stable offset: up to where
those read who read only what is committed; `kafka/GROUP/TOPIC` what a consumer group has committed of it: the next
offset it will read. Where there are several clusters, each has a label in place of `kafka`. The names of
topics have no "/", and in those of groups it is escaped, so that a name says which of the two it is.
"""

from typing import Final
from urllib.parse import quote, unquote

from purgatory_client.base_errors import InvalidRequest

KAFKA: Final = "kafka"
"""The label of a cluster that was given no other."""

STABLE: Final = "stable:"
"""Before a topic whose last stable offset is meant; no topic's own name has a ":"."""

_PLAIN: Final = " !\"#$&'()*+,:;<=>?@[\\]^`{|}~"
"""Left as they are, beside letters, digits and "_.-": all of ASCII but "/", "%" and control characters."""


def kafka_topic(topic: str, label: str = KAFKA) -> str:
    """The name of a topic's marks, without a partition number: "kafka/orders"."""
    return f"{_checked(label, 'label')}/{_checked(topic, 'topic')}"


def kafka_stable(topic: str, label: str = KAFKA) -> str:
    """The name of the marks of a topic's last stable offsets, without a partition number: "kafka/stable:orders"."""
    return f"{_checked(label, 'label')}/{STABLE}{_checked(topic, 'topic')}"


def kafka_group(group: str, topic: str, label: str = KAFKA) -> str:
    """The name of a consumer group's marks on a topic, without a partition number: "kafka/billing/orders"."""
    return f"{_checked(label, 'label')}/{escaped_group(group)}/{_checked(topic, 'topic')}"


def escaped_group(group: str) -> str:
    """A group's id as a part of a name: "/", "%" and control characters as %2F, all others of ASCII as they are.

    Characters beyond ASCII stay, too: names are counted in characters, and an escaped one would be six to twelve.
    """
    if not group:
        raise InvalidRequest("group", "a consumer group needs an id; give the group.id of the consumers")
    return "".join(one if ord(one) > 127 else quote(one, safe=_PLAIN) for one in group)


def unescaped_group(part: str) -> str:
    """What `escaped_group` was given."""
    return unquote(part)


def _checked(name: str, field: str) -> str:
    if not name or "/" in name:
        raise InvalidRequest(field, f"{name!r} cannot be part of a name; it must not be empty nor contain a slash")
    return name
