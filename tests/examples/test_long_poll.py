"""The long-poll example: its output, and the responses of its endpoint in every case."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.long_poll import ask, serving
from tests.engine.generic.recording_operation import DEADLINE_S
from tests.kit.eventually import wait_until

PROJECT = Path(__file__).resolve().parent.parent.parent
LONG = "timeout_ms=60000"


@pytest.mark.slow
def test_it_shows_itself() -> None:
    """Run without arguments, it polls itself, prints the answers, and exits."""
    command = [sys.executable, "examples/long_poll.py"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    run = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.stderr == ""
    assert [line.rstrip() for line in run.stdout.splitlines()] == [
        'poll: 200 ["hello"]',
        "nothing new within 200 ms: 204",
    ]


def test_every_answer_of_the_endpoint() -> None:
    """Existing messages are returned at once and new ones on arrival; 503 for too many polls and at shutdown, else
    204.
    """
    with ThreadPoolExecutor(2) as pool:
        with serving(polls_max=2) as address:
            assert ask(address, "POST", "/rooms/lobby", "first") == (201, "")
            assert ask(address, "GET", f"/rooms/lobby?{LONG}") == (200, '["first"]')
            assert ask(address, "GET", "/rooms/lobby?after=1&timeout_ms=1") == (204, "")
            polls = [pool.submit(ask, address, "GET", f"/rooms/{room}?after=1&{LONG}") for room in ("lobby", "attic")]
            wait_until(lambda: ask(address, "GET", "/waiting") == (200, "2"))
            assert ask(address, "GET", f"/rooms/attic?{LONG}")[0] == 503
            ask(address, "POST", "/rooms/lobby", "second")
            assert polls[0].result(DEADLINE_S) == (200, '["second"]')
            assert not polls[1].done()
        assert polls[1].result(DEADLINE_S)[0] == 503
