"""The daemon's shutdown where a part of it fails."""

import gc
from pathlib import Path

import pytest

from purgatory.daemon import Daemon
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.store import Store
from purgatory.service.listeners.archive import ArchiveListener
from purgatory.service.setting_sources import load_settings


async def test_the_journal_is_closed_where_the_archive_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, but first the journal gets its last group and its folder is free for the next daemon."""
    close = ArchiveListener.close

    async def close_and_fail(archive: ArchiveListener, now_ms: int, timeout_s: float) -> None:
        await close(archive, now_ms, timeout_s)
        raise OSError("the archive's disk is gone")

    monkeypatch.setattr(ArchiveListener, "close", close_and_fail)
    names = ("threshold_0", "threshold_1", "threshold_2")
    flags = {
        "grpc": {"address": "127.0.0.1:0"},
        "http": {"address": "127.0.0.1:0"},
        "archive": {"uri": str(tmp_path / "archive")},
        "journal": {"dir": tmp_path / "data"},
        "gc": {**dict(zip(names, gc.get_threshold(), strict=True)), "freeze": False},
    }
    daemon = Daemon(load_settings(flags))
    await daemon.start()
    with pytest.raises(OSError, match="the archive's disk is gone"):
        await daemon.stop()
    directory = Directory(tmp_path / "data")
    store = Store(directory, CrashPoints())
    last = store.moment()
    store.close()
    directory.release()
    assert last is not None
    assert last[2], "the journal does not say that its daemon ended cleanly"
