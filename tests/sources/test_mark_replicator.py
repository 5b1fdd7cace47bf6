"""Mark replication over random histories in a model world; mark_scripts/daemon.txt has single cases.

In the world marks move and break, sources read late, and daemons lose state. Every offset is used once per mark, so
that a published value identifies the lineage in which it was seen.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from purgatory_client.events import Event
from purgatory_connectors.publisher.mark_lineage import LineageStore, MarkLineage
from purgatory_connectors.publisher.mark_replicator import SETTLE_S, DaemonMark, MarkReplicator
from purgatory_connectors.publisher.observation import MarkName, Observation

from purgatory.v1 import event_pb2 as wire

STALE_EPOCH = 74
LAG_MAX_S = SETTLE_S / 2


@dataclass(frozen=True)
class Fact:
    """The mark has this value from `time` on."""

    time: float
    lineage: int
    offset: int | None


@dataclass
class ToldDaemon:
    """A model daemon: applies a source's events and stores every value of each epoch."""

    marks: dict[MarkName, DaemonMark] = field(default_factory=dict)
    told: dict[tuple[int, MarkName, int], set[int]] = field(default_factory=dict)
    lowered: list[MarkName] = field(default_factory=list)
    life: int = 0

    def apply(self, event: Event) -> int:
        """Apply an event. Returns the error code: 0 or 74."""
        assert event.name is not None
        name, mark = event.name, self.marks.get(event.name)
        if event.type == wire.EVENT_TYPE_PARTITION_REMOVED:
            if mark is not None and event.leader_epoch < mark.epoch:
                return STALE_EPOCH
            if self.marks.pop(name, None) is not None:
                self.life += 1
            return 0
        mark = mark or DaemonMark(-1, -1)
        if event.leader_epoch < mark.epoch:
            return STALE_EPOCH
        offset = mark.offset
        if event.type == wire.EVENT_TYPE_TRUNCATION:
            if event.offset < offset and event.leader_epoch == mark.epoch:
                self.lowered.append(name)
            offset = min(offset, event.offset)
        elif event.type == wire.EVENT_TYPE_HIGH_WATERMARK:
            self.told.setdefault((self.life, name, event.leader_epoch), set()).add(event.offset)
            offset = max(offset, event.offset)
        self.marks[name] = DaemonMark(event.leader_epoch, offset)
        return 0

    def restart(self, *, keeps_journal: bool) -> None:
        if not keeps_journal:
            self.marks.clear()
            self.life += 1


class ModelSource:
    """A source that reads each mark's facts in order, up to LAG_MAX_S late."""

    def __init__(self, world: "LineageWorld", lineages: dict[MarkName, MarkLineage] | None = None) -> None:
        self.world = world
        self.replicator = MarkReplicator(lineages, world.now)
        self.links = [self.replicator.daemon() for _ in world.daemons]
        self.handed_over: dict[MarkName, list[Fact]] = {name: [] for name in world.facts}
        self.read_to = {name: max(len(facts) - 1, 0) for name, facts in world.facts.items()}
        for index in range(len(self.links)):
            self.connect(index)

    def connect(self, index: int) -> None:
        self.replicator.on_daemon_marks(self.links[index], self.world.daemons[index].marks, self.world.now)

    def read(self, name: MarkName, count: int) -> None:
        facts = self.world.facts[name]
        start = self.read_to[name]
        for place in range(start, min(start + count, len(facts))):
            before = facts[place - 1] if place else None
            self.replicator.observe([self.world.seen(name, facts[place], before)])
            self.handed_over[name].append(facts[place])
            self.read_to[name] = place + 1

    def read_again(self, name: MarkName, place: int) -> None:
        """Deliver an older reading, but only if identities or offsets show that it is older."""
        facts = self.handed_over[name]
        if facts:
            old = facts[place % len(facts)]
            if old.offset is not None and (self.world.has_identities(name) or old.lineage == facts[-1].lineage):
                self.replicator.observe([self.world.seen(name, old, None)])

    def exchange(self, index: int, *, is_lost: bool = False, is_cut: bool = False) -> bool:
        """Exchange one batch and its receipt, after the requested read-backs. False: nothing was due."""
        link, daemon, now = self.links[index], self.world.daemons[index], self.world.now
        wanted = list(link.to_look_at)
        for name in wanted:
            self.replicator.on_daemon_mark(link, name, daemon.marks.get(name), now)
        batch = self.replicator.next_batch(link, now)
        codes = [] if is_lost else [daemon.apply(event) for _, event in batch]
        if is_lost or is_cut:
            self.connect(index)
            return True
        for (name, _), code in zip(batch, codes, strict=True):
            if code:
                self.replicator.refused(link, name, now, is_stale=code == STALE_EPOCH)
        return bool(wanted or batch or link.to_look_at)


class LineageWorld:
    """The whole world. Names with an even number have identities; for the others, offsets decide."""

    def __init__(self, names: int, daemons: int, sources: int) -> None:
        self.now = 1_000.0
        self.facts: dict[MarkName, list[Fact]] = {("t/x", number): [] for number in range(names)}
        self.daemons = [ToldDaemon() for _ in range(daemons)]
        self.sources = [ModelSource(self) for _ in range(sources)]
        self.used: dict[MarkName, set[int]] = {name: set() for name in self.facts}
        self.undecidable: set[MarkName] = set()
        """Marks with a break that no source can detect: unread in between, the mark fell and passed its old value."""

    @staticmethod
    def has_identities(name: MarkName) -> bool:
        return name[1] % 2 == 0

    def seen(self, name: MarkName, fact: Fact, before: Fact | None) -> Observation:
        if self.has_identities(name):
            return Observation(
                *name, fact.offset, identity=f"lineage {fact.lineage}" if fact.offset is not None else ""
            )
        is_break = before is not None and before.lineage != fact.lineage
        return Observation(*name, fact.offset, is_set_back_to=is_break)

    def move(self, name: MarkName, offset: int | None, *, is_break: bool) -> None:
        facts = self.facts[name]
        last = facts[-1] if facts else Fact(0, 0, None)
        at = max((fact.offset or 0 for fact in facts if fact.lineage == last.lineage), default=0)
        if offset is None:
            if last.offset is not None:
                facts.append(Fact(self.now, last.lineage + 1, None))
            return
        is_break = is_break or last.offset is None
        wanted = offset if is_break else at + offset
        if is_break and not self.has_identities(name) and last.offset is not None:
            wanted = min(wanted, last.offset - 1)
        while wanted in self.used[name]:
            wanted += -1 if is_break and not self.has_identities(name) else 1
        if wanted < 0:
            return
        self.used[name].add(wanted)
        facts.append(Fact(self.now, last.lineage + (1 if is_break and last.offset is not None else 0), wanted))

    def restart(self, index: int) -> None:
        old, store = self.sources[index], LineageStore(None)
        lineages = {name: old.replicator.lineage(name) for name in self.facts}
        store.keep((name, lineage) for name, lineage in lineages.items() if lineage is not None)
        for name, facts in self.facts.items():
            lineage = lineages[name]
            missed = facts[max(old.read_to[name] - 1, 0) :]
            # A source that has read nothing has no identity to compare with: the daemon has its mark from another one.
            has_identity = lineage is not None and lineage.identity != ""
            if any(a.lineage != b.lineage for a, b in pairwise(missed)) and not (
                has_identity and all(fact.offset is not None for fact in missed)
            ):
                self.undecidable.add(name)
        self.sources[index] = ModelSource(self, store.load())
        store.close()
        self.sources[index].handed_over = old.handed_over

    def pass_time(self, seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, LAG_MAX_S / 2)
            seconds -= step
            self.now += step
            for source in self.sources:
                for name, facts in self.facts.items():
                    overdue = [fact for fact in facts[source.read_to[name] :] if fact.time < self.now - LAG_MAX_S]
                    source.read(name, len(overdue))
                source.replicator.tick(self.now)

    def settle(self) -> None:
        """Let every source read and publish everything."""
        for source in self.sources:
            for name in self.facts:
                source.read(name, 1_000_000)
        for _ in range(40):
            self.pass_time(SETTLE_S / 2)
            for index in range(len(self.daemons)):
                for source in self.sources:
                    while source.exchange(index):
                        pass

    def lineages_told(self) -> dict[tuple[int, int, MarkName, int], set[int]]:
        """The lineages whose values each daemon received, by daemon, its restarts, mark and epoch."""
        of_value = {(name, fact.offset): fact.lineage for name, facts in self.facts.items() for fact in facts}
        return {
            (index, *key): {of_value[key[1], value] for value in values}
            for index, daemon in enumerate(self.daemons)
            for key, values in daemon.told.items()
        }


NAMES = 3
SMALL = st.integers(0, 7)
STEPS = st.one_of(
    st.tuples(st.just("advance"), SMALL, st.integers(1, 40)),
    st.tuples(st.just("break"), SMALL, st.integers(0, 300)),
    st.tuples(st.just("gone"), SMALL, st.just(0)),
    st.tuples(st.just("read"), SMALL, st.integers(0, 20)),
    st.tuples(st.just("read again"), SMALL, st.integers(0, 20)),
    st.tuples(st.just("exchange"), SMALL, SMALL),
    st.tuples(st.just("lost"), SMALL, SMALL),
    st.tuples(st.just("cut"), SMALL, SMALL),
    st.tuples(st.just("source restarts"), SMALL, st.just(0)),
    st.tuples(st.just("daemon restarts"), SMALL, st.integers(0, 1)),
    st.tuples(st.just("time"), st.just(0), st.integers(1, 30)),
)


def run(world: LineageWorld, steps: list[tuple[str, int, int]]) -> None:
    for what, which, number in steps:
        name = ("t/x", which % NAMES)
        source: ModelSource = world.sources[which % len(world.sources)]
        daemon = number % len(world.daemons)
        if what in {"advance", "break"}:
            world.move(name, number, is_break=what == "break")
        elif what == "gone":
            world.move(name, None, is_break=True)
        elif what == "read":
            source.read(("t/x", number % NAMES), 1 + number // NAMES)
        elif what == "read again":
            source.read_again(name, number)
        elif what in {"exchange", "lost", "cut"}:
            source.exchange(daemon, is_lost=what == "lost", is_cut=what == "cut")
        elif what == "source restarts":
            world.restart(which % len(world.sources))
        elif what == "daemon restarts":
            world.daemons[which % len(world.daemons)].restart(keeps_journal=number == 1)
            for each in world.sources:
                each.connect(which % len(world.daemons))
        else:
            world.pass_time(number / 20)


@pytest.mark.parametrize(("daemons", "sources"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=60))
def test_no_mark_beyond_its_lineage_and_the_last_value_arrives(
    daemons: int, sources: int, steps: list[tuple[str, int, int]]
) -> None:
    """With moves, breaks, late readings, lost batches and restarts, an epoch never has values of two lineages, a single
    source lowers no mark after its epoch has begun, and every daemon ends with the current values in the same epoch.
    """
    world = LineageWorld(NAMES, daemons, sources)
    run(world, steps)
    world.settle()
    mixed = {key: of for key, of in world.lineages_told().items() if len(of) > 1 and key[2] not in world.undecidable}
    assert not mixed
    if sources == 1:
        assert not any(daemon.lowered for daemon in world.daemons)
    for name, facts in world.facts.items():
        found = [daemon.marks.get(name) for daemon in world.daemons]
        if not facts or facts[-1].offset is None:
            assert found == [None] * daemons
        else:
            assert [mark and mark.offset for mark in found] == [facts[-1].offset] * daemons
            assert len({mark.epoch for mark in found if mark}) == 1
