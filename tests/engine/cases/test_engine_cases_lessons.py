"""Bugs that others had (LESSONS 1 to 38: missed wake-ups, double ends, leaks), as tests of the engine."""

import pytest

from tests.engine import plain
from tests.engine.world import World, parse


def many_produces(world: World, count: int, name: str = "orders-0", offset: int = 5, timeout_ms: int = 1_000) -> None:
    """Register many equal waits in one batch."""
    operations = [
        plain.Operation(plain.PRODUCE, world.next_id(), timeout_ms, (plain.Item(parse(name), offset),))
        for _ in range(count)
    ]
    assert world.under_test.register(world.owner_id, operations, world.now_ms).accepted == count


def test_lesson_03_a_trigger_is_enough() -> None:
    """After the last event no wait is pending whose condition holds, however the event came about."""
    world = World()
    world.in_sync("orders-0", 1, 2, min_in_sync=2)
    world.append("orders-0", 10)
    world.in_sync("orders-0", 1)
    world.follower("orders-0", 2, 10)
    produce = world.produce({"orders-0": 10})
    assert world.outcome(produce) == "pending"
    world.in_sync("orders-0", min_in_sync=1)
    assert world.outcome(produce) == "satisfied"


def test_lesson_04_two_thousand_keys_cost_two_evaluations() -> None:
    """Registering looks at an operation at most twice, however many partitions it has."""
    world = World()
    world.produce({f"orders-{i}": 5 for i in range(2_000)})
    assert world.engine.counts(plain.PRODUCE).evaluations <= 2


def test_lesson_06_confirmed_shrink_ends_waits() -> None:
    """With no new append, the shrink alone moves the mark."""
    world = World()
    world.in_sync("orders-0", 1, 2)
    world.append("orders-0", 10)
    world.follower("orders-0", 2, 5)
    handle = world.produce({"orders-0": 10})
    assert world.in_sync("orders-0", 1).ended == 1
    assert world.outcome(handle) == "satisfied"


def test_lesson_07_every_route_wakes() -> None:
    """Log end, high watermark, in-sync set, last stable offset, low watermark: each event ends its fetch or wait."""
    world = World()
    world.append("orders-0", 10)
    assert world.outcome(world.fetch({"orders-0": 10}, replica_id=2)) == "pending"
    assert world.append("orders-0", 11).ended == 1
    world.fetch({"orders-0": 0})
    assert world.high_watermark("orders-0", 1).ended == 1
    world.follow("orders-0", 1)
    world.fetch({"orders-0": 1}, follower_reads=True)
    assert world.high_watermark("orders-0", 2).ended == 1
    world.lead("orders-0", 2)
    world.last_stable("orders-0", 2)
    world.high_watermark("orders-0", 5)
    world.fetch({"orders-0": 2}, committed=True)
    assert world.last_stable("orders-0", -1).ended == 1


def test_lesson_08_unknown_offsets_have_a_defined_end() -> None:
    """A fetch of a partition of which nothing is known waits, is woken by the first word, or expires without error."""
    world = World()
    woken = world.fetch({"orders-0": 0})
    expired = world.fetch({"orders-1": 0})
    assert world.high_watermark("orders-0", 1).ended == 1
    world.wait(1_000)
    assert (world.outcome(woken), world.outcome(expired)) == ("satisfied", "expired")
    assert world.errors(expired) == [0]


@pytest.mark.parametrize("how", ["follow", "remove", "storage"])
def test_lesson_09_lost_partition_ends_every_kind_at_once(how: str) -> None:
    """Nobody sits until the timeout, and no list keeps an entry."""
    world = World()
    world.high_watermark("orders-0", 10)
    world.follower("orders-0", 2, 10, log_start=0)
    world.produce({"orders-0": 20})
    world.fetch({"orders-0": 10})
    world.delete_records({"orders-0": 5})
    ended = {
        "follow": lambda: world.follow("orders-0", 1),
        "remove": lambda: world.remove("orders-0"),
        "storage": lambda: world.storage_failed("orders-0"),
    }[how]().ended
    assert ended == 3
    world.assert_empty()


def test_lesson_10_resigning_leader_answers_all() -> None:
    """A thousand waits end with the event, none later."""
    world = World()
    many_produces(world, 1_000)
    assert world.follow("orders-0", 1).ended == 1_000
    world.collect()
    world.assert_empty()


def test_lesson_11_wait_for_the_mark_of_now_returns_now() -> None:
    """There is one variable for what was reached, and registration reads it."""
    world = World()
    world.high_watermark("orders-0", 7)
    assert world.outcome(world.produce({"orders-0": 7})) == "satisfied"
    assert world.outcome(world.produce({"orders-0": 8})) == "pending"


def test_lesson_12_kinds_on_one_partition_share_nothing() -> None:
    """Produce, fetch and delete-records on one partition end each at its own mark."""
    world = World()
    world.append("orders-0", 10)
    produce = world.produce({"orders-0": 5})
    fetch = world.fetch({"orders-0": 0}, min_bytes=3)
    delete = world.delete_records({"orders-0": 1})
    assert world.errors(delete) == [1]
    world.high_watermark("orders-0", 3)
    assert (world.outcome(produce), world.outcome(fetch)) == ("pending", "satisfied")
    world.high_watermark("orders-0", 5)
    assert world.outcome(produce) == "satisfied"


def test_lesson_19_event_and_expiry_in_one_tick_give_one_outcome() -> None:
    """Whichever is called first wins; the other finds nothing."""
    for first in ("event", "clock"):
        world = World()
        handle = world.produce({"orders-0": 5}, timeout_ms=10)
        world.now_ms = 10
        if first == "event":
            assert world.high_watermark("orders-0", 5).ended == 1
            assert world.wait(0) == 0
        else:
            assert world.wait(0) == 1
            assert world.high_watermark("orders-0", 5).ended == 0
        assert world.outcome(handle) == ("satisfied" if first == "event" else "expired")
        world.assert_empty()


def test_lesson_22_counters_add_up_after_every_step() -> None:
    """Registered = satisfied + failed + expired + cancelled + shutting down + pending."""
    world = World()

    def demand() -> None:
        c = world.engine.counts(plain.PRODUCE)
        assert c.registered == c.satisfied + c.failed + c.expired + c.cancelled + c.shutting_down + c.pending

    for offset in range(1, 7):
        world.produce({"orders-0": offset}, timeout_ms=offset * 10)
        demand()
    world.high_watermark("orders-0", 2)
    demand()
    world.wait(30)
    demand()
    world.under_test.cancel(world.owner_id, [4], world.now_ms)
    demand()
    world.engine.shut_down(world.now_ms, 1)
    demand()
    world.remove("orders-0")
    demand()
    c = world.engine.counts(plain.PRODUCE)
    ends = (c.satisfied, c.failed, c.expired, c.cancelled, c.shutting_down)
    assert ends == (2, 1, 1, 1, 1)


def test_lesson_32_timers_of_ended_waits_are_gone() -> None:
    """No timer outlives its wait."""
    world = World()
    many_produces(world, 1_000, timeout_ms=15_000)
    assert world.engine.next_expiration_ms() >= 0
    world.high_watermark("orders-0", 5)
    world.assert_empty()


def test_lesson_34_counters_equal_a_recount() -> None:
    """Pending and watched equal what a listing finds."""
    world = World()
    for i in range(50):
        world.produce({"orders-0": i % 7 + 1, "orders-1": 9})
        world.high_watermark("orders-0", i % 5)
        if i % 3 == 0:
            world.under_test.cancel(world.owner_id, [i - 2], world.now_ms)
        listed = world.under_test.all_pending(world.now_ms)
        waited_for = sum(item.error_code == 7 for view in listed for item in view.items)
        counts = world.engine.counts(plain.PRODUCE)
        assert (counts.pending, counts.watched) == (len(listed), waited_for)


def test_lesson_35_vanished_owner_leaves_nothing_armed() -> None:
    """Its waits are gone from every key and from the clock."""
    world = World()
    other = world.under_test.add_owner()
    items = (plain.Item(("orders", 0), 5), plain.Item(("orders", 1), 5))
    operations = [plain.Operation(plain.PRODUCE, i, 100, items) for i in range(1, 50)]
    world.under_test.register(other, operations, 0)
    world.under_test.remove_owner(other, 0)
    world.assert_empty()
    assert world.high_watermark("orders-0", 5).ended == 0
