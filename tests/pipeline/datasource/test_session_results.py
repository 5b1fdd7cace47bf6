"""The results that one reader of a session receives, without Spark."""

import pytest
from purgatory_client import Client
from purgatory_client.batches import produce
from purgatory_pipeline.datasource import session_results
from purgatory_pipeline.datasource.daemon_options import DaemonOptions
from purgatory_pipeline.datasource.session_results import BEGINNING, SessionOffset, SessionResults
from purgatory_pipeline.errors import PipelineError

from purgatory.testing import daemon_in_process


def options(address: str, rows_max: int = 10) -> DaemonOptions:
    """Options as Spark gives them."""
    return DaemonOptions.of({"address": address, "session": "s", "maxRows": str(rows_max)})


def end_some(client: Client, first_id: int, count: int) -> None:
    """Registers waits that hold at once: each has a result."""
    client.advance(("t", 0), high_watermark=1_000_000)
    client.register("s", first_id, produce([("t", 0)], offsets=list(range(count))))


def test_a_daemon_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the time waited and the status of the last call."""
    monkeypatch.setattr(session_results, "WAIT_S", 1.0)
    reader = SessionResults(options("127.0.0.1:1"), "s", BEGINNING)
    with pytest.raises(PipelineError, match=r"session s at 127\.0\.0\.1:1: not opened within 1 s \(UNAVAILABLE"):
        reader.newest_at_opening()
    reader.close()


def test_a_session_has_one_reader() -> None:
    """The second one takes it over, and the first one fails with the reason."""
    with daemon_in_process("--shutdown-grace-ms", "100") as daemon:
        first = SessionResults(options(daemon.address), "s", BEGINNING)
        assert first.newest_at_opening() == 0
        second = SessionResults(options(daemon.address), "s", BEGINNING)
        with pytest.raises(PipelineError, match="another reader has opened it"):
            first.rows(0, SessionOffset(incarnation=first.incarnation, sequence=1))
        assert second.newest_at_opening() == 0
        first.close()
        second.close()


def test_what_is_wanted_is_received_however_much_is_held() -> None:
    """Otherwise only two micro-batches are held. An offset of another incarnation acknowledges nothing."""
    with daemon_in_process("--shutdown-grace-ms", "100") as daemon:
        for first_id in range(1, 5_000, 100):
            end_some(daemon.client, first_id, 100)
        reader = SessionResults(options(daemon.address, rows_max=1), "s", BEGINNING)
        assert reader.newest_at_opening() == 5_000
        last = SessionOffset(incarnation=reader.incarnation, sequence=5_000)
        assert reader.rows(100, last).column("sequence").to_pylist() == list(range(101, 5_001))
        reader.acknowledge(SessionOffset(incarnation="another", sequence=5_000))
        assert daemon.client.status().unacknowledged_results == 5_000
        reader.acknowledge(SessionOffset(incarnation=reader.incarnation, sequence=4_990))
        assert daemon.client.status().unacknowledged_results == 10
        assert (reader.first, reader.newest) == (1, 5_000)
        reader.close()
