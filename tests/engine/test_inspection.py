"""Listings of pending operations and their filters."""

from purgatory.engine.ranking import PendingRanking
from purgatory.engine.views import RemainingTimes
from tests.engine import plain
from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import name_of


def listed(level: EngineLevel, *, session: str = "", kind: int = 0, partition: str = "", key: str = "") -> list[int]:
    """Ids of the pending operations that pass the filters."""
    name, owner_id = name_of(partition) if partition else None, level.owner(session) if session else -1
    views, after = level.engine.inspection.list_pending(0, 100, owner_id, kind, name, key)
    assert after == -1
    return [view.operation_id for view in views]


def test_slots_without_the_operation_show_nothing() -> None:
    inspection = EngineLevel.played("produce 1 orders-0@10").engine.inspection
    places = [(slot, operation_id) for slot in range(4) for operation_id in (1, 2)]
    assert [view.operation_id for place in places if (view := inspection.view_of(*place))] == [1]


def test_item_without_a_partition_has_no_log_start() -> None:
    (view,), _ = EngineLevel.played("composite 1 orders-0@10 job").engine.inspection.list_pending(0, 1)
    assert [item.log_start_offset for item in view.items] == [0, -1]


def test_filters_of_a_listing_are_combined() -> None:
    level = EngineLevel.played(
        "produce 1 orders-0@10 orders-1@10", "delete-records 2 orders-1@10", "await 3 a b", "produce b:4 orders-1@10"
    )
    assert listed(level) == [1, 2, 3, 4]
    assert listed(level, session="a") == [1, 2, 3]
    assert listed(level, session="b") == [4]
    assert listed(level, kind=plain.PRODUCE) == [1, 4]
    assert listed(level, partition="orders-0") == [1]
    assert listed(level, partition="orders-1") == [1, 2, 4]
    assert listed(level, partition="orders-1", session="a", kind=plain.PRODUCE) == [1]
    assert listed(level, key="b") == [3]
    assert listed(level, key="b", partition="orders-1") == []
    page, after = level.engine.inspection.list_pending(0, 2, -1, 0, None, "")
    assert ([view.operation_id for view in page], after) == ([1, 2], 2)


def test_time_left_is_counted_by_bounds_and_in_slices() -> None:
    timeouts_ms = (5, 10, 11, 100, 101, 5_000, 50)
    waits = [f"produce {place} orders-0@10 timeout={ms}" for place, ms in enumerate(timeouts_ms, 1)]
    inspection = EngineLevel.played(*waits, "cancel 7").engine.inspection
    for limit in (1, 3, 1_000):
        times = RemainingTimes([10, 100])
        slot = 0
        while slot >= 0:
            slot = inspection.count_remaining(slot, limit, 0, times)
        assert times.operations == [2, 2, 2]
        assert (times.soonest_ms, times.latest_ms) == (5, 5_000)
    overdue = RemainingTimes([10, 100])
    assert inspection.count_remaining(0, 1_000, 4_990, overdue) == -1
    assert overdue.operations == [6, 0, 0]
    assert (overdue.soonest_ms, overdue.latest_ms) == (0, 10)
    assert EngineLevel().engine.inspection.count_remaining(0, 10, 0, nothing := RemainingTimes([10])) == -1
    assert (nothing.operations, nothing.soonest_ms, nothing.latest_ms) == ([0, 0], -1, -1)


def test_a_ranking_has_what_stands_out() -> None:
    level = EngineLevel()
    for number in range(50):
        names = f"orders-0@10 orders-{1 + number % 2}@10"
        level.answer(f"produce {number + 1} {names} timeout={10_000 - number * 100}")
        level.pass_time(1)
    level.answer("await 51 a timeout=5")
    inspection = level.engine.inspection
    for slice_size in (1, 7, 1_000):
        ranking = PendingRanking(5)
        slot = 0
        while slot >= 0:
            slot = inspection.rank(slot, slice_size, ranking)
        assert ranking.operations == 51
        assert ranking.waits == {("orders", 0): 50, ("orders", 1): 25, ("orders", 2): 25, ("a", -1): 1}
        assert [one.operation_id for one in ranking.longest_waiting()] == [1, 2, 3, 4, 5]
        assert [one.operation_id for one in ranking.soonest_expiring()] == [51, 50, 49, 48, 47]
    first = ranking.longest_waiting()[0]
    view = inspection.view_of(first.slot, first.operation_id)
    assert view is not None
    assert view.operation_id == 1
    level.answer("cancel 1")
    assert inspection.view_of(first.slot, first.operation_id) is None
    others = PendingRanking(5, {level.owner("a") + 1})
    assert inspection.rank(0, 1_000, others) == -1
    assert others.operations == 0


def test_rings_show_where_the_wheel_has_everything() -> None:
    timeouts_ms = (3, 3, 3, 25, 500, 9_000)
    waits = [f"produce {place} orders-0@10 timeout={ms}" for place, ms in enumerate(timeouts_ms, 1)]
    level = EngineLevel.played(*waits)
    inspection = level.engine.inspection
    rings = inspection.wheel_rings(100)
    assert [sum(ring.counts) for ring in rings] == [3, 1, 1, 1]
    assert [ring.tick_ms for ring in rings] == [1, 20, 400, 8_000]
    assert max(rings[0].counts) == 3
    assert max(inspection.wheel_rings(2)[0].counts) == 2
    moved = inspection.wheel_moves
    level.pass_time(26)
    assert [sum(ring.counts) for ring in inspection.wheel_rings(100)] == [0, 0, 1, 1]
    assert inspection.wheel_moves == moved + 5


def test_hottest_names_have_the_most_waits() -> None:
    level = EngineLevel.played("produce 1..4 orders-0@5", "produce 5 orders-1@9", "await 6 a b", "await 7 a@2")
    inspection = level.engine.inspection
    for limit in (1, 2, 100):
        found: list[tuple[int, plain.Name]] = []
        start = 0
        while start >= 0:
            some, start = inspection.hottest(start, limit, 1)
            found += some
        assert found == [(4, ("orders", 0)), (2, ("a", -1))]
    names = [("orders", 0), ("orders", 1), ("orders", 2)]
    assert inspection.unreported(names) == names[:2]
    level.answer("append orders-0 1")
    assert inspection.unreported(names) == names[1:2]
    before = level.engine.has_unreported
    level.answer("append orders-1 1")
    assert (before, level.engine.has_unreported) == (True, False)
    level.answer("cancel 6 7")
    assert inspection.hottest(0, 100, 3) == ([(4, ("orders", 0))], -1)
    assert inspection.hottest(0, 100, 4) == ([], -1)


def test_pace_of_a_mark_first_reported_during_the_wait_counts_from_that_report() -> None:
    """From 10 to 30 of 40 in the last 20 of 100 ms; a single report gives no pace. In produces, composites, views."""
    names = "orders-0@40 orders-1@40 timeout=100"
    level = EngineLevel.played(f"produce 1 {names}", f"composite 2 {names}", "pass 80")
    for line in ("high-watermark orders-0 10", "high-watermark orders-1 10", "pass 10", "high-watermark orders-0 30"):
        level.answer(line)
    view = level.engine.inspection.describe(level.engine_owner(), 1)
    assert view is not None
    assert [(item.mark_before, item.paced_from_ms) for item in view.items] == [(10, level.pair.now_ms - 10)] * 2
    expired = "expired after 100 ms: orders-0@40 at 30 error 7 remaining 10 ms at 1000/s, orders-1@40 at 10 error 7"
    assert level.answer("pass 10") == [f"1..2 {expired}"]
