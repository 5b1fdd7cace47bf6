"""Registrations at the edge of what is allowed."""

from purgatory.engine.limits import EngineLimits
from tests.engine import plain
from tests.engine.world import World, parse


def test_an_id_is_taken_once_in_a_batch() -> None:
    """The second of two equal ids in one batch is refused, not registered again."""
    world = World()
    operation = plain.Operation(plain.PRODUCE, 5, 100, (plain.Item(parse("orders-0"), 10),))
    receipt = world.under_test.register(world.owner_id, [operation, operation], world.now_ms)
    assert (receipt.accepted, receipt.already_known, [refusal.index for refusal in receipt.refusals]) == (1, 0, [1])
    assert world.engine.pending == 1


def test_a_signal_that_holds_already_leaves_its_key_idle() -> None:
    """A key whose wait ended at once makes room for another."""
    world = World(limits=EngineLimits(signal_keys_max=1))
    world.signal("a")
    assert world.outcome(world.wait_signal({"a": 1})) == "satisfied"
    assert world.signal("b").refused is None
    assert world.engine.signal_key_count == 1


def test_as_many_partitions_as_allowed() -> None:
    """The last partition that is allowed is made, the next one is not."""
    world = World(limits=EngineLimits(partitions_max=2))
    world.produce({"orders-0": 10, "orders-1": 10})
    operation = plain.Operation(plain.PRODUCE, 7, 100, (plain.Item(parse("orders-2"), 10),))
    assert world.under_test.register(world.owner_id, [operation], world.now_ms).refusals[0].code == 8
    assert world.engine.partition_count == 2
