"""What the examples do with a daemon that runs already."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, waits

from examples.replicated_log.cluster import PROJECT, Cluster

pytestmark = pytest.mark.slow
SECONDS_MAX = 120


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """A daemon of the test's own: its gRPC and HTTP addresses."""
    async with Cluster(tmp_path, lambda _: None) as cluster:
        yield await cluster.start_daemon()


def run_example(*arguments: str) -> str:
    """Runs a program of the examples, which must end with 0; returns what it printed."""
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "client")])
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run.stdout


async def test_first_wait_is_satisfied(daemon: tuple[str, str]) -> None:
    """The smallest example prints that its wait was satisfied at offset 42."""
    printed = run_example("examples/first_wait.py", daemon[0])
    assert printed.startswith("satisfied after ")
    assert printed.endswith("orders-3 has reached 42\n")


async def test_order_desk_ships_every_order(daemon: tuple[str, str], tmp_path: Path) -> None:
    """New orders are shipped, and so are those that an earlier run has left."""
    outbox = tmp_path / "desk.db"
    printed = run_example("examples/order_desk.py", daemon[0], str(outbox))
    assert printed.splitlines() == ["0 orders of an earlier run", *(f"order-{i}: satisfied" for i in range(3))]
    async with AsyncClient(daemon[0], outbox=outbox) as client:
        await client.submit(waits.produce({"orders-3": 2}, timeout=60), tag="order-left")
    printed = run_example("examples/order_desk.py", daemon[0], str(outbox))
    assert printed.splitlines() == ["1 orders of an earlier run", "order-left: satisfied"]


async def test_demonstration_runs_twice_on_one_daemon(daemon: tuple[str, str], tmp_path: Path) -> None:
    """Two runs on a daemon that others may use do not disturb each other, and leave nothing pending."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"a line of some length\n" * 300)
    grpc_address, http_address = daemon
    for _ in range(2):
        printed = run_example(
            "-m",
            "examples.replicated_log",
            "--input",
            str(lines),
            "--daemon",
            grpc_address,
            "--daemon-http",
            http_address,
        )
        assert "proven: every record is where it should be" in printed
