"""The engine as a whole: unknown partitions, batches, cancellation, owners, shutdown, listing."""

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from tests.engine import plain
from tests.engine.world import World, parse


def produce_operation(operation_id: int, offset: int = 5) -> plain.Operation:
    """A produce on orders-0 as plain data."""
    return plain.Operation(plain.PRODUCE, operation_id, 100, (plain.Item(parse("orders-0"), offset),))


def test_a_strict_engine_knows_only_announced_partitions() -> None:
    """In strict mode, a wait for an unknown partition fails with 3 and an event is refused; an append announces it."""
    world = World(strict=True)
    handle = world.produce({"orders-0": 5})
    assert (world.outcome(handle), world.errors(handle), world.item(handle).log_start) == ("failed", [3], -1)
    assert world.errors(world.fetch({"orders-0": 5})) == [3]
    assert world.errors(world.delete_records({"orders-0": 5})) == [3]
    assert world.high_watermark("orders-0", 5).refused == (5, 3)
    assert world.engine.inspection.partition_names() == []
    world.append("orders-0", 5)
    world.lead("orders-1", 3)
    assert world.high_watermark("orders-0", 5).refused is None
    assert world.engine.inspection.partition_names() == [("orders", 0), ("orders", 1)]


def test_registering_again_is_harmless() -> None:
    """An id that was registered once stays known, whether or not its operation has ended."""
    world = World()
    operations = [produce_operation(1), produce_operation(2, offset=50)]
    world.register_all(operations)
    world.high_watermark("orders-0", 5)
    receipt = world.register_all(operations)
    assert (receipt.accepted, receipt.already_known, receipt.highest_operation_id) == (0, 2, 2)
    assert world.engine.pending == 1
    assert world.engine.inspection.counts(plain.PRODUCE).registered == 2


def test_an_id_is_accepted_once_in_a_batch() -> None:
    """The second of two equal ids in one batch is refused, not counted as a repeated registration."""
    world = World()
    receipt = world.register_all([produce_operation(5), produce_operation(5)])
    assert (receipt.accepted, receipt.already_known, [refusal.index for refusal in receipt.refusals]) == (1, 0, [1])
    assert world.engine.pending == 1


def test_events_are_applied_in_slices() -> None:
    """A slice ends when events and ended operations reach its limit; the next one continues from there."""
    engine = Engine(EngineLimits(), 0)
    names = [("orders", 0), ("orders", 1), ("orders", 2)]
    waits = OperationBatch(list(range(1, 7)), partitions=names, item_indexes=[0, 0, 1, 1, 2, 2], offsets=[5])
    engine.perform(engine.add_owner(), Register(plain.PRODUCE, waits), 0)
    batch = EventBatch([plain.HIGH_WATERMARK] * 3, partitions=names, item_indexes=[0, 1, 2], offsets=[5])
    first = engine.perform(None, Apply(batch), 0, 14)
    assert (first.next_index, first.ended_by_event) == (2, [2, 2])
    second = engine.perform(None, Apply(batch, first.next_index), 0, 6)
    assert (second.next_index, second.ended_by_event) == (3, [2])
    assert engine.perform(None, Apply(batch), 0, 14).unchanged == 3


def test_cancel_says_which_were_pending() -> None:
    """`cancel` returns True for the operations that it ended; their results have the offsets reached."""
    world = World()
    done = world.produce({"orders-0": 1})
    world.high_watermark("orders-0", 1)
    handle = world.produce({"orders-0": 1, "orders-1": 5})
    assert world.cancel(done, handle, 99, handle) == [False, True, False, False]
    assert (world.outcome(handle), world.errors(handle)) == ("cancelled", [0, 7])
    world.assert_empty()


def test_cancelling_a_name_ends_all_that_wait_on_it() -> None:
    """Cancelling a name ends the waits of every kind on that partition or key, and no others."""
    world = World()
    on_partition = [
        world.produce({"orders-0": 5}),
        world.fetch({"orders-0": 0, "orders-1": 0}),
        world.delete_records({"orders-0": 5}),
    ]
    on_key = [world.wait_signal({"a": 1}), world.wait_signal({"a": 2, "b": 1})]
    others = [world.produce({"orders-1": 5}), world.wait_signal({"b": 1})]
    assert world.cancel_on(("orders", 0)) == 3
    assert [world.outcome(handle) for handle in [*on_partition, *on_key]] == ["cancelled"] * 3 + ["pending"] * 2
    assert world.cancel_on(("a", -1)) == 2
    assert [world.outcome(handle) for handle in [*on_key, *others]] == ["cancelled"] * 2 + ["pending"] * 2


def test_vanished_owner_leaves_nothing_armed() -> None:
    """The waits of a removed owner count as cancelled, without results; nothing holds them; its id may be reused."""
    world = World()
    mine = world.produce({"orders-0": 5})
    other = world.pair.add_owner()
    items = (plain.Item(("orders", 0), 5), plain.Item(("orders", 1), 5))
    world.pair.register(other, [plain.Operation(plain.PRODUCE, i, 100, items) for i in range(1, 50)])
    world.pair.remove_owner(other)
    world.collect()
    assert world.order == []
    assert (world.engine.pending, world.engine.inspection.counts(plain.PRODUCE).cancelled) == (1, 49)
    assert world.high_watermark("orders-0", 5).ended == 1
    assert world.order == [mine]
    world.assert_empty()
    again = world.pair.add_owner()
    assert world.pair.engine.owners[again].highest_operation_id == 0
