"""Composites of few names against the oracle: arms and terms that meet at the same instant, lost and stale terms."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine import plain
from tests.engine.pair import Pair
from tests.simulator import steps
from tests.simulator.simulation import Owners
from tests.simulator.steps import Step
from tests.simulator.swarm import Swarm

PARTITIONS = [("orders", 0), ("orders", 1)]
KEYS = [("job", -1), ("job/failed", -1)]
TERMS = st.one_of(
    st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 6)), st.tuples(st.sampled_from(KEYS), st.integers(1, 4))
).map(lambda drawn: plain.Item(*drawn))
MARKS = [plain.LEADER_APPEND, plain.HIGH_WATERMARK, plain.HIGH_WATERMARK, plain.HIGH_WATERMARK, plain.TRUNCATION]
CHANGES = [plain.PARTITION_REMOVED, plain.STORAGE_FAILED, plain.STORAGE_ONLINE]
EVENTS = st.one_of(
    st.tuples(st.sampled_from(MARKS), st.sampled_from(PARTITIONS), st.integers(0, 7)),
    st.tuples(st.just(plain.KEY_SIGNALLED), st.sampled_from(KEYS), st.integers(1, 3)),
    st.tuples(st.sampled_from(CHANGES), st.sampled_from(PARTITIONS)),
    st.tuples(st.just(plain.LEADERSHIP), st.sampled_from(PARTITIONS), st.just(-1), st.integers(0, 2)),
).flatmap(lambda drawn: st.sampled_from([plain.Event(*drawn), plain.Event(*drawn)._replace(flag=1)]))


@st.composite
def operations(draw: st.DrawFn) -> plain.Operation:
    """A composite; its id is given when it is registered. A few cannot be accepted."""
    items = tuple(draw(st.lists(TERMS, min_size=1, max_size=6)))
    unless_count = draw(st.integers(0, max(0, len(items) - 1)))
    return plain.Operation(
        plain.COMPOSITE,
        1,
        draw(st.sampled_from([0, 3, 20, 20, 20])),
        items,
        stale_timeout_ms=draw(st.sampled_from([-1, -1, 0, 4])),
        required_terms=draw(st.integers(0, len(items) - unless_count + 1)),
        unless_count=unless_count,
    )


STEPS = st.lists(
    st.one_of(
        st.lists(operations(), min_size=1, max_size=3).map(lambda drawn: steps.Register(0, tuple(drawn))),
        st.lists(EVENTS, min_size=1, max_size=3).map(lambda drawn: steps.Apply(tuple(drawn), 100)),
        st.integers(0, 5).map(steps.Advance),
        st.sampled_from(PARTITIONS + KEYS).map(steps.CancelName),
        st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 6)).map(
            lambda drawn: steps.FailStale(tuple(drawn.items()))
        ),
    ),
    min_size=5,
    max_size=30,
)


def numbered(sequence: list[Step]) -> list[Step]:
    """The steps with ascending operation ids."""
    ids = itertools.count(1)
    return [
        step._replace(operations=tuple(one._replace(operation_id=next(ids)) for one in step.operations))
        if isinstance(step, steps.Register)
        else step
        for step in sequence
    ]


@settings(max_examples=200, deadline=None)
@given(sequence=STEPS, strict=st.booleans())
def test_composites_end_as_in_the_oracle(sequence: list[Step], strict: bool) -> None:
    """After any steps, who ended, how, and with which codes, marks and paces is what the oracle says."""
    pair = Pair(plain.Settings(strict=strict))
    swarm = Swarm(random.Random(0))
    swarm.owners = 1
    owners = Owners(swarm, pair)
    for step in numbered(sequence):
        owners.take(step)
        pair.compare_everything()
    pair.heal()
