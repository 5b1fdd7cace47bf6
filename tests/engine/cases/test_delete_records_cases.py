"""Cases 86 to 92: waits for the low watermark. Cases 90 and 91 are `test_lost_partition_…`."""

from tests.engine import plain
from tests.engine.world import World


def three_replicas() -> World:
    """A leader with 100 records, deleted up to 50, and two followers that have deleted nothing."""
    world = World()
    world.high_watermark("orders-0", 100)
    world.log_start("orders-0", 50)
    world.follower("orders-0", 2, 100, log_start=0)
    world.follower("orders-0", 3, 100, log_start=0)
    return world


def test_case_86_ends_with_the_slowest_live_replica() -> None:
    """The wait completes with error 0 and low watermark 50, after the last follower has deleted."""
    world = three_replicas()
    handle = world.delete_records({"orders-0": 50})
    assert world.follower("orders-0", 2, 100, log_start=50).ended == 0
    assert world.follower("orders-0", 3, 100, log_start=50).ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0])
    assert (world.item(handle).required, world.item(handle).reached) == (50, 50)


def test_case_87_dead_replica_is_not_waited_for() -> None:
    """The death of the slowest replica ends the wait immediately; Kafka has a gap here."""
    world = three_replicas()
    handle = world.delete_records({"orders-0": 50})
    world.follower("orders-0", 2, 100, log_start=50)
    assert world.replica("orders-0", 3, dead=True).ended == 1
    assert world.outcome(handle) == "satisfied"


def test_case_88_offsets_at_registration() -> None:
    """-1 means the high watermark; above it the error is 1, with an unknown one 78; local error codes are kept."""
    world = three_replicas()
    minus_one = world.delete_records({"orders-0": -1})
    assert world.outcome(minus_one) == "pending"
    beyond = world.delete_records({"orders-0": 200})
    assert (world.outcome(beyond), world.errors(beyond), world.item(beyond).reached) == ("failed", [1], -1)
    unknown = world.delete_records({"orders-9": -1})
    assert world.errors(unknown) == [78]
    local = world.delete_records({"orders-0": 10, "audit-0": 10}, errors={"orders-0": 44, "audit-0": 17})
    assert world.errors(local) == [44, 17]
    world.wait(1_000)
    assert world.item(minus_one).required == 100


def test_case_89_expires_with_the_low_watermark_of_registration() -> None:
    """An expired wait has error 7 and the low watermark of its registration."""
    world = three_replicas()
    for replica_id in (2, 3):
        world.follower("orders-0", replica_id, 100, log_start=20)
    handle = world.delete_records({"orders-0": 50}, timeout_ms=100)
    for replica_id in (2, 3):
        world.follower("orders-0", replica_id, 100, log_start=30)
    world.wait(100)
    assert (world.outcome(handle), world.errors(handle)) == ("expired", [7])
    item = world.item(handle)
    assert (item.reached, item.remaining_ms, item.pace) == (20, 200, 100.0)


def test_case_92_nobody_waits_nothing_is_checked() -> None:
    """A follower's log start costs no evaluation if no operation waits for it."""
    world = three_replicas()
    before = world.engine.inspection.counts(plain.DELETE_RECORDS).evaluations
    world.follower("orders-0", 2, 100, log_start=50)
    assert world.engine.inspection.counts(plain.DELETE_RECORDS).evaluations == before
