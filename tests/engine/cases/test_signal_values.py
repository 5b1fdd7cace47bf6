"""Signals with a value and signals that say that something has failed, engine and oracle side by side."""

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, OperationBatch, Refusal
from purgatory.engine.calls import Apply, Cancel, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX, EngineLimits
from purgatory.engine.memory_estimate import VALUE_BYTES

FAILED = codes.SIGNAL_FAILED


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
