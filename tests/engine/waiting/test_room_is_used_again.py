"""Rows, indexes and memory of ended operations are reused: they do not grow with the total ever registered."""

from tests.engine.world import World

ROUNDS = 150


def test_rows_of_ended_waits_are_used_again() -> None:
    """Any number of consecutive waits use the rows of one."""
    world = World()
    for _ in range(ROUNDS):
        handle = world.produce({"orders-0": 10, "orders-1": 10})
        assert world.outcome(handle) == "pending"
        world.wait(1_000)
    pending = world.engine._pending
    assert (pending.operations.size, pending.items.size) == (1, 2)
    world.assert_empty()


def test_an_owner_forgets_what_has_ended() -> None:
    """An owner's index of ids is bounded by its pending operations, and keeps all of them."""
    world = World()
    first = world.produce({"orders-0": 10}, timeout_ms=10_000_000)
    for _ in range(ROUNDS):
        world.produce({"orders-0": 10})
        world.wait(1_000)
    assert len(world.owner.ids) < 100
    assert world.cancel(first) == [True]


def test_places_of_partitions_and_keys_are_used_again() -> None:
    """Names that are waited for once and named by no event leave nothing behind."""
    world = World()
    for number in range(ROUNDS):
        world.produce({f"orders-{number}": 10})
        world.wait_signal({f"key-{number}": 1})
        world.wait(1_000)
    assert len(world.engine._partitions.by_index) == 1
    assert len(world.engine._keys.by_index) == 1
    assert (world.engine.partition_count, world.engine.signal_key_count) == (0, 0)


def test_places_of_owners_are_used_again() -> None:
    """Owners that are added and removed in turn use one id."""
    world = World()
    for _ in range(ROUNDS):
        world.engine.remove_owner(world.engine.add_owner(), world.now_ms)
    assert len(world.engine._pending.owners) == 2
