"""The marks that one report of a source names as stale, in a shape in which a mark is found without looking at all."""

from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName

ALL_PARTITIONS: Final = -1


class Unseen(NamedTuple):
    """When a source saw a mark last, on the host's clock, and why it does not now."""

    since_ms: int
    reason: str


class StaleIndex:
    """Marks by topic, or by what their topic starts with. Of several entries for a mark the oldest counts."""

    def __init__(self) -> None:
        self.size = 0
        """Entries and partitions, as a measure of what it takes."""
        self._exact: Final[dict[str, dict[int, Unseen]]] = {}
        """By topic, then by partition."""
        self._by_prefix: Final[dict[str, dict[int, Unseen]]] = {}
        self._lengths: Final[set[int]] = set()
        """Of the prefixes: there are few lengths, however many prefixes."""

    def add(self, topic_prefix: str, exact: bool, partitions: list[int], unseen: Unseen) -> None:
        """`exact`: only the topic of just this name. No partitions: all."""
        if exact:
            places = self._exact.setdefault(topic_prefix, {})
        else:
            places = self._by_prefix.setdefault(topic_prefix, {})
            self._lengths.add(len(topic_prefix))
        for partition in partitions or (ALL_PARTITIONS,):
            known = places.get(partition)
            if known is None or unseen.since_ms < known.since_ms:
                places[partition] = unseen
        self.size += 1 + len(partitions)

    @property
    def has_all(self) -> bool:
        """Whether it names all marks there are."""
        return ALL_PARTITIONS in self._by_prefix.get("", ())

    @property
    def oldest_ms(self) -> int | None:
        """Since when the mark that is stale for the longest is. None: nothing is stale."""
        places = [*self._exact.values(), *self._by_prefix.values()]
        return min((unseen.since_ms for place in places for unseen in place.values()), default=None)

    def find(self, name: PartitionName) -> Unseen | None:
        """What is said of a mark; None: it is not stale."""
        if not self.size:
            return None
        topic, partition = name
        places = [self._exact.get(topic), *(self._by_prefix.get(topic[:length]) for length in self._lengths)]
        found = [place.get(at) for place in places if place for at in (partition, ALL_PARTITIONS)]
        return min((unseen for unseen in found if unseen is not None), default=None)
