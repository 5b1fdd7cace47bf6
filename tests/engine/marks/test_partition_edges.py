"""Edge cases of the in-sync set and of lagging followers, and the cache of leader epochs on its own."""

import pytest

from purgatory.engine.marks.epochs import ENTRIES_MAX, EpochCache
from tests.engine.world import World

P = "orders-0"


@pytest.mark.parametrize(("proposed", "error"), [((1, 2), 0), ((), 20)])
def test_proposed_members_count_towards_the_minimum(proposed: tuple[int, ...], error: int) -> None:
    """A reached produce needs enough members, committed or proposed (docs/semantics.md: the maximal set)."""
    world = World()
    world.append(P, 10)
    world.in_sync(P, 1, 2, min_in_sync=2)
    world.in_sync(P, 1, proposed=proposed)
    world.high_watermark(P, 5)
    assert world.item(world.produce({P: 5})).error == error


def test_caught_up_when_it_asked_not_when_it_arrived() -> None:
    """A follower that reaches the log end of its previous fetch was caught up at that time: at 0, not at 90."""
    world = World(lag_max_ms=100)
    world.in_sync(P, 1)
    world.append(P, 10)
    world.follower(P, 2, 5)
    world.now_ms = 50
    world.append(P, 20)
    world.now_ms = 90
    world.follower(P, 2, 10)
    world.now_ms = 150
    world.append(P, 21)
    assert world.marks(P).high_watermark == 21


def test_a_mere_proposal_moves_nothing() -> None:
    """The lag time has passed for a follower, but a proposal does not raise the high watermark; withdrawing it does."""
    world = World(lag_max_ms=100)
    world.in_sync(P, 1)
    world.append(P, 10)
    world.follower(P, 2, 10)
    world.append(P, 20)
    world.follower(P, 3, 20)
    world.now_ms = 200
    world.in_sync(P, 1, proposed=(1, 3))
    assert world.marks(P).high_watermark == 10
    world.in_sync(P, 1)
    assert world.marks(P).high_watermark == 20


def test_an_epoch_without_records_is_dropped() -> None:
    """Epochs 2 and 3 begin at the same offset, so nothing was written in 2 and epoch 1 answers for it."""
    cache = EpochCache()
    for epoch, start in ((1, 0), (2, 10), (3, 10)):
        cache.assign(epoch, start)
    assert cache.end_offset(2, 20) == (1, 10)
    assert cache.end_offset(3, 20) == (3, 20)
    assert cache.end_offset(4, 20) == EpochCache().end_offset(0, 20) == (-1, -1)


def test_the_newest_epochs_are_kept() -> None:
    """The newest thousand epochs are kept; an older epoch is answered with the oldest start."""
    cache = EpochCache()
    for epoch in range(ENTRIES_MAX + 500):
        cache.assign(epoch, 10 * epoch)
    assert len(cache.epochs) == ENTRIES_MAX
    assert cache.end_offset(501, 10**6) == (501, 5_020)
    assert cache.end_offset(3, 10**6) == (3, 5_000)
