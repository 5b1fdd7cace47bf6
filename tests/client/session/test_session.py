"""The session without a daemon: scripted wire messages in, wire messages and ended waits out."""

import pytest
from purgatory_client import waits
from purgatory_client.errors import LimitExceeded, OperationIdInUse, ProtocolError
from purgatory_client.results import Outcome
from purgatory_client.session.session_core import SessionCore
from purgatory_client.waits import Wait
from purgatory_client.wire.sizes import WINDOW

from tests.client.session.wire_script import Response, many, open_core, opened, receipt, registered, results, sent

pytestmark = pytest.mark.sockets

LONG_TOPIC = "t" * 240
LIMIT_BYTES = 64 << 10


def produce(offset: int = 1, timeout: float | None = 5) -> Wait:
    return waits.produce({"orders-3": offset}, timeout=timeout)


def submit(core: SessionCore, count: int, now: float = 0.0) -> list[Wait]:
    fresh = [produce(offset) for offset in range(1, count + 1)]
    for wait in fresh:
        core.submit(wait, now)
    return fresh


def timeouts_sent(core: SessionCore, now: float) -> list[list[int]]:
    return [list(message.register.columns.timeout_ms) for message in sent(core, now)]


def test_waits_of_one_kind_share_a_batch_and_kinds_do_not() -> None:
    core = open_core()
    for wait in (
        produce(1),
        waits.signal(["k"], timeout=5),
        produce(2),
        produce(3, None),
        waits.signal({"k": 2}, timeout=5),
    ):
        core.submit(wait, 0.0)
    messages = sent(core, 0.0)
    assert registered(messages) == [[1, 2], [3, 4], [5]]
    first, second, third = (message.register.columns for message in messages)
    assert list(first.timeout_ms) == [5_000]
    assert list(third.timeout_ms) == []
    assert list(second.keys) == ["k"]
    assert list(second.offset) == [1, 2]


@pytest.mark.parametrize(("kept", "at_once"), [(0, 5_000), (4, 2)], ids=["by-default", "half-of-what-is-kept"])
def test_many_results_are_acknowledged_at_once(kept: int, at_once: int) -> None:
    """Many results are acknowledged at once, because the daemon refuses registrations when it stores too many."""
    core = open_core(many(at_once), unacknowledged_results_max=kept)
    core.receive(results(1, list(range(1, at_once))), 0.1)
    assert sent(core, 0.1) == []
    core.receive(results(at_once, [at_once]), 0.1)
    assert sent(core, 0.1)[0].acknowledge.sequence == at_once


def test_missing_results_are_an_error() -> None:
    """The daemon would not send them again."""
    with pytest.raises(ProtocolError, match="results 1 to 4 are missing"):
        open_core(produce()).receive(results(5, [1]), 0.0)


def test_a_resent_wait_has_the_time_that_remains() -> None:
    """Time since a connection was lost, or could not be made, counts against a wait's timeout, but at least 1 ms
    remains, because 0 would request an immediate answer. A wait that is sent at once keeps its whole timeout.
    """
    core = SessionCore("s", 10)
    core.submit(produce(), 0.0)
    core.submit(many(2, 3_000), 0.0)
    core.submit(waits.signal(["k"], timeout=0), 0.0)
    core.connection_lost(1.0)
    core.submit(waits.delete_records({"orders-3": 1}, timeout=5), 2.0)
    core.receive(opened(), 2.0)
    assert sorted(timeouts_sent(core, 2.0)) == [[0], [1_000], [3_000], [5_000]]
    core.connection_lost(3.0)
    core.receive(opened(), 4.0)
    assert sorted(timeouts_sent(core, 4.0)) == [[0], [1], [1_000], [3_000]]


def test_ids_of_somebody_else_s_incarnation_are_in_use() -> None:
    """If another client created the session again, waits whose ids it has used fail at once, instead of ending with
    its results. Waits with higher ids are registered, and new waits get ids above those.
    """
    batch = many(4)
    core = open_core(produce(), produce(), batch, incarnation="first")
    core.connection_lost(0.5)
    ended = core.receive(opened(highest=4, incarnation="second"), 1.0)
    assert [type(answer) for _, answer in ended] == [OperationIdInUse, OperationIdInUse]
    assert [position for position in range(4) if batch.outcomes[position] == Outcome.REFUSED] == [0, 1]
    assert registered(sent(core, 1.0)) == [[5, 6]]
    assert core.receive(results(1, [1, 2, 3, 4]), 1.0) == []
    ((wait, _),) = core.receive(results(5, [5, 6]), 1.0)
    assert wait is batch


def test_a_refusal_whose_receipt_was_lost_comes_as_a_result() -> None:
    refused = produce()
    core = open_core(refused)
    row = {"operation_id": 1, "kind": 1, "outcome": 6, "refusal": {"code": 8, "message": "too many"}}
    ((wait, error),) = core.receive(Response(results={"first_sequence": 1, "rows": {"results": [row]}}), 0.0)
    assert wait is refused
    assert isinstance(error, LimitExceeded)


def test_large_batches_are_cut_and_wait_for_receipts() -> None:
    core = open_core(operations_per_batch_max=100)
    core.submit(many(2_000), 0.0)
    assert [len(ids) for ids in registered(sent(core, 0.0))] == [100] * WINDOW
    core.receive(receipt(1), 0.0)
    core.receive(receipt(2), 0.0)
    assert registered(sent(core, 0.0)) == [list(range(801, 901)), list(range(901, 1_001))]


def test_waits_share_a_batch_while_the_window_is_full() -> None:
    core = open_core(*(produce() for _ in range(WINDOW)))
    for _ in range(50):
        submit(core, 1)
        assert sent(core, 0.0) == []
    core.receive(receipt(1), 0.0)
    assert [len(ids) for ids in registered(sent(core, 0.0))] == [50]


def test_what_was_cancelled_since_it_was_planned_is_not_sent() -> None:
    core = open_core(operations_per_batch_max=1)
    fresh = submit(core, WINDOW + 2)
    sent(core, 0.0)
    for batch_id in (1, 2):
        core.receive(receipt(batch_id), 0.0)
        sent(core, 0.0)
    core.connection_lost(1.0)
    core.receive(opened(operations_per_batch_max=1), 1.0)
    assert registered(sent(core, 1.0)) == [[number] for number in range(1, WINDOW + 1)]
    core.cancel(fresh[WINDOW])
    for batch_id in (WINDOW + 3, WINDOW + 4):
        core.receive(receipt(batch_id), 1.0)
    assert registered(sent(core, 1.0)) == [[WINDOW + 2]]


def wide(partitions: int, number: int = 0) -> Wait:
    """A wait for partitions with a long name."""
    return waits.produce({(f"{LONG_TOPIC}{number}", partition): 1 for partition in range(partitions)}, timeout=5)


@pytest.mark.parametrize(("stated_bytes", "partitions"), [(LIMIT_BYTES, 400), (0, 20_000)])
def test_an_operation_that_is_too_large_fails_alone(stated_bytes: int, partitions: int) -> None:
    """An operation that is too large fails with both sizes in its error; the others are sent. The default limit is 4
    MiB.
    """
    core = open_core(message_bytes_max=stated_bytes)
    too_large = wide(partitions)
    for entry in (wide(1, 1), too_large, wide(1, 2)):
        core.submit(entry, 0.0)
    assert registered(sent(core, 0.0)) == [[1], [3]]
    [(ended, error)] = core.take_too_large()
    assert ended is too_large
    assert isinstance(error, LimitExceeded)
    assert f"the daemon accepts {stated_bytes or 4 << 20}: split it" in str(error)
    assert core.take_too_large() == []


def test_a_drained_wait_is_not_cancelled_again() -> None:
    """A caller that is cancelled just as its session ends does not disturb a new session."""
    single, batch = produce(), many(3)
    old = open_core(single, batch)
    assert set(old.drain()) == {single, batch}
    other, others = produce(), many(3)
    fresh = open_core(other, others)
    for core in (old, fresh):
        core.cancel(single)
        core.cancel(batch)
        assert sent(core, 0.0) == []
    assert (old.pending, fresh.pending) == (0, 4)
    fresh.cancel(others)
    fresh.cancel(others)
    assert [list(message.cancel.operation_ids) for message in sent(fresh, 0.0)] == [[2, 3, 4]]
    assert fresh.pending == 4, "the cancels count until the daemon has answered them"
