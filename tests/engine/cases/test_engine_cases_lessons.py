"""Bugs of other projects (docs/lessons.md) as tests of the engine: missed wakeups, and marks that are lowered."""

from collections.abc import Callable

import pytest

from tests.engine import plain
from tests.engine.world import World


def test_a_trigger_is_enough() -> None:
    """After the last event, no wait is pending whose condition holds, whatever caused the event."""
    world = World()
    world.in_sync("orders-0", 1, 2, min_in_sync=2)
    world.append("orders-0", 10)
    world.in_sync("orders-0", 1)
    world.follower("orders-0", 2, 10)
    produce = world.produce({"orders-0": 10})
    assert world.outcome(produce) == "pending"
    world.in_sync("orders-0", min_in_sync=1)
    assert world.outcome(produce) == "satisfied"


def test_two_thousand_keys_cost_two_evaluations() -> None:
    """Registration evaluates an operation at most twice, however many partitions it has."""
    world = World()
    world.produce({f"orders-{i}": 5 for i in range(2_000)})
    assert world.engine.counts(plain.PRODUCE).evaluations <= 2


def test_confirmed_shrink_ends_waits() -> None:
    """Case 50: a leaving replica counts until the commit, which alone, without an append, ends waits of every kind."""
    world = World(lag_max_ms=100)
    world.in_sync("orders-0", 1, 2)
    world.append("orders-0", 5)
    world.follower("orders-0", 2, 5)
    world.append("orders-0", 10)
    world.now_ms = 200
    handles = [world.produce({"orders-0": 10}), world.fetch({"orders-0": 5})]
    assert world.in_sync("orders-0", proposed=(1,)).ended == 0
    assert world.marks("orders-0").high_watermark == 5
    assert world.in_sync("orders-0", 1).ended == 2
    assert world.marks("orders-0").high_watermark == 10
    assert [world.outcome(handle) for handle in handles] == ["satisfied"] * 2


def test_every_route_wakes() -> None:
    """Log end, high watermark, in-sync set, last stable offset, low watermark: each event ends the wait for it."""
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


def test_unknown_offsets_have_a_defined_end() -> None:
    """A fetch on a partition without known marks waits: the first mark ends it, or it expires without an error."""
    world = World()
    woken = world.fetch({"orders-0": 0})
    expired = world.fetch({"orders-1": 0})
    assert world.high_watermark("orders-0", 1).ended == 1
    world.wait(1_000)
    assert (world.outcome(woken), world.outcome(expired)) == ("satisfied", "expired")
    assert world.errors(expired) == [0]


LOSSES: dict[str, tuple[Callable[[World], plain.EventAnswer], int]] = {
    "cases 62 and 90: leadership is lost": (lambda world: world.follow("orders-0", 1), 6),
    "cases 63 and 91: moved elsewhere": (lambda world: world.remove("orders-0", moved=True), 6),
    "cases 63 and 91: deleted": (lambda world: world.remove("orders-0"), 3),
    "case 64: storage fails": (lambda world: world.storage_failed("orders-0"), 56),
}


@pytest.mark.parametrize(("lose", "code"), LOSSES.values(), ids=LOSSES)
def test_lost_partition_ends_every_kind_at_once(lose: Callable[[World], plain.EventAnswer], code: int) -> None:
    """No wait lasts until its timeout, each reports its error, and no list keeps an entry."""
    world = World()
    world.high_watermark("orders-0", 10)
    world.follower("orders-0", 2, 10, log_start=0)
    handles = [world.produce({"orders-0": 20}), world.fetch({"orders-0": 10}), world.delete_records({"orders-0": 5})]
    assert lose(world).ended == 3
    assert [(world.outcome(handle), world.errors(handle)) for handle in handles] == [("failed", [code])] * 3
    assert [world.item(handle).reached for handle in handles] == [10, -1, -1]
    world.assert_empty()


@pytest.mark.parametrize("ends", ["satisfied", "failed"])
def test_a_thousand_waits_end_and_leave_nothing(ends: str) -> None:
    """All waits end with the event, satisfied or failed; no list keeps an entry and no timer outlives its wait."""
    world = World()
    handles = world.produce_many(1_000, timeout_ms=15_000)
    assert world.engine.next_expiration_ms() >= 0
    answer = world.high_watermark("orders-0", 5) if ends == "satisfied" else world.follow("orders-0", 1)
    assert answer.ended == 1_000
    assert {world.outcome(handle) for handle in handles} == {ends}
    world.assert_empty()


def test_wait_for_the_mark_of_now_returns_now() -> None:
    """A wait for the current mark is satisfied at registration."""
    world = World()
    world.high_watermark("orders-0", 7)
    reached = world.produce({"orders-0": 7})
    assert (world.outcome(reached), world.result(reached).waited_ms) == ("satisfied", 0)
    assert world.outcome(world.produce({"orders-0": 8})) == "pending"


def test_kinds_on_one_partition_share_nothing() -> None:
    """Produce, fetch and delete-records on one partition each end at their own mark."""
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


@pytest.mark.parametrize("late_ms", [0, 50])
@pytest.mark.parametrize("winner", ["satisfied", "expired"])
def test_event_and_expiry_in_one_tick_give_one_outcome(winner: str, late_ms: int) -> None:
    """Whichever call is first wins, even if the reaper is late; the other finds nothing to end."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=10)
    world.now_ms = 10 + late_ms
    calls: list[Callable[[], int]] = [lambda: world.high_watermark("orders-0", 5).ended, lambda: world.wait(0)]
    assert [call() for call in (calls if winner == "satisfied" else reversed(calls))] == [1, 0]
    assert world.outcome(handle) == winner
    world.assert_empty()


def test_counters_add_up_and_equal_a_recount() -> None:
    """After each call, registered = all outcomes + pending, and a listing finds `pending` and `watched` entries."""
    world = World()

    def check() -> None:
        c = world.engine.counts(plain.PRODUCE)
        assert c.registered == c.satisfied + c.failed + c.expired + c.cancelled + c.shutting_down + c.pending
        listed = world.pair.engine.all_pending(world.now_ms)
        waited_for = sum(item.error_code == 7 for view in listed for item in view.items)
        assert (c.pending, c.watched) == (len(listed), waited_for)

    for offset in range(1, 7):
        world.produce({"orders-0": offset, "orders-1": 2}, timeout_ms=offset * 10)
        check()
    calls: list[Callable[[], object]] = [
        lambda: world.high_watermark("orders-1", 2),
        lambda: world.high_watermark("orders-0", 2),
        lambda: world.wait(30),
        lambda: world.cancel(4),
        lambda: world.shut_down(1),
        lambda: world.remove("orders-0"),
    ]
    for call in calls:
        call()
        check()
    c = world.engine.counts(plain.PRODUCE)
    assert (c.satisfied, c.failed, c.expired, c.cancelled, c.shutting_down) == (2, 1, 1, 1, 1)


def test_marks_do_not_go_back() -> None:
    """A lower mark (such as a late checkpoint) counts as unchanged and an older epoch is refused: neither is applied. A
    newer epoch is taken over.
    """
    world = World()
    world.high_watermark("orders-0", 10, epoch=5)
    assert world.high_watermark("orders-0", 7, epoch=5).unchanged
    assert world.high_watermark("orders-0", 10).unchanged
    assert world.high_watermark("orders-0", 0).unchanged
    assert world.high_watermark("orders-0", 20, epoch=4).refused == (9, 74)
    marks = world.marks("orders-0")
    assert (marks.epoch, marks.high_watermark, marks.unchanged, marks.stale) == (5, 10, 3, 1)
    assert world.outcome(world.produce({"orders-0": 10})) == "satisfied"
    world.append("orders-0", 20, epoch=6)
    assert world.marks("orders-0").epoch == 6


def test_bytes_and_offsets_are_of_one_moment() -> None:
    """The bytes are those between two offsets of one segment, whenever their positions were reported."""
    world = World()
    world.append("orders-0", 10, position=1_000, segment=0)
    world.append("orders-0", 10, position=0, segment=10)
    world.high_watermark("orders-0", 10)
    handle = world.fetch({"orders-0": 10}, min_bytes=50)
    world.append("orders-0", 11, position=40, segment=10)
    world.high_watermark("orders-0", 11)
    assert world.outcome(handle) == "pending"
    world.append("orders-0", 12, position=60, segment=10)
    assert world.high_watermark("orders-0", 12).ended == 1
    assert world.item(handle).available_bytes == 60


def test_roll_under_a_waiting_fetch_counts_no_bytes() -> None:
    """Bytes after a roll are in another segment: the fetch is answered instead of adding up across segments."""
    world = World()
    world.append("orders-0", 10, position=1_000, segment=0)
    world.high_watermark("orders-0", 10)
    handle = world.fetch({"orders-0": 10}, min_bytes=1_000_000)
    world.append("orders-0", 10, position=0, segment=10)
    world.append("orders-0", 11, position=40, segment=10)
    assert world.outcome(handle) == "pending"
    assert world.high_watermark("orders-0", 11).ended == 1
    assert world.outcome(handle) == "satisfied"


def test_marks_below_the_log_start_break_nothing() -> None:
    """Unknown high watermark, full truncation, log start above everything: waits end, and the engine survives."""
    world = World()
    world.log_start("orders-0", 100)
    assert world.marks("orders-0").high_watermark == 100
    assert world.errors(world.fetch({"orders-0": 50})) == [1]
    waiting = world.fetch({"orders-0": 100})
    world.truncate("orders-0", 0)
    assert world.errors(waiting) == [1]
    marks = world.marks("orders-0")
    assert (marks.log_start, marks.high_watermark, marks.log_end) == (0, 0, 0)
    assert world.outcome(world.fetch({"orders-0": 0})) == "pending"


def test_new_epoch_fences_waits_of_the_old() -> None:
    """A wait under epoch 5 is not satisfied under epoch 6, not even by an event that also reaches its mark."""
    world = World()
    world.lead("orders-0", 5)
    handle = world.produce({"orders-0": 5}, epoch=5)
    assert world.high_watermark("orders-0", 5, epoch=6).ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [74])


def test_truncation_cuts_the_index() -> None:
    """Positions above a truncation are dropped; new ones are used."""
    world = World()
    for offset in (0, 10, 20):
        world.append("orders-0", offset, position=100 * offset)
    world.truncate("orders-0", 10)
    world.append("orders-0", 20, position=1_100)
    world.high_watermark("orders-0", 20)
    handle = world.fetch({"orders-0": 10}, min_bytes=1)
    assert world.item(handle).available_bytes == 100
