"""Each attack for a moment, on a real daemon with a memory budget of 512 MB: what it takes, and what others lose.

How long honest callers wait meanwhile is a measurement, which `make hostile` makes.
"""

from pathlib import Path

import pytest

from tests.hostile.arena import Arena, AttackReport, attack, flooder

SECONDS = 1.5
FLOOD_CALLS_PER_SECOND = 10_000
MEMORY_MB_MAX = 600
FILES_MAX = 1_200
"""Those of a thousand half-open requests would be more, beside the daemon's own."""


@pytest.mark.parametrize(
    "name",
    [
        "rapid-reset", "unary-waits", "burst", "unread-listings", "unfinished-messages", "unfinished-smaller",
        "unfinished-on-streams", "large-messages", "fat-names", "many-items", "compressed", "half-open-http",
        "endless-receivers", "silent-receivers",
    ],
)  # fmt: skip
def test_honest_callers_lose_nothing(tmp_path: Path, name: str) -> None:
    """No honest wait fails, the daemon lives, and its memory and open files stay within bounds."""
    with Arena(tmp_path / "arena") as arena:
        report = attack(arena, name, SECONDS, settle_s=0.5)
    check(report)


@pytest.mark.parametrize("method", ["Register", "Session", "Advance", "StreamResults", "Cancel"])
def test_honest_callers_lose_nothing_to_floods(tmp_path: Path, method: str) -> None:
    """The same under calls that are started faster than any daemon serves them."""
    with Arena(tmp_path / "arena") as arena:
        report = attack(arena, method, SECONDS, settle_s=0.5, command=flooder(method, FLOOD_CALLS_PER_SECOND))
    check(report)


def check(report: AttackReport) -> None:
    assert report.waits
    assert not report.faults
    assert not report.undelivered
    assert report.memory_peak_mb <= MEMORY_MB_MAX
    assert report.files_peak <= FILES_MAX
