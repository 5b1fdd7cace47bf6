"""Waits that require a heartbeat, and extended deadlines, engine and oracle side by side."""

from functools import partial

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.saved_operations import SavedOperations
from tests.engine.world import World

MISSED = codes.HEARTBEAT_MISSED


def test_silence_fails_the_wait() -> None:
    """A wait fails as soon as its key has been silent for the timeout since the registration; not a moment earlier."""
    world = World()
    handle = world.wait_signal({"job": 1}, heartbeat_timeout_ms=100)
    assert world.wait(99) == 0
    assert world.wait(1) == 1
    assert (world.outcome(handle), world.item(handle).error) == ("failed", MISSED)
    assert (world.result(handle).waited_ms, world.result(handle).lateness_ms) == (100, 0)
    world.assert_empty()


def test_heartbeats_keep_it_alive() -> None:
    """Heartbeats and signals of the key both end a silence; a heartbeat does not count."""
    world = World()
    handle = world.wait_signal({"job": 3}, heartbeat_timeout_ms=100)
    for beat in (world.heartbeat, world.signal, world.heartbeat, world.signal):
        assert world.wait(99) == 0
        assert beat("job").ended == 0
    assert world.wait(99) == 0
    assert world.wait(1) == 1
    assert (world.item(handle).reached, world.item(handle).error) == (2, MISSED)


def test_each_unresolved_key_must_beat() -> None:
    """A key that is reached may be silent; of the others, the silent one has the code."""
    world = World()
    handle = world.wait_signal({"a": 1, "b": 2, "c": 1}, heartbeat_timeout_ms=100)
    world.signal("a")
    world.wait(60)
    world.heartbeat("b")
    assert world.wait(40) == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [0, 7, MISSED])


def test_deadline_is_not_delayed_by_heartbeats() -> None:
    """A wait with heartbeats expires at its deadline; a late reaper goes by what was over first."""
    world = World()
    handle = world.wait_signal({"job": 1}, timeout_ms=150, heartbeat_timeout_ms=100)
    world.wait(60)
    world.heartbeat("job")
    assert world.wait(90) == 1
    assert world.outcome(handle) == "expired"
    silent = world.wait_signal({"job": 1}, timeout_ms=150, heartbeat_timeout_ms=100)
    assert world.wait(500) == 1
    assert (world.outcome(silent), world.result(silent).waited_ms) == ("failed", 500)


def test_heartbeat_of_an_unknown_key_changes_nothing() -> None:
    """Nobody waits for it, and it is not remembered."""
    world = World()
    world.heartbeat("job")
    assert world.engine.inspection.signal_key_count == 0
    assert world.outcome(world.wait_signal({"job": 1})) == "pending"


def test_many_waits_on_one_key_cost_a_signal_nothing() -> None:
    """A heartbeat evaluates no wait, however many require it."""
    world = World()
    for _ in range(100):
        world.wait_signal({"job": 1}, heartbeat_timeout_ms=100)
    before = world.engine.inspection.counts(codes.SIGNAL).evaluations
    world.heartbeat("job")
    assert world.engine.inspection.counts(codes.SIGNAL).evaluations == before
    assert world.wait(100) == 100


def test_silence_starts_again_with_a_restored_engine() -> None:
    """Nobody could signal while the daemon was down, so the wait gets its whole heartbeat timeout again; its deadline
    stays.
    """
    world = World()
    world.wait_signal({"job": 1}, timeout_ms=1_000, heartbeat_timeout_ms=100)
    world.wait(90)
    octets = world.engine.snapshots.save_above(world.owner, 0).to_bytes()
    other = Engine(EngineLimits(), 500)
    owner = other.add_owner()
    owner.highest_operation_id = 1
    assert other.restore(owner, SavedOperations.from_bytes(octets), b"", 500) == 1
    assert other.perform(None, PassTime(10), 599).ended == 0
    view = other.inspection.describe(owner, 1)
    assert view is not None
    assert view.deadline_ms == 1_000
    assert other.perform(None, PassTime(10), 600).ended == 1
    (completions,) = other.take_completions()
    assert list(completions.error_codes) == [MISSED]


def test_extended_wait_has_the_time_from_now() -> None:
    """The deadline moves to the timeout from now on, and the wait expires then; ids that have ended are told apart."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=100)
    world.wait(90)
    assert world.extend(handle, 77, timeout_ms=50) == [True, False]
    assert world.wait(49) == 0
    assert world.wait(1) == 1
    assert (world.outcome(handle), world.result(handle).waited_ms) == ("expired", 140)
    assert world.extend(handle, timeout_ms=50) == [False]


def test_extension_never_shortens() -> None:
    """A wait that has more time left keeps it."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=100)
    assert world.extend(handle, timeout_ms=50) == [True]
    assert world.wait(99) == 0
    assert world.wait(1) == 1
    assert world.outcome(handle) == "expired"


def test_overdue_wait_can_be_extended_until_the_reaper_comes() -> None:
    """The deadline is over but the reaper has not run: the extension comes first and decides."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=100)
    world.now_ms += 200
    assert world.extend(handle, timeout_ms=50) == [True]
    assert world.wait(0) == 0
    assert world.wait(50) == 1
    assert world.result(handle).waited_ms == 250


def test_extension_keeps_the_heartbeat() -> None:
    """An extended wait still fails when its key is silent, and otherwise expires at the new deadline."""
    world = World()
    handles = [world.wait_signal({key: 1}, timeout_ms=100, heartbeat_timeout_ms=80) for key in ("a", "b")]
    assert world.extend(*handles, timeout_ms=150) == [True, True]
    world.wait(70)
    world.heartbeat("a")
    assert world.wait(10) == 1
    world.heartbeat("a")
    assert world.wait(70) == 1
    assert [world.outcome(handle) for handle in handles] == ["expired", "failed"]
    assert [world.result(handle).waited_ms for handle in handles] == [150, 80]


def test_silence_over_a_pause_does_not_count_it() -> None:
    """Neither that of a wait whose key has not been signalled since, nor that of one whose key was signalled before."""
    world = World()
    handles = [world.wait_signal({key: 1}, heartbeat_timeout_ms=100) for key in ("a", "b")]
    world.wait(60)
    world.heartbeat("b")
    world.now_ms += 500
    world.pair.pause(480)
    assert world.wait(19) == 0
    assert world.wait(1) == 1
    assert world.wait(59) == 0
    assert world.wait(1) == 1
    assert [world.outcome(handle) for handle in handles] == ["failed", "failed"]
    assert [world.result(handle).waited_ms for handle in handles] == [580, 640]


def test_signal_after_a_pause_begins_a_whole_silence() -> None:
    """It is measured like any other: the pause before it adds nothing."""
    world = World()
    world.wait_signal({"job": 1}, heartbeat_timeout_ms=100)
    world.now_ms += 500
    world.pair.pause(500)
    world.heartbeat("job")
    assert world.wait(99) == 0
    assert world.wait(1) == 1


def test_deadline_in_a_pause_stays() -> None:
    """Only silences are measured without pauses."""
    world = World()
    handle = world.wait_signal({"job": 1}, timeout_ms=300, heartbeat_timeout_ms=200)
    world.now_ms += 500
    world.pair.pause(500)
    assert world.wait(0) == 1
    assert (world.outcome(handle), world.result(handle).lateness_ms) == ("expired", 200)


def test_stale_timeout_over_a_pause_does_not_count_it() -> None:
    """The wait itself must have been pending for the timeout, whatever the age of the mark."""
    world = World()
    handle = world.composite(("orders-0", 5), stale_timeout_ms=100)
    world.now_ms += 500
    world.pair.pause(450)
    assert world.pair.fail_stale({("orders", 0): 1_000}) == 0
    world.now_ms += 50
    assert world.pair.fail_stale({("orders", 0): 1_000}) == 1
    world.collect()
    assert world.outcome(handle) == "failed"


def test_stale_timeout_of_a_restored_wait_begins_again() -> None:
    """No source could report while there was no daemon."""
    world = World()
    world.composite(("orders-0", 5), stale_timeout_ms=100)
    octets = world.engine.snapshots.save_above(world.owner, 0).to_bytes()
    other = Engine(EngineLimits(), 500)
    owner = other.add_owner()
    owner.highest_operation_id = 1
    other.restore(owner, SavedOperations.from_bytes(octets), b"", 500)
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
    """The worker is alive, even if its value cannot be kept."""
    engine = Engine(EngineLimits(signal_values_bytes_max=1), 0)
    batch = OperationBatch([1], keys=["job"], timeouts_ms=[1_000], heartbeat_timeouts_ms=[100])
    engine.perform(engine.add_owner(), Register(codes.SIGNAL, batch), 0)
    signal = EventBatch([codes.KEY_SIGNALLED], keys=["job"], offsets=[1], values=[b"large"])
    assert [refusal.code for refusal in engine.perform(None, Apply(signal), 90).refusals] == [codes.RESOURCE_EXHAUSTED]
    assert engine.perform(None, PassTime(10), 189).ended == 0
    assert engine.perform(None, PassTime(10), 190).ended == 1
