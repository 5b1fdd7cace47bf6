"""What nobody sees, as a test says it: in place of sources."""

from typing import NamedTuple

from purgatory.engine.batches import PartitionName


class UnseenMark(NamedTuple):
    """One mark that is stale."""

    since_ms: int
    reason: str

    def ms(self, now_ms: int) -> int:
        """For how long."""
        return now_ms - self.since_ms


class Unseen:
    """Marks that are stale, each with the time since when it is."""

    def __init__(self, since_ms: dict[PartitionName, int], reason: str = "broker 2 is down") -> None:
        self.since_ms = since_ms
        self.reason = reason

    def __bool__(self) -> bool:
        return bool(self.since_ms)

    def stale(self, name: PartitionName, now_ms: int) -> UnseenMark | None:
        """A mark that is stale, if it is."""
        since_ms = self.since_ms.get(name)
        return None if since_ms is None else UnseenMark(since_ms, self.reason)
