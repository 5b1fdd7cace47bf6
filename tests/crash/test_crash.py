"""A small share of `make crash`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.crash.run import CrashRun

KILLS = 10


@pytest.mark.slow  # eleven daemons
def test_no_kill_loses_repeats_or_hastens_anything(tmp_path: Path) -> None:
    """Ten daemons are killed, some at points of the journal: all that was receipted ends once, and not too early."""
    tally = asyncio.run(CrashRun(tmp_path, seed=1).run(KILLS))
    assert tally.operations > KILLS
