"""Sessions without a connected client: `register` and `results`."""

from pathlib import Path

import pytest
from purgatory_client import Client, Outcome, errors
from purgatory_client.batches import partition_columns
from purgatory_client.results import OperationKind

from tests.kit.daemon import DaemonProcess


def test_refused_operation_is_in_the_receipt_and_among_the_results(shared_daemon: DaemonProcess) -> None:
    batch = partition_columns(OperationKind.PRODUCE, ["refused-1"], None, [1, -7, 3], [60_000], None)
    with Client(shared_daemon.address) as client:
        first = client.register("refused", 1, batch)
        assert (first.accepted, first.already_known, list(first.refusals)) == (2, 0, [2])
        assert isinstance(first.refusals[2], errors.InvalidRequest)
        again = client.register("refused", 1, batch)
        assert (again.accepted, again.already_known) == (0, 3)
        client.advance("refused-1", high_watermark=3)
        ends: dict[int, int] = {}
        for collected in client.results("refused"):
            ends |= dict(zip(collected.operation_ids, collected.results.outcomes, strict=True))
    assert ends == {1: Outcome.SATISFIED, 2: Outcome.REFUSED, 3: Outcome.SATISFIED}


def test_last_batch_of_results_that_was_not_used_comes_again(shared_daemon: DaemonProcess) -> None:
    batch = partition_columns(OperationKind.PRODUCE, ["again-1"], None, [1, 2], [60_000], None)
    with Client(shared_daemon.address) as client:
        client.register("again", 1, batch)
        client.advance("again-1", high_watermark=1)
        client.advance("again-1", high_watermark=2)
        assert next(client.results("again")).operation_ids[0] == 1
    with Client(shared_daemon.address) as other:
        assert [one for collected in other.results("again") for one in collected.operation_ids] == [1, 2]


def test_daemon_that_does_not_come_back_is_given_up(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    daemon.kill()
    batch = partition_columns(OperationKind.PRODUCE, ["p-1"], None, [1], None, None)
    with Client(daemon.address, give_up_after=0.2) as client:
        with pytest.raises(errors.Unavailable, match="no connection for"):
            client.register("s", 1, batch)
        with pytest.raises(errors.Unavailable, match="no connection for"):
            next(client.results("s"))
