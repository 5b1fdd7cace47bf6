"""Mark replication: over random histories in a model world, and in single cases."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from purgatory_connectors.publisher.mark_replicator import SETTLE_S
from purgatory_connectors.publisher.observation import StaleMarks

from tests.sources.lineage_world import LineageWorld, ModelSource

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
    source lowers no mark without a break, and every daemon ends with the current values in the same epoch.
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


def test_settling_takes_no_longer_than_it_must() -> None:
    """A restarted source publishes a value that is not below the daemon's at once. It publishes a lower one after the
    settling time, as a break.
    """
    world = LineageWorld(1, 1, 1)
    name = ("t/x", 0)
    world.move(name, 50, is_break=False)
    world.sources[0].read(name, 1)
    world.sources[0].exchange(0)
    assert world.daemons[0].marks[name] == (0, 50, True)
    world.restart(0)
    world.move(name, 10, is_break=False)
    world.sources[0].read(name, 2)
    world.sources[0].exchange(0)
    assert world.daemons[0].marks[name] == (0, 60, True)
    world.restart(0)
    world.facts[name][-1] = world.facts[name][0]
    world.sources[0].read(name, 1)
    world.sources[0].exchange(0)
    assert world.daemons[0].marks[name] == (0, 60, True)
    world.pass_time(SETTLE_S * 1.1)
    while world.sources[0].exchange(0):
        pass
    assert world.daemons[0].marks[name] == (1, 50, True)


def test_a_late_source_does_not_answer_by_the_lineage_that_another_has_ended() -> None:
    """One of two sources publishes a break that the other has not read yet. The late source's readings of the old
    lineage are refused and not published under the new epoch. Its newest value is published once it must be newer.
    """
    world = LineageWorld(2, 1, 2)
    early, late = world.sources
    for name in world.facts:
        world.move(name, 50, is_break=False)
        early.read(name, 1)
        late.read(name, 1)
    early.exchange(0)
    late.exchange(0)
    for name in world.facts:
        world.move(name, 10, is_break=False)  # the old lineage: 60
        world.move(name, 20, is_break=True)
        early.read(name, 2)
    while early.exchange(0):
        pass
    assert {mark[:2] for mark in world.daemons[0].marks.values()} == {(1, 20)}
    for name in world.facts:
        late.read(name, 1)
    for _ in range(5):
        late.exchange(0)
    assert {mark[:2] for mark in world.daemons[0].marks.values()} == {(1, 20)}
    world.sources.remove(early)
    for name in world.facts:
        world.move(name, 7, is_break=False)
    world.settle()
    assert {mark[:2] for mark in world.daemons[0].marks.values()} == {(1, 27)}
    assert all(len(lineages) == 1 for lineages in world.lineages_told().values())


def test_nothing_unsettled_is_told_while_the_source_is_stale() -> None:
    """While a source is stale, time does not settle its readings; the settling time starts once it sees again."""
    world = LineageWorld(1, 1, 1)
    name = ("t/x", 0)
    source, daemon = world.sources[0], world.daemons[0]
    world.move(name, 50, is_break=False)
    source.read(name, 1)
    source.exchange(0)
    daemon.marks[name] = daemon.marks[name]._replace(epoch=3, offset=40)  # published by another client
    source.connect(0)
    source.replicator.set_health(world.now, sees=False)
    world.pass_time(SETTLE_S * 20)
    assert not source.exchange(0)
    source.replicator.set_health(world.now, sees=True)
    assert not source.exchange(0)
    world.pass_time(SETTLE_S * 1.1)
    while source.exchange(0):
        pass
    assert daemon.marks[name][:2] == (3, 50)


def test_stale_for_some_marks_leaves_the_others_to_settle() -> None:
    """If a source names its stale marks, the others are settled; if it is stale without naming any, none are."""
    world = LineageWorld(2, 1, 1)
    source, daemon = world.sources[0], world.daemons[0]
    names = [("t/x", 0), ("t/x", 1)]
    for name in names:
        world.move(name, 10, is_break=False)
        source.read(name, 1)
    while source.exchange(0):
        pass
    for name in names:
        daemon.marks[name] = daemon.marks[name]._replace(epoch=daemon.marks[name].epoch + 1, offset=5)
    source.connect(0)
    source.replicator.set_health(world.now, sees=False, stale=[StaleMarks("t/x", exact=True, partitions=[1])])
    world.pass_time(SETTLE_S * 1.1)
    while source.exchange(0):
        pass
    assert [daemon.marks[name].offset for name in names] == [10, 5]
    source.replicator.set_health(world.now, sees=False)
    world.pass_time(SETTLE_S * 20)
    assert not source.exchange(0)
    assert daemon.marks[names[1]].offset == 5
