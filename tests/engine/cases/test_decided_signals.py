"""Signals that the shard of their key has decided, at another shard: two engines, of which one decides."""

from itertools import permutations, product

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.registry import SignalKey
from purgatory.engine.marks.signals import DECIDED_FLAG, FAILED_FLAG

COUNTS = [1, 2, 3, 4]
SIGNALS = [(b"", False), (b"a", False), (b"b", False), (b"", True), (b"c", True)]
"""Value, and whether it failed."""

Ended = dict[int, tuple[int, bytes]]


def waiting_engine() -> Engine:
    """An engine with a wait for each count of the key. The count is its id."""
    engine = Engine(EngineLimits(), 0)
    batch = OperationBatch(
        list(COUNTS), keys=["job"], item_indexes=[0] * len(COUNTS), offsets=list(COUNTS), item_counts=[1]
    )
    engine.perform(engine.add_owner(), Register(codes.SIGNAL, batch), 0)
    return engine


def key_of(engine: Engine) -> SignalKey:
    key = engine.snapshots.keys.get("job")
    assert key is not None
    return key


def apply(engine: Engine, value: bytes, flags: int, value_at: int = 0, failed_at: int = 0) -> None:
    batch = EventBatch(
        [codes.KEY_SIGNALLED], keys=["job"], offsets=[1], values=[value], flags=[flags],
        segment_base_offsets=[value_at], log_start_offsets=[failed_at],
    )  # fmt: skip
    assert engine.perform(None, Apply(batch), 0).refusals == []
    engine.check()


def decided(engine: Engine) -> tuple[bytes, int, int, int]:
    """The arguments of `apply` for other shards, after a signal."""
    key = key_of(engine)
    return key.value, DECIDED_FLAG | (FAILED_FLAG if key.failed else 0), int(key.value_at), int(key.failed_at)


def ended(engine: Engine) -> Ended:
    """Outcome and value of each wait that has ended."""
    found: Ended = {}
    for batch in engine.take_completions():
        values = dict(batch.signal_values)
        for row in range(len(batch)):
            found[batch.operation_ids[row]] = batch.outcomes[row], values.get(row, b"")
    return found


def test_waits_end_alike_in_any_order_of_decided_signals() -> None:
    for signals in product(SIGNALS, repeat=3):
        owner = waiting_engine()
        decisions = []
        for value, failed in signals:
            apply(owner, value, FAILED_FLAG if failed else 0)
            decisions.append(decided(owner))
        expected = ended(owner)
        for order in permutations(decisions):
            other = waiting_engine()
            for decision in order:
                apply(other, *decision)
            assert ended(other) == expected, (signals, order)
            assert key_of(other).count == key_of(owner).count


def test_restored_key_that_failed_decides_as_before() -> None:
    for signals in product(SIGNALS, repeat=2):
        owner = waiting_engine()
        for value, failed in signals:
            apply(owner, value, FAILED_FLAG if failed else 0)
        key = key_of(owner)
        if not key.failed or key.value_at > key.failed_at:
            continue
        restored = Engine(EngineLimits(), 0)
        restored.snapshots.restore_key(*owner.snapshots.save_key("job")[:-1])
        found = []
        for engine in (owner, restored):
            other = waiting_engine()
            apply(other, *decided(engine))
            found.append(ended(other))
        assert found[0] == found[1], signals


@pytest.mark.parametrize("is_held", [False, True])
def test_key_that_its_shard_forgot_gets_the_new_value(is_held: bool) -> None:
    engine = waiting_engine() if is_held else Engine(EngineLimits(), 0)
    apply(engine, b"old", DECIDED_FLAG | (0 if is_held else FAILED_FLAG))
    before = engine.memory_bytes()
    apply(engine, b"newer", DECIDED_FLAG)
    assert (key_of(engine).value, key_of(engine).failed) == (b"newer", False)
    if not is_held:
        assert engine.memory_bytes() - before == len(b"newer") - len(b"old")
    batch = OperationBatch([9], keys=["job"], item_indexes=[0], offsets=[1])
    engine.perform(engine.add_owner(), Register(codes.SIGNAL, batch), 0)
    assert ended(engine)[9] == (codes.SATISFIED, b"newer")


def test_late_decision_wakes_nobody_twice() -> None:
    engine = waiting_engine()
    apply(engine, b"a", DECIDED_FLAG, value_at=2)
    assert ended(engine) == {1: (codes.SATISFIED, b""), 2: (codes.SATISFIED, b"")}
    apply(engine, b"a", DECIDED_FLAG, value_at=2)
    apply(engine, b"a", DECIDED_FLAG, value_at=2)
    assert ended(engine) == {3: (codes.SATISFIED, b"a")}
