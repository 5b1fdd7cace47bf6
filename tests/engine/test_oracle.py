"""The oracle against examples worked out by hand: whoever judges must be right first."""

import itertools
import random

import pytest

from tests.engine import plain
from tests.engine.oracle import Oracle
from tests.engine.oracle.partition import Partition
from tests.simulator import steps
from tests.simulator.generator import Generator

P = ("orders", 0)


def oracle_with(*events: plain.Event, now_ms: int = 0) -> Oracle:
    """An oracle with one owner to which these things have happened."""
    oracle = Oracle()
    oracle.add_owner(0)
    for event in events:
        assert oracle.apply(event, now_ms).refused is None, event
    return oracle


def append(offset: int, position: int = -1, segment: int = -1) -> plain.Event:
    """A leader append on P."""
    return plain.Event(plain.LEADER_APPEND, P, offset, position=position, segment=segment)


def in_sync(*members: int, proposed: tuple[int, ...] = (), min_in_sync: int = -1) -> plain.Event:
    """An in-sync event on P, led by 1."""
    return plain.Event(
        plain.IN_SYNC_REPLICAS, P, in_sync=members, proposed=proposed, leader_id=1, min_in_sync=min_in_sync
    )


def progress(replica_id: int, offset: int, log_start: int = -1) -> plain.Event:
    """A follower's fetch on P."""
    return plain.Event(plain.FOLLOWER_PROGRESS, P, offset, replica_id=replica_id, log_start=log_start)


def test_high_watermark_is_the_lowest_in_sync_end() -> None:
    """Case 47: 8 and 6 of 10 give 6; both 9 give 9; a follower that goes back does not take it back."""
    oracle = oracle_with(in_sync(1, 2, 3), append(10), progress(2, 8), progress(3, 6))
    partition = oracle.world.partitions[P]
    assert partition.high_watermark == 6
    oracle.apply(progress(2, 9), 0)
    oracle.apply(progress(3, 9), 0)
    assert partition.high_watermark == 9
    oracle.apply(progress(3, 7), 0)
    assert partition.high_watermark == 9


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(7, (7, 120)), (8, None), (4, (4, 90)), (5, (4, 90)), (3, (2, 50)), (1, (1, 0)), (-1, None)],
)
def test_end_of_epoch(epoch: int, answer: tuple[int, int] | None) -> None:
    """Case 57."""
    partition = Partition(P, 30_000)
    partition.log_end = 120
    partition.epochs = [(2, 0), (4, 50), (7, 90)]
    assert partition.end_of_epoch(epoch) == answer


def test_low_watermark_ignores_the_dead() -> None:
    """Case 56: 20 with b dead, 5 with b alive, -1 with c that never fetched."""
    oracle = oracle_with(
        append(30),
        plain.Event(plain.HIGH_WATERMARK, P, 30),
        plain.Event(plain.LOG_START_OFFSET, P, 20),
        progress(2, 30, 20),
        progress(3, 30, 5),
        plain.Event(plain.REPLICA_STATE, P, replica_id=3, flag=1),
    )
    partition = oracle.world.partitions[P]
    assert partition.low_watermark() == 20
    oracle.apply(plain.Event(plain.REPLICA_STATE, P, replica_id=3, flag=0), 0)
    assert partition.low_watermark() == 5
    oracle.apply(plain.Event(plain.REPLICA_STATE, P, replica_id=4, flag=0), 0)
    assert partition.low_watermark() == -1


def test_produce_ends_once_with_its_mark() -> None:
    """Case 59: the wait ends with the mark that it reached, and with the time it took."""
    oracle = oracle_with(in_sync(1, 2), append(10))
    oracle.register(0, [plain.Operation(plain.PRODUCE, 1, 100, (plain.Item(P, 11),))], 5)
    oracle.apply(append(11), 6)
    assert oracle.take_ended() == []
    oracle.apply(progress(2, 11), 7)
    (ended,) = oracle.take_ended()
    assert (ended.outcome, ended.waited_ms, ended.items[0].error, ended.items[0].reached) == (plain.SATISFIED, 2, 0, 11)
    assert oracle.counts(plain.PRODUCE) == plain.Counts(1, 0, 1, 0, 0, 0, 0)


def test_expired_wait_says_when_it_would_have_been() -> None:
    """From 10 to 20 of 25 in 100 ms: 5 more take 50 ms, at 100 a second."""
    oracle = oracle_with(append(30), plain.Event(plain.HIGH_WATERMARK, P, 10))
    oracle.register(0, [plain.Operation(plain.PRODUCE, 1, 100, (plain.Item(P, 25),))], 0)
    oracle.apply(plain.Event(plain.HIGH_WATERMARK, P, 20), 60)
    assert oracle.due(99) == {}
    assert oracle.due(100) == {(0, 1): 100}
    oracle.finish([(0, 1)], plain.EXPIRED, 100)
    (ended,) = oracle.take_ended()
    assert ended.items[0] == plain.EndedItem(P, 7, 25, 20, 0, 50, 100.0)


def test_fetch_counts_bytes_within_a_segment() -> None:
    """Cases 72 and 75: a share per partition, and an older segment ends the wait at once."""
    oracle = oracle_with(append(0, 0), append(10, 1_000), plain.Event(plain.HIGH_WATERMARK, P, 10))
    oracle.register(0, [plain.Operation(plain.FETCH, 1, 100, (plain.Item(P, 0, max_bytes=100),), min_bytes=150)], 0)
    assert len(oracle.pending) == 1
    oracle.apply(append(10, 0, 10), 0)
    (ended,) = oracle.take_ended()
    assert (ended.outcome, ended.items[0].available_bytes) == (plain.SATISFIED, 100)


@pytest.mark.parametrize("seed", range(30))
def test_oracle_survives_the_generator(seed: int) -> None:
    """Whatever the simulator draws, the oracle answers, and its counts add up."""
    generator = Generator(seed)
    swarm = generator.swarm
    oracle = Oracle(tick_ms=swarm.tick_ms, strict=swarm.strict, lag_max_ms=swarm.lag_max_ms)
    for owner in range(swarm.owners):
        oracle.add_owner(owner)
    now_ms = swarm.start_ms
    for step in itertools.islice(iter(generator.next_step, None), 300):
        assert step is not None
        if isinstance(step, steps.Register):
            oracle.register(step.owner, list(step.operations), now_ms)
        elif isinstance(step, steps.Apply):
            for event in step.events:
                oracle.apply(event, now_ms)
        elif isinstance(step, steps.Advance):
            now_ms += step.ms
            oracle.finish(list(oracle.due(now_ms)), plain.EXPIRED, now_ms)
        assert oracle.check_everything(now_ms) == 0
    for kind in plain.KINDS:
        counts = oracle.counts(kind)
        assert counts.registered == sum(counts[1:])


def test_generator_is_a_function_of_its_seed() -> None:
    """The same seed draws the same steps, another seed others."""
    seed = random.Random(3).randrange(1_000)
    first, again, other = Generator(seed), Generator(seed), Generator(seed + 1)
    drawn = [first.next_step() for _ in range(200)]
    assert drawn == [again.next_step() for _ in range(200)]
    assert drawn != [other.next_step() for _ in range(200)]
