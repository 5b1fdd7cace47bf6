"""Signals with a value and signals that say that something has failed, engine and oracle side by side."""

import pytest

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, OperationBatch, Refusal
from purgatory.engine.calls import Apply, Cancel, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX, EngineLimits
from purgatory.engine.memory_estimate import VALUE_BYTES
from tests.engine.world import World

FAILED = codes.SIGNAL_FAILED


def test_the_first_value_reaches_all_waits() -> None:
    """Waits before and after the signals get the value of the first signal that had one."""
    world = World()
    before = world.wait_signal({"job": 2})
    world.signal("job")
    world.signal("job", value=1)
    world.signal("job", value=2)
    after = world.wait_signal({"job": 3})
    assert (world.item(before).value, world.item(after).value) == (1, 1)


def test_value_comes_with_its_key_only() -> None:
    """A key that is reached has its value in the result; one that is not reached has none, even if it has a value."""
    world = World()
    world.signal("b", value=2)
    handle = world.wait_signal({"a": 1, "b": 5})
    world.signal("a", value=1)
    assert world.wait(1_000) == 1
    assert [item.value for item in world.result(handle).items] == [1, 0]


def test_failed_key_fails_the_wait() -> None:
    """A wait for all keys fails with the first that fails, with the value as the reason; so does a later wait."""
    world = World()
    handle = world.wait_signal({"a": 1, "b": 3})
    assert world.signal("b", value=7, failed=True).ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [7, FAILED])
    assert (world.item(handle, "b").value, world.item(handle, "b").reached) == (7, 1)
    late = world.wait_signal({"b": 1})
    assert (world.outcome(late), world.item(late).error, world.item(late).value) == ("failed", FAILED, 7)
    world.assert_empty()


def test_reached_wait_does_not_fail_afterwards() -> None:
    """A key that was reached before it fails stays resolved in a wait that still needs other keys."""
    world = World()
    handle = world.wait_signal({"a": 1, "b": 1})
    world.signal("a")
    assert world.signal("a", failed=True).ended == 0
    assert world.signal("b").ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0, 0])


def test_any_fails_with_its_last_key() -> None:
    """With `any`, a failed key only removes one way to be satisfied; the result has its code."""
    world = World()
    handles = [world.wait_signal({"a": 1, "b": 1}, any_key=True) for _ in range(2)]
    assert world.signal("a", failed=True).ended == 0
    assert world.outcome(world.wait_signal({"a": 1}, any_key=True)) == "failed"
    other = world.wait_signal({"a": 1, "c": 1}, any_key=True)
    assert world.signal("c").ended == 1
    assert (world.outcome(other), world.errors(other)) == ("satisfied", [FAILED, 0])
    assert world.signal("b", failed=True).ended == 2
    for handle in handles:
        assert (world.outcome(handle), world.errors(handle)) == ("failed", [FAILED, FAILED])
    world.assert_empty()


def signal(engine: Engine, key: str, value: bytes = b"", count: int = 1, *, is_full: bool = False) -> Refusal | None:
    """Signal a key; returns the refusal, if any."""
    batch = EventBatch([codes.KEY_SIGNALLED], keys=[key], offsets=[count], values=[value])
    refusals = engine.perform(None, Apply(batch, is_full=is_full), 0).refusals
    return refusals[0] if refusals else None


def known(engine: Engine) -> list[str]:
    return [key for key, *_ in engine.snapshots.save_keys()]


def test_value_has_a_maximum_length() -> None:
    """4,096 bytes are accepted, one more is refused, and so is a heartbeat with a value."""
    engine = Engine(EngineLimits(), 0)
    assert signal(engine, "job", b"x" * SIGNAL_VALUE_BYTES_MAX) is None
    refusal = signal(engine, "job", b"x" * (SIGNAL_VALUE_BYTES_MAX + 1))
    assert refusal is not None
    assert (refusal.code, refusal.field) == (codes.INVALID_ARGUMENT, "key_signalled.value")
    assert refusal.message == "has 4097 bytes; at most 4096 are allowed"
    refusal = signal(engine, "job", b"x", 0)
    assert refusal is not None
    assert (refusal.code, refusal.field) == (codes.INVALID_ARGUMENT, "key_signalled.count")


def test_idle_keys_make_room_for_values() -> None:
    """Beyond the limit of all values, the idle keys with a value whose last signal is oldest are forgotten. Keys
    without a value and keys with waits never are. If no others have values, the value is refused and nothing changes.
    """
    engine = Engine(EngineLimits(signal_values_bytes_max=10), 0)
    assert signal(engine, "plain") is None
    for key in ("held", "a", "b"):
        assert signal(engine, key, b"123") is None
    batch = OperationBatch([1], keys=["held"], item_indexes=[0], offsets=[5])
    engine.perform(engine.add_owner(), Register(codes.SIGNAL, batch), 0)
    assert signal(engine, "c", b"1234") is None
    assert known(engine) == ["plain", "b", "c", "held"]
    refusal = signal(engine, "d", b"12345678")
    assert refusal is not None
    assert (refusal.code, refusal.field) == (codes.RESOURCE_EXHAUSTED, "key_signalled.value")
    assert known(engine) == ["plain", "b", "c", "held"]
    assert signal(engine, "d", b"1234567") is None
    assert known(engine) == ["plain", "d", "held"]
    engine.check()


def test_order_in_which_values_are_forgotten() -> None:
    """A further signal, a heartbeat and the end of the last wait each move a key to the end of the order."""
    engine = Engine(EngineLimits(signal_values_bytes_max=12), 0)
    for key in ("a", "b", "c", "d"):
        assert signal(engine, key, b"123") is None
    owner = engine.add_owner()
    engine.perform(owner, Register(codes.SIGNAL, OperationBatch([1], keys=["a"], item_indexes=[0], offsets=[5])), 0)
    assert signal(engine, "b") is None
    assert signal(engine, "c", count=0) is None
    assert engine.perform(owner, Cancel([1]), 0).were_pending == [True]
    for key, left in (("e", ["b", "c", "a", "e"]), ("f", ["c", "a", "e", "f"]), ("g", ["a", "e", "f", "g"])):
        assert signal(engine, key, b"123") is None
        assert known(engine) == left
        engine.check()


def test_limit_of_values_has_no_upper_bound() -> None:
    """As for the other limits, a number beyond 64 bits means no limit."""
    engine = Engine(EngineLimits(signal_values_bytes_max=10**30), 0)
    assert signal(engine, "job", b"123") is None


def test_memory_counts_values() -> None:
    """The estimate rises by a value, also for the account that waits on the key, and falls when the key is forgotten.
    While memory is short, a value is refused, and a signal of a known key is not.
    """
    engine = Engine(EngineLimits(signal_keys_max=2), 0)
    owner = engine.add_owner(AccountUsage())
    engine.perform(owner, Register(codes.SIGNAL, OperationBatch([1], keys=["a"], item_indexes=[0], offsets=[2])), 0)
    before, used = engine.memory_bytes(), int(owner.usage.name_bytes)
    assert signal(engine, "a", b"x" * 1_000, is_full=True) is not None
    assert signal(engine, "a", is_full=True) is None
    assert signal(engine, "b", b"x" * 1_000) is None
    with_b = engine.memory_bytes()
    assert with_b - before >= 1_000
    assert signal(engine, "c") is None
    assert with_b - engine.memory_bytes() == 1_000 + VALUE_BYTES, "b was forgotten for c"
    engine.perform(owner, Register(codes.SIGNAL, OperationBatch([2], keys=["a"], item_indexes=[0], offsets=[3])), 0)
    assert owner.usage.name_bytes == used
    assert signal(engine, "a", b"x" * 1_000) is None
    assert owner.usage.name_bytes == used + 1_000 + VALUE_BYTES, "one wait is left"
    assert signal(engine, "a") is None
    assert owner.usage.name_bytes == 0


@pytest.mark.parametrize("timeout_ms", [0, 1_000])
def test_failed_wait_is_counted_as_failed(timeout_ms: int) -> None:
    """The counts of the kind have it, whether it waited or not."""
    world = World()
    handle = world.wait_signal({"a": 1}, timeout_ms=1_000)
    world.signal("a", failed=True)
    late = world.wait_signal({"a": 1}, timeout_ms=timeout_ms)
    assert [world.outcome(one) for one in (handle, late)] == ["failed", "failed"]
    assert world.engine.inspection.counts(codes.SIGNAL).failed == 2


def test_composites_have_values_and_lose_failed_keys() -> None:
    """A term on a failed key is lost: the wait goes on while it can spare it. Terms have the values of their keys."""
    world = World()
    spare = world.composite(("a", 1), ("b", 1), required_terms=1)
    both = world.composite(("a", 1), ("orders-0", 1))
    assert world.signal("a", value=3, failed=True).ended == 1
    assert (world.outcome(both), world.errors(both), world.item(both, "a").value) == ("failed", [FAILED, 7], 3)
    assert world.signal("b", value=4).ended == 1
    assert (world.outcome(spare), world.errors(spare)) == ("satisfied", [FAILED, 0])
    assert [item.value for item in world.result(spare).items] == [3, 4]
    assert world.outcome(world.composite(("a", 1), ("orders-0", 1))) == "failed"
    world.assert_empty()


def test_key_that_fails_again_is_a_further_signal() -> None:
    """It evaluates only the failure arms whose count is reached; the first time, all terms on the key are evaluated."""
    world = World()
    handles = [world.composite(("orders-0", 1), unless=[("bad", count)]) for count in (2, 9, 9, 9)]
    evaluated = []
    for _ in range(3):
        before = world.engine.inspection.counts(codes.COMPOSITE).evaluations
        world.signal("bad", failed=True)
        evaluated.append(world.engine.inspection.counts(codes.COMPOSITE).evaluations - before)
    assert evaluated == [4, 1, 0]
    assert [world.outcome(handle) for handle in handles] == ["failed", "pending", "pending", "pending"]
    assert world.cancel_on(("bad", -1)) == 3
    world.assert_empty()


def test_failure_arm_counts_failed_signals_like_others() -> None:
    """The failure arm asks whether a key was signalled often enough; its value is in the result."""
    world = World()
    handle = world.composite(("orders-0", 1), unless=[("bad", 2)])
    assert world.signal("bad", value=5, failed=True).ended == 0
    assert world.signal("bad").ended == 1
    assert (world.errors(handle), world.item(handle, "bad").value) == ([7, 1002], 5)
