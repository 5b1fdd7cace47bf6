"""When a fetch is evaluated: only when a partition has reached its share, and never after it has ended."""

from tests.engine import plain
from tests.engine.world import World


def evaluations(world: World) -> int:
    """Number of evaluations of fetches."""
    return world.engine.counts(plain.FETCH).evaluations


def test_an_old_share_wakes_nobody() -> None:
    """Shares 4, 4, 4; then a-0 is full and b-0 passes 3, so it waits for 5: its first share, 4, wakes nothing."""
    world = World()
    for name in ("a-0", "b-0", "c-0"):
        world.append(name, 100)
        world.high_watermark(name, 0)
    handle = world.fetch({"a-0": 0, "b-0": 0, "c-0": 0}, min_bytes=12, max_bytes=6)
    world.high_watermark("a-0", 6)
    world.high_watermark("b-0", 3)
    before = evaluations(world)
    world.high_watermark("b-0", 4)
    assert evaluations(world) == before
    world.high_watermark("b-0", 5)
    assert evaluations(world) == before + 1
    assert world.outcome(handle) == "pending"
    world.high_watermark("b-0", 6)
    assert world.outcome(handle) == "satisfied"


def test_a_throttled_fetch_that_ended_is_not_remembered() -> None:
    """Changes of the in-sync set evaluate pending throttled fetches, and none that have ended."""
    world = World()
    world.append("a-0", 10)
    world.fetch({"a-0": 5}, replica_id=7, throttled=True, timeout_ms=10)
    world.wait(10)
    handle = world.fetch({"a-0": 0})
    before = evaluations(world)
    world.in_sync("a-0", 1, 2)
    assert world.outcome(handle) == "pending"
    assert evaluations(world) == before


def test_a_follower_whose_high_watermark_goes_down_answers_who_reads_beyond_it() -> None:
    """If a follower's high watermark is lowered, a reader beyond it is answered immediately."""
    world = World()
    world.append("a-0", 10)
    world.high_watermark("a-0", 8)
    world.follow("a-0", 1)
    beyond = world.fetch({"a-0": 8}, follower_reads=True)
    within = world.fetch({"a-0": 5}, follower_reads=True, min_bytes=100)
    assert (world.outcome(beyond), world.outcome(within)) == ("pending", "pending")
    world.high_watermark("a-0", 5)
    assert (world.outcome(beyond), world.outcome(within)) == ("satisfied", "pending")
