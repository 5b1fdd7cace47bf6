"""Index of the marks that one report of a source lists as stale; a lookup does not scan all entries."""

from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName

ALL_PARTITIONS: Final = -1


class Unseen(NamedTuple):
    """Listening time at which a source last saw a mark, and the reason why it does not see it now."""

    since_ms: int
    reason: str


class StaleIndex:
    """Stale marks by topic or topic prefix. If several entries match a mark, the oldest applies."""

    def __init__(self) -> None:
        self.size = 0
        """Number of entries and partitions; used to estimate memory."""
        self._exact: Final[dict[str, dict[int, Unseen]]] = {}
        """Entries by topic, then by partition."""
        self._by_prefix: Final[dict[str, dict[int, Unseen]]] = {}
        self._lengths: Final[set[int]] = set()
        """Distinct prefix lengths, normally few."""

    def add(self, topic_prefix: str, exact: bool, partitions: list[int], unseen: Unseen) -> None:
        """Add an entry. `exact`: it applies only to the topic of exactly this name. No partitions: to all of them."""
        if exact:
            places = self._exact.setdefault(topic_prefix, {})
        else:
            places = self._by_prefix.setdefault(topic_prefix, {})
            self._lengths.add(len(topic_prefix))
        # An entry without partitions covers the whole topic, and `find` looks for both.
        for partition in partitions or (ALL_PARTITIONS,):
            known = places.get(partition)
            if known is None or unseen.since_ms < known.since_ms:
                places[partition] = unseen
        self.size += 1 + len(partitions)

    @property
    def has_all(self) -> bool:
        """Whether an entry covers all marks."""
        return ALL_PARTITIONS in self._by_prefix.get("", ())

    @property
    def oldest_ms(self) -> int | None:
        """The time since which the longest-stale mark has been stale; None if nothing is stale."""
        places = [*self._exact.values(), *self._by_prefix.values()]
        return min((unseen.since_ms for place in places for unseen in place.values()), default=None)

    def find(self, name: PartitionName) -> Unseen | None:
        """Return the entry that applies to a mark; None if the mark is not stale."""
        if not self.size:
            return None
        topic, partition = name
        # A report may have prefixes of more lengths than the topic has characters.
        lengths = self._lengths if len(self._lengths) <= len(topic) else range(len(topic) + 1)
        places = [self._exact.get(topic), *(self._by_prefix.get(topic[:length]) for length in lengths)]
        found = [place.get(at) for place in places if place for at in (partition, ALL_PARTITIONS)]
        return min((unseen for unseen in found if unseen is not None), default=None)
