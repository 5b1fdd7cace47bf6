"""A caller with an outbox is killed repeatedly at random moments: each wait that it stored ends once.

The world `crash` of tests/histories does the same at a daemon with a journal.
"""

from contextlib import closing
from pathlib import Path

import pytest
from purgatory_client import Client
from purgatory_client.outbox import outbox_file
from purgatory_client.outbox.outbox_file import OutboxFile

from tests.client.outbox.outbox_killed import Killed
from tests.kit.daemon import DaemonProcess

KILLS = 2


@pytest.mark.slow
@pytest.mark.parametrize("daemons", [1, KILLS + 1], ids=["same", "another"])
def test_caller_that_is_killed_gets_each_result_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemons: int
) -> None:
    """With the daemon, which has no journal and gets the waits without a result again, or alone."""
    monkeypatch.setattr(outbox_file, "IDS_SKIPPED_MAX", 1)  # as in the caller
    killed = Killed(tmp_path, seed=8131)
    folders = [tmp_path / f"daemon-{number}" for number in range(1, daemons + 1)]
    for folder in folders[:-1]:
        with DaemonProcess(folder) as daemon:
            killed.kill_at_random(daemon, int(folder.name[-1]))
    with DaemonProcess(folders[-1]) as daemon, Client(daemon.address) as client:
        for life in range(daemons, KILLS + 1):
            killed.kill_at_random(daemon, life)
        killed.finish(daemon)
        tags = killed.check()
        assert len(tags) > KILLS, f"only {len(tags)} waits: this run shows nothing"
        status = client.status()
        assert (status.kinds[0].pending, status.unacknowledged_results, status.sessions) == (0, 0, 1)
        with closing(OutboxFile(tmp_path / "outbox.db")) as file:
            assert daemons > 1 or status.kinds[0].registered == file.next_operation_id - 1
            assert (file.registrations(), file.results()) == ([], [])
