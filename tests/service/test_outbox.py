"""Results on their way: the outbox loses and repeats nothing, and the wire has every field in both shapes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_client import results

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch, Refusal
from purgatory.engine.calls import Register
from purgatory.engine.completions import (
    FETCHED_COLUMNS,
    RESULT_COLUMNS,
    RESULT_ITEM_COLUMNS,
    Completions,
)
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.sessions.outbox import UNLIMITED, Outbox
from purgatory.service.sessions.refused import RefusedOperation, refused_completions
from purgatory.service.translate.result_slices import ResultSlice, slices_of
from purgatory.service.translate.results import event_refusals, fill_columns, fill_rows
from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2, result_pb2


def completions_of(operation_ids: list[int], kinds: list[int]) -> Completions:
    """Completions with as many items as the id's last digit."""
    completions = Completions(1)
    for operation_id, kind in zip(operation_ids, kinds, strict=True):
        completions.add_operation(operation_id, kind, codes.SATISFIED, 0, 0, operation_id % 10)
        for _ in range(operation_id % 10):
            completions.add_item(("t", operation_id), codes.NONE, 0, 0, -1, -1, -1.0)
    completions.finish()
    return completions


def ids_of(slices: list[ResultSlice]) -> list[int]:
    """Return the operation ids in slices, after checking that each slice holds exactly its own items."""
    ids: list[int] = []
    for part in slices:
        own = part.completions.operation_ids[part.start : part.stop]
        items = [name[1] for name in part.completions.item_partitions[part.item_start : part.item_stop]]
        assert items == [operation_id for operation_id in own for _ in range(operation_id % 10)]
        ids.extend(own)
    return ids


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_calls_loses_and_repeats_nothing(seed: int) -> None:
    """With a plain list as the model: result n is always the n-th that was appended."""
    draw = random.Random(seed)
    outbox = Outbox()
    model: list[int] = []
    kind_of: dict[int, int] = {}
    written = 0
    for _ in range(300):
        action = draw.randrange(5)
        if action == 0:
            ids = [len(model) + 1 + place for place in range(draw.randrange(1, 8))]
            kind_of |= {one: draw.choice([codes.PRODUCE, codes.PRODUCE, codes.SIGNAL]) for one in ids}
            outbox.append(slices_of(completions_of(ids, [kind_of[one] for one in ids])))
            model += ids
        elif action in {1, 2}:
            most, items_max = draw.randrange(1, 6), draw.choice([UNLIMITED, draw.randrange(1, 12)])
            first, slices = outbox.take(most, items_max)
            ids = ids_of(slices)
            items = sum(operation_id % 10 for operation_id in ids)
            assert items <= items_max or len(ids) == 1, "a result with more items than the limit is taken alone"
            assert first == written + 1
            assert ids == model[written : written + len(ids)]
            kinds = {part.kind for part in slices}
            assert len(kinds) <= 1, "a message has results of one kind"
            assert len(ids) <= most
            end = written + len(ids)
            is_cut_short = len(ids) < most and end < len(model) and items + model[end] % 10 <= items_max
            assert not is_cut_short or kind_of[model[end]] not in kinds, "more would have fitted"
            if draw.random() < 0.2:
                outbox.put_back(slices)
            else:
                written += len(ids)
        elif action == 3:
            sequence = draw.randint(0, len(model))
            outbox.acknowledge(sequence)
            written = max(written, outbox.acknowledged_sequence)
        elif draw.random() < 0.3:
            outbox.rewind()
            written = outbox.acknowledged_sequence
        assert outbox.last_sequence == len(model)
        assert outbox.unwritten == len(model) - written
        assert outbox.unacknowledged == len(model) - outbox.acknowledged_sequence
        outbox.check()


def single_results(count: int, outbox: Outbox) -> list[ResultSlice]:
    """Append the results of waits that end one by one; also return them as separate slices."""
    came: list[ResultSlice] = []
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    for number in range(1, count + 1):
        names = [(f"topic-{number % 3}", number), ("other", 1)]
        batch = OperationBatch(
            [number], partitions=names, item_counts=[1 + number % 2], item_indexes=[0, 1][: 1 + number % 2],
            offsets=[number], timeouts_ms=[0],
        )  # fmt: skip
        engine.perform(owner, Register(codes.PRODUCE, batch), 0)
        for completions in engine.take_completions():
            came += slices_of(completions)
            outbox.append(slices_of(completions))
    return came


def written(slices: list[ResultSlice]) -> list[bytes]:
    """Encode each result as a row."""
    batch = purgatory_service_pb2.ResultBatch()
    for part in slices:
        fill_rows(batch.rows.results, part)
    return [row.SerializeToString() for row in batch.rows.results]


STEP = st.tuples(st.sampled_from(["take", "put back", "rewind", "acknowledge"]), st.integers(1, 90))


@given(st.integers(0, 300), st.lists(STEP, max_size=12))
def test_results_that_came_one_by_one_are_put_together(count: int, steps: list[tuple[str, int]]) -> None:
    """For any reads and acknowledgements: packing yields the same results with the same numbers, in less memory."""
    outbox = Outbox()
    expected = written(single_results(count, outbox))
    for what, number in steps:
        if what == "take":
            first, slices = outbox.take(number)
            rows = written(slices)
            assert rows == expected[first - 1 : first - 1 + len(rows)]
        elif what == "put back":
            first, slices = outbox.take(number)
            outbox.put_back(slices)
            assert outbox._next_sequence == first
        elif what == "rewind":
            outbox.rewind()
        else:
            outbox.acknowledge(min(outbox.acknowledged_sequence + number, outbox.last_sequence))
        kept = [*outbox._written, *outbox._unwritten]
        assert written(kept) == expected[outbox.acknowledged_sequence :]
        outbox.check()


def test_a_thousand_results_one_by_one_take_little() -> None:
    outbox = Outbox()
    single_results(1_000, outbox)
    assert len(outbox._unwritten) < 100
    assert outbox.held_bytes < 300 * 1_000


def test_a_late_release_holds_nothing_back() -> None:
    """In async mode, results that are written at once are not held again when an earlier group becomes durable."""
    outbox = Outbox()
    outbox.hold()
    outbox.append(slices_of(completions_of([1], [codes.PRODUCE])))
    assert ids_of(outbox.take(10)[1]) == []
    outbox.release_all()
    outbox.append(slices_of(completions_of([2], [codes.PRODUCE])))
    outbox.release(1)
    assert ids_of(outbox.take(10)[1]) == [1, 2]


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
