"""Conversion between Kafka names and mark names, and the classification of demand by kind of mark."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from purgatory_client.sources import source_names

from purgatory_connectors.kafka.offset_records import CommitName, Partition
from purgatory_connectors.publisher.observation import MarkName

NAME_MAX: Final = 249
"""Maximum length of a topic name in a daemon."""


class ParsedName(NamedTuple):
    """A parsed mark name. `group` None: the mark is a high watermark or a last stable offset."""

    group: str | None
    topic: str
    is_stable: bool = False
    is_share: bool = False


class WantedMarks(NamedTuple):
    """Marks by kind: high watermarks, committed offsets, last stable offsets, start offsets of share groups."""

    partitions: frozenset[Partition]
    commits: frozenset[CommitName]
    stable: frozenset[Partition] = frozenset()
    shares: frozenset[CommitName] = frozenset()

    def logs(self) -> set[Partition]:
        """The partitions whose ends these marks need."""
        return {*self.partitions, *(name[1:] for name in self.commits)}

    def groups(self) -> set[str]:
        return {name[0] for name in self.commits}


NOTHING: Final = WantedMarks(frozenset(), frozenset())


class MarkNames:
    """Mark names under a label. They are None if they exceed the daemon's limit."""

    def __init__(self, label: str) -> None:
        self.prefix: Final = f"{label}/"
        self.shares: Final = f"{label}/{source_names.SHARE}"
        self.of_topic: Final = lru_cache(65_536)(lambda topic: _checked(source_names.kafka_topic(topic, label)))
        self.of_stable: Final = lru_cache(65_536)(lambda topic: _checked(source_names.kafka_stable(topic, label)))
        self.of_share: Final = lru_cache(65_536)(
            lambda group, topic: _checked(source_names.kafka_share(group, topic, label))
        )
        self.of_group: Final = lru_cache(65_536)(
            lambda group, topic: _checked(source_names.kafka_group(group, topic, label))
        )

    def group_prefix(self, group: str) -> str:
        return f"{self.prefix}{source_names.escaped_group(group)}/"

    def share_prefix(self, group: str) -> str:
        return f"{self.shares}{source_names.escaped_group(group)}/"

    def parse(self, topic: str) -> ParsedName | None:
        """Parse a mark name. None: it does not belong to this source."""
        if not topic.startswith(self.prefix):
            return None
        group, slash, name = topic[len(self.prefix) :].rpartition("/")
        if not name or "/" in group or (slash and not group):
            return None
        if not slash and name.startswith(source_names.STABLE):
            return ParsedName(None, name.removeprefix(source_names.STABLE), is_stable=True)
        is_share = group.startswith(source_names.SHARE)
        group = group.removeprefix(source_names.SHARE)
        if is_share and not group:
            return None
        return ParsedName(source_names.unescaped_group(group) if slash else None, name, is_share=is_share)

    def wanted(self, names: Iterable[MarkName]) -> WantedMarks:
        """The marks of this source among `names`, by kind."""
        partitions, commits, stable, shares = set(), set(), set(), set()
        for topic, number in names:
            parsed = self.parse(topic)
            if parsed is None:
                continue
            group, name, is_stable, is_share = parsed
            if is_stable:
                stable.add((name, number))
            elif group is None:
                partitions.add((name, number))
            elif is_share:
                shares.add((group, name, number))
            else:
                commits.add((group, name, number))
        return WantedMarks(frozenset(partitions), frozenset(commits), frozenset(stable), frozenset(shares))


def _checked(name: str) -> str | None:
    return name if len(name) <= NAME_MAX else None
