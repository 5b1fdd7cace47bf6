"""Rules of the in-sync set and of lagging followers at their edges."""

import pytest

from tests.engine.world import World

P = "orders-0"


@pytest.mark.parametrize(("proposed", "error"), [((1, 2), 0), ((), 20)])
def test_proposed_members_count_towards_the_minimum(proposed: tuple[int, ...], error: int) -> None:
    """A produce whose offset is reached needs as many members, committed or proposed (SEMANTICS: the maximal set)."""
    world = World()
    world.append(P, 10)
    world.in_sync(P, 1, 2, min_in_sync=2)
    world.in_sync(P, 1, proposed=proposed)
    world.high_watermark(P, 5)
    assert world.item(world.produce({P: 5})).error == error


def test_caught_up_when_it_asked_not_when_it_arrived() -> None:
    """A follower that reaches the end of its last fetch's time was caught up then: at 0, not at 90."""
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
    """Time has freed the high watermark of a follower that lags, but a proposal is no reason to look; its end is."""
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
