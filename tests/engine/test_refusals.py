"""Refused operations and events: values on both sides of each range, and the error. tests/scripts has more.

Also the cache of epochs and the index of byte positions when they are full.
"""

from typing import Any

import pytest

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, Register
from purgatory.engine.codes import (
    COMPOSITE,
    DELETE_RECORDS,
    FETCH,
    HIGH_WATERMARK,
    KEY_SIGNALLED,
    KINDS,
    PARTITION_REMOVED,
    PRODUCE,
    SIGNAL,
    STORAGE_ONLINE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, OPERATION_COLUMNS, OperationColumn, columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks import partition
from purgatory.engine.marks.event_columns import EVENT_COLUMNS
from purgatory.engine.marks.positions import ENTRIES_MAX, PositionIndex
from purgatory.extensions.archive.run_details import LIMIT_NAMES
from purgatory.v1 import operation_pb2
from tests.scripts.engine_level import EngineLevel

INT32_MAX = 2**31 - 1
OFFSET_MAX = 2**61 - 1
INVALID = 3
NAMES = [("orders", 0)]
HOLDERS = {
    PRODUCE: "produce", FETCH: "fetch", DELETE_RECORDS: "delete_records", SIGNAL: "signal", COMPOSITE: "composite",
}  # fmt: skip

Refused = list[tuple[int, int, str, str]]


def register(kind: int, engine: Engine | None = None, **columns: Any) -> Refused:  # noqa: ANN401 - columns of the batch
    """(index, code, field, message) of each refusal of a batch; by default of operation 1 on one partition or key."""
    engine = engine or Engine(EngineLimits(), 0)
    names: dict[str, Any] = {"keys": ["a"]} if kind == SIGNAL else {"partitions": NAMES}
    batch = OperationBatch(columns.pop("operation_ids", [1]), **(names | columns))
    receipt = engine.perform(engine.add_owner(), Register(kind, batch), 0)
    return [(refusal.index, refusal.code, refusal.field, refusal.message) for refusal in receipt.refusals]


RANGES = [
    # kind, column of the batch, field, lowest, highest
    (PRODUCE, "offsets", "produce.partitions[0].required_offset", 0, OFFSET_MAX),
    (FETCH, "offsets", "fetch.partitions[0].fetch_offset", 0, OFFSET_MAX),
    (DELETE_RECORDS, "offsets", "delete_records.partitions[0].offset", -1, OFFSET_MAX),
    (SIGNAL, "offsets", "signal.keys[0].required_count", 1, OFFSET_MAX),
    (COMPOSITE, "offsets", "composite.terms[0].mark.required_offset", 0, OFFSET_MAX),
    (PRODUCE, "local_error_codes", "produce.partitions[0].local_error_code", -1, 2**15 - 1),
    (DELETE_RECORDS, "local_error_codes", "delete_records.partitions[0].local_error_code", -1, 2**15 - 1),
    (PRODUCE, "leader_epochs", "produce.partitions[0].leader_epoch", 0, INT32_MAX),
    (FETCH, "leader_epochs", "fetch.partitions[0].current_leader_epoch", 0, INT32_MAX),
    (FETCH, "min_bytes", "fetch.min_bytes", 1, OFFSET_MAX),
    (FETCH, "replica_ids", "fetch.replica_id", 0, INT32_MAX),
    (FETCH, "isolation_levels", "fetch.isolation_level", 0, 2),
    (FETCH, "follower_reads", "fetch.follower_reads", 0, 1),
    (FETCH, "partition_max_bytes", "fetch.partitions[0].partition_max_bytes", 1, OFFSET_MAX),
    (FETCH, "last_fetched_epochs", "fetch.partitions[0].last_fetched_epoch", 0, INT32_MAX),
    (FETCH, "throttled", "fetch.partitions[0].throttled", 0, 1),
    (SIGNAL, "any_key", "signal.any", 0, 1),
    (SIGNAL, "from_now", "signal.from_now", 0, 1),
    *[(kind, "timeouts_ms", "timeout_ms", 0, INT32_MAX) for kind in KINDS],
    *[(kind, "operation_ids", "operation_id", 1, OFFSET_MAX) for kind in KINDS],
]
NOT_GIVEN = {"leader_epochs": -1, "last_fetched_epochs": -1, "replica_ids": -1}
"""Values below the range that mean "missing". So is -1 as the offset of a composite."""


@pytest.mark.parametrize(
    ("kind", "column", "field", "lowest", "greatest"), RANGES, ids=[f"{row[1]}-{HOLDERS[row[0]]}" for row in RANGES]
)
def test_values_beyond_the_ends_of_a_range_are_refused(
    kind: int, column: str, field: str, lowest: int, greatest: int
) -> None:
    def registered(value: int, kind: int = kind) -> Refused:
        columns: dict[str, Any] = {column: [value]}
        return register(kind, **columns)

    allowed_below = -1 if (kind, column) == (COMPOSITE, "offsets") else NOT_GIVEN.get(column, lowest)
    for value in {lowest, greatest, allowed_below}:
        assert registered(value) == []
    for value in (allowed_below - 1, greatest + 1, 2**64):
        assert registered(value) == [(0, INVALID, field, f"{value} is not in {lowest}..{greatest}")]
    for other in set(KINDS) - {row[0] for row in RANGES if row[1] == column}:
        assert registered(greatest + 1, other) == []


@pytest.mark.parametrize("kind", KINDS)
def test_names(kind: int) -> None:
    """Each item names a valid entry of the dictionary, and no entry twice, except in composites."""
    item = f"{HOLDERS[kind]}.{'keys[{}].key' if kind == SIGNAL else 'partitions[{}].topic_partition'}"
    if kind == COMPOSITE:
        item = "composite.terms[{}].mark.topic_partition"

    def named(*names: str, indexes: tuple[int, ...] = (0,)) -> Refused:
        given: Any = {"keys": list(names)} if kind == SIGNAL else {"partitions": [(name, 7) for name in names]}
        return register(kind, item_counts=[len(indexes)], item_indexes=list(indexes), **given)

    noun = "key" if kind == SIGNAL else "topic"
    assert named("x" * 249) == []
    assert named("") == [(0, INVALID, item.format(0), f"the {noun} is missing")]
    too_long = f"the {noun} has 250 characters; at most 249 are allowed"
    assert named("a", "x" * 250, indexes=(0, 1)) == [(0, INVALID, item.format(1), too_long)]
    twice = f"{'a' if kind == SIGNAL else 'a-7'} is named twice"
    may_repeat = kind == COMPOSITE
    assert named("a", "b", indexes=(0, 1, 0)) == ([] if may_repeat else [(0, INVALID, item.format(2), twice)])
    assert named("a", "a", indexes=(0, 1)) == ([] if may_repeat else [(0, INVALID, item.format(1), twice)])
    for index in (-1, 2):
        outside = f"{index} is outside the dictionary of 2"
        assert named("a", "b", indexes=(index,)) == [(0, INVALID, "item_index", outside)]


def broken(kind: int, **columns: Any) -> tuple[str, str]:  # noqa: ANN401 - columns of the batch
    """Field and message of the error that refuses a whole batch, before anything has changed."""
    engine = Engine(EngineLimits(), 0)
    with pytest.raises(InvalidBatch) as refused:
        register(kind, engine, **columns)
    assert (engine.inspection.counts(PRODUCE).registered, engine.partition_count) == (0, 0)
    return refused.value.field, str(refused.value)


WIRE_NAMES = {column.batch_name: column.wire_name for column in OPERATION_COLUMNS}
WIRE_NAMES |= {"timeouts_ms": "timeout_ms", "item_counts": "item_count", "item_indexes": "item_index"}


@pytest.mark.parametrize("column", WIRE_NAMES)
def test_column_of_the_wrong_length_refuses_the_batch(column: str) -> None:
    field, message = broken(FETCH, operation_ids=[1, 2, 3], **{column: [1, 1]})
    assert field == WIRE_NAMES[column]
    assert message.endswith("has 2 values; it takes 3 (one for each row), 1 (for all) or none")


def test_batch_that_cannot_be_read_is_refused() -> None:
    assert broken(PRODUCE, operation_ids=[])[0] == "operation_id"
    assert "it takes one id for each operation" in broken(PRODUCE, operation_ids=[])[1]
    assert broken(9)[0] == "kind"
    assert "9 is not known" in broken(9)[1]
    for count in (-1, 2**32):
        field, message = broken(PRODUCE, item_counts=[count])
        assert field == "item_count"
        assert message.endswith(f"has a value that is not in 0..{2**32 - 1}")


def test_item_columns_have_as_many_values_as_the_counts_add_up_to() -> None:
    batch: dict[str, Any] = {"operation_ids": [1, 2], "partitions": [("a", 0), ("a", 1)], "item_counts": [2, 1]}
    assert register(PRODUCE, **batch, item_indexes=[0, 1, 0], offsets=[1, 2, 3]) == []
    assert broken(PRODUCE, **batch, item_indexes=[0, 1, 0], offsets=[1, 2])[0] == "offset"
    assert broken(PRODUCE, **batch, item_indexes=[0, 1])[0] == "item_index"


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


# Events.


def fault(batch: EventBatch) -> tuple[int, str, str] | None:
    """Code, field and message of the refusal of a batch's event, or None, by a new engine."""
    refusals = Engine(EngineLimits(), 0).perform(None, Apply(batch), 0).refusals
    return (refusals[0].code, refusals[0].field, refusals[0].message) if refusals else None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (("x", 0), ""),
        (("x" * 249, INT32_MAX), ""),
        (("", 0), "the topic is missing"),
        (("x" * 250, 0), "the topic has 250 characters; at most 249 are allowed"),
        (("orders", -1), f"partition -1 is not in 0..{INT32_MAX}"),
        (("orders", 2**31), f"partition {2**31} is not in 0..{INT32_MAX}"),
    ],
)
def test_topic_has_1_to_249_characters_and_partition_31_bits(name: tuple[str, int], message: str) -> None:
    refused = (INVALID, "topic_partition", message) if message else None
    assert fault(EventBatch([HIGH_WATERMARK], partitions=[name], offsets=[5])) == refused


def test_key_has_1_to_249_characters() -> None:
    """As a topic."""
    for key, message in (("x" * 249, ""), ("", "the key is missing"), ("x" * 250, "the key has 250 characters")):
        found = fault(EventBatch([KEY_SIGNALLED], keys=[key]))
        assert (found or (INVALID, "key_signalled.key", ""))[:2] == (INVALID, "key_signalled.key")
        assert ((found or (0, "", ""))[2]).partition(";")[0] == message


def test_event_of_an_unknown_type_or_place_is_refused() -> None:
    assert fault(EventBatch([99], partitions=NAMES)) == (INVALID, "event", "type 99 is not known; set one event")
    for index in (-1, 1):
        refused = (INVALID, "item_index", f"{index} is outside the dictionary of 1")
        assert fault(EventBatch([HIGH_WATERMARK], partitions=NAMES, item_indexes=[index], offsets=[5])) == refused
        assert fault(EventBatch([KEY_SIGNALLED], keys=["job"], item_indexes=[index])) == refused


EVENT_COLUMN_NAMES = {column.batch_name: column.name for column in EVENT_COLUMNS} | {"item_indexes": "item_index"}


@pytest.mark.parametrize("column", [*EVENT_COLUMN_NAMES, "replica_sets"])
def test_column_of_the_wrong_length_refuses_the_batch_of_events(column: str) -> None:
    columns: Any = {column: [None, None] if column == "replica_sets" else [0, 0]}
    with pytest.raises(InvalidBatch) as refused:
        fault(EventBatch([STORAGE_ONLINE] * 3, partitions=NAMES, **columns))
    assert refused.value.field == EVENT_COLUMN_NAMES.get(column, column)
    takes = "3 or none" if column == "replica_sets" else "3 (one for each row), 1 (for all) or none"
    assert str(refused.value).endswith(f"has 2 values; it takes {takes}")


def test_partition_that_is_removed_without_flags_has_not_moved() -> None:
    engine = Engine(EngineLimits(), 0)
    assert register(PRODUCE, engine, offsets=[9]) == []
    engine.perform(None, Apply(EventBatch([PARTITION_REMOVED], partitions=NAMES)), 0)
    (completions,) = engine.take_completions()
    assert list(completions.error_codes) == [UNKNOWN_TOPIC_OR_PARTITION]


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


@pytest.mark.parametrize("kind", KINDS)
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
