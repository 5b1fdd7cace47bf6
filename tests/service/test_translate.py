"""Translation between wire and engine: every field is transferred, with its default, in both shapes."""

from purgatory_client import results

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.completions import (
    FETCHED_COLUMNS,
    RESULT_COLUMNS,
    RESULT_ITEM_COLUMNS,
    Completions,
    FetchedPartition,
)
from purgatory.service.sessions.refused import RefusedOperation, refused_completions
from purgatory.service.translate.events import events_from_rows
from purgatory.service.translate.operations import parts_from_columns, parts_from_rows
from purgatory.service.translate.result_slices import ResultSlice, slices_of
from purgatory.service.translate.results import event_refusals, fill_columns, fill_rows
from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2, result_pb2
from tests.kit.messages import key_signalled, produce, signal

TOPIC_PARTITION = operation_pb2.TopicPartition(topic="orders", partition=3)


def test_enums_of_the_wire_equal_the_engines_codes() -> None:
    """Kinds, outcomes, event types and isolation levels have the same numbers on the wire as in the engine."""
    for kind, name in codes.KIND_NAMES.items():
        assert operation_pb2.OperationKind.Value(f"OPERATION_KIND_{name.upper()}") == kind
    for outcome, name in codes.OUTCOME_NAMES.items():
        assert result_pb2.Outcome.Value(f"OUTCOME_{name.upper()}") == outcome
    for event_type, name in codes.EVENT_NAMES.items():
        wire_name = "SIGNAL" if event_type == codes.KEY_SIGNALLED else name.upper()
        assert event_pb2.EventType.Value(f"EVENT_TYPE_{wire_name}") == event_type
    assert operation_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED == codes.READ_UNCOMMITTED
    assert operation_pb2.ISOLATION_LEVEL_READ_COMMITTED == codes.READ_COMMITTED


def test_every_result_column_is_in_all_messages() -> None:
    """Each column of the engine is in rows, columns, `tail` and the client; a call would fail without it."""
    of_operation, of_item = RESULT_COLUMNS, RESULT_ITEM_COLUMNS
    for message, names in (
        (result_pb2.Result, {one.name for one in of_operation} - {"item_count"}),
        (purgatory_service_pb2.EndedOperation, {one.name for one in of_operation} - {"item_count"}),
        (result_pb2.PartitionResult, {one.name for one in of_item}),
        (result_pb2.FetchedPartition, {one.name for one in FETCHED_COLUMNS}),
        (result_pb2.ResultColumns, {one.name for one in (*of_operation, *of_item, *FETCHED_COLUMNS)}),
    ):
        assert names <= set(message.DESCRIPTOR.fields_by_name), message.DESCRIPTOR.name
    read = {field for field, _ in results.COLUMNS.values()} | {"operation_id", "kind", "item_count"}
    assert {one.name for one in (*of_operation, *of_item, *FETCHED_COLUMNS)} <= read


def test_rows_are_split_into_runs_of_one_kind() -> None:
    """The order is kept, and each run has the original positions of its operations."""
    rows = [produce(1, "a", 5), produce(2, "b", 6, 100), signal(3, "k"), produce(4, "a", 7)]
    [(runs, refused, _)] = parts_from_rows(rows, 30_000)
    assert refused == []
    assert [(run.kind, run.batch.operation_ids) for run in runs] == [
        (codes.PRODUCE, [1, 2]),
        (codes.SIGNAL, [3]),
        (codes.PRODUCE, [4]),
    ]
    assert [run.index_of(0) for run in runs] == [0, 2, 3]
    first = runs[0].batch
    assert first.timeouts_ms == [30_000, 100]
    assert first.partitions == [("a", 0), ("b", 0)]
    assert (first.item_counts, first.item_indexes, first.offsets) == ([1, 1], [0, 1], [5, 6])
    assert (first.local_error_codes, first.leader_epochs) == ([0, 0], [-1, -1])
    assert runs[1].batch.keys == ["k"]
    assert runs[1].batch.offsets == [1]


def test_a_fetch_row_has_every_default() -> None:
    """Fields that a row omits are passed to the engine explicitly."""
    fetch = operation_pb2.Fetch(partitions=[operation_pb2.FetchPartition(topic_partition=TOPIC_PARTITION)])
    [([run], _, _)] = parts_from_rows([operation_pb2.Operation(operation_id=1, fetch=fetch)], 30_000)
    batch = run.batch
    assert batch.min_bytes == [1]
    assert batch.replica_ids == [-1]
    assert batch.follower_reads == [False]
    assert batch.partition_max_bytes == [1_048_576]
    assert (batch.leader_epochs, batch.last_fetched_epochs, batch.throttled) == ([-1], [-1], [False])


def test_rows_without_condition_or_with_falling_ids_are_refused() -> None:
    """The other rows of the batch are accepted."""
    rows = [produce(5, "a", 1), operation_pb2.Operation(operation_id=6), signal(4, "k"), produce(7, "a", 1)]
    [(runs, refused, _)] = parts_from_rows(rows, 30_000)
    assert [run.batch.operation_ids for run in runs] == [[5, 7]]
    assert [(refusal.index, refusal.field, operation_id) for refusal, operation_id in refused] == [
        (1, "condition", 6),
        (2, "operation_id", 4),
    ]
    assert refused[1][0].message == "ids must rise: 4 follows 6"


def test_operation_columns_are_copied() -> None:
    """Each column is copied under its name, and nothing is filled in."""
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_FETCH,
        partitions=[TOPIC_PARTITION],
        operation_id=[1, 2],
        timeout_ms=[100],
        item_count=[1],
        item_index=[0, 0],
        offset=[7, 8],
        leader_epoch=[2],
        min_bytes=[10, 20],
        replica_id=[1],
        isolation_level=[2],
        follower_reads=[True],
        partition_max_bytes=[64],
        last_fetched_epoch=[1],
        throttled=[True, False],
    )
    [([run], _, _)] = parts_from_columns(columns, 1_000)
    batch = run.batch
    assert run.kind == codes.FETCH
    assert run.index_of(1) == 1
    assert batch.operation_ids == [1, 2]
    assert batch.partitions == [("orders", 3)]
    assert (batch.timeouts_ms, batch.item_counts, batch.item_indexes, batch.offsets) == ([100], [1], [0, 0], [7, 8])
    assert (batch.leader_epochs, batch.min_bytes, batch.replica_ids) == ([2], [10, 20], [1])
    assert (batch.isolation_levels, batch.follower_reads, batch.partition_max_bytes) == ([2], [True], [64])
    assert (batch.last_fetched_epochs, batch.throttled) == ([1], [True, False])
    assert (batch.local_error_codes, batch.any_key, batch.from_now, batch.keys) == ([], [], [], [])


def test_event_rows_become_full_columns() -> None:
    """Every type of event keeps its values, with -1 for absent ones."""
    rows = [
        event_pb2.Event(
            topic_partition=TOPIC_PARTITION, leader_append=event_pb2.LeaderAppend(log_end_offset=5, byte_position=50)
        ),
        event_pb2.Event(
            topic_partition=TOPIC_PARTITION,
            leader_epoch=4,
            follower_progress=event_pb2.FollowerProgress(replica_id=2, log_end_offset=3),
        ),
        event_pb2.Event(topic_partition=TOPIC_PARTITION, last_stable_offset=event_pb2.LastStableOffset()),
        event_pb2.Event(
            topic_partition=TOPIC_PARTITION, replica_state=event_pb2.ReplicaState(replica_id=2, dead=True, fenced=True)
        ),
        event_pb2.Event(topic_partition=TOPIC_PARTITION, partition_removed=event_pb2.PartitionRemoved(moved=True)),
        key_signalled("k", count=3),
        event_pb2.Event(topic_partition=TOPIC_PARTITION),
    ]
    [events] = events_from_rows(rows)
    batch = events.batch
    assert batch.types == [
        codes.LEADER_APPEND, codes.FOLLOWER_PROGRESS, codes.LAST_STABLE_OFFSET, codes.REPLICA_STATE,
        codes.PARTITION_REMOVED, codes.KEY_SIGNALLED, 0,
    ]  # fmt: skip
    assert batch.partitions == [("orders", 3)]
    assert batch.keys == ["k"]
    assert batch.offsets == [5, 3, -1, 0, 0, 3, 0]
    assert batch.leader_epochs == [-1, 4, -1, -1, -1, -1, -1]
    assert batch.replica_ids == [-1, 2, -1, 2, -1, -1, -1]
    assert batch.byte_positions == [50, -1, -1, -1, -1, -1, -1]
    assert batch.segment_base_offsets == [-1] * 7
    assert batch.flags == [0, 0, 0, 3, 1, 0, 0]


def test_event_rows_carry_sets_of_replicas() -> None:
    """Rows have in-sync replicas and leadership, with -1 for absent values."""
    rows = [
        event_pb2.Event(
            topic_partition=TOPIC_PARTITION,
            in_sync_replicas=event_pb2.InSyncReplicas(
                replica_ids=[1, 2], proposed_replica_ids=[3], leader_id=1, min_in_sync_replicas=2
            ),
        ),
        event_pb2.Event(
            topic_partition=TOPIC_PARTITION,
            leader_epoch=7,
            leadership=event_pb2.Leadership(is_leader=True, replica_ids=[1, 2, 3], epoch_start_offset=11),
        ),
    ]
    [events] = events_from_rows(rows)
    batch = events.batch
    in_sync, leadership = batch.replica_sets
    assert in_sync is not None
    assert (in_sync.in_sync, in_sync.proposed, in_sync.leader_id, in_sync.min_in_sync_replicas) == ([1, 2], [3], 1, 2)
    assert leadership is not None
    assert (leadership.replicas, leadership.leader_id) == ([1, 2, 3], -1)
    assert (batch.flags, batch.offsets, batch.leader_epochs) == ([0, 1], [0, 11], [-1, 7])


def mixed_completions() -> Completions:
    """A produce over two partitions, a fetch, a signal and another fetch."""
    completions = Completions(1)
    for operation_id, kind, outcome, items in (
        (1, codes.PRODUCE, codes.SATISFIED, [("a", 0), ("a", 1)]),
        (2, codes.FETCH, codes.FAILED, [("a", 0)]),
        (3, codes.SIGNAL, codes.EXPIRED, [("k", -1)]),
        (4, codes.FETCH, codes.SATISFIED, [("b", 0)]),
    ):
        error_code, remaining_ms, pace = (7, 500, 2.5) if outcome == codes.EXPIRED else (0, -1, -1.0)
        for name in items:
            completions.add_item(name, error_code, operation_id, operation_id + 1, 0, remaining_ms, pace)
        completions.add_operation(operation_id, kind, outcome, 10 * operation_id, 0, len(items))
        if kind == codes.FETCH:
            diverging = operation_id if operation_id == 2 else -1
            completions.fetched.append(FetchedPartition(operation_id * 100, 9, 8, diverging, diverging))
    completions.finish()
    return completions


def rows_of(slices: list[ResultSlice]) -> list[result_pb2.Result]:
    """Results as rows."""
    rows = purgatory_service_pb2.ResultRows()
    for part in slices:
        fill_rows(rows.results, part)
    return list(rows.results)


def columns_of(slices: list[ResultSlice]) -> result_pb2.ResultColumns:
    """Results of one kind as columns."""
    columns = result_pb2.ResultColumns()
    fill_columns(columns, slices)
    return columns


def test_results_as_rows_say_everything() -> None:
    """Runs of one kind, absent values absent, and fetched parts with their own operation."""
    slices = slices_of(mixed_completions())
    assert [(part.kind, len(part)) for part in slices] == [
        (codes.PRODUCE, 1), (codes.FETCH, 1), (codes.SIGNAL, 1), (codes.FETCH, 1),
    ]  # fmt: skip
    produced, fetched, signalled, last = rows_of(slices)
    assert [item.topic_partition.partition for item in produced.partitions] == [0, 1]
    assert not produced.partitions[0].HasField("estimated_remaining_ms")
    assert not produced.partitions[0].HasField("fetched")
    assert fetched.partitions[0].fetched.available_bytes == 200
    assert fetched.partitions[0].fetched.diverging_epoch == 2
    assert signalled.partitions[0].key == "k"
    assert not signalled.partitions[0].HasField("topic_partition")
    assert (signalled.partitions[0].estimated_remaining_ms, signalled.partitions[0].pace_per_second) == (500, 2.5)
    assert last.partitions[0].fetched.available_bytes == 400
    assert not last.partitions[0].fetched.HasField("diverging_epoch")


def test_results_as_columns_say_the_same() -> None:
    """Several slices of one kind share one dictionary; a column with equal values is short."""
    slices = slices_of(mixed_completions())
    fetches = columns_of([slices[1], slices[3]])
    assert list(fetches.operation_id) == [2, 4]
    assert [name.topic for name in fetches.partitions] == ["a", "b"]
    assert list(fetches.item_index) == [0, 1]
    assert list(fetches.item_count) == []
    assert list(fetches.available_bytes) == [200, 400]
    assert list(fetches.diverging_epoch) == [2, -1]
    produces = columns_of([slices[0]])
    assert list(produces.item_count) == [2]
    assert list(produces.item_index) == [0, 1]
    assert (list(produces.required_offset), list(produces.reached_offset)) == ([1], [2])
    assert list(produces.error_code) == list(produces.estimated_remaining_ms) == list(produces.pace_per_second) == []
    assert list(produces.available_bytes) == []
    signals = columns_of([slices[2]])
    assert list(signals.keys) == ["k"]
    assert list(signals.partitions) == []
    assert list(signals.item_index) == []
    assert (list(signals.estimated_remaining_ms), list(signals.pace_per_second)) == ([500], [2.5])


def test_refused_results_keep_their_reason_in_both_shapes() -> None:
    """The outcome is REFUSED with the refusal, in order."""
    refused = [
        RefusedOperation(Refusal(3, codes.INVALID_ARGUMENT, "timeout_ms", "-1 is not in 0..10"), 7, codes.PRODUCE),
        RefusedOperation(Refusal(4, codes.RESOURCE_EXHAUSTED, "operation_id", "full"), 8, codes.PRODUCE),
    ]
    [part] = slices_of(refused_completions(refused), [refusal for refusal, _, _ in refused])
    _, tail = part.split(1)
    [row] = rows_of([tail])
    assert (row.outcome, row.operation_id, row.refusal.index, row.refusal.message) == (codes.REFUSED, 8, 4, "full")
    columns = columns_of([part])
    assert list(columns.outcome) == [codes.REFUSED]
    assert list(columns.item_count) == [0]
    assert [(refusal.operation_id, refusal.field) for refusal in columns.refusals] == [
        (7, "timeout_ms"),
        (8, "operation_id"),
    ]


def test_a_batch_refused_from_end_to_end_has_a_small_receipt() -> None:
    """The first refusals are complete; further ones have only the index and the code."""
    refusals = [Refusal(index, codes.INVALID_ARGUMENT, "offset", "x" * 200) for index in range(50_000)]
    answers = event_refusals(refusals)
    assert answers[sizes.REFUSAL_MESSAGES_MAX - 1].message
    assert (answers[-1].index, answers[-1].code, answers[-1].message) == (49_999, codes.INVALID_ARGUMENT, "")
    assert sum(answer.ByteSize() for answer in answers) < 1_000_000
