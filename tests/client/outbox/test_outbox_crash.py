"""A caller with an outbox is killed repeatedly at random moments: each wait that it stored ends once."""

from pathlib import Path

import pytest
from purgatory_client import Client
from purgatory_client.outbox import outbox_file
from purgatory_client.outbox.outbox_file import OutboxFile

from tests.client.outbox.outbox_killed import Killed
from tests.kit.daemon import DaemonProcess

KILLS = 2


@pytest.mark.slow
def test_caller_that_is_killed_gets_each_result_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_file, "IDS_SKIPPED_MAX", 1)  # as in the caller
    with DaemonProcess(tmp_path / "daemon") as daemon:
        killed = Killed(tmp_path, seed=8131)
        for life in range(1, KILLS + 1):
            killed.kill_at_random(daemon, life)
        killed.finish(daemon)
        tags = killed.check()
        assert len(tags) > KILLS, f"only {len(tags)} waits: this run shows nothing"
        with Client(daemon.address) as client:
            status = client.status()
            produce = status.kinds[0]
            assert (produce.pending, status.unacknowledged_results) == (0, 0)
            assert status.sessions == 1
        file = OutboxFile(tmp_path / "outbox.db")
        assert produce.registered == file.next_operation_id - 1
        assert (file.registrations(), file.results()) == ([], [])
        file.close()


@pytest.mark.slow
@pytest.mark.parametrize("remembers", [False, True], ids=["forgets", "remembers"])
def test_caller_and_daemon_are_killed(tmp_path: Path, remembers: bool) -> None:
    """Each stored wait ends once. A daemon without a journal gets the waits without a result again."""
    flags = ["--data-dir", str(tmp_path / "journal")] if remembers else []
    killed = Killed(tmp_path, seed=8132)
    for life in (1, 2):
        with DaemonProcess(tmp_path / f"daemon-{life}", flags) as daemon:
            killed.kill_at_random(daemon, life)
    with DaemonProcess(tmp_path / "daemon-last", flags) as daemon:
        killed.finish(daemon)
        assert len(killed.check()) > 3
        with Client(daemon.address) as client:
            assert sum(kind.pending for kind in client.status().kinds) == 0
