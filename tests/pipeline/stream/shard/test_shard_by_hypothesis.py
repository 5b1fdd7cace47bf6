"""Small histories in which everything happens at once: few callers, ids, partitions and milliseconds."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine import plain
from tests.histories.plan import Step, apply, register
from tests.pipeline.stream.shard_drive import Drive
from tests.pipeline.stream.simulated_history import SimulatedHistory

NAMES = [("orders", 0), ("orders", 1)]
KEYS = [("k", -1), ("other", -1)]
OFFSETS = st.integers(-1, 4)
EPOCHS = st.sampled_from([-1, -1, 0, 1])
ERRORS = st.sampled_from([0, 0, 0, 9])
MINIMA = st.sampled_from([-1, 2])
REPLICAS = st.sets(st.integers(1, 3)).map(lambda ids: tuple(sorted(ids)))


@st.composite
def operations(draw: st.DrawFn) -> plain.Operation:
    """Any kind, of one or two partitions or keys."""
    kind = draw(st.sampled_from(plain.KINDS))
    names = draw(st.permutations(KEYS if kind == plain.SIGNAL else NAMES))[: draw(st.integers(1, 2))]
    if kind == plain.COMPOSITE:
        names = draw(st.lists(st.sampled_from(NAMES + KEYS), min_size=1, max_size=4))
    items = tuple(
        plain.Item(name, draw(OFFSETS), -1 if kind == plain.SIGNAL else draw(EPOCHS), draw(ERRORS)) for name in names
    )
    return plain.Operation(
        kind,
        draw(st.integers(1, 2)),
        draw(st.integers(-1, 4)),
        items,
        min_bytes=draw(st.integers(1, 3)),
        replica_id=draw(st.sampled_from([-1, 2])),
        any_key=draw(st.booleans()),
        from_now=draw(st.booleans()),
        required_terms=draw(st.integers(0, 2)),
        unless_count=draw(st.sampled_from([0, 0, 1])) if kind == plain.COMPOSITE else 0,
    )


@st.composite
def events(draw: st.DrawFn) -> plain.Event:
    """Any type of event; sets of replicas where they belong."""
    event_type = draw(st.integers(plain.LEADER_APPEND, plain.KEY_SIGNALLED))
    if event_type == plain.KEY_SIGNALLED:
        return plain.Event(event_type, draw(st.sampled_from(KEYS)), draw(st.integers(0, 2)))
    event = plain.Event(
        event_type,
        draw(st.sampled_from(NAMES)),
        draw(OFFSETS),
        draw(EPOCHS),
        replica_id=draw(st.integers(1, 3)),
        flag=draw(st.integers(0, 1)),
    )
    if event_type in (plain.IN_SYNC_REPLICAS, plain.LEADERSHIP):
        leads = event._replace(leader_id=draw(st.sampled_from([-1, 1])), offset=-1)
        if event_type == plain.LEADERSHIP:
            return leads._replace(replicas=draw(REPLICAS))
        return leads._replace(
            in_sync=draw(REPLICAS), proposed=draw(REPLICAS), min_in_sync=draw(st.sampled_from([-1, 2]))
        )
    return event


REGISTRATIONS = st.builds(register, st.just(0), st.tuples(operations()))
STEPS = st.lists(
    st.one_of(
        REGISTRATIONS,
        REGISTRATIONS,
        st.builds(apply, st.tuples(events())),
        st.integers(1, 2).map(lambda ms: Step(None, pass_ms=ms)),
    ),
    min_size=30,
    max_size=60,
)
"""Long ones: what they are to find takes a cut in one certain millisecond."""


@settings(max_examples=25)
@given(
    sequence=STEPS,
    seed=st.integers(0, 2**32 - 1),
    shards=st.sampled_from([1, 1, 3]),
    delay_ms=st.sampled_from([0, 1, 1, 2, 20]),
    strays=st.booleans(),
)
def test_outcomes_do_not_depend_on_how_rows_fell_into_batches(
    sequence: list[Step], seed: int, shards: int, delay_ms: int, strays: bool
) -> None:
    """The outcomes are the engine's, each once, for any order within the delay, any batches and any number of shards.
    Other rows are set aside and counted, and no operation stays pending.
    """
    history = SimulatedHistory(sequence)
    drive = Drive(history, random.Random(seed), shards=shards, delay_ms=delay_ms, strays=strays, batch_max=3)
    assert sorted(map(repr, drive.outcomes())) == sorted(map(repr, history.outcomes))
    assert (drive.late, drive.malformed) == (drive.strays_late, history.refused_events + drive.strays_malformed)
    assert not any(shard.pending for shard in drive.shards)
