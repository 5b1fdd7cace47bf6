"""The state of a primary and its replicas, and the marks derived from it. No I/O; times are passed in.

A position moves back only for a reason that is published with it: a replica was restarted or rebuilt, or a new lineage
began (timelines.py). A server that cannot be seen keeps its last position and is stale.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from purgatory_client.sources.source_names import escaped_group

from purgatory_connectors.postgres.observations import FoundReplica, ServerObservation
from purgatory_connectors.postgres.timelines import Timelines
from purgatory_connectors.publisher.mark_rules import (
    ALL,
    ANY,
    DERIVED,
    QUORUM,
    CountedReplica,
    Derived,
    StaleMark,
    derive,
)
from purgatory_connectors.publisher.observation import Observation

SLOT: Final = "slot:"
"""Prefix of the marks of logical slots."""
_UNSEEN: Final = "it has not answered yet"
_NAME_LENGTH_MAX: Final = 200


class GroupSettings(NamedTuple):
    """How the servers of one name form a group.

    Attributes:
        listed: Names of the servers that are polled directly.
        finds_replicas: Replicas that are known only through the primary count too.
        quorum: Number of replicas in a quorum; None: the majority.
        lossless_promotion: A promotion loses nothing that was acknowledged (synchronous replication), unless the source
            saw a higher position on the old timeline than the fork.
        system_id: The only accepted system identifier; None: the first one seen.
        forget_after_s: A replica known only through the primary is removed after being disconnected for this long.
    """

    listed: tuple[str, ...]
    finds_replicas: bool = True
    quorum: int | None = None
    lossless_promotion: bool = False
    system_id: int | None = None
    forget_after_s: float = 3600.0


@dataclass(slots=True)
class _Server:
    name: str
    is_listed: bool
    position: int
    seen_at: float
    stale: str = _UNSEEN
    is_heard: bool = False
    """It answered the last query, whether or not the answer counts."""
    was_asked: bool = False
    is_primary: bool = False
    timeline: int = 0
    aliases: frozenset[str] = frozenset()
    has_joined: bool = True
    """It counts in derived marks. A later replica joins once it has reached the published positions."""


class ServerGroup:
    """The servers of one name.

    Args:
        settings: How the servers form a group.
        published: Offsets of its marks at the daemons.
        identity: Identity of the lineage of an earlier run; empty: none.
        now: Start time of this run.
    """

    def __init__(self, settings: GroupSettings, published: Mapping[str, int], identity: str, now: float) -> None:
        self._settings: Final = settings
        earlier = Timelines.of_identity(identity)
        self._is_other_system = earlier is not None and settings.system_id not in (None, earlier.system_id)
        self.lineage: Timelines | None = None if self._is_other_system else earlier
        self._servers: Final[dict[str, _Server]] = {}
        self._slots: Final[dict[str, int]] = {}
        self._invalidated_slots: Final[dict[str, StaleMark]] = {}
        self._derived: Final = {kind: Derived(published.get(kind, -1), _UNSEEN, now) for kind in DERIVED}
        self._held: Final[dict[str, ServerObservation]] = {}
        self._dirty: Final[set[str]] = set()
        self._set_back: Final[set[str]] = set()
        self._may_go_back: Final[set[str]] = set()
        """Derived marks that may move back because a replica moved back."""
        self._slots_seen_at = now
        self._is_split = False
        self._has_found = False
        self._highest_end = -1
        for name in settings.listed:
            self._servers[name] = _Server(name, True, published.get(name, -1), now)
        for mark, position in published.items():
            if mark.startswith(SLOT):
                self._slots[mark.removeprefix(SLOT)] = position
            elif mark not in DERIVED and mark not in self._servers:
                self._servers[mark] = _Server(mark, False, position, now)
        for server in self._servers.values():
            server.has_joined = not 0 <= server.position < self._derived[ALL].position
        # Publish all marks again so that they share one lineage, even if the last break was only partly published.
        self._dirty.update(published)

    # Observations.

    def observe(self, name: str, observation: ServerObservation, now: float) -> None:
        server = self._servers[name]
        server.was_asked = server.is_heard = True
        server.aliases = observation.aliases
        if self.lineage is None:
            self._held[name] = observation
            if not self._adopt(now):
                server.stale = "the primary has not answered yet, so the system is not known"
                return
        else:
            self._apply(server, observation, now)
        self._settle(now)

    def mark_stale(self, name: str, reason: str, now: float) -> None:
        """A listed server could not be polled."""
        server = self._servers[name]
        server.was_asked, server.is_heard = True, False
        server.stale = reason
        self._held.pop(name, None)
        if server.is_primary:
            for other in self._found_ones():
                other.stale = f"its primary {name} is not available: {reason}"
        if self.lineage is None:
            self._adopt(now)
        self._settle(now)

    def note_end(self, position: int) -> None:
        """The end of the log has been returned to a client as `position`."""
        self._highest_end = max(self._highest_end, position)

    @property
    def primary(self) -> str | None:
        """The server that is the primary now; None if no primary can be seen."""
        return next((one.name for one in self._servers.values() if one.is_primary and not one.stale), None)

    # Results.

    def drain_changes(self) -> list[Observation]:
        """The changes since the last call, with the marks (without "pg/NAME/") as topics."""
        identity = self.lineage.identity if self.lineage is not None else ""
        changes = []
        for mark in sorted(self._dirty):
            position = self._position(mark)
            if position is None or position >= 0:
                changes.append(Observation(mark, 0, position, identity, mark in self._set_back))
        self._dirty.clear()
        self._set_back.clear()
        return changes

    def stale_marks(self) -> list[StaleMark]:
        stale = [StaleMark(one.name, one.seen_at, one.stale) for one in self._servers.values() if one.stale]
        stale += [StaleMark(kind, one.seen_at, one.stale) for kind, one in self._derived.items() if one.stale]
        if self.primary is None:
            stale.append(StaleMark(SLOT, self._slots_seen_at, "its primary is not available", is_prefix=True))
        stale += self._invalidated_slots.values()
        return stale

    @property
    def is_complete(self) -> bool:
        """Each listed server was polled at least once, and the primary has listed its replicas."""
        return all(one.was_asked or not one.is_listed for one in self._servers.values()) and (
            self._has_found or not self._settings.finds_replicas
        )

    def _position(self, mark: str) -> int | None:
        if mark in self._derived:
            return self._derived[mark].position
        if mark.startswith(SLOT):
            return self._slots.get(mark.removeprefix(SLOT))
        server = self._servers.get(mark)
        return None if server is None else server.position

    # State changes.

    def _adopt(self, now: float) -> bool:
        """Choose the system: the configured one, or the primary's, or the one on which all answering servers agree."""
        held = [one for one in self._held.values() if self._settings.system_id in (None, one.system_id)]
        chosen = next((one for one in held if one.is_primary), None)
        if chosen is None:
            is_known = self._settings.system_id is not None or (
                all(one.was_asked for one in self._servers.values() if one.is_listed)
                and len({one.system_id for one in held}) == 1
            )
            if not (held and is_known):
                return False
            chosen = max(held, key=lambda one: one.timeline)
        self.lineage = Timelines(chosen.system_id, chosen.timeline)
        self.lineage.learn_forks(chosen.forks)
        if self._is_other_system:
            self._cut(0)
        for name, observation in self._held.items():
            self._apply(self._servers[name], observation, now)
        self._held.clear()
        return True

    def _apply(self, server: _Server, observation: ServerObservation, now: float) -> None:
        lineage = self.lineage
        assert lineage is not None, server
        other = lineage.other_system(observation.system_id)
        if other:
            server.stale = other
            server.is_heard = False  # it does not belong to this group, so it cannot be a rival primary
            return
        if observation.timeline > lineage.timeline:
            self._switch(lineage, server, observation)
        elif observation.timeline == lineage.timeline:
            lineage.learn_forks(observation.forks)
        # A demoted primary counts in derived marks only once it has caught up with them, so it does not lower them.
        if server.is_primary and not observation.is_primary:
            server.has_joined = False
        server.timeline, server.is_primary = observation.timeline, observation.is_primary
        self._look_for_rivals(lineage)
        if self._is_split:
            return
        shared = lineage.shared(observation.timeline, observation.position)
        is_old_primary = observation.is_primary and observation.timeline < lineage.timeline
        if is_old_primary or shared < observation.position:
            self._move(server, min(server.position, shared))
            server.stale = lineage.left_behind(observation.timeline)
            return
        self._move(server, shared)
        server.stale, server.seen_at = "", now
        if observation.is_primary:
            self._apply_primary(server, observation, now)

    def _switch(self, lineage: Timelines, server: _Server, observation: ServerObservation) -> None:
        """Handle a promotion: everything on the old timeline above the fork is lost."""
        seen = 0 if server.stale else max(server.position, 0)
        fork = lineage.switch(observation.timeline, observation.forks, seen)
        highest = max([self._highest_end, *(one.position for one in self._servers.values())])
        if self._settings.lossless_promotion and highest <= fork:
            return
        lineage.break_here()
        self._cut(fork)

    def _cut(self, fork: int) -> None:
        """Lower all positions to the fork and publish all marks in the new lineage."""
        self._highest_end = -1
        for server in self._servers.values():
            self._move(server, min(server.position, fork))
        for slot, position in self._slots.items():
            self._slots[slot] = min(position, fork)
        for kind, derived in self._derived.items():
            self._derived[kind] = derived._replace(position=min(derived.position, fork))
        self._dirty.update(self._servers, self._derived, (SLOT + slot for slot in self._slots))

    def _look_for_rivals(self, lineage: Timelines) -> None:
        """Detect two primaries that were promoted to the same timeline: their logs cannot be distinguished."""
        rivals = [
            one.name
            for one in self._servers.values()
            if one.is_heard and one.is_primary and one.timeline == lineage.timeline
        ]
        if len(rivals) > 1:
            self._is_split = True
            for server in self._servers.values():
                server.stale = f"{' and '.join(sorted(rivals))} are both primaries on timeline {lineage.timeline}"
        elif self._is_split:
            self._is_split = False
            lineage.break_here()
            self._cut(0)

    def _apply_primary(self, primary: _Server, observation: ServerObservation, now: float) -> None:
        if observation.slots is not None:
            for slot in self._slots.keys() - observation.slots.keys():
                del self._slots[slot]
                self._dirty.add(SLOT + slot)
            for slot in self._invalidated_slots.keys() - observation.invalidated_slots.keys():
                del self._invalidated_slots[slot]
            for slot, why in observation.invalidated_slots.items():
                # An invalidated slot keeps its last position, but its consumer can never confirm a higher one.
                reason = f"the slot is invalidated ({why}): drop it and create it again"
                self._invalidated_slots.setdefault(slot, StaleMark(SLOT + slot, self._slots_seen_at, reason))
            for slot, position in observation.slots.items():
                # After a crash of the primary, a consumer may receive again what it had confirmed. It still has it, so
                # the mark stays.
                if len(slot) <= _NAME_LENGTH_MAX and position > self._slots.get(slot, -1):
                    self._slots[slot] = position
                    self._dirty.add(SLOT + slot)
        self._slots_seen_at = now
        if observation.found is not None and self._settings.finds_replicas:
            self._has_found = True
            self._apply_replicas(primary, observation.found, now)

    def _apply_replicas(self, primary: _Server, rows: Iterable[FoundReplica], now: float) -> None:
        listed = {one.name for one in self._servers.values() if one.is_listed}
        known = listed.union(*(one.aliases for one in self._servers.values()))
        others = [row for row in rows if row.application_name not in known]
        counts = Counter(row.application_name for row in others)
        seen = set()
        for row in others:
            name = escaped_group(row.application_name or "walreceiver")
            if name in DERIVED or name.startswith(SLOT) or len(name) > _NAME_LENGTH_MAX:
                continue
            server = self._servers.get(name)
            if server is None:
                server = self._servers[name] = _Server(name, False, -1, now, has_joined=False)
            seen.add(name)
            if counts[row.application_name] > 1:
                server.stale = f"{counts[row.application_name]} replicas have this name; set their cluster_name"
                continue
            server.timeline, server.is_heard = primary.timeline, True
            self._move(server, row.position)
            server.stale, server.seen_at = "", now
        for server in self._found_ones():
            if server.name in seen:
                continue
            server.stale = f"it is not connected to its primary {primary.name}"
            if server.name in known or now - server.seen_at > self._settings.forget_after_s:
                del self._servers[server.name]
                self._dirty.add(server.name)

    def _found_ones(self) -> Sequence[_Server]:
        return [one for one in self._servers.values() if not one.is_listed]

    def _move(self, server: _Server, position: int) -> None:
        if position != server.position:
            if position < server.position:
                self._set_back.add(server.name)
                if server.has_joined and not server.is_primary:
                    self._may_go_back.update(DERIVED)
            server.position = position
            self._dirty.add(server.name)

    def _settle(self, now: float) -> None:
        """Recompute the derived marks."""
        joins_at = max(self._derived[ALL].position, self._derived[QUORUM].position)
        for server in self._servers.values():
            if not server.has_joined and server.position >= joins_at and not server.stale:
                server.has_joined = True
        replicas = [one for one in self._servers.values() if one.has_joined and not one.is_primary]
        # A listed server that this run has not seen may be the primary. It counts as a replica that has nothing.
        members = [
            CountedReplica(one.name, one.position if one.timeline or not one.is_listed else -1, one.seen_at, one.stale)
            for one in replicas
        ]
        last_known = [
            CountedReplica(one.name, one.position if one.position >= 0 else sys.maxsize, one.seen_at, one.stale)
            for one in replicas
        ]
        for kind, before in self._derived.items():
            after = derive(kind, members, self._settings.quorum)
            if kind != ANY and not self.is_complete:
                after = Derived(-1, after.stale or "its replicas are not known yet", after.seen_at)
            # Unless a replica moved back, a derived mark is lower only because a server changed its role or left. The
            # published value is still true of that server, so it is kept.
            if after.position < before.position and (after.position < 0 or kind not in self._may_go_back):
                after = after._replace(position=before.position)
                if kind in self._may_go_back:
                    # Not known until all are seen, but already no higher than their last known positions make it.
                    highest = derive(kind, last_known, self._settings.quorum).position
                    after = after._replace(position=min(before.position, highest) if highest >= 0 else before.position)
            elif after.position >= 0:
                self._may_go_back.discard(kind)
            after = after._replace(seen_at=min(before.seen_at, after.seen_at) if after.stale else now)
            if after.position < before.position:
                self._set_back.add(kind)
            if after.position != before.position:
                self._dirty.add(kind)
            self._derived[kind] = after
