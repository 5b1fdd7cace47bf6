"""Refused operations and limits: each rule with the values on both sides of its limit, and the error."""

from typing import Any

import pytest

from purgatory.engine.batches import EventBatch, OperationBatch, Receipt
from purgatory.engine.calls import Apply, Register
from purgatory.engine.codes import COMPOSITE, DELETE_RECORDS, FETCH, KEY_SIGNALLED, KINDS, PRODUCE, SIGNAL
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, OPERATION_COLUMNS, OperationColumn, columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive.run_details import LIMIT_NAMES
from purgatory.v1 import operation_pb2

INT32_MAX = 2**31 - 1
OFFSET_MAX = 2**61 - 1
INVALID, EXHAUSTED = 3, 8
HOLDERS = {
    PRODUCE: "produce", FETCH: "fetch", DELETE_RECORDS: "delete_records", SIGNAL: "signal", COMPOSITE: "composite",
}  # fmt: skip
ITEMS = {PRODUCE: "partitions", FETCH: "partitions", DELETE_RECORDS: "partitions", SIGNAL: "keys", COMPOSITE: "terms"}

Refused = list[tuple[int, int, str, str]]


def register(kind: int, engine: Engine | None = None, **columns: Any) -> Refused:  # noqa: ANN401 - columns of the batch
    """(index, code, field, message) of each refusal of a batch; by default of operation 1 on one partition or key."""
    engine = engine or Engine(EngineLimits(), 0)
    names: dict[str, Any] = {"keys": ["a"]} if kind == SIGNAL else {"partitions": [("orders", 0)]}
    batch = OperationBatch(columns.pop("operation_ids", [1]), **(names | columns))
    receipt = engine.perform(engine.add_owner(), Register(kind, batch), 0)
    return [(refusal.index, refusal.code, refusal.field, refusal.message) for refusal in receipt.refusals]


def signal(engine: Engine, key: str, count: int = -1) -> Receipt:
    return engine.perform(None, Apply(EventBatch([KEY_SIGNALLED], keys=[key], offsets=[count])), 0)


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

    allowed_below = -1 if kind == COMPOSITE else NOT_GIVEN.get(column, lowest)
    for value in {lowest, greatest, allowed_below}:
        assert registered(value) == []
    for value in (allowed_below - 1, greatest + 1, 2**64):
        assert registered(value) == [(0, INVALID, field, f"{value} is not in {lowest}..{greatest}")]
    for other in set(KINDS) - {row[0] for row in RANGES if row[1] == column}:
        assert registered(greatest + 1, other) == []


@pytest.mark.parametrize("kind", KINDS)
def test_huge_or_negative_timeout_is_refused(kind: int) -> None:
    for timeout_ms in (0, 1, INT32_MAX):
        assert register(kind, timeouts_ms=[timeout_ms]) == []
    for timeout_ms in (-1, 2**31, 2**63 - 1, 10**30):
        message = f"{timeout_ms} is not in 0..{INT32_MAX}"
        assert register(kind, timeouts_ms=[timeout_ms]) == [(0, INVALID, "timeout_ms", message)]


@pytest.mark.parametrize("kind", KINDS)
def test_operation_has_1_item_up_to_the_limit(kind: int) -> None:
    engine = Engine(EngineLimits(items_per_operation_max=2), 0)
    field = f"{HOLDERS[kind]}.{ITEMS[kind]}"
    names: dict[str, Any] = (
        {"keys": ["a", "b", "c"]} if kind == SIGNAL else {"partitions": [("a", 0), ("a", 1), ("a", 2)]}
    )
    assert register(kind, engine, item_counts=[2], item_indexes=[0, 1], **names) == []
    assert register(kind, engine, item_counts=[0], **names) == [(0, INVALID, field, "is empty; give at least one")]
    three = register(kind, engine, item_counts=[3], item_indexes=[0, 1, 2], **names)
    assert three == [(0, INVALID, field, "3 are over the limit of 2")]


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


def test_partition_numbers_beyond_31_bits_are_refused() -> None:
    assert register(PRODUCE, partitions=[("orders", INT32_MAX)]) == []
    for partition in (-1, 2**31):
        message = f"partition {partition} is not in 0..{INT32_MAX}"
        refused = [(0, INVALID, "produce.partitions[0].topic_partition", message)]
        assert register(PRODUCE, partitions=[("orders", partition)]) == refused


def test_operation_over_the_limit_of_pending_ones_is_refused() -> None:
    engine = Engine(EngineLimits(pending_operations_max=2), 0)
    message = "the limit of 2 pending operations is reached; try again later"
    assert register(PRODUCE, engine, operation_ids=[1, 2, 3], offsets=[5]) == [(2, EXHAUSTED, "operation_id", message)]
    assert engine.pending == 2


def test_number_of_partitions() -> None:
    """An operation that would create too many partitions is refused as a whole; known partitions are still accepted."""
    engine = Engine(EngineLimits(partitions_max=2), 0)
    assert register(PRODUCE, engine, partitions=[("a", 0)], offsets=[5]) == []
    two_more = register(
        PRODUCE, engine, partitions=[("b", 0), ("c", 0)], item_counts=[2], item_indexes=[0, 1], offsets=[5]
    )
    assert two_more == [(0, EXHAUSTED, "produce.partitions", "the limit of 2 known partitions is reached")]
    assert engine.partition_count == 1
    both = {"partitions": [("a", 0), ("b", 0)], "item_counts": [2], "item_indexes": [0, 1], "offsets": [5]}
    assert register(PRODUCE, engine, **both) == []
    assert register(PRODUCE, engine, **both) == []
    assert register(PRODUCE, engine, partitions=[("c", 0)], offsets=[5]) == two_more


def test_number_of_keys() -> None:
    """Idle keys make room for new ones, except keys that the same operation names."""
    engine = Engine(EngineLimits(signal_keys_max=2), 0)
    assert register(SIGNAL, engine, keys=["a"]) == []
    signal(engine, "idle")
    full = [(0, EXHAUSTED, "signal.keys", "the limit of 2 keys with waits is reached")]
    with_idle = {"item_counts": [2], "item_indexes": [0, 1]}
    assert register(SIGNAL, engine, keys=["idle", "new"], offsets=[5], **with_idle) == full
    assert register(SIGNAL, engine, keys=["a", "new"], offsets=[5], **with_idle) == []
    assert register(SIGNAL, engine, keys=["b"]) == full
    assert register(SIGNAL, engine, keys=["a"]) == []
    assert [refusal.code for refusal in signal(engine, "b").refusals] == [EXHAUSTED]
    for key in ("a", "new"):
        signal(engine, key, 5)
    assert register(SIGNAL, engine, keys=["b"]) == [], "nobody waits for them any more"
    one_place = Engine(EngineLimits(signal_keys_max=1), 0)
    signal(one_place, "a")
    assert register(SIGNAL, one_place, keys=["a"]) == []
    assert (one_place.pending, signal(one_place, "b").refusals) == (0, []), "the wait for `a` ended at once"


MIXED: dict[str, Any] = {
    "partitions": [("orders", 3)], "keys": ["job", "job/failed"], "item_counts": [3], "item_indexes": [0, 1, 2],
    "unless_counts": [1],
}  # fmt: skip
"""A composite of a mark and a signal, with a signal as its failure arm."""


@pytest.mark.parametrize(
    ("columns", "field", "message"),
    [
        ({"offsets": [1, 0, 1]}, "composite.terms[1].signal.required_count", f"0 is not in 1..{OFFSET_MAX}"),
        ({"offsets": [0, 1, -2]}, "composite.unless[0].signal.required_count", f"-2 is not in 1..{OFFSET_MAX}"),
        ({"keys": ["job", ""]}, "composite.unless[0].signal.key", "the key is missing"),
        ({"keys": ["", "job"]}, "composite.terms[1].signal.key", "the key is missing"),
        ({"partitions": [("", 3)]}, "composite.terms[0].mark.topic_partition", "the topic is missing"),
        ({"item_indexes": [0, 1, 3]}, "item_index", "3 is outside the dictionary of 3"),
        ({"required_terms": [3]}, "composite.required_terms", "3 is not in 0..2"),
        ({"required_terms": [-1]}, "composite.required_terms", f"-1 is not in 0..{INT32_MAX}"),
        ({"unless_counts": [3]}, "composite.terms", "is empty; give at least one"),
        ({"unless_counts": [4]}, "composite.terms", "is empty; give at least one"),
        ({"unless_counts": [-1]}, "composite.unless", f"-1 is not in 0..{INT32_MAX}"),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["new names", "known names"])
def test_terms(columns: dict[str, Any], field: str, message: str, known: bool) -> None:
    """A refused composite names the term at fault, in its arm, whether its names are known or not; nothing is left."""
    engine = Engine(EngineLimits(), 0)
    if known:
        assert register(COMPOSITE, engine, offsets=[9], **MIXED) == []
    before = (engine.pending, engine.partition_count, engine.inspection.signal_key_count)
    assert register(COMPOSITE, engine, **(MIXED | columns)) == [(0, INVALID, field, message)]
    assert (engine.pending, engine.partition_count, engine.inspection.signal_key_count) == before
    assert register(COMPOSITE, engine, required_terms=[2], offsets=[-1, 1, 1], **MIXED) == []


def test_room_for_terms() -> None:
    """A composite needs room for its new partitions and for its new keys, each counted once however often named."""
    engine = Engine(EngineLimits(partitions_max=2, signal_keys_max=2), 0)
    names: dict[str, Any] = {"partitions": [("a", 0), ("b", 0), ("c", 0)], "keys": ["x", "y", "z"], "offsets": [9]}

    def of(*indexes: int) -> Refused:
        return register(COMPOSITE, engine, item_counts=[len(indexes)], item_indexes=list(indexes), **names)

    partitions = (0, EXHAUSTED, "composite.terms", "the limit of 2 known partitions is reached")
    keys = (0, EXHAUSTED, "composite.terms", "the limit of 2 keys with waits is reached")
    assert (of(0, 1, 2), of(3, 4, 5)) == ([partitions], [keys])
    assert of(0, 0, 0, 3, 3, 3) == []
    assert of(1, 1, 4, 4, 0, 3) == []
    assert (of(2, 3), of(0, 5), of(0, 3)) == ([partitions], [keys], [])


@pytest.mark.parametrize("operation_id", [0, -1, 2**61, 2**64])
def test_operation_ids_beyond_61_bits_are_refused(operation_id: int) -> None:
    assert register(PRODUCE, operation_ids=[2**61 - 1]) == []
    [(index, code, field, message)] = register(PRODUCE, operation_ids=[operation_id])
    assert (index, code, field) == (0, INVALID, "operation_id")
    assert message == f"{operation_id} is not in 1..{2**61 - 1}"


def broken(kind: int, **columns: Any) -> tuple[str, str]:  # noqa: ANN401 - columns of the batch
    """Field and message of the error that refuses a whole batch, before anything has changed."""
    engine = Engine(EngineLimits(), 0)
    with pytest.raises(InvalidBatch) as refused:
        register(kind, engine, **columns)
    assert (engine.inspection.counts(PRODUCE).registered, engine.partition_count) == (0, 0)
    return refused.value.field, str(refused.value)


SINGULARS = {"min_bytes": "min_bytes", "partition_max_bytes": "partition_max_bytes", "follower_reads": "follower_reads"}
SINGULARS |= {"timeouts_ms": "timeout_ms", "item_indexes": "item_index", "any_key": "any"}


@pytest.mark.parametrize("column", sorted({row[1] for row in RANGES} | {"timeouts_ms", "item_counts", "item_indexes"}))
def test_column_of_the_wrong_length_refuses_the_batch(column: str) -> None:
    field, message = broken(FETCH, operation_ids=[1, 2, 3], **{column: [1, 1]})
    assert field == SINGULARS.get(column, column.removesuffix("s"))
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
