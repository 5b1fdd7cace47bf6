"""Translation between wire and engine: every field is transferred, with its default, in both shapes."""

from purgatory_client import results

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.completions import (
    FETCHED_COLUMNS,
    RESULT_COLUMNS,
    RESULT_ITEM_COLUMNS,
)
from purgatory.service.sessions.refused import RefusedOperation, refused_completions
from purgatory.service.translate.result_slices import ResultSlice, slices_of
from purgatory.service.translate.results import event_refusals, fill_columns, fill_rows
from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2, result_pb2


def test_enums_of_the_wire_equal_the_engines_codes() -> None:
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


def test_refused_results_keep_their_reason_in_both_shapes() -> None:
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
