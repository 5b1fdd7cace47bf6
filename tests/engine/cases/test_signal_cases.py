"""Waits for signal keys, and operations of each kind with a timeout of 0, which are answered immediately."""

from collections.abc import Callable

import pytest

from tests.engine import plain
from tests.engine.world import World


def test_signal_ends_the_wait() -> None:
    """One signal ends a wait for one signal."""
    world = World()
    handle = world.wait_signal({"deploy": 1})
    assert world.signal("deploy").ended == 1
    assert world.outcome(handle) == "satisfied"
    item = world.item(handle)
    assert (item.name, item.error, item.required, item.reached) == (("deploy", -1), 0, 1, 1)


def test_signal_before_the_wait_counts() -> None:
    """A signal before the registration counts."""
    world = World()
    world.signal("deploy", 2)
    assert world.outcome(world.wait_signal({"deploy": 2})) == "satisfied"
    assert world.outcome(world.wait_signal({"deploy": 3})) == "pending"


def test_from_now_forgets_what_was() -> None:
    """Only later signals count; the result has the total count that this requires."""
    world = World()
    world.signal("deploy", 5)
    handle = world.wait_signal({"deploy": 2}, from_now=True)
    assert world.signal("deploy").ended == 0
    assert world.signal("deploy").ended == 1
    assert (world.item(handle).required, world.item(handle).reached) == (7, 7)


def test_all_keys_are_needed() -> None:
    """A wait for all keys ends with the last of them."""
    world = World()
    handle = world.wait_signal({"a": 1, "b": 2})
    world.signal("b", 2)
    assert world.outcome(handle) == "pending"
    assert world.signal("a").ended == 1
    assert world.errors(handle) == [0, 0]


def test_any_key_is_enough() -> None:
    """A wait for any key ends with the first; the result shows that the others were not reached."""
    world = World()
    handle = world.wait_signal({"a": 1, "b": 2}, any_key=True)
    world.signal("b", 1)
    assert world.outcome(handle) == "pending"
    assert world.signal("a").ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0, 7])
    assert world.item(handle, "b").reached == 1
    world.assert_empty()


def test_one_event_wakes_all_who_wait_for_it() -> None:
    """Of waits for 1, 2 and 3 signals, two signals in one event end two."""
    world = World()
    handles = [world.wait_signal({"a": count}) for count in (1, 2, 3)]
    assert world.signal("a", 2).ended == 2
    assert [world.outcome(handle) for handle in handles] == ["satisfied", "satisfied", "pending"]


REACHED: dict[str, Callable[[World], int]] = {
    "produce": lambda world: world.produce({"orders-0": 5}, timeout_ms=0),
    "produce of two": lambda world: world.produce({"orders-0": 5, "orders-1": 5}, timeout_ms=0),
    "fetch": lambda world: world.fetch({"orders-0": 2}, min_bytes=3, timeout_ms=0),
    "delete-records": lambda world: world.delete_records({"orders-0": 2}, timeout_ms=0),
    "signal": lambda world: world.wait_signal({"job": 1}, timeout_ms=0),
    "any signal": lambda world: world.wait_signal({"job": 1, "other": 1}, any_key=True, timeout_ms=0),
}
MISSED: dict[str, tuple[Callable[[World], int], list[int], list[int]]] = {
    "produce": (lambda world: world.produce({"orders-0": 6}, timeout_ms=0), [7], [5]),
    "produce of two": (lambda world: world.produce({"orders-0": 5, "orders-1": 6}, timeout_ms=0), [0, 7], [5, 5]),
    "produce with an error": (
        lambda world: world.produce({"orders-0": 6, "orders-1": 5}, errors={"orders-1": 10}, timeout_ms=0),
        [7, 10],
        [5, 5],
    ),
    "produce of an unknown one": (lambda world: world.produce({"new-0": 6}, timeout_ms=0), [7], [-1]),
    "fetch": (lambda world: world.fetch({"orders-0": 2}, min_bytes=4, timeout_ms=0), [0], [5]),
    "delete-records": (lambda world: world.delete_records({"orders-0": 3}, timeout_ms=0), [7], [2]),
    "signal": (lambda world: world.wait_signal({"job": 1, "other": 3}, timeout_ms=0), [0, 7], [1, 0]),
    "any signal": (lambda world: world.wait_signal({"job": 2, "other": 1}, any_key=True, timeout_ms=0), [7, 7], [1, 0]),
}


def world_at_five(tick_ms: int = 1) -> World:
    """Two partitions with offsets 0 to 4, the first two deleted, and a key that was signalled once."""
    world = World(tick_ms=tick_ms)
    for name in ("orders-0", "orders-1"):
        world.append(name, 5)
        world.high_watermark(name, 5)
        world.log_start(name, 2)
    world.signal("job")
    return world


@pytest.mark.parametrize("ask", REACHED.values(), ids=REACHED)
def test_what_is_reached_is_satisfied(ask: Callable[[World], int]) -> None:
    """An operation whose condition holds is satisfied, as with any other timeout."""
    world = world_at_five()
    assert world.outcome(ask(world)) == "satisfied"
    world.assert_empty()


@pytest.mark.parametrize(("ask", "errors", "reached"), MISSED.values(), ids=MISSED)
@pytest.mark.parametrize("tick_ms", [1, 20])
def test_what_is_not_reached_expires_at_once(
    tick_ms: int, ask: Callable[[World], int], errors: list[int], reached: list[int]
) -> None:
    """It expires after 0 ms with the offsets reached, and not late; nothing is pending, watched or timed."""
    world = world_at_five(tick_ms)
    names = world.engine.inspection.partition_names()
    world.now_ms += 7
    handle = ask(world)
    result = world.result(handle)
    assert (world.outcome(handle), result.waited_ms, result.lateness_ms) == ("expired", 0, 0)
    assert world.errors(handle) == errors
    assert [item.reached for item in result.items] == reached
    assert {(item.remaining_ms, item.pace) for item in result.items} == {(-1, -1.0)}
    assert world.engine.inspection.partition_names() == names
    world.assert_empty()


def test_a_batch_may_mix_timeouts() -> None:
    """In one batch, operations with a timeout of 0 are answered and the others wait."""
    world = world_at_five()
    items = (plain.Item(("orders", 0), 9),)
    operations = [plain.Operation(plain.PRODUCE, i, timeout_ms, items) for i, timeout_ms in ((1, 50), (2, 0), (3, 50))]
    receipt = world.register_all(operations)
    assert (receipt.accepted, world.engine.pending) == (3, 2)
    assert [world.outcome(handle) for handle in (1, 2, 3)] == ["pending", "expired", "pending"]
