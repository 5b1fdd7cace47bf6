"""Waits that require a heartbeat, and extended deadlines, engine and oracle side by side."""

from purgatory.engine import codes
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
    assert world.engine.signal_key_count == 0
    assert world.outcome(world.wait_signal({"job": 1})) == "pending"


def test_many_waits_on_one_key_cost_a_signal_nothing() -> None:
    """A heartbeat evaluates no wait, however many require it."""
    world = World()
    for _ in range(100):
        world.wait_signal({"job": 1}, heartbeat_timeout_ms=100)
    before = world.engine.counts(codes.SIGNAL).evaluations
    world.heartbeat("job")
    assert world.engine.counts(codes.SIGNAL).evaluations == before
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
    assert other.advance_clock(599, 10) == 0
    view = other.describe(owner, 1, 599)
    assert view is not None
    assert view.deadline_ms == 1_000
    assert other.advance_clock(600, 10) == 1
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
