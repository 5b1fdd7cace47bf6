"""Examples that connect to a running daemon."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, waits

from examples.local_daemon import serving

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
SECONDS_MAX = 120


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[str]:
    """The gRPC address of a new daemon."""
    async with serving(tmp_path) as address:
        yield address


def run_example(*arguments: str, address: str = "", code: int = 0) -> str:
    """Run an example program, which must exit with this code; returns its output. `address`: PURGATORY_ADDRESS."""
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "client")])
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": path} | ({"PURGATORY_ADDRESS": address} if address else {}),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == code, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run.stdout + run.stderr


async def test_first_wait_is_satisfied(daemon: str) -> None:
    """The smallest example prints that its wait was satisfied at offset 42."""
    for printed in (
        run_example("examples/first_wait.py", daemon),
        run_example("examples/first_wait.py", address=daemon),
    ):
        assert printed.startswith("satisfied after ")
        assert printed.endswith("orders-3 has reached 42\n")


def test_first_wait_without_a_daemon() -> None:
    """Two lines: what failed, and how to start a daemon."""
    printed = run_example("examples/first_wait.py", address="127.0.0.1:1", code=1)
    failed, advice = printed.splitlines()
    assert "127.0.0.1:1: Failed to connect" in failed
    assert advice == "Is a daemon running at 127.0.0.1:1? `make run` starts one."


async def test_order_desk_ships_every_order(daemon: str, tmp_path: Path) -> None:
    """New orders are shipped, and so are those left by an earlier run."""
    outbox = tmp_path / "desk.db"
    printed = run_example("examples/order_desk.py", daemon, str(outbox))
    assert printed.splitlines() == ["0 orders of an earlier run", *(f"order-{i}: satisfied" for i in range(3))]
    async with AsyncClient(daemon, outbox=outbox) as client:
        await client.submit(waits.produce({"orders-3": 2}, timeout=60), tag="order-left")
    printed = run_example("examples/order_desk.py", daemon, str(outbox))
    assert printed.splitlines() == ["1 orders of an earlier run", "order-left: satisfied"]
