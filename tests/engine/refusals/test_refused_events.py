"""Refused events: each rule with the values on both sides of its limit, and the error."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, ReplicaSets
from purgatory.engine.calls import Apply, Register
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.event_columns import EVENT_COLUMNS

NAME = ("orders", 0)
INT32_MAX = 2**31 - 1
OFFSET_MAX = 2**61 - 1
POSITION_MAX = 2**59 - 1
INVALID, MISSING, EXHAUSTED, PRECONDITION = 3, 5, 8, 9

LEADS = ReplicaSets(replicas=[1, 2], leader_id=1)
"""The sets that a complete leadership or in-sync event needs."""


PLURALS = {"item_index": "item_indexes", "flags": "flags"}


def event(
    kind: int, offset: int = -1, sets: ReplicaSets | None = None, name: tuple[str, int] = NAME, **columns: int
) -> EventBatch:
    """A batch of one event. `columns` has the value of each column, by the singular of its name."""
    values: dict[str, Any] = {PLURALS.get(column, f"{column}s"): [value] for column, value in columns.items()}
    named: dict[str, Any] = {"keys": [name[0]]} if kind == codes.KEY_SIGNALLED else {"partitions": [name]}
    return EventBatch([kind], offsets=[offset], replica_sets=[sets] if sets else [], **named, **values)


def fault(batch: EventBatch, engine: Engine | None = None) -> tuple[int, str, str, int] | None:
    """(code, field, message, error code) of the refusal of a batch's event, or None. Default: an empty engine."""
    refusals = (engine or Engine(EngineLimits(), 0)).perform(None, Apply(batch), 0).refusals
    return (refusals[0].code, refusals[0].field, refusals[0].message, refusals[0].error_code) if refusals else None


def in_sync(**sets: Any) -> EventBatch:  # noqa: ANN401 - the columns of ReplicaSets
    given: dict[str, Any] = {"in_sync": [1, 2], "leader_id": 1} | sets
    return event(codes.IN_SYNC_REPLICAS, sets=ReplicaSets(**given))


def leadership(**sets: Any) -> EventBatch:  # noqa: ANN401 - the columns of ReplicaSets
    given: dict[str, Any] = {"replicas": [1, 2], "leader_id": 1} | sets
    return event(codes.LEADERSHIP, sets=ReplicaSets(**given), leader_epoch=1)


def append(offset: int = 5, byte_position: int = 0, segment_base_offset: int = 0) -> EventBatch:
    return event(codes.LEADER_APPEND, offset, byte_position=byte_position, segment_base_offset=segment_base_offset)


def progress(offset: int = 5, replica_id: int = 2, log_start_offset: int = -1) -> EventBatch:
    return event(codes.FOLLOWER_PROGRESS, offset, replica_id=replica_id, log_start_offset=log_start_offset)


def of_offset(kind: int) -> Callable[[int], EventBatch]:
    return lambda offset: event(kind, offset)


class Range(NamedTuple):
    """The values of a field: `event_with` makes an event with a value in it. -1 may mean "missing"."""

    event_with: Callable[[int], EventBatch]
    greatest: int = INT32_MAX
    lowest: int = 0
    may_lack: bool = False
    why: str = ""


RANGES = {
    "leader_append.log_end_offset": Range(append, OFFSET_MAX),
    "follower_progress.log_end_offset": Range(progress, OFFSET_MAX),
    "high_watermark.offset": Range(of_offset(codes.HIGH_WATERMARK), OFFSET_MAX),
    "log_start_offset.offset": Range(of_offset(codes.LOG_START_OFFSET), OFFSET_MAX),
    "truncation.offset": Range(of_offset(codes.TRUNCATION), OFFSET_MAX),
    "last_stable_offset.offset": Range(of_offset(codes.LAST_STABLE_OFFSET), OFFSET_MAX, may_lack=True),
    "leadership.epoch_start_offset": Range(
        lambda n: event(codes.LEADERSHIP, n, LEADS, leader_epoch=1), OFFSET_MAX, may_lack=True
    ),
    "leader_epoch": Range(lambda n: event(codes.HIGH_WATERMARK, 5, leader_epoch=n), may_lack=True),
    "follower_progress.replica_id": Range(lambda n: progress(replica_id=n)),
    "replica_state.replica_id": Range(lambda n: event(codes.REPLICA_STATE, replica_id=n)),
    "follower_progress.log_start_offset": Range(lambda n: progress(log_start_offset=n), OFFSET_MAX, may_lack=True),
    "leader_append.byte_position": Range(lambda n: append(byte_position=n), POSITION_MAX, may_lack=True),
    "leader_append.segment_base_offset": Range(
        lambda n: append(segment_base_offset=n), 5, may_lack=True, why=", the log end offset"
    ),
    "in_sync_replicas.replica_ids": Range(lambda n: in_sync(in_sync=[1, n])),
    "in_sync_replicas.proposed_replica_ids": Range(lambda n: in_sync(proposed=[n])),
    "in_sync_replicas.min_in_sync_replicas": Range(lambda n: in_sync(min_in_sync_replicas=n), lowest=1, may_lack=True),
    "leadership.replica_ids": Range(lambda n: leadership(replicas=[n])),
    "leadership.leader_id": Range(lambda n: leadership(leader_id=n), may_lack=True),
    "key_signalled.count": Range(of_offset(codes.KEY_SIGNALLED), OFFSET_MAX, may_lack=True),
}


@pytest.mark.parametrize(("field", "values"), RANGES.items(), ids=RANGES)
def test_values_beyond_the_ends_of_a_range_are_refused(field: str, values: Range) -> None:
    accepted = {values.lowest, values.greatest} | ({-1} if values.may_lack else set())
    for value in accepted:
        assert fault(values.event_with(value)) is None
    for value in {-2, values.lowest - 1, values.greatest + 1} - accepted:
        refused = (INVALID, field, f"{value} is not in {values.lowest}..{values.greatest}{values.why}", 0)
        assert fault(values.event_with(value)) == refused
        knowing = Engine(EngineLimits(), 0)
        assert fault(leadership(), knowing) is None
        assert fault(values.event_with(value), knowing) == refused


def test_list_of_an_event_has_at_most_1000_replicas() -> None:
    assert fault(in_sync(in_sync=list(range(1_000)))) is None
    message = "1001 ids are over the limit of 1000"
    assert fault(in_sync(in_sync=list(range(1_001)))) == (INVALID, "in_sync_replicas.replica_ids", message, 0)
    assert fault(in_sync(proposed=list(range(1_001)))) == (INVALID, "in_sync_replicas.proposed_replica_ids", message, 0)
    assert fault(leadership(replicas=list(range(1_001)))) == (INVALID, "leadership.replica_ids", message, 0)


def test_number_of_replicas_of_a_partition() -> None:
    """Unassigned followers are counted too; one more than 1,000 is refused, known ones still make progress."""
    engine = Engine(EngineLimits(), 0)
    assert fault(in_sync(in_sync=list(range(1, 999)), leader_id=0), engine) is None
    union = event(codes.IN_SYNC_REPLICAS, sets=ReplicaSets(in_sync=[999, 1_000], proposed=[1_001]))
    refused = (
        EXHAUSTED,
        "in_sync_replicas",
        "998 replicas are known; the limit is 1000; a leadership event sets the assigned ones",
        0,
    )
    assert fault(union, engine) == refused
    for replica_id in (999, 1_000):
        assert fault(event(codes.FOLLOWER_PROGRESS, 0, replica_id=replica_id), engine) is None
    one_more = event(codes.REPLICA_STATE, replica_id=1_001)
    assert fault(one_more, engine) == (EXHAUSTED, "replica_state", refused[2].replace("998", "1000"), 0)
    assert fault(event(codes.FOLLOWER_PROGRESS, 0, replica_id=1_001), engine) is not None
    assert fault(event(codes.REPLICA_STATE, replica_id=1_000), engine) is None
    assert fault(event(codes.FOLLOWER_PROGRESS, 5, replica_id=999), engine) is None


def test_known_partitions_take_events_at_the_limit_of_partitions() -> None:
    engine = Engine(EngineLimits(partitions_max=1), 0)
    assert fault(event(codes.HIGH_WATERMARK, 5), engine) is None
    message = "the limit of 1 known partitions is reached"
    assert fault(event(codes.HIGH_WATERMARK, 5, name=("b", 0)), engine) == (EXHAUSTED, "topic_partition", message, 0)
    assert fault(event(codes.PARTITION_REMOVED, name=("b", 0)), engine) is None
    assert fault(event(codes.HIGH_WATERMARK, 6), engine) is None


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
    refused = (INVALID, "topic_partition", message, 0) if message else None
    assert fault(event(codes.HIGH_WATERMARK, 5, name=name)) == refused


def test_signals() -> None:
    """A key has 1 to 249 characters; counts add up to the maximum offset at most; the default count is one."""
    engine = Engine(EngineLimits(), 0)
    assert fault(event(codes.KEY_SIGNALLED, 1, name=("", 0))) == (INVALID, "key_signalled.key", "the key is missing", 0)
    long = "the key has 250 characters; at most 249 are allowed"
    assert fault(event(codes.KEY_SIGNALLED, 1, name=("x" * 250, 0))) == (INVALID, "key_signalled.key", long, 0)
    assert fault(event(codes.KEY_SIGNALLED, 1, name=("x" * 249, 0))) is None
    assert fault(event(codes.KEY_SIGNALLED, -1), engine) is None
    message = f"{OFFSET_MAX} is not in 0..{OFFSET_MAX - 1}"
    assert fault(event(codes.KEY_SIGNALLED, OFFSET_MAX), engine) == (INVALID, "key_signalled.count", message, 0)
    assert fault(event(codes.KEY_SIGNALLED, OFFSET_MAX - 1), engine) is None
    full = Engine(EngineLimits(signal_keys_max=1), 0)
    full.perform(full.add_owner(), Register(codes.SIGNAL, OperationBatch([1], keys=["held"])), 0)
    most = "the limit of 1 keys with waits is reached"
    assert fault(event(codes.KEY_SIGNALLED, 1), full) == (codes.RESOURCE_EXHAUSTED, "key_signalled.key", most, 0)


def test_events_of_no_type_or_place() -> None:
    """Unknown event types, and indexes outside the dictionary of partitions or keys, are refused."""
    assert fault(EventBatch([99], partitions=[NAME])) == (INVALID, "event", "type 99 is not known; set one event", 0)
    for index in (-1, 1):
        message = f"{index} is outside the dictionary of 1"
        assert fault(event(codes.HIGH_WATERMARK, 5, item_index=index)) == (INVALID, "item_index", message, 0)
        assert fault(event(codes.KEY_SIGNALLED, 1, item_index=index)) == (INVALID, "item_index", message, 0)


COLUMNS = {column.batch_name: column.name for column in EVENT_COLUMNS} | {"item_indexes": "item_index"}


@pytest.mark.parametrize("column", COLUMNS)
def test_column_of_the_wrong_length_refuses_the_batch(column: str) -> None:
    columns: Any = {column: [0, 0]}
    with pytest.raises(InvalidBatch) as refused:
        Engine(EngineLimits(), 0).perform(
            None, Apply(EventBatch([codes.STORAGE_ONLINE] * 3, partitions=[NAME], **columns)), 0
        )
    assert refused.value.field == COLUMNS[column]
    assert str(refused.value).endswith("has 2 values; it takes 3 (one for each row), 1 (for all) or none")


def test_replica_sets_are_given_for_every_event_or_none() -> None:
    with pytest.raises(InvalidBatch) as refused:
        Engine(EngineLimits(), 0).perform(
            None, Apply(EventBatch([codes.STORAGE_ONLINE] * 2, partitions=[NAME], replica_sets=[None])), 0
        )
    assert refused.value.field == "replica_sets"
    assert str(refused.value).endswith("has 1 values; it takes 2 or none")


def test_columns_that_are_not_given() -> None:
    """Without a position, an append counts an offset as a byte; without flags, a removed partition has not moved."""
    engine = Engine(EngineLimits(), 0)
    assert fault(event(codes.LEADER_APPEND, 5, segment_base_offset=0), engine) is None
    message = "byte_position 0 is below 5, that of the append before"
    assert fault(append(6), engine) == (INVALID, "leader_append.byte_position", message, 1)
    owner = engine.add_owner()
    engine.perform(owner, Register(codes.PRODUCE, OperationBatch([1], partitions=[NAME], offsets=[9])), 0)
    assert fault(event(codes.PARTITION_REMOVED), engine) is None
    (completions,) = engine.take_completions()
    assert list(completions.error_codes) == [codes.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_batch_to_fill_has_columns_of_its_own() -> None:
    first, second = OperationBatch.to_fill(), OperationBatch.to_fill()
    columns = [name for name in dir(first) if isinstance(getattr(first, name), list)]
    assert len(columns) > 10
    for name in columns:
        assert getattr(first, name) == []
        assert getattr(first, name) is not getattr(second, name), name
