"""Arriving results, in runs, in parts, mixed or repeated, all reach their waits."""

import random

import pytest
from purgatory_client import batches, waits
from purgatory_client.batches import WaitBatch, partition_columns
from purgatory_client.errors import InvalidRequest, ProtocolError
from purgatory_client.results import OperationKind, Outcome, Result, ResultColumns
from purgatory_client.session.pending_waits import Answer
from purgatory_client.session.session_core import SessionCore
from purgatory_client.waits import Wait
from purgatory_client.wire import sizes
from purgatory_client.wire.decode_results import ResultsArrived

from purgatory.v1 import result_pb2
from tests.client.session.wire_script import many, opened, receipt, results, sent


def core_with(*submitted: Wait | WaitBatch) -> SessionCore:
    """A session that has sent these waits."""
    core = SessionCore("s", 1_000_000)
    core.receive(opened(), 0.0)
    for wait in submitted:
        core.submit(wait, 0.0)
        sent(core, 0.0)
    return core


def columns_of(answer: Answer) -> ResultColumns:
    assert isinstance(answer, ResultColumns)
    return answer


@pytest.mark.parametrize(
    ("ids", "skip", "runs"),
    [
        ([1, 2, 3], 0, [(0, 3)]),
        ([1, 2, 3], 1, [(1, 3)]),
        ([1, 2, 3], 3, []),
        ([5, 6, 1, 2, 4], 0, [(0, 2), (2, 4), (4, 5)]),
        ([3, 2, 1], 0, [(0, 1), (1, 2), (2, 3)]),
        ([], 0, []),
    ],
)
def test_runs_of_consecutive_ids(ids: list[int], skip: int, runs: list[tuple[int, int]]) -> None:
    """Results are split where ids are not consecutive; repeats at the beginning are left out."""
    assert list(ResultsArrived(results(1, ids).results.columns).runs(skip)) == runs


def test_one_message_for_a_batch_between_single_waits() -> None:
    before, after = (waits.produce({"orders-3": offset}, timeout=5) for offset in (1, 2))
    first, second = many(3), many(2)
    core = core_with(before, first, second, after)
    ended = core.receive(results(1, [1, 2, 3, 4, 5, 6, 7]), 0.0)
    assert [wait for wait, _ in ended] == [before, first, second, after]
    assert isinstance(ended[0][1], Result)
    assert columns_of(ended[1][1]).required_offsets == [2, 3, 4]
    assert columns_of(ended[2][1]).required_offsets == [5, 6]
    assert core.pending == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_in_parts_is_the_same_as_at_once(seed: int) -> None:
    generator = random.Random(seed)
    count = 4 * sizes.SEGMENTS_MAX
    batch = many(count)
    core = core_with(batch)
    left = list(range(1, count + 1))
    if seed:
        generator.shuffle(left)
    sequence = 1
    ended: list[tuple[Wait | WaitBatch, Answer]] = []
    while left:
        assert not ended
        size = generator.choice((1, 1, 2, 7)) if seed else count
        part, left = left[:size], left[size:]
        ended = core.receive(results(sequence, part), 0.0)
        sequence += len(part)
    ((wait, answer),) = ended
    assert wait is batch
    answer = columns_of(answer)
    assert answer.required_offsets == list(range(1, count + 1))
    assert answer.outcomes == [1] * count
    assert (answer.reached_offsets, answer.waited_ms) == ([100] * count, [5] * count)
    assert (answer.paces_per_second, answer.estimated_remaining_ms) == ([-1.0] * count, [-1] * count)
    assert answer.available_bytes == []


def test_values_in_any_order() -> None:
    """Each operation has its own value, in a time that grows with the number of results, not with its square: these
    took minutes once.
    """
    count = 20_000
    core = core_with(batches.signal([f"job-{i}" for i in range(1, count + 1)]))
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


def test_what_has_ended_is_not_ended_by_a_run_over_it() -> None:
    batch = many(4)
    core = core_with(batch)
    refusal = {"operation_id": 2, "code": 3, "field": "offset", "message": "-5 is negative"}
    refused = receipt(1)
    refused.receipt.refusals.add(**refusal)
    assert core.receive(refused, 0.0) == []
    ((_, answer),) = core.receive(results(1, [1, 2, 3, 4]), 0.0)
    answer = columns_of(answer)
    assert answer.outcomes == [1, Outcome.REFUSED, 1, 1]
    assert answer.required_offsets == [1, -1, 3, 4]
    assert isinstance(answer.refusals[1], InvalidRequest)
    assert core.receive(results(5, [1, 2, 3, 4]), 0.0) == []


def test_fetches_with_several_items_keep_their_columns_together() -> None:
    batch = partition_columns(OperationKind.FETCH, ["a-0", "b-0"], [0, 1, 0], [7, 8, 9], [5_000], [2, 1])
    core = core_with(batch)
    message = results(1, [2, 1], kind=OperationKind.FETCH)
    columns = message.results.columns
    columns.item_count.extend([1, 2])
    for field in ("item_index", "error_code", "log_start_offset", "estimated_remaining_ms"):
        getattr(columns, field).append(0)
    columns.pace_per_second.append(-1.0)
    columns.required_offset[:] = [9, 7, 8]
    columns.reached_offset[:] = [90, 70, 80]
    for field in ("available_bytes", "high_watermark", "last_stable_offset", "diverging_epoch", "diverging_end_offset"):
        getattr(columns, field).extend([9, 7, 8])
    ((_, answer),) = core.receive(message, 0.0)
    answer = columns_of(answer)
    assert answer.reached_offsets == [70, 80, 90]
    assert answer.available_bytes == [7, 8, 9]
    assert list(next(iter(answer)).partitions) == ["a-0", "b-0"]


@pytest.mark.parametrize(
    ("field", "values", "says"),
    [
        ("waited_ms", [1], "3 values in column waited_ms"),
        ("error_code", [0], "3 values in column error_code"),
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


def test_a_drained_wait_is_not_cancelled_again() -> None:
    """A caller that is cancelled just as its session ends does not disturb a new session."""
    single, batch = waits.produce({"orders-3": 1}, timeout=5), many(3)
    old = core_with(single, batch)
    assert set(old.drain()) == {single, batch}
    other, others = waits.produce({"orders-3": 1}, timeout=5), many(3)
    fresh = core_with(other, others)
    for core in (old, fresh):
        core.cancel(single)
        core.cancel(batch)
        assert sent(core, 0.0) == []
    assert (old.pending, fresh.pending) == (0, 4)
    fresh.cancel(others)
    fresh.cancel(others)
    assert [list(message.cancel.operation_ids) for message in sent(fresh, 0.0)] == [[2, 3, 4]]
    assert fresh.pending == 4, "the cancels count until the daemon has answered them"
