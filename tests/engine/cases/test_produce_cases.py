"""Cases 59 to 68, and 80: waits for the high watermark. Cases 62 and 63 are `test_lost_partition_…`."""

import pytest

from tests.engine import plain
from tests.engine.world import World


def test_case_59_ends_when_all_followers_have_it() -> None:
    """The wait has one result, with error 0, before its timeout."""
    world = World()
    world.in_sync("orders-0", 1, 2, 3)
    world.append("orders-0", 11)
    handle = world.produce({"orders-0": 11})
    assert world.follower("orders-0", 2, 11).ended == 0
    world.now_ms = 7
    assert world.follower("orders-0", 3, 11).ended == 1
    result = world.result(handle)
    assert (result.outcome, result.waited_ms, result.lateness_ms) == (plain.SATISFIED, 7, 0)
    assert (world.item(handle).required, world.item(handle).reached) == (11, 11)
    world.wait(5_000)
    world.assert_empty()


def test_case_60_failed_append_is_final() -> None:
    """p0 keeps its local error, p1 is waited for, and both are in the result."""
    world = World()
    handle = world.produce({"orders-0": 0, "orders-1": 11}, errors={"orders-0": 10})
    assert world.outcome(handle) == "pending"
    world.high_watermark("orders-1", 11)
    assert world.outcome(handle) == "failed"
    assert world.errors(handle) == [10, 0]


def test_case_61_expired_partitions_are_told_apart() -> None:
    """The reached p0 has error 0 and p1 has error 7. The operation counts as one that expired."""
    world = World()
    handle = world.produce({"orders-0": 5, "orders-1": 5}, timeout_ms=100)
    world.high_watermark("orders-0", 5)
    assert world.wait(99) == 0
    assert world.wait(1) == 1
    assert world.outcome(handle) == "expired"
    assert world.errors(handle) == [0, 7]
    assert world.engine.inspection.counts(plain.PRODUCE).expired == 1


def test_case_64_failed_storage_refuses() -> None:
    """New operations fail with 56 until storage is online again. `test_lost_partition_…` covers pending ones."""
    world = World()
    world.storage_failed("orders-0")
    assert world.errors(world.produce({"orders-0": 5})) == [56]
    assert world.append("orders-0", 5).refused == (9, 56)
    world.storage_online("orders-0")
    assert world.outcome(world.produce({"orders-0": 5})) == "pending"


def test_case_65_reached_partition_stays_so() -> None:
    """p0 was reached before its leadership was lost, so it has error 0."""
    world = World()
    handle = world.produce({"orders-0": 5, "orders-1": 5})
    world.high_watermark("orders-0", 5)
    world.follow("orders-0", 1)
    world.high_watermark("orders-1", 5)
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0, 0])


def test_case_66_reached_with_too_few_in_sync() -> None:
    """The mark is reached but too few replicas are in sync: error 20."""
    world = World()
    world.in_sync("orders-0", 1, 2, min_in_sync=2)
    world.append("orders-0", 11)
    handle = world.produce({"orders-0": 11})
    world.in_sync("orders-0", 1)
    assert world.outcome(handle) == "pending"
    assert world.high_watermark("orders-0", 11).ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [20])


def test_case_67_too_few_in_sync_freezes_and_expires() -> None:
    """While too few replicas are in sync the mark is frozen (the rule of 3.7+): error 7 at the timeout."""
    world = World()
    world.in_sync("orders-0", 1, 2, min_in_sync=2)
    handle = world.produce({"orders-0": 11})
    world.in_sync("orders-0", 1)
    world.append("orders-0", 11)
    world.follower("orders-0", 2, 11)
    world.wait(1_000)
    assert (world.outcome(handle), world.errors(handle)) == ("expired", [7])


def test_case_68_all_appends_failed() -> None:
    """With no partition to wait for, it is answered immediately and never pending; acks are up to the caller."""
    world = World()
    handle = world.produce({"orders-0": 0, "orders-1": 0}, errors={"orders-0": 10, "orders-1": 87})
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [10, 87])
    world.assert_empty()


@pytest.mark.parametrize(("partition_epoch", "code"), [(6, 74), (4, 75), (5, 0)])
def test_case_80_the_epoch_of_the_caller_is_checked(partition_epoch: int, code: int) -> None:
    """A produce or fetch of epoch 5 ends immediately with 74 on a newer partition and with 75 on an older one; on its
    own epoch it waits.
    """
    world = World()
    world.lead("orders-0", partition_epoch)
    for handle in (world.produce({"orders-0": 5}, epoch=5), world.fetch({"orders-0": 0}, epoch=5)):
        assert world.outcome(handle) == ("failed" if code else "pending")
        if code:
            assert world.errors(handle) == [code]


def test_an_expired_wait_estimates_when_it_would_have_ended() -> None:
    """From 10 to 20 of 25 in 100 ms: 50 ms remaining at 100 per second. A mark that did not move gives no estimate."""
    world = World()
    world.high_watermark("orders-0", 10)
    world.high_watermark("orders-1", 10)
    handle = world.produce({"orders-0": 25, "orders-1": 25}, timeout_ms=100)
    world.high_watermark("orders-0", 20)
    world.wait(100)
    moving, standing = world.result(handle).items
    assert (moving.remaining_ms, moving.pace) == (50, 100.0)
    assert (standing.remaining_ms, standing.pace) == (-1, -1.0)


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
