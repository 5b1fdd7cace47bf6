"""Refused operations and events: values on both sides of each range, and the error. tests/scripts has more.

Also the cache of epochs and the index of byte positions when they are full.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, Refusal
from purgatory.engine.calls import Apply, Register
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, OPERATION_COLUMNS, OperationColumn, columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks import partition
from purgatory.engine.marks.event_columns import EVENT_COLUMNS
from purgatory.engine.marks.positions import ENTRIES_MAX, PositionIndex
from purgatory.extensions.archive.run_details import LIMIT_NAMES
from purgatory.v1 import operation_pb2
from tests.kit.recorded import assert_recorded, cases_of
from tests.scripts.engine_level import EngineLevel

NAMES = [("orders", 0)]
Refused = list[Refusal]


def register(kind: int, engine: Engine | None = None, **columns: Any) -> Refused:  # noqa: ANN401 - columns of the batch
    """The refusals of a batch; by default of operation 1 on one partition or key."""
    engine = engine or Engine(EngineLimits(), 0)
    names: dict[str, Any] = {"keys": ["a"]} if kind == codes.SIGNAL else {"partitions": NAMES}
    batch = OperationBatch(columns.pop("operation_ids", [1]), **(names | columns))
    return engine.perform(engine.add_owner(), Register(kind, batch), 0).refusals


def event(event_type: int, **columns: Any) -> Refused:  # noqa: ANN401 - as above
    """The refusals of a batch with one event."""
    return Engine(EngineLimits(), 0).perform(None, Apply(EventBatch([event_type], **columns)), 0).refusals


BATCHES = Path(__file__).with_name("batches.txt")
IN_BATCHES: dict[str, object] = {
    "register": register, "event": event, "HIGH_WATERMARK": codes.HIGH_WATERMARK, "KEY_SIGNALLED": codes.KEY_SIGNALLED,
    **{name: partial(register, kind) for kind, name in codes.KIND_NAMES.items()},
}  # fmt: skip


def test_batches_are_refused_as_recorded() -> None:
    """As in batches.txt."""

    def answer(case: str) -> str:
        try:
            refused: Refused = eval(case, IN_BATCHES)
        except InvalidBatch as error:
            return f"cannot be read: {error}"
        return "\n".join(f"{one.index}, code {one.code}: {one.field}: {one.message}" for one in refused) or "accepted"

    assert_recorded(BATCHES, map(answer, cases_of(BATCHES)))


def broken(kind: int, **columns: Any) -> tuple[str, str]:  # noqa: ANN401 - columns of the batch
    """Field and message of the error that refuses a whole batch, before anything has changed."""
    engine = Engine(EngineLimits(), 0)
    with pytest.raises(InvalidBatch) as refused:
        register(kind, engine, **columns)
    assert (engine.inspection.counts(codes.PRODUCE).registered, engine.partition_count) == (0, 0)
    return refused.value.field, str(refused.value)


WIRE_NAMES = {column.batch_name: column.wire_name for column in OPERATION_COLUMNS}
WIRE_NAMES |= {"timeouts_ms": "timeout_ms", "item_counts": "item_count", "item_indexes": "item_index"}


@pytest.mark.parametrize("column", WIRE_NAMES)
def test_column_of_the_wrong_length_refuses_the_batch(column: str) -> None:
    field, message = broken(codes.FETCH, operation_ids=[1, 2, 3], **{column: [1, 1]})
    assert field == WIRE_NAMES[column]
    assert message.endswith("has 2 values; it takes 3 (one for each row), 1 (for all) or none")


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_limit_is_at_least_one(name: str) -> None:
    one: dict[str, Any] = {name: 1}
    if name == "timeout_ms_max":
        one["timeout_ms_default"] = 1
    assert getattr(EngineLimits(**one), name) == 1
    zero: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=rf"^{name} must be 1 or greater, not 0$"):
        EngineLimits(**zero)


def test_the_default_timeout_is_within_the_limit() -> None:
    assert EngineLimits().timeout_ms_default == 30_000
    assert EngineLimits(timeout_ms_max=5, timeout_ms_default=5).timeout_ms_default == 5
    with pytest.raises(ValueError, match=r"^timeout_ms_default 6 is over timeout_ms_max 5$"):
        EngineLimits(timeout_ms_max=5, timeout_ms_default=6)


EVENT_COLUMN_NAMES = {column.batch_name: column.name for column in EVENT_COLUMNS} | {"item_indexes": "item_index"}


@pytest.mark.parametrize("column", [*EVENT_COLUMN_NAMES, "replica_sets"])
def test_column_of_the_wrong_length_refuses_the_batch_of_events(column: str) -> None:
    columns: Any = {column: [None, None] if column == "replica_sets" else [0, 0]}
    with pytest.raises(InvalidBatch) as refused:
        Engine(EngineLimits(), 0).perform(
            None, Apply(EventBatch([codes.STORAGE_ONLINE] * 3, partitions=NAMES, **columns)), 0
        )
    assert refused.value.field == EVENT_COLUMN_NAMES.get(column, column)
    takes = "3 or none" if column == "replica_sets" else "3 (one for each row), 1 (for all) or none"
    assert str(refused.value).endswith(f"has 2 values; it takes {takes}")


def test_partition_that_is_removed_without_flags_has_not_moved() -> None:
    engine = Engine(EngineLimits(), 0)
    assert register(codes.PRODUCE, engine, offsets=[9]) == []
    engine.perform(None, Apply(EventBatch([codes.PARTITION_REMOVED], partitions=NAMES)), 0)
    (completions,) = engine.take_completions()
    assert list(completions.error_codes) == [codes.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_batch_to_fill_has_columns_of_its_own() -> None:
    first, second = OperationBatch.to_fill(), OperationBatch.to_fill()
    columns = [name for name in dir(first) if isinstance(getattr(first, name), list)]
    assert len(columns) > 10
    for name in columns:
        assert getattr(first, name) == []
        assert getattr(first, name) is not getattr(second, name), name


# The table of columns agrees with the batch and the wire.

WITHOUT_ROWS = {"operation_ids", "timeouts_ms", "item_counts", "item_indexes", "partitions", "keys"}
"""Part of every batch, so not in the table."""


def test_the_table_has_every_column_of_a_batch() -> None:
    batch = OperationBatch([])
    attributes = {name for name in dir(batch) if not name.startswith("_") and not callable(getattr(batch, name))}
    assert {column.batch_name for column in OPERATION_COLUMNS} == attributes - WITHOUT_ROWS


def test_the_table_has_every_column_of_the_wire() -> None:
    fields = {field.name for field in operation_pb2.OperationColumns.DESCRIPTOR.fields}
    others = {"kind", "operation_id", "timeout_ms", "item_count", "item_index", "partitions", "keys"}
    assert {column.wire_name for column in OPERATION_COLUMNS} == fields - others


@pytest.mark.parametrize("column", OPERATION_COLUMNS, ids=lambda column: f"{column.name}-{column.kinds}")
def test_uses_of_a_column_agree(column: OperationColumn) -> None:
    first = COLUMNS_BY_NAME[column.name]
    assert (column.batch_name, column.wire_name, column.level, column.type_name) == (
        first.batch_name,
        first.wire_name,
        first.level,
        first.type_name,
    )


@pytest.mark.parametrize("kind", codes.KINDS)
def test_a_kind_has_a_column_once(kind: int) -> None:
    names = [column.name for column in columns_of(kind)]
    assert len(set(names)) == len(names)
    assert "offset" in names


def test_a_reader_of_a_dropped_epoch_learns_that_it_is_unknown() -> None:
    """A fetch whose last epoch is older than the thousand that are kept ends with error 1, as for an unknown epoch,
    although its offset is below the start of the oldest one.
    """
    leads = [f"lead orders-0 {epoch} offset={10 * epoch}" for epoch in range(partition.ENTRIES_MAX + 30)]
    end = 10 * partition.ENTRIES_MAX + 1_000
    level = EngineLevel.played(*leads, f"append orders-0 {end}", f"high-watermark orders-0 {end}")
    (dropped,) = level.answer("fetch 1 orders-0@290 last_epoch=25")
    assert "@290 at" in dropped
    assert "error 1 " in dropped
    (known,) = level.answer("fetch 2 orders-0@500 last_epoch=40")
    assert "error" not in known
    assert known.endswith("diverges at 40/410")
    for number, epoch in enumerate((0, 28, 29, 30, 31, partition.ENTRIES_MAX + 29, partition.ENTRIES_MAX + 30), 3):
        level.answer(f"fetch {number} orders-0@{end - 1} last_epoch={epoch}")  # the oracle knows what is right
    cache = level.engine._partitions.by_name["orders", 0].epochs
    assert cache.end_offset(-1, end) == cache.end_offset(partition.ENTRIES_MAX + 30, end) == (-1, -1)


def test_leader_may_have_id_0_and_its_mark_only_rises() -> None:
    partition = EngineLevel.played("lead orders-0 1 replicas=0,1 leader_id=1").engine._partitions.at(0)
    partition.assign([], 0)
    assert partition.leader_id == 0
    assert partition.is_leader
    assert [partition.raise_high_watermark(offset) for offset in (3, 3, 2, 4)] == [True, False, False, True]


def test_counter_of_partitions_changes_with_each_one_that_comes_or_goes() -> None:
    level, seen = EngineLevel(), []
    for line in ("append a-0 1", "append b-0 1", "remove a-0", "append a-0 1"):
        level.answer(line)
        seen.append(level.engine.inspection.partition_changes)
    assert seen == sorted(set(seen))


BYTES = 10
APPENDS = 5 * ENTRIES_MAX


def full() -> PositionIndex:
    """An index of appends of one record of 10 bytes each, far more than it may hold."""
    index = PositionIndex()
    for offset in range(1, APPENDS + 1):
        index.add(offset, 0, BYTES * offset)
        assert len(index) <= ENTRIES_MAX
    return index


def test_the_newest_entries_stay_exact() -> None:
    index = full()
    for offset in range(APPENDS - ENTRIES_MAX // 4, APPENDS + 1):
        assert index.reach(offset) == BYTES * offset


def test_thinned_entries_are_lower_bounds() -> None:
    """In the thinned part, a reach is never too high and never falls, and the oldest entry is kept."""
    index = full()
    reaches = [index.reach(offset) for offset in range(APPENDS + 1)]
    assert reaches[0] == 0
    assert reaches == sorted(reaches)
    assert all(reach <= BYTES * offset for offset, reach in enumerate(reaches))
