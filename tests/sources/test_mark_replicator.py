"""Mark replication over random histories in a model world; mark_scripts/daemon.txt has single cases."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
