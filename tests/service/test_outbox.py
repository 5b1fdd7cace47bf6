"""Results on their way: the outbox loses and repeats nothing, and the wire has every field in both shapes."""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from purgatory_client import results

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, Refusal
from purgatory.engine.calls import Apply, Register
from purgatory.engine.completions import FETCHED_COLUMNS, RESULT_COLUMNS, RESULT_ITEM_COLUMNS
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.sessions.outbox import UNLIMITED, Outbox
from purgatory.service.sessions.refused import RefusedOperation, refused_completions
from purgatory.service.translate.result_slices import ResultSlice, slices_of
from purgatory.service.translate.results import event_refusals, fill_columns, fill_rows
from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2, result_pb2


def rows_of(slices: list[ResultSlice]) -> list[result_pb2.Result]:
    rows = purgatory_service_pb2.ResultRows()
    for part in slices:
        fill_rows(rows.results, part)
    return list(rows.results)


class EndingWaits:
    """An engine on which waits end as they are registered: produces of one to three partitions, signals with values."""

    def __init__(self) -> None:
        self._engine = Engine(EngineLimits(), 0)
        self._owner = self._engine.add_owner()
        self._last_id = 0
        values = EventBatch([codes.KEY_SIGNALLED] * 2, keys=["a", "b"], item_indexes=[0, 1], values=[b"one", b"two"])
        self._engine.perform(None, Apply(values), 0)

    def append(self, outbox: Outbox, count: int, kind: int, together: int) -> list[result_pb2.Result]:
        """Append the results of `count` waits, `together` at a time. Return them as rows."""
        rows: list[result_pb2.Result] = []
        for first in range(self._last_id + 1, self._last_id + 1 + count, together):
            ids = list(range(first, min(first + together, self._last_id + 1 + count)))
            self._engine.perform(self._owner, Register(kind, self._batch(ids, kind)), 0)
            for completions in self._engine.take_completions():
                rows += rows_of(slices_of(completions))
                outbox.append(slices_of(completions))
        self._last_id += count
        return rows

    @staticmethod
    def _batch(ids: list[int], kind: int) -> OperationBatch:
        if kind == codes.SIGNAL:
            indexes = [number % 2 for number in ids]
            return OperationBatch(ids, keys=["a", "b"], item_indexes=indexes, offsets=[1], timeouts_ms=[0])
        counts = [1 + number % 3 for number in ids]
        indexes = [place for count in counts for place in range(count)]
        names = [(f"topic-{place}", ids[0]) for place in range(3)]
        return OperationBatch(
            ids, partitions=names, item_counts=counts, item_indexes=indexes, offsets=[9], timeouts_ms=[0]
        )


APPEND = st.tuples(
    st.just("append"), st.integers(1, 60), st.sampled_from([codes.PRODUCE, codes.SIGNAL]), st.sampled_from([1, 7])
)
TAKE = st.tuples(
    st.sampled_from(["take", "put back"]), st.integers(1, 90), st.sampled_from([UNLIMITED, 1, 4, 11]), st.just(0)
)
OTHER = st.tuples(st.sampled_from(["rewind", "acknowledge"]), st.integers(0, 150), st.just(0), st.just(0))


@mock.patch.object(sizes, "PACKED_TOGETHER", 8)
@given(st.lists(APPEND | TAKE | OTHER, max_size=25))
def test_any_order_of_calls_loses_and_repeats_nothing(steps: list[tuple[str, int, int, int]]) -> None:
    """Result n is always the n-th that was appended, also where results that came one by one were put together."""
    outbox, waits = Outbox(), EndingWaits()
    expected: list[result_pb2.Result] = []
    written = 0
    for what, number, argument, together in steps:
        if what == "append":
            expected += waits.append(outbox, number, argument, together)
        elif what in {"take", "put back"}:
            first, slices = outbox.take(number, argument)
            rows = rows_of(slices)
            assert (first, rows) == (written + 1, expected[written : written + len(rows)])
            items = sum(len(row.partitions) for row in rows)
            assert items <= argument or len(rows) == 1, "a result with more items than the limit is taken alone"
            assert len(rows) <= number
            assert len({row.kind for row in rows}) <= 1, "a message has results of one kind"
            for following in expected[written + len(rows) :][:1]:
                has_room = len(rows) < number and items + len(following.partitions) <= argument
                assert not has_room or (rows and following.kind != rows[0].kind), "more would have fitted"
            if what == "take":
                written += len(rows)
            else:
                outbox.put_back(slices)
        elif what == "acknowledge":
            outbox.acknowledge(min(number, outbox.last_sequence))
            written = max(written, outbox.acknowledged_sequence)
        else:
            outbox.rewind()
            written = outbox.acknowledged_sequence
        assert rows_of([*outbox._written, *outbox._unwritten]) == expected[outbox.acknowledged_sequence :]
        assert outbox.last_sequence == len(expected)
        assert outbox.unwritten == len(expected) - written
        assert outbox.unacknowledged == len(expected) - outbox.acknowledged_sequence
        outbox.check()


def test_a_thousand_results_one_by_one_take_little() -> None:
    outbox = Outbox()
    EndingWaits().append(outbox, 1_000, codes.PRODUCE, together=1)
    assert len(outbox._unwritten) < 100
    assert outbox.held_bytes < 300 * 1_000


def test_a_late_release_holds_nothing_back() -> None:
    """In async mode, results that are written at once are not held again when an earlier group becomes durable."""
    outbox, waits = Outbox(), EndingWaits()
    outbox.hold()
    waits.append(outbox, 1, codes.PRODUCE, together=1)
    assert outbox.take(10)[1] == []
    outbox.release_all()
    waits.append(outbox, 1, codes.PRODUCE, together=1)
    outbox.release(1)
    assert [row.operation_id for row in rows_of(outbox.take(10)[1])] == [1, 2]


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


def test_refused_results_keep_their_reason_in_both_shapes() -> None:
    refused = [
        RefusedOperation(Refusal(3, codes.INVALID_ARGUMENT, "timeout_ms", "-1 is not in 0..10"), 7, codes.PRODUCE),
        RefusedOperation(Refusal(4, codes.RESOURCE_EXHAUSTED, "operation_id", "full"), 8, codes.PRODUCE),
    ]
    [part] = slices_of(refused_completions(refused), [refusal for refusal, _, _ in refused])
    _, tail = part.split(1)
    [row] = rows_of([tail])
    assert (row.outcome, row.operation_id, row.refusal.index, row.refusal.message) == (codes.REFUSED, 8, 4, "full")
    columns = result_pb2.ResultColumns()
    fill_columns(columns, [part])
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
