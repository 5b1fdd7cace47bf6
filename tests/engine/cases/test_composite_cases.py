"""Composite waits: terms on marks and signals, all, any or k of n of them, with a failure arm."""

import pytest

from tests.engine import plain
from tests.engine.world import World


def test_all_terms_are_needed() -> None:
    """A composite of two marks and a signal is satisfied with the last of them; each tells what it reached."""
    world = World()
    handle = world.composite(("orders-0", 5), ("orders-1", 3), ("job", 2))
    world.high_watermark("orders-0", 9)
    world.signal("job", 2)
    assert world.outcome(handle) == "pending"
    assert world.high_watermark("orders-1", 3).ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0, 0, 0])
    assert [item.reached for item in world.result(handle).items] == [9, 3, 2]
    world.assert_empty()


def test_any_term_is_enough() -> None:
    """With one required term, the first one ends the wait; the others answer 7 with what they reached."""
    world = World()
    handle = world.composite(("orders-0", 5), ("job", 1), ("orders-1", 3), required_terms=1)
    world.high_watermark("orders-0", 4)
    assert world.signal("job").ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [7, 0, 7])
    assert [item.reached for item in world.result(handle).items] == [4, 1, -1]
    world.assert_empty()


def test_failure_arm() -> None:
    """A true term of the failure arm ends the wait as failed, with 1002 for that term; terms before it keep theirs."""
    world = World()
    handle = world.composite(("orders-0", 5), ("job", 1), unless=[("job/failed", 1), ("dead-0", 7)])
    world.signal("job")
    assert world.signal("job/failed").ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [7, 0, 1002, 7])
    world.assert_empty()


def test_failure_arm_on_a_mark() -> None:
    """A high watermark may be in the failure arm too."""
    world = World()
    handle = world.composite(("job", 1), unless=[("dead-letters-0", 7)])
    assert world.high_watermark("dead-letters-0", 7).ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [7, 1002])


@pytest.mark.parametrize(("term", "unless"), [(3, 8), (8, 3), (5, 5)])
def test_both_arms_at_the_same_instant(term: int, unless: int) -> None:
    """If one event, or the registration, makes both arms true, the wait fails, whichever threshold is lower."""
    world = World()
    on_mark = world.composite(("orders-0", term), unless=[("orders-0", unless)])
    on_key = world.composite(("job", term), unless=[("job", unless)])
    assert world.high_watermark("orders-0", 9).ended == 1
    assert world.signal("job", 9).ended == 1
    at_once = world.composite(("orders-0", term), ("job", term), unless=[("job", unless)])
    for handle, errors in ((on_mark, [0, 1002]), (on_key, [0, 1002]), (at_once, [0, 0, 1002])):
        assert (world.outcome(handle), world.errors(handle)) == ("failed", errors)
    world.assert_empty()


@pytest.mark.parametrize(("term", "unless", "outcome"), [(3, 8, "satisfied"), (8, 3, "failed")])
def test_the_arm_that_is_true_first_decides(term: int, unless: int, outcome: str) -> None:
    """If the arms become true one after the other, the first decides."""
    world = World()
    handle = world.composite(("orders-0", term), unless=[("orders-0", unless)])
    for offset in range(1, 10):
        world.high_watermark("orders-0", offset)
    assert world.outcome(handle) == outcome


def test_a_mark_that_falls() -> None:
    """A term that was true stays true, with the mark it had then, when its log is truncated."""
    world = World()
    handle = world.composite(("orders-0", 5), ("job", 1))
    failing = world.composite(("job", 2), unless=[("orders-0", 7)])
    world.append("orders-0", 9)
    world.high_watermark("orders-0", 6)
    assert world.truncate("orders-0", 2).ended == 0
    later = world.composite(("orders-0", 5), ("job", 1))
    world.signal("job")
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0, 0])
    assert world.item(handle, "orders-0").reached == 6
    assert world.outcome(later) == "pending", "the mark is below 5 for a wait that comes later"
    world.high_watermark("orders-0", 7)
    assert [world.outcome(wait) for wait in (later, failing)] == ["satisfied", "failed"]


def test_k_of_n_with_repeated_terms() -> None:
    """The same names may occur several times; each term counts by itself."""
    world = World()
    terms = [("orders-0", 2), ("orders-0", 4), ("orders-0", 4), ("job", 1), ("job", 3)]
    handles = [world.composite(*terms, required_terms=required) for required in range(1, 6)]
    ends = [world.high_watermark("orders-0", 2).ended, world.high_watermark("orders-0", 4).ended]
    ends += [world.signal("job").ended, world.signal("job").ended, world.signal("job").ended]
    assert ends == [1, 2, 1, 0, 1]
    assert [world.errors(handle) for handle in handles] == [
        [0, 7, 7, 7, 7], [0, 0, 0, 7, 7], [0, 0, 0, 7, 7], [0, 0, 0, 0, 7], [0] * 5,
    ]  # fmt: skip
    world.assert_empty()


def test_removed_partitions_are_lost() -> None:
    """Terms of a removed partition are lost with 3, moved ones with 6; the wait fails once too few can come true."""
    world = World()
    both = world.composite(("orders-0", 5), ("job", 1))
    one = world.composite(("orders-0", 5), ("orders-1", 5), ("job", 1), required_terms=1)
    two = world.composite(("orders-0", 5), ("orders-0", 6), ("orders-1", 5), ("job", 1), required_terms=2)
    assert world.remove("orders-0").ended == 1
    assert (world.outcome(both), world.errors(both)) == ("failed", [3, 7])
    assert world.remove("orders-1", moved=True).ended == 1
    assert (world.outcome(two), world.errors(two)) == ("failed", [3, 3, 6, 7])
    world.high_watermark("orders-0", 9)
    assert world.outcome(one) == "pending", "a lost term does not come back with a partition of the same name"
    world.signal("job")
    assert (world.outcome(one), world.errors(one)) == ("satisfied", [3, 6, 0])
    world.assert_empty()


def test_lost_failure_arm_does_not_end_the_wait() -> None:
    """A term of the failure arm that can no longer come true has an error code, and no effect."""
    world = World()
    world.high_watermark("orders-0", 1)
    handle = world.composite(("job", 1), unless=[("orders-0", 5)])
    assert world.storage_failed("orders-0").ended == 0
    assert world.signal("job").ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0, 56])


def test_lost_at_registration() -> None:
    """A composite that cannot come true fails at once."""
    world = World()
    world.follow("orders-0", 1)
    handle = world.composite(("orders-0", 5), ("orders-1", 5))
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [6, 7])
    assert world.outcome(world.composite(("orders-0", 5), ("job", 1), required_terms=1)) == "pending"


def test_in_sync_replicas_do_not_matter() -> None:
    """A mark term compares the high watermark only, also below the minimum of in-sync replicas."""
    world = World()
    world.in_sync("orders-0", 1, min_in_sync=2)
    world.replica("orders-0", 2)
    world.high_watermark("orders-0", 5)
    assert world.errors(world.produce({"orders-0": 5})) == [20]
    assert world.errors(world.composite(("orders-0", 5))) == [0]


def test_it_expires_with_pace() -> None:
    """An expired composite tells for each term what it reached, and how fast it moved during the wait."""
    world = World()
    world.high_watermark("orders-0", 10)
    handle = world.composite(("orders-0", 20), ("job", 1), unless=[("failures", 9)], timeout_ms=1_000)
    world.high_watermark("orders-0", 14)
    world.signal("failures", 3)
    world.wait(1_000)
    assert (world.outcome(handle), world.errors(handle)) == ("expired", [7, 7, 7])
    items = world.result(handle).items
    assert [(item.remaining_ms, item.pace) for item in items] == [(1_500, 4.0), (-1, -1.0), (2_000, 3.0)]
    world.assert_empty()


def test_stale_marks() -> None:
    """A composite fails as stale once too few of its terms are left without those whose marks are stale."""
    world = World()
    for name in ("orders-0", "orders-1"):
        world.high_watermark(name, 1)
    every = world.composite(("orders-0", 5), ("job", 1), stale_timeout_ms=100)
    one = world.composite(("orders-0", 5), ("orders-1", 5), required_terms=1, stale_timeout_ms=100)
    signal = world.composite(("orders-0", 5), ("job", 1), required_terms=1, stale_timeout_ms=100)
    arm = world.composite(("job", 1), unless=[("orders-0", 5)], stale_timeout_ms=100)
    world.wait(100)
    assert world.pair.fail_stale({("orders", 0): 100, ("orders", 1): 99}) == 1
    world.collect()
    assert (world.outcome(every), world.errors(every)) == ("failed", [1001, 7])
    assert world.pair.fail_stale({("orders", 0): 200, ("orders", 1): 100}) == 1
    world.collect()
    assert (world.outcome(one), world.errors(one)) == ("failed", [1001, 1001])
    assert [world.outcome(handle) for handle in (signal, arm)] == ["pending", "pending"]
    world.high_watermark("orders-0", 9)
    assert world.outcome(signal) == "satisfied", "the mark came back"
    assert world.outcome(arm) == "failed"


def test_cancelled_by_any_of_its_names() -> None:
    """Cancelling all waits on a partition or a key reaches composites, also those that name it in the failure arm."""
    world = World()
    by_key = world.composite(("orders-0", 5), ("job", 1), ("job", 2))
    by_arm = world.composite(("orders-1", 5), unless=[("job", 3)])
    by_mark = world.composite(("orders-0", 5), ("other", 1))
    assert world.engine.inspection.has_waits(("job", -1))
    assert world.cancel_on(("job", -1)) == 2
    assert world.cancel_on(("orders", 0)) == 1
    assert [world.outcome(handle) for handle in (by_key, by_arm, by_mark)] == ["cancelled"] * 3
    world.assert_empty()


def test_two_thousand_terms() -> None:
    """A composite of 2,000 terms, half of them on one partition and one key, ends with the last one that it needs."""
    world = World()
    terms = [(f"orders-{partition}", 1 + place) for partition in range(40) for place in range(25)]
    terms += [("audit-0", 1 + place) for place in range(500)] + [("job", 1 + place) for place in range(500)]
    every = world.composite(*terms)
    most = world.composite(*terms, required_terms=1_500)
    failing = world.composite(*terms[:1_000], unless=terms[1_000:])
    marks = [plain.Event(plain.HIGH_WATERMARK, ("orders", partition), 25) for partition in range(39)]
    assert sum(answer.ended for answer in world.pair.apply(marks)) == 0
    assert world.engine.inspection.describe(world.owner, most).required_terms == 1_500  # type: ignore[union-attr]
    assert world.signal("job", 500).ended == 1
    assert (world.outcome(failing), world.errors(failing).count(1002)) == ("failed", 500)
    assert [world.high_watermark("audit-0", offset).ended for offset in (24, 25)] == [0, 1]
    assert (world.outcome(most), world.errors(most).count(0)) == ("satisfied", 1_500)
    assert world.high_watermark("audit-0", 500).ended == 0
    assert world.remove("orders-38").ended == 0, "its terms were true before"
    assert [world.high_watermark("orders-39", offset).ended for offset in (24, 25)] == [0, 1]
    assert (world.outcome(every), set(world.errors(every))) == ("satisfied", {0})
    world.assert_empty()


def test_two_thousand_lost_terms() -> None:
    """Of 2,000 terms on one partition, all are lost by its removal, and only a wait that can do without them stays."""
    world = World()
    world.high_watermark("orders-0", 0)
    terms = [("orders-0", 1 + place) for place in range(1_999)]
    stays = world.composite(*terms, ("job", 1), required_terms=1)
    ends = world.composite(*terms, ("job", 1), required_terms=2)
    assert world.remove("orders-0").ended == 1
    assert [world.outcome(handle) for handle in (stays, ends)] == ["pending", "failed"]
    assert world.signal("job").ended == 1
    assert world.errors(stays) == [3] * 1_999 + [0]
    world.assert_empty()
