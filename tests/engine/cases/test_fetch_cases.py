"""Cases 69 to 85: long polls of followers and consumers. Case 78 is with the marks, 80 with the produce waits."""

import pytest

from tests.engine import plain
from tests.engine.world import World


def test_case_69_follower_waits_for_the_log_end() -> None:
    """An append ends a follower's fetch, even if the high watermark does not move."""
    world = World()
    world.in_sync("orders-0", 1, 2)
    world.append("orders-0", 10)
    handle = world.fetch({"orders-0": 10}, replica_id=2)
    assert world.append("orders-0", 11).ended == 1
    assert world.marks("orders-0").high_watermark == 0
    assert (world.outcome(handle), world.item(handle).available_bytes) == ("satisfied", 1)


def test_case_70_consumer_waits_for_the_high_watermark() -> None:
    """An append above the high watermark does not end a consumer's fetch."""
    world = World()
    world.append("orders-0", 10)
    handle = world.fetch({"orders-0": 0})
    assert world.append("orders-0", 11).ended == 0
    assert world.high_watermark("orders-0", 1).ended == 1
    assert world.item(handle).reached == 1


def test_case_71_segments_are_not_compared_at_equal_offsets() -> None:
    """A roll while the fetch offset equals the high watermark does not end the fetch."""
    world = World()
    world.append("orders-0", 50, position=500, segment=0)
    world.high_watermark("orders-0", 50)
    handle = world.fetch({"orders-0": 50})
    world.append("orders-0", 50, position=0, segment=50)
    assert world.outcome(handle) == "pending"


def test_case_72_old_segment_answers_at_once() -> None:
    """A fetch in an older segment is answered, however few bytes that is."""
    world = World()
    world.append("orders-0", 49, position=499, segment=0)
    world.append("orders-0", 50, position=500, segment=0)
    world.append("orders-0", 60, position=100, segment=50)
    world.high_watermark("orders-0", 60)
    handle = world.fetch({"orders-0": 49}, min_bytes=1_000_000)
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0])


@pytest.mark.parametrize("happens", ["truncated to 40", "deleted up to 51"])
def test_case_73_reader_that_falls_out_of_the_log_ends(happens: str) -> None:
    """If the log is truncated below the fetch offset, or starts above it, the fetch ends immediately with 1."""
    world = World()
    world.append("orders-0", 60)
    world.high_watermark("orders-0", 60)
    handle = world.fetch({"orders-0": 50}, min_bytes=100)
    answer = world.truncate("orders-0", 40) if "truncated" in happens else world.log_start("orders-0", 51)
    assert answer.ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [1])


def test_case_73_beyond_the_high_watermark_but_within_the_log_is_empty() -> None:
    """A fetch offset between the high watermark and the log end gives no error and no bytes."""
    world = World()
    world.append("orders-0", 50)
    world.high_watermark("orders-0", 10)
    handle = world.fetch({"orders-0": 20})
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0])
    assert world.item(handle).available_bytes == 0


def test_case_74_offset_only_high_watermark() -> None:
    """A fetch offset above the high watermark counts as 0 bytes and waits; below, it is answered immediately."""
    world = World()
    world.append("orders-0", 900, position=900, segment=600)
    world.high_watermark("orders-0", 500)
    assert world.outcome(world.fetch({"orders-0": 450})) == "pending"
    other = World()
    other.append("orders-0", 900, position=900, segment=600)
    assert other.marks("orders-0").high_watermark == 0
    assert other.outcome(other.fetch({"orders-0": 450})) == "satisfied"


def test_case_75_partition_maximum_bounds_its_share() -> None:
    """100 of 1,000 bytes count; together with a second partition, 200 reach the minimum of 150."""
    world = World()
    for name in ("orders-0", "orders-1"):
        world.append(name, 0, position=0)
        world.append(name, 10, position=1_000)
    world.high_watermark("orders-0", 10)
    one = world.fetch({"orders-0": 0}, min_bytes=150, max_bytes=100)
    two = world.fetch({"orders-0": 0, "orders-1": 0}, min_bytes=150, max_bytes=100)
    assert world.outcome(one) == world.outcome(two) == "pending"
    world.high_watermark("orders-1", 10)
    assert world.outcome(one) == "pending"
    assert [item.available_bytes for item in world.result(two).items] == [100, 100]


@pytest.mark.parametrize(
    ("in_sync", "outcome", "available_bytes"), [((1,), "expired", 0), ((1, 2), "satisfied", 1_048_576)]
)
def test_case_76_and_77_throttled_follower(in_sync: tuple[int, ...], outcome: str, available_bytes: int) -> None:
    """Bytes of an old segment are readable: out of sync the fetch expires without bytes, in sync it gets them."""
    world = World()
    world.in_sync("orders-0", *in_sync)
    world.append("orders-0", 49, position=499, segment=0)
    world.append("orders-0", 60, position=100, segment=50)
    handle = world.fetch({"orders-0": 49}, replica_id=2, throttled=True)
    world.append("orders-0", 70, position=200, segment=50)
    world.wait(1_000)
    assert (world.outcome(handle), world.errors(handle)) == (outcome, [0])
    assert world.item(handle).available_bytes == available_bytes


def test_case_79_newer_epoch_fences_the_reader() -> None:
    """The fenced partition has error 74; the others have data."""
    world = World()
    world.lead("orders-0", 10)
    world.lead("orders-1", 10)
    world.high_watermark("orders-1", 3)
    handle = world.fetch({"orders-0": 0, "orders-1": 0}, epoch=10, min_bytes=100)
    assert world.lead("orders-0", 11).ended == 1
    assert world.errors(handle) == [74, 0]
    assert world.item(handle, "orders-1").available_bytes == 3


def test_case_81_one_bad_partition_ends_the_fetch() -> None:
    """p0 has data and p1 has its error."""
    world = World()
    world.append("orders-0", 10)
    world.high_watermark("orders-0", 10)
    world.append("orders-1", 10)
    handle = world.fetch({"orders-0": 0, "orders-1": 10}, min_bytes=100, replica_id=2)
    assert world.remove("orders-1").ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [0, 3])
    assert world.item(handle, "orders-0").available_bytes == 10


def test_case_82_unknown_marks_do_not_hide_failed_storage() -> None:
    """A partition without known marks counts as 0 bytes, but a storage failure on it ends the fetch."""
    world = World()
    handle = world.fetch({"orders-0": 0})
    assert world.outcome(handle) == "pending"
    assert world.storage_failed("orders-0").ended == 1
    assert world.errors(handle) == [56]


def test_case_83_expired_fetch_gives_what_there_is() -> None:
    """A fetch below min_bytes expires with the bytes that are readable, without an error."""
    world = World()
    world.append("orders-0", 0, position=0)
    world.append("orders-0", 1, position=10)
    world.high_watermark("orders-0", 1)
    handle = world.fetch({"orders-0": 0}, min_bytes=1_000_000, timeout_ms=500)
    assert world.wait(500) == 1
    assert (world.outcome(handle), world.errors(handle)) == ("expired", [0])
    assert world.item(handle).available_bytes == 10
    assert world.engine.inspection.counts(plain.FETCH).expired == 1


def test_case_84_fetch_does_not_move_the_follower() -> None:
    """Only progress events move a follower's log end; its fetches do not."""
    world = World()
    world.in_sync("orders-0", 1, 2)
    world.append("orders-0", 10)
    before = world.marks("orders-0").replicas
    world.fetch({"orders-0": 10}, replica_id=2)
    world.append("orders-0", 11)
    assert world.marks("orders-0").replicas == before


def test_case_85_epoch_decides_whether_a_follower_may_serve() -> None:
    """With an epoch the reader is fenced (74); without one it is served up to the follower's high watermark."""
    world = World()
    world.lead("orders-0", 5)
    world.append("orders-0", 10)
    strict = world.fetch({"orders-0": 0}, epoch=5, follower_reads=True)
    loose = world.fetch({"orders-0": 0}, follower_reads=True)
    leader_only = world.fetch({"orders-0": 0})
    assert world.follow("orders-0", 6).ended == 2
    assert (world.errors(strict), world.errors(leader_only)) == ([74], [6])
    assert world.outcome(loose) == "pending"
    assert world.high_watermark("orders-0", 4).ended == 1
    assert (world.outcome(loose), world.item(loose).available_bytes) == ("satisfied", 4)


def test_bytes_of_all_partitions_may_not_fit_into_64_bits() -> None:
    """A fetch is answered although the sum of what its partitions have exceeds 64 bits."""
    world = World()
    names = [f"orders-{number}" for number in range(5)]
    for name in names:
        world.append(name, 2**61 - 1)
        world.high_watermark(name, 2**61 - 1)
    handle = world.fetch(dict.fromkeys(names, 0), min_bytes=2**61 - 1, max_bytes=2**61 - 1)
    assert world.outcome(handle) == "satisfied"
    assert [item.available_bytes for item in world.result(handle).items] == [2**61 - 1] * 5


def test_bytes_of_all_segments_are_bounded() -> None:
    """Byte positions that add up to 2**61 are refused; fetches beyond the highest ones wait for the next byte."""
    world = World()
    for segment in range(3):
        assert world.append("orders-0", segment + 1, segment=segment, position=2**59 - 1).refused is None
    assert world.append("orders-0", 4, segment=3, position=2**59 - 1).refused is None
    assert world.append("orders-0", 5, segment=4, position=3).refused is None
    for segment, position in ((4, 4), (5, 3), (5, -1)):
        answer = world.append("orders-0", 6, segment=segment, position=position)
        assert answer.refused == (plain.INVALID_ARGUMENT, 1)
    world.high_watermark("orders-0", 5)
    handle = world.fetch({"orders-0": 5}, max_bytes=2**61 - 1)
    assert world.append("orders-0", 2**61 - 1).ended == 0
    assert world.high_watermark("orders-0", 6).ended == 1
    assert world.item(handle).available_bytes == 1
