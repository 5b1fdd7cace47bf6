"""Arriving results, in runs, in parts, mixed or repeated, all reach their waits."""

from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_client import batches, waits
from purgatory_client.batches import Entry, partition_columns
from purgatory_client.errors import InvalidRequest, ProtocolError
from purgatory_client.results import OperationKind, Outcome, Result, ResultColumns
from purgatory_client.session.pending_waits import Answer
from purgatory_client.wire import sizes
from purgatory_client.wire.decode_results import ResultsArrived

from purgatory.v1 import operation_pb2, result_pb2
from tests.client.session.wire_script import Response, many, open_core, receipt, results


def columns_of(answer: Answer) -> ResultColumns:
    assert isinstance(answer, ResultColumns)
    return answer


def offsets_of(operation_id: int, items: int) -> list[int]:
    """The offsets in the result of an operation: they are different in all results."""
    return [10 * operation_id + item for item in range(items)]


def message_of(kind: int, first: int, operations: Sequence[tuple[int, int]], refused: set[int]) -> Response:
    """The results of operations, given with their numbers of items, of which some were refused."""
    message = Response(results={"first_sequence": first})
    columns = message.results.columns
    columns.kind = kind  # type: ignore[assignment]
    columns.partitions.add(topic="orders", partition=3)
    for operation_id, items in operations:
        is_refused = operation_id in refused
        offsets = [] if is_refused else offsets_of(operation_id, items)
        columns.operation_id.append(operation_id)
        columns.outcome.append(Outcome.REFUSED if is_refused else Outcome.SATISFIED)
        columns.item_count.append(len(offsets))
        columns.required_offset.extend(offsets)
        if kind == OperationKind.FETCH:
            columns.available_bytes.extend(offsets)
        if is_refused:
            columns.refusals.add(operation_id=operation_id, code=3, field="offset", message="wrong")
    return message


def entry_of(kind: OperationKind, items: list[int] | None) -> Entry:
    """A batch of operations with these numbers of items, or a single wait."""
    if items is not None:
        return partition_columns(kind, ["orders-3"], None, [1], [5_000], items)
    return (waits.fetch if kind == OperationKind.FETCH else waits.produce)({"orders-3": 1}, timeout=5)


SHAPES = st.lists(st.none() | st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=5)


@given(st.data(), SHAPES, st.sampled_from([OperationKind.PRODUCE, OperationKind.FETCH]))
def test_each_wait_ends_with_its_own_results(data: st.DataObject, shapes: list[list[int] | None], kind: int) -> None:
    """For any order of the results, and any number of them in a message; some were refused before, in a receipt, and
    some are refused in place of a result. Few messages are kept before their values are copied.
    """
    entries = [entry_of(OperationKind(kind), shape) for shape in shapes]
    core = open_core(*entries)
    operations = list(enumerate([items for shape in shapes for items in shape or [1]], 1))
    ids = st.sets(st.sampled_from([operation_id for operation_id, _ in operations]))
    before, refused = data.draw(ids), data.draw(ids)
    ended = core.receive(receipt(1, [operation_pb2.OperationRefusal(operation_id=one, code=3) for one in before]), 0.0)
    left, first = data.draw(st.permutations(operations)) if data.draw(st.booleans()) else list(operations), 1
    with mock.patch.object(sizes, "SEGMENTS_MAX", 2):
        while left:
            count = data.draw(st.integers(1, len(left)))
            message = message_of(kind, first, left[:count], refused)
            ended += core.receive(message, 0.0)
            assert core.receive(message, 0.0) == [], "repeated"
            left, first = left[count:], first + count
    assert core.pending == 0
    answers = dict(ended)
    assert len(answers) == len(ended) == len(entries)
    numbered = iter(operations)
    for entry in entries:
        own = [next(numbered) for _ in range(entry.count)]
        found = answers[entry]
        if isinstance(found, Result):
            assert found.items[0].required_offset == offsets_of(*own[0])[0]
        elif isinstance(found, InvalidRequest):
            assert own[0][0] in before | refused
        else:
            answer = columns_of(found)
            is_refused = [one in before | refused for one, _ in own]
            assert is_refused == [one == Outcome.REFUSED for one in answer.outcomes]
            assert sorted(answer.refusals) == [place for place, one in enumerate(is_refused) if one]
            expected = [-1 if one in before | refused else value for one, n in own for value in offsets_of(one, n)]
            assert answer.required_offsets == expected
            if kind == OperationKind.FETCH:
                assert answer.available_bytes == [max(0, value) for value in expected]


def test_columns_of_one_value_or_none_are_those_of_all() -> None:
    core = open_core(many(3))
    message = Response(results={"first_sequence": 1})
    columns = message.results.columns
    columns.partitions.add(topic="orders", partition=3)
    columns.operation_id.extend([1, 2, 3])
    columns.outcome.append(Outcome.SATISFIED)
    columns.item_count.append(1)
    columns.required_offset.extend([4, 5, 6])
    columns.reached_offset.append(9)
    ((_, found),) = core.receive(message, 0.0)
    answer = columns_of(found)
    assert answer.outcomes == [1, 1, 1]
    assert answer.waited_ms == answer.lateness_ms == answer.error_codes == [0, 0, 0]
    assert (answer.required_offsets, answer.reached_offsets) == ([4, 5, 6], [9, 9, 9])
    assert answer.estimated_remaining_ms == answer.paces_per_second == [-1, -1, -1]
    assert [answer.name_of(item) for item in range(3)] == ["orders-3"] * 3


def test_values_in_any_order() -> None:
    """Each operation has its own value, in a time that grows with the number of results, not with its square: these
    took minutes once.
    """
    count = 20_000
    core = open_core(batches.signal([f"job-{i}" for i in range(1, count + 1)]))
    ids = list(range(count, 0, -1))
    message = results(1, ids, kind=OperationKind.SIGNAL)
    columns = message.results.columns
    columns.signal_values.extend(b"%d" % one for one in ids[:-1])
    columns.signal_value_index.extend([*range(1, count), 0])
    ((_, answer),) = core.receive(message, 0.0)
    assert columns_of(answer).signal_values == [b"", *(b"%d" % one for one in range(2, count + 1))]


@pytest.mark.parametrize(("index", "field"), [(2, "signal_value"), (1, "stale_reason")])
def test_an_index_of_no_text_is_an_error(index: int, field: str) -> None:
    columns = results(1, [1, 2], kind=OperationKind.SIGNAL).results.columns
    columns.signal_values.append(b"one")
    columns.stale_reasons.append("one")
    getattr(columns, f"{field}_index").extend([0, index])
    with pytest.raises(ProtocolError, match=rf"refers to \w+ {index} of 1"):
        getattr(ResultsArrived(columns).columns, f"{field}s")


@pytest.mark.parametrize(
    ("field", "values", "says"),
    [
        ("waited_ms", [1], "3 values in column waited_ms"),
        ("reached_offset", [0], "3 values in column reached_offset"),
        ("item_count", [1, 1, 1], "3 counts of items"),
    ],
)
def test_columns_that_do_not_fit_together_are_an_error(field: str, values: list[int], says: str) -> None:
    message = results(1, [1, 2]).results.columns
    getattr(message, field).extend(values)
    with pytest.raises(ProtocolError, match=says):
        ResultsArrived(message)


def test_a_result_without_an_outcome_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="operation 2 ended without an outcome"):
        ResultsArrived(results(1, [2, 3], 0).results.columns)


def test_columns_know_no_other_names() -> None:
    """An unknown column raises AttributeError as usual, so `hasattr` works."""
    answer = ResultsArrived(result_pb2.ResultColumns(kind=1)).columns
    assert not hasattr(answer, "offsets")
    assert answer.names == []
