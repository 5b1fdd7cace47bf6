"""Waits that require a heartbeat: what a restored engine, and signals that are refused, do to a silence."""

from functools import partial

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.engine.waiting.tables import Owner
from tests.scripts.engine_level import EngineLevel


def restored(level: EngineLevel) -> tuple[Engine, Owner]:
    """Another engine, 500 ms later, with operation 1 of the first one."""
    octets = level.engine.snapshots.save_above(level.engine_owner(), 0).to_bytes()
    other = Engine(EngineLimits(), 500)
    owner = other.add_owner()
    owner.highest_operation_id = 1
    assert other.restore(owner, SavedOperations.from_bytes(octets), b"", 500) == 1
    return other, owner


def test_silence_starts_again_with_a_restored_engine() -> None:
    """Nobody could signal while the daemon was down, so the wait gets its whole heartbeat timeout again; its deadline
    stays.
    """
    other, owner = restored(EngineLevel.played("await 1 job heartbeat_timeout_ms=100 timeout=1000", "pass 90"))
    assert other.perform(None, PassTime(10), 599).ended == 0
    view = other.inspection.describe(owner, 1)
    assert view is not None
    assert view.deadline_ms == 1_000
    assert other.perform(None, PassTime(10), 600).ended == 1
    (completions,) = other.take_completions()
    assert list(completions.error_codes) == [codes.HEARTBEAT_MISSED]


def test_stale_timeout_of_a_restored_wait_begins_again() -> None:
    other, _ = restored(EngineLevel.played("composite 1 orders-0@5 stale_timeout_ms=100 timeout=1000"))
    waits, stale = other.stale_waits, {("orders", 0): 1_000}
    assert waits.due(waits.slots(), stale, 599) == []
    assert len(waits.due(waits.slots(), stale, 600)) == 1


def test_refused_signals_of_an_account_keep_its_keys_alive() -> None:
    """The key of the account that signalled it last, and the wait whose key nobody has signalled; no other ones."""
    engine = Engine(EngineLimits(), 0)
    worker, other = AccountUsage(), AccountUsage()
    batch = partial(OperationBatch, timeouts_ms=[1_000], heartbeat_timeouts_ms=[100])
    engine.perform(engine.add_owner(worker), Register(codes.SIGNAL, batch([1], keys=["first"])), 0)
    owner = engine.add_owner(other)
    engine.perform(owner, Register(codes.SIGNAL, batch([1, 2], keys=["job", "third"], item_indexes=[0, 1])), 0)
    engine.perform(None, Apply(EventBatch([codes.KEY_SIGNALLED], keys=["job"], offsets=[0]), usage=worker), 10)
    engine.note_refused_events(worker, 90)
    assert engine.perform(None, PassTime(10), 100).ended == 1
    assert engine.perform(None, PassTime(10), 189).ended == 0
    assert engine.perform(None, PassTime(10), 190).ended == 2


def test_signal_refused_for_want_of_room_ends_the_silence() -> None:
    engine = Engine(EngineLimits(signal_values_bytes_max=1), 0)
    batch = OperationBatch([1], keys=["job"], timeouts_ms=[1_000], heartbeat_timeouts_ms=[100])
    engine.perform(engine.add_owner(), Register(codes.SIGNAL, batch), 0)
    signal = EventBatch([codes.KEY_SIGNALLED], keys=["job"], offsets=[1], values=[b"large"])
    assert [refusal.code for refusal in engine.perform(None, Apply(signal), 90).refusals] == [codes.RESOURCE_EXHAUSTED]
    assert engine.perform(None, PassTime(10), 189).ended == 0
    assert engine.perform(None, PassTime(10), 190).ended == 1
