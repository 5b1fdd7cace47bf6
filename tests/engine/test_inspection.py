"""Listings of pending operations and their filters."""

from purgatory.engine.ranking import PendingRanking
from purgatory.engine.views import RemainingTimes
from tests.engine import plain
from tests.engine.world import World, parse


def listed(world: World, *, owner_id: int = -1, kind: int = 0, partition: str = "", key: str = "") -> list[int]:
    """Ids of the pending operations that pass the filters."""
    name = parse(partition) if partition else None
    views, after = world.engine.inspection.list_pending(0, 100, owner_id, kind, name, key)
    assert after == -1
    return [view.operation_id for view in views]


def test_slots_without_the_operation_show_nothing() -> None:
    """A slot shows the operation with this id only, and a slot that was never used shows none."""
    world = World()
    handle = world.produce({"orders-0": 10})
    places = [(slot, handle + other) for slot in range(4) for other in (0, 1)]
    shown = [view.operation_id for place in places if (view := world.engine.inspection.view_of(*place))]
    assert shown == [handle]


def test_filters_go_together() -> None:
    """Filters are combined: each excludes operations that do not match it."""
    world = World()
    produce = world.produce({"orders-0": 10, "orders-1": 10})
    delete = world.delete_records({"orders-1": 10})
    signal = world.wait_signal({"a": 1, "b": 1})
    first = world.owner_id
    world.owner_id = world.pair.add_owner()
    other = world.produce({"orders-1": 10})
    assert listed(world) == [produce, delete, signal, other]
    assert listed(world, owner_id=first) == [produce, delete, signal]
    assert listed(world, owner_id=world.owner_id) == [other]
    assert listed(world, kind=plain.PRODUCE) == [produce, other]
    assert listed(world, partition="orders-0") == [produce]
    assert listed(world, partition="orders-1") == [produce, delete, other]
    assert listed(world, partition="orders-1", owner_id=first, kind=plain.PRODUCE) == [produce]
    assert listed(world, key="b") == [signal]
    assert listed(world, key="b", partition="orders-1") == []
    page, after = world.engine.inspection.list_pending(0, 2, -1, 0, None, "")
    assert ([view.operation_id for view in page], after) == ([produce, delete], 2)


def test_time_left_is_counted_by_bounds_and_in_slices() -> None:
    """Each pending operation is counted under the first bound that it does not exceed, however the slots are sliced."""
    world = World()
    for timeout_ms in (5, 10, 11, 100, 101, 5_000):
        world.produce({"orders-0": 10}, timeout_ms=timeout_ms)
    gone = world.produce({"orders-0": 10}, timeout_ms=50)
    world.cancel(gone)
    for limit in (1, 3, 1_000):
        times = RemainingTimes([10, 100])
        slot = 0
        while slot >= 0:
            slot = world.engine.inspection.count_remaining(slot, limit, 0, times)
        assert times.operations == [2, 2, 2]
        assert (times.soonest_ms, times.latest_ms) == (5, 5_000)
    overdue = RemainingTimes([10, 100])
    assert world.engine.inspection.count_remaining(0, 1_000, 4_990, overdue) == -1
    assert overdue.operations == [6, 0, 0]
    assert (overdue.soonest_ms, overdue.latest_ms) == (0, 10)
    assert World().engine.inspection.count_remaining(0, 10, 0, nothing := RemainingTimes([10])) == -1
    assert (nothing.operations, nothing.soonest_ms, nothing.latest_ms) == ([0, 0], -1, -1)


def test_a_ranking_has_what_stands_out() -> None:
    """A ranking has the longest waits, the soonest deadlines and the waits per name, however it is sliced."""
    world = World()
    handles = []
    for number in range(50):
        handles.append(
            world.produce({"orders-0": 10, f"orders-{1 + number % 2}": 10}, timeout_ms=10_000 - number * 100)
        )
        world.wait(1)
    signal = world.wait_signal({"a": 1}, timeout_ms=5)
    for slice_size in (1, 7, 1_000):
        ranking = PendingRanking(5)
        slot = 0
        while slot >= 0:
            slot = world.engine.inspection.rank(slot, slice_size, ranking)
        assert ranking.operations == 51
        assert ranking.waits == {("orders", 0): 50, ("orders", 1): 25, ("orders", 2): 25, ("a", -1): 1}
        assert [one.operation_id for one in ranking.longest_waiting()] == handles[:5]
        assert [one.operation_id for one in ranking.soonest_expiring()] == [signal, *handles[:-5:-1]]
    first = ranking.longest_waiting()[0]
    view = world.engine.inspection.view_of(first.slot, first.operation_id)
    assert view is not None
    assert view.operation_id == handles[0]
    world.cancel(handles[0])
    assert world.engine.inspection.view_of(first.slot, first.operation_id) is None
    others = PendingRanking(5, {world.owner_id + 1})
    assert world.engine.inspection.rank(0, 1_000, others) == -1
    assert others.operations == 0


def test_rings_show_where_the_wheel_has_everything() -> None:
    """Each pending operation is in one bucket of the ring of its level; buckets are counted up to a limit."""
    world = World()
    for timeout_ms in (3, 3, 3, 25, 500, 9_000):
        world.produce({"orders-0": 10}, timeout_ms=timeout_ms)
    rings = world.engine.inspection.wheel_rings(100)
    assert [sum(ring.counts) for ring in rings] == [3, 1, 1, 1]
    assert [ring.tick_ms for ring in rings] == [1, 20, 400, 8_000]
    assert max(rings[0].counts) == 3
    assert max(world.engine.inspection.wheel_rings(2)[0].counts) == 2
    moved = world.engine.inspection.wheel_moves
    world.wait(26)
    assert [sum(ring.counts) for ring in world.engine.inspection.wheel_rings(100)] == [0, 0, 1, 1]
    assert world.engine.inspection.wheel_moves == moved + 5


def test_hottest_names_have_the_most_waits() -> None:
    """Partitions and keys with more than a number of waits are found, however the indexes are sliced."""
    world = World()
    world.produce_many(3, "orders-0")
    world.produce({"orders-0": 9, "orders-1": 9})
    handles = [world.wait_signal({"a": 1, "b": 1}), world.wait_signal({"a": 2})]
    for limit in (1, 2, 100):
        found: list[tuple[int, plain.Name]] = []
        start = 0
        while start >= 0:
            some, start = world.engine.inspection.hottest(start, limit, 1)
            found += some
        assert found == [(4, ("orders", 0)), (2, ("a", -1))]
    names = [("orders", 0), ("orders", 1), ("orders", 2)]
    assert world.engine.inspection.unreported(names) == names[:2]
    world.append("orders-0", 1)
    assert world.engine.inspection.unreported(names) == names[1:2]
    before = world.engine.has_unreported
    world.append("orders-1", 1)
    assert (before, world.engine.has_unreported) == (True, False)
    world.cancel(*handles)
    assert world.engine.inspection.hottest(0, 100, 3) == ([(4, ("orders", 0))], -1)
    assert world.engine.inspection.hottest(0, 100, 4) == ([], -1)


def test_pace_of_a_mark_first_reported_during_the_wait_counts_from_that_report() -> None:
    """From 10 to 30 of 40 in the last 20 of 100 ms; a single report gives no pace. In produces, composites, views."""
    world = World()
    waits = [
        world.produce({"orders-0": 40, "orders-1": 40}, timeout_ms=100),
        world.composite(("orders-0", 40), ("orders-1", 40), timeout_ms=100),
    ]
    world.wait(80)
    world.high_watermark("orders-0", 10)
    world.high_watermark("orders-1", 10)
    world.wait(10)
    world.high_watermark("orders-0", 30)
    view = world.engine.inspection.describe(world.owner, waits[0])
    assert view is not None
    assert [(item.mark_before, item.paced_from_ms) for item in view.items] == [(10, world.now_ms - 10)] * 2
    world.wait(10)
    for handle in waits:
        moving, standing = world.result(handle).items
        assert (moving.remaining_ms, moving.pace) == (10, 1_000.0)
        assert (standing.remaining_ms, standing.pace) == (-1, -1.0)
