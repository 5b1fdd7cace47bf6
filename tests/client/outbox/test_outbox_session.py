"""The session with an outbox, without daemon and file: what is sent, withdrawn, and refused as a whole."""

from purgatory_client import waits
from purgatory_client.batches import partition_columns
from purgatory_client.errors import LimitExceeded, OutboxReason
from purgatory_client.results import OperationKind
from purgatory_client.session.session_core import SessionCore

from purgatory.v1 import operation_pb2, purgatory_service_pb2
from tests.client.outbox.test_outbox_file import outbox_error
from tests.client.session.test_session import submit
from tests.client.session.wire_script import many, opened, registered, results, sent


def test_with_an_outbox_only_what_is_written_is_sent() -> None:
    core = SessionCore("s", 100)
    core.restore([], 1, 0.0)
    core.receive(opened(), 0.0)
    first = submit(core, 2)
    assert sent(core, 0.0) == []
    assert core.stage() == first
    assert [wait.operation_id for wait in first] == [1, 2]
    assert sent(core, 0.0) == []
    core.written_id = 1
    assert sent(core, 0.0) == []
    core.connection_lost(0.1)
    core.receive(opened(), 0.2)
    core.written_id = 2
    assert registered(sent(core, 0.2)) == [[1, 2]]


def test_with_an_outbox_what_was_not_written_is_withdrawn() -> None:
    core = SessionCore("s", 100)
    core.restore([], 1, 0.0)
    core.receive(opened(), 0.0)
    (single,) = submit(core, 1)
    batch = many(3)
    core.submit(batch, 0.0)
    for entry in core.stage():
        core.withdraw(entry)
    assert core.pending == 0
    (later,) = submit(core, 1)
    core.stage()
    core.written_id = later.operation_id
    assert registered(sent(core, 0.0)) == [[5]]
    assert single.operation_id == 1


def test_a_refused_batch_has_results_for_the_outbox() -> None:
    """The daemon stores no results for a batch refused as a whole: the client creates them, and they end its waits."""
    core = SessionCore("s", 100)
    core.restore([], 1, 0.0)
    core.receive(opened(), 0.0)
    waiting = submit(core, 2)
    core.stage()
    core.written_id = 2
    assert registered(sent(core, 0.0)) == [[1, 2]]
    refusal = operation_pb2.OperationRefusal(code=8, message="no room")
    answer = purgatory_service_pb2.Receipt(batch_id=1, batch_refusal=refusal)
    ended = core.replay(core.refused_results(answer))
    assert [wait for wait, _ in ended] == waiting
    assert all(isinstance(error, LimitExceeded) and str(error) == "no room" for _, error in ended)


def test_names_of_results_are_compared() -> None:
    """Names are compared for single waits, signals and batches, in every column form; refused operations have no
    names.
    """
    core = SessionCore("s", 100)
    core.restore([], 1, 0.0)
    core.receive(opened(), 0.0)
    core.submit(waits.produce({"orders-3": 1}), 0.0)
    core.submit(many(2), 0.0)
    batch = partition_columns(OperationKind.PRODUCE, ["a-0", "orders-3"], [1, 1, 0], [1, 2, 3], None, [1, 2])
    core.submit(batch, 0.0)
    core.submit(waits.signal(["k"]), 0.0)
    core.stage()
    core.check_names(results(1, [1, 2, 3, 4, 99]).results)
    for foreign in (5, 6):
        with outbox_error(OutboxReason.COPIED, match=f"operation {foreign} "):
            core.check_names(results(1, [1, foreign]).results)
    refused = purgatory_service_pb2.ResultBatch()
    refused.rows.results.add(operation_id=6, kind=4, outcome=6)
    core.check_names(refused)
    signalled = purgatory_service_pb2.ResultBatch()
    signalled.rows.results.add(operation_id=6, kind=4, outcome=1).partitions.add(key="k")
    core.check_names(signalled)
    signalled.rows.results[0].partitions[0].key = "j"
    with outbox_error(OutboxReason.COPIED, match="operation 6 "):
        core.check_names(signalled)
