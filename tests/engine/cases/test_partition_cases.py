"""Cases 47 to 58 and 78: how the marks of a partition move. Case 50 is `test_confirmed_shrink_ends_waits`."""

import pytest

from tests.engine.world import World


def test_case_47_high_watermark_is_the_lowest_in_sync_end() -> None:
    """The high watermark rises with the slowest in-sync replica, and is never lowered on a leader."""
    world = World()
    world.in_sync("orders-0", 1, 2, 3)
    world.append("orders-0", 10)
    world.follower("orders-0", 2, 8)
    world.follower("orders-0", 3, 6)
    assert world.marks("orders-0").high_watermark == 6
    world.follower("orders-0", 2, 9)
    world.follower("orders-0", 3, 9)
    assert world.marks("orders-0").high_watermark == 9
    world.follower("orders-0", 3, 7)
    assert world.marks("orders-0").high_watermark == 9


@pytest.mark.parametrize(("dead", "fenced"), [(False, False), (True, False), (False, True)])
def test_case_48_caught_up_follower_outside_the_set_holds_back(dead: bool, fenced: bool) -> None:
    """A follower that may join the in-sync set at any time counts already; a dead or fenced one does not."""
    world = World()
    world.in_sync("orders-0", 1)
    world.append("orders-0", 7)
    world.follower("orders-0", 2, 7)
    world.append("orders-0", 11)
    assert world.marks("orders-0").high_watermark == 7
    world.follower("orders-0", 2, 11)
    assert world.marks("orders-0").high_watermark == 11
    world.replica("orders-0", 2, dead=dead, fenced=fenced)
    world.append("orders-0", 12)
    assert world.marks("orders-0").high_watermark == (12 if dead or fenced else 11)


@pytest.mark.parametrize("event", ["append", "follower", "in_sync"])
def test_case_48_a_fenced_follower_is_left_out_from_the_next_event(event: str) -> None:
    """Fencing a follower does not move the high watermark, as in Kafka; the next event that computes it does."""
    world = World()
    world.in_sync("orders-0", 1, 3, min_in_sync=1)
    world.append("orders-0", 7)
    world.follower("orders-0", 2, 7)
    world.follower("orders-0", 3, 7)
    world.append("orders-0", 11)
    world.follower("orders-0", 3, 9)
    produce = world.produce({"orders-0": 9})
    world.replica("orders-0", 2, fenced=True, dead=True)
    assert (world.marks("orders-0").high_watermark, world.outcome(produce)) == (7, "pending")
    if event == "append":
        world.append("orders-0", 12)
    elif event == "follower":
        world.follower("orders-0", 3, 10)
    else:
        world.in_sync("orders-0", 1)
    assert world.marks("orders-0").high_watermark == (10 if event == "follower" else 9)
    assert world.outcome(produce) == "satisfied"


def test_case_48_follower_that_lags_too_long_does_not_hold_back() -> None:
    """A follower that was last caught up longer ago than the replica lag time does not hold back the high watermark."""
    world = World(lag_max_ms=100)
    world.in_sync("orders-0", 1)
    world.append("orders-0", 7)
    world.follower("orders-0", 2, 7)
    world.now_ms = 100
    world.append("orders-0", 10)
    assert world.marks("orders-0").high_watermark == 7
    world.now_ms = 101
    world.append("orders-0", 11)
    assert world.marks("orders-0").high_watermark == 11


def test_case_49_proposed_member_binds_until_rejected() -> None:
    """A proposed member holds back the high watermark immediately; rejecting the proposal releases it."""
    world = World()
    world.in_sync("orders-0", 1)
    world.append("orders-0", 10)
    world.follower("orders-0", 2, 5)
    assert world.marks("orders-0").high_watermark == 10
    world.in_sync("orders-0", proposed=(1, 2))
    world.append("orders-0", 11)
    assert world.marks("orders-0").high_watermark == 10
    world.in_sync("orders-0")
    assert world.marks("orders-0").high_watermark == 11


def test_case_51_under_min_in_sync_the_high_watermark_is_frozen() -> None:
    """With fewer in-sync replicas than the minimum, the high watermark does not rise (the rule of 3.7+)."""
    world = World()
    world.in_sync("orders-0", 1, 2, min_in_sync=2)
    world.append("orders-0", 5)
    world.follower("orders-0", 2, 5)
    world.in_sync("orders-0", 1)
    world.append("orders-0", 10)
    assert world.marks("orders-0").high_watermark == 5
    assert world.in_sync("orders-0", min_in_sync=1).refused is None
    assert world.marks("orders-0").high_watermark == 5, "replica 2 is caught up and still counts"


def test_case_52_effective_min_in_sync_is_bounded_by_replicas() -> None:
    """The minimum of in-sync replicas is at most the number of replicas: with one replica, 2 is treated as 1."""
    world = World()
    world.in_sync("orders-0", 1, min_in_sync=2)
    handle = world.produce({"orders-0": 11})
    world.append("orders-0", 11)
    assert world.outcome(handle) == "satisfied"
    assert world.errors(handle) == [0]


def test_case_53_new_leader_waits_for_every_member() -> None:
    """The high watermark of a new leader does not rise until each follower has fetched."""
    world = World()
    world.in_sync("orders-0", 1, 2, 3)
    world.append("orders-0", 10)
    world.follower("orders-0", 2, 10)
    world.follower("orders-0", 3, 10)
    world.follow("orders-0", 5)
    world.append("orders-0", 20)
    world.lead("orders-0", 6)
    world.follower("orders-0", 2, 20)
    assert world.marks("orders-0").high_watermark == 10
    world.follower("orders-0", 3, 20)
    assert world.marks("orders-0").high_watermark == 20


def test_case_54_roll_under_the_high_watermark_ends_fetches_of_the_old_segment() -> None:
    """The mark moves to the new segment at the same offset, and that wakes fetches; moving back is refused."""
    world = World()
    world.append("orders-0", 45, position=450, segment=0)
    world.append("orders-0", 50, position=500, segment=0)
    world.high_watermark("orders-0", 50)
    fetch = world.fetch({"orders-0": 45}, min_bytes=1_000)
    assert world.outcome(fetch) == "pending"
    assert world.append("orders-0", 50, position=0, segment=50).ended == 1
    assert world.outcome(fetch) == "satisfied"
    assert world.append("orders-0", 50, position=500, segment=0).refused == (3, 1)


def test_case_55_last_stable_offset_stops_at_the_open_transaction() -> None:
    """The last stable offset is the smaller of the first unstable offset and the high watermark."""
    world = World()
    world.append("orders-0", 46)
    world.last_stable("orders-0", 30)
    world.high_watermark("orders-0", 40)
    assert world.marks("orders-0").last_stable == 30
    world.high_watermark("orders-0", 46)
    assert world.marks("orders-0").last_stable == 30
    world.last_stable("orders-0", -1)
    assert world.marks("orders-0").last_stable == 46


def test_case_56_low_watermark_ignores_dead_replicas() -> None:
    """The low watermark is 20 while b is dead, 5 when it is back, and unknown with a replica that never fetched."""
    world = World()
    world.high_watermark("orders-0", 30)
    world.log_start("orders-0", 20)
    world.follower("orders-0", 2, 30, log_start=20)
    world.follower("orders-0", 3, 30, log_start=5)
    world.replica("orders-0", 3, dead=True)
    assert world.marks("orders-0").low_watermark == 20
    world.replica("orders-0", 3)
    assert world.marks("orders-0").low_watermark == 5
    world.replica("orders-0", 4)
    assert world.marks("orders-0").low_watermark == -1


@pytest.mark.parametrize(
    ("epoch", "offset", "diverges"),
    [
        (7, 120, None),
        (8, 120, "unknown"),
        (4, 90, None),
        (4, 91, (4, 90)),
        (5, 90, (4, 90)),
        (3, 50, (2, 50)),
        (1, 0, None),
        (1, 1, (1, 0)),
        (-1, 120, None),
        (7, 121, (7, 120)),
    ],
)
def test_case_57_and_78_end_of_epoch(epoch: int, offset: int, diverges: tuple[int, int] | str | None) -> None:
    """A reader's last epoch is looked up in the epoch cache {2 from 0, 4 from 50, 7 from 90}, log end 120.

    A reader whose log diverged at the end of an epoch gets that offset immediately, without an error and without
    records.
    """
    world = World()
    for leader_epoch, start in ((2, 0), (4, 50), (7, 90)):
        world.lead("orders-0", leader_epoch, start=start)
    world.append("orders-0", 120)
    world.high_watermark("orders-0", 120)
    handle = world.fetch({"orders-0": offset}, last_epoch=epoch, replica_id=2, min_bytes=1_000_000)
    if diverges is None:
        assert world.outcome(handle) == "pending"
    elif diverges == "unknown":
        assert world.outcome(handle) == "failed"
        assert world.errors(handle) == [1]
    else:
        assert world.outcome(handle) == "satisfied"
        item = world.item(handle)
        assert (item.diverging_epoch, item.diverging_end, item.available_bytes, item.error) == (*diverges, 0, 0)


def test_an_epoch_may_start_at_offset_0_of_a_longer_log() -> None:
    """A start of 0 is not an absent one: a reader at 5 whose last epoch came before has diverged at 0."""
    world = World()
    world.append("orders-0", 10)
    world.lead("orders-0", 2, start=0)
    handle = world.fetch({"orders-0": 5}, last_epoch=1, replica_id=2, min_bytes=1_000_000)
    item = world.item(handle)
    assert (world.outcome(handle), item.diverging_epoch, item.diverging_end) == ("satisfied", 1, 0)


def test_case_58_offset_below_all_positions_is_on_an_older_segment() -> None:
    """A fetch from below all known segments is answered immediately (Kafka: waits), with at most its maximum."""
    world = World()
    world.append("orders-0", 500, position=900, segment=400)
    world.high_watermark("orders-0", 500)
    handle = world.fetch({"orders-0": 300}, max_bytes=77)
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0])
    assert world.item(handle).available_bytes == 77


def test_marks_keep_their_order() -> None:
    """Log start <= last stable <= high watermark <= log end, whatever was reported."""
    world = World()
    world.append("orders-0", 10)
    world.high_watermark("orders-0", 25)
    assert world.marks("orders-0").log_end == 25
    assert world.log_start("orders-0", 26).refused == (3, 1)
    world.log_start("orders-0", 20)
    world.truncate("orders-0", 15)
    marks = world.marks("orders-0")
    assert (marks.log_start, marks.high_watermark, marks.log_end) == (15, 15, 15)


def test_follower_takes_what_its_leader_says() -> None:
    """On a follower the high watermark may be lowered, but not below the log start, and never exceeds the log end."""
    world = World()
    world.append("orders-0", 10)
    world.follow("orders-0", 3)
    world.high_watermark("orders-0", 30)
    assert world.marks("orders-0").high_watermark == 10
    world.high_watermark("orders-0", 4)
    assert world.marks("orders-0").high_watermark == 4
