"""Computes which events each daemon must receive to have the marks that the source has seen. It uses no clock, socket
or file.

A daemon never receives a value above what was observed in its lineage, and never a lower one without a break. The
newest value always arrives: a mark that may be outdated at a daemon stays *due* there until a batch has taken it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from purgatory_client import events
from purgatory_client.events import Event

from purgatory_connectors.publisher.mark_lineage import MarkLineage
from purgatory_connectors.publisher.observation import MarkName, Observation, PublishedMark, SeenReplicas, StaleMarks

SETTLE_S: Final = 1.0
"""Maximum age (seconds) of a live source's readings, in addition to the lag that it reports."""

_NO_LEADER: Final = -1


class DaemonMark(NamedTuple):
    """A mark as a daemon lists it; -1: unknown there."""

    epoch: int
    offset: int
    is_leader: bool = True


MarkBatch = list[tuple[MarkName, Event]]
"""Events in the order in which they must be sent, each with the mark that it belongs to."""


class DaemonMarks:
    """The state of one daemon's marks and the marks that are due to it. Only `MarkReplicator` changes it."""

    __slots__ = ("due", "known", "looked_at", "replicas", "to_look_at", "to_look_at_later")

    def __init__(self) -> None:
        self.known: Final[dict[MarkName, tuple[int, int]]] = {}
        """(epoch, offset) at the daemon, provided that every batch taken has arrived."""
        self.replicas: Final[dict[MarkName, SeenReplicas]] = {}
        """The replicas that the daemon has received since it connected."""
        self.due: Final[dict[MarkName, None]] = {}
        self.to_look_at: Final[set[MarkName]] = set()
        """Marks to read back before anything is published for them, because another source may have changed them."""
        self.looked_at: Final[set[MarkName]] = set()
        self.to_look_at_later: Final[dict[MarkName, float]] = {}


class MarkReplicator:
    """Turns observations into events for any number of daemons. All times are seconds of one clock.

    Args:
        lineages: The lineages stored by an earlier run. The dict is used directly, not copied.
        now: Start time of this run.
    """

    def __init__(self, lineages: dict[MarkName, MarkLineage] | None = None, now: float = 0.0) -> None:
        self._lineages: Final = {} if lineages is None else lineages
        for lineage in self._lineages.values():
            lineage.unsettled_until = now + SETTLE_S
        self._daemons: Final[list[DaemonMarks]] = []
        self._replicas: Final[dict[MarkName, SeenReplicas]] = {}
        self._unsettled: Final[dict[MarkName, None]] = {}
        self._settle_s = SETTLE_S
        self._sees_since = now
        self._stale: tuple[tuple[str, bool, Sequence[int]], ...] = ()
        """Marks that the source cannot see: prefix or topic, whether it is the whole topic name, partitions."""
        self.unsaved: Final[dict[MarkName, None]] = {}
        """New lineages. They must be stored before the events returned by `next_batch` are sent."""
        self.moved: Final[dict[MarkName, None]] = {}
        """Lineages whose offset has moved. They may be stored later."""

    def daemon(self) -> DaemonMarks:
        """Add a daemon. It receives nothing before `on_daemon_marks`."""
        marks = DaemonMarks()
        self._daemons.append(marks)
        return marks

    def lineage(self, name: MarkName) -> MarkLineage | None:
        """The lineage of a mark; None if the mark is unknown."""
        return self._lineages.get(name)

    def published(self, topic_prefix: str) -> dict[MarkName, PublishedMark]:
        """The marks under this prefix at the daemons: for each mark, the lowest epoch and offset at any daemon."""
        published: dict[MarkName, PublishedMark] = {}
        for daemon in self._daemons:
            for name, (epoch, offset) in daemon.known.items():
                if name[0].startswith(topic_prefix):
                    other = published.get(name)
                    if other is not None:
                        epoch, offset = min((epoch, offset), other)  # noqa: PLW2901 - of this daemon and those before
                    published[name] = PublishedMark(epoch, offset)
        return published

    # Input from the source.

    def observe(self, observations: Iterable[Observation]) -> None:
        lineages, unsaved, moved = self._lineages, self.unsaved, self.moved
        for seen in observations:
            name = (seen.topic, seen.partition)
            lineage = lineages.get(name)
            if lineage is None:
                lineage = lineages[name] = MarkLineage(0)
                unsaved[name] = None
            before = lineage.epoch, lineage.identity
            if not lineage.apply(seen):
                continue
            moved[name] = None
            if before != (lineage.epoch, lineage.identity) or lineage.is_gone:
                unsaved[name] = None
            self._make_due(name)

    def observe_replicas(self, replicas: Mapping[MarkName, SeenReplicas]) -> None:
        for name, seen in replicas.items():
            if self._replicas.get(name) != seen:
                self._replicas[name] = seen
                if name in self._lineages:
                    self._make_due(name)

    def _make_due(self, name: MarkName) -> None:
        for daemon in self._daemons:
            daemon.due[name] = None

    def set_health(self, now: float, *, sees: bool, stale: Sequence[StaleMarks] = (), lag_s: float = 0.0) -> None:
        """Set the health of the source: whether it sees its marks, which ones are stale, and its lag.

        If it does not see its marks and names no stale ones, all are stale.
        """
        self._settle_s = SETTLE_S + lag_s
        hidden = tuple(one[:3] for one in stale) if sees or stale else ((("", False, ()),))
        if hidden != self._stale:
            self._stale = hidden
            self._sees_since = now + self._settle_s

    def _sees_name_since(self, name: MarkName) -> float:
        for prefix, exact, partitions in self._stale:
            is_of = name[0] == prefix if exact else name[0].startswith(prefix)
            if is_of and (not partitions or name[1] in partitions):
                return float("inf")
        return self._sees_since

    # Input from the daemons.

    def on_daemon_marks(self, daemon: DaemonMarks, marks: Mapping[MarkName, DaemonMark], now: float) -> None:
        """A daemon has listed all its marks under the source's prefixes. Call this after each connect."""
        daemon.known.clear()
        daemon.replicas.clear()
        daemon.to_look_at.clear()
        daemon.looked_at.clear()
        daemon.to_look_at_later.clear()
        for name, mark in marks.items():
            self.on_daemon_mark(daemon, name, mark, now)
        daemon.due.update(dict.fromkeys(self._lineages))

    def on_daemon_mark(self, daemon: DaemonMarks, name: MarkName, mark: DaemonMark | None, now: float) -> None:
        """A daemon has returned one mark. None: it does not have the mark."""
        daemon.to_look_at.discard(name)
        daemon.looked_at.discard(name)
        lineage = self._lineages.get(name)
        if mark is None or (mark.epoch < 0 and mark.offset < 0):
            daemon.known.pop(name, None)
            daemon.replicas.pop(name, None)
        else:
            # If another client made the partition a follower, treat it as an earlier epoch, so that a leadership event
            # is sent.
            daemon.known[name] = (mark.epoch if mark.is_leader else _NO_LEADER, mark.offset)
            if lineage is None:
                lineage = self._lineages[name] = MarkLineage(max(mark.epoch, 0))
                self.unsaved[name] = None
            if mark.epoch > lineage.epoch or (mark.epoch == lineage.epoch and mark.offset > lineage.offset):
                lineage.fast_forward(mark.epoch, mark.offset, now + self._settle_s)
                self.unsaved[name] = None
                self._make_due(name)
            elif mark.epoch < 0 and mark.offset > lineage.offset:
                # Published by a client that sends no epochs: our lineage continues from that offset.
                lineage.fast_forward(lineage.epoch, mark.offset, now + self._settle_s)
        if lineage is not None:
            daemon.due[name] = None
            known = daemon.known.get(name)
            if known is not None and known[0] < lineage.epoch:
                daemon.looked_at.add(name)

    def refused(self, daemon: DaemonMarks, name: MarkName, now: float, *, is_stale: bool) -> None:
        """A daemon refused an event. `is_stale`: with error 74 (stale epoch), as another source published a break."""
        daemon.replicas.pop(name, None)
        if is_stale:
            daemon.to_look_at.add(name)
        else:
            daemon.to_look_at_later[name] = now + 5.0

    def next_batch(self, daemon: DaemonMarks, now: float, events_max: int = 10_000) -> MarkBatch:
        """Take the events that are due to a daemon.

        The caller sends the batches one after the other and calls `refused` for each refused event. If a batch may not
        have arrived, the caller reconnects and calls `on_daemon_marks`.
        """
        batch: MarkBatch = []
        due = daemon.due
        while due and len(batch) < events_max:
            name = next(iter(due))
            del due[name]
            self._add_mark(daemon, name, now, batch)
        return batch

    def _add_mark(self, daemon: DaemonMarks, name: MarkName, now: float, batch: MarkBatch) -> None:
        """Add the events that bring one mark of one daemon up to date.

        `next_batch` has already removed the name from `due`. Every exit therefore either updates `known` to the marks
        that this batch will establish, or leaves a trigger that makes the name due again, or has nothing to publish.
        """
        lineage = self._lineages[name]
        if name in daemon.to_look_at:
            return  # `on_daemon_mark` makes it due again
        if not self._settle(name, lineage, now):
            self._unsettled[name] = None  # `tick` makes it due again
            return
        known = daemon.known.get(name)
        if lineage.is_gone:
            # `known` is empty once the removal is in the batch, so a mark that returns starts with a leadership event.
            if known is not None and self._has_looked_at(daemon, name, known, lineage):
                batch.append((name, events.removed(name, leader_epoch=lineage.epoch)))
                del daemon.known[name]
                daemon.replicas.pop(name, None)
            return
        if not lineage.is_seen:
            return  # loaded from disk or read from a daemon; the first observation makes it due again
        epoch, offset = lineage.epoch, lineage.offset
        if known is None or known[0] < epoch:
            if not self._has_looked_at(daemon, name, known, lineage):
                return  # `on_daemon_mark` makes it due again
            # One event must fence the old lineage and lower the mark, before the new value is sent. Otherwise a wait
            # could complete with an offset of the old lineage: a change of leadership travels in another message.
            if known is not None and known[1] > offset:
                batch.append((name, events.truncation(name, offset, leader_epoch=epoch)))
            batch.append((name, events.leadership(name, is_leader=True, leader_epoch=epoch)))
            if known is not None:
                # Two connectors may publish the same break concurrently; the second truncation then lowers a value that
                # the first one published after its own. Reading the mark back later repairs that.
                daemon.to_look_at_later[name] = now + SETTLE_S
        if known is None or known < (epoch, offset):
            batch.append((name, events.high_watermark(name, offset, leader_epoch=epoch)))
            daemon.known[name] = (epoch, offset)
        # No branch for `known` above the lineage: `_settle` returns False until the offset has caught up with the
        # daemon, or begins a new lineage, whose epoch is higher.
        self._add_replicas(daemon, name, epoch, batch)

    def _add_replicas(self, daemon: DaemonMarks, name: MarkName, epoch: int, batch: MarkBatch) -> None:
        """Add the replicas that the daemon does not have yet, in the mark's own epoch, so that they break nothing."""
        seen, before = self._replicas.get(name), daemon.replicas.get(name)
        if seen is None or seen == before:
            return
        daemon.replicas[name] = seen
        leader_id, replica_ids, in_sync_ids = seen
        if before is None or before[:2] != seen[:2]:  # leadership rechecks all waits: not for the set alone
            leadership = events.leadership(
                name, is_leader=True, leader_epoch=epoch, leader_id=leader_id, replica_ids=replica_ids
            )
            batch.append((name, leadership))
        batch.append((name, events.in_sync_replicas(name, in_sync_ids, leader_id=leader_id, leader_epoch=epoch)))

    @staticmethod
    def _has_looked_at(
        daemon: DaemonMarks, name: MarkName, known: tuple[int, int] | None, lineage: MarkLineage
    ) -> bool:
        """Whether the daemon's mark has been read back, as is required once before a break is published to it."""
        if known is None or known[0] >= lineage.epoch:
            return True
        if name in daemon.looked_at:
            daemon.looked_at.discard(name)
            return True
        daemon.to_look_at.add(name)
        return False

    def _settle(self, name: MarkName, lineage: MarkLineage, now: float) -> bool:
        before = lineage.epoch
        is_settled = lineage.settle(now, self._sees_name_since(name))
        if lineage.epoch != before:
            self.unsaved[name] = None
            self._make_due(name)
        return is_settled

    # Time.

    def tick(self, now: float) -> None:
        """Apply the passage of time: unsettled marks may become due, and some published marks must be read back."""
        for name in list(self._unsettled):
            if self._settle(name, self._lineages[name], now):
                del self._unsettled[name]
                self._make_due(name)
        for daemon in self._daemons:
            later = daemon.to_look_at_later
            for name in [name for name, at in later.items() if at <= now]:
                del later[name]
                daemon.to_look_at.add(name)

    @property
    def is_waiting_for_time(self) -> bool:
        return bool(self._unsettled) or any(daemon.to_look_at_later for daemon in self._daemons)
