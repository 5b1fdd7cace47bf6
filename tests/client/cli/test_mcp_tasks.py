"""Waits as tasks of the Model Context Protocol, over stdio; everything that keeps them is killed."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from mcp import Client, MCPError
from purgatory_client import AsyncClient
from purgatory_client import Client as Daemon

from examples.free_ports import free_port
from purgatory.cli.mcp_server import make_server
from tests.client.cli.task_agent import Cancel, KnowsTasks, Task, TaskName, asked, begun
from tests.kit.daemon import DaemonProcess, children_of, daemon_environment
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.played_source import played_source

pytestmark = pytest.mark.sockets
COUNT: Final = 8


async def test_task_has_its_end_as_often_as_it_is_asked_for(shared_daemon: DaemonProcess) -> None:
    """Also through another program, as after a restart."""
    async with AsyncClient(shared_daemon.address) as client:
        async with Client(make_server(client), extensions=[KnowsTasks()]) as agent:
            task_id = await begun(agent, "wait", targets=["signal:twice@2", "tasks-0@5"], any_of=True)
            await client.advance("tasks-0", high_watermark=5)
            first = await asked(agent, task_id)
        async with Client(make_server(client), extensions=[KnowsTasks()]) as agent:
            second = await asked(agent, task_id)
    assert (first.status, first.task_id) == ("completed", task_id)
    assert first.model_extra is not None
    assert second.model_extra is not None
    ended = first.model_extra["result"]["structuredContent"]
    assert ended["outcome"] == "satisfied"
    assert "tasks-0: reached 5 of 5" in ended["details"]
    assert second.model_extra == first.model_extra


async def test_cancelled_task_is_cancelled_at_the_daemon(shared_daemon: DaemonProcess) -> None:
    async with (
        AsyncClient(shared_daemon.address) as client,
        Client(make_server(client), extensions=[KnowsTasks()]) as agent,
    ):
        task_id = await begun(agent, "wait", targets=["signal:cancelled"])
        await agent.session.send_request(Cancel(params=TaskName(task_id=task_id)), Task)
        assert (await asked(agent, task_id)).status == "cancelled"


async def test_caught_up_is_a_task_too(shared_daemon: DaemonProcess) -> None:
    async with (
        AsyncClient(shared_daemon.address) as client,
        Client(make_server(client), extensions=[KnowsTasks()]) as agent,
        played_source(shared_daemon.address, end=3) as feeding,
    ):
        task_id = await begun(agent, "caught_up", marks=["kafka/agents/log"])
        await feeding.advance(("kafka/agents/log", 0), high_watermark=3)
        assert (await asked(agent, task_id)).status == "completed"


async def test_task_is_refused_where_it_cannot_be(shared_daemon: DaemonProcess) -> None:
    """An unknown id, an agent that does not know tasks; a wait that is not valid is an error of its call."""
    async with AsyncClient(shared_daemon.address) as client:
        async with Client(make_server(client), extensions=[KnowsTasks()]) as agent:
            for unknown in ("mcp-1-x/1", "mcp-1-x/2", "other/1", ""):
                with pytest.raises(MCPError, match="no task"):
                    await asked(agent, unknown)
            assert (await agent.call_tool("wait", {"targets": ["nonsense"]})).is_error
            at_once = await agent.call_tool("wait", {"targets": ["signal:never"], "timeout_seconds": 0})
            assert at_once.structured_content is not None
            assert at_once.structured_content["outcome"] == "expired"
        async with Client(make_server(client)) as agent:
            with pytest.raises(MCPError, match="declare the extension"):
                await asked(agent, "mcp-1-x/1")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_tasks_end_once_although_everything_is_killed(tmp_path: Path, seed: int) -> None:
    """The agent, the program of the tools, and the daemon, in a drawn order, while tasks begin and end."""
    draw, tasks = random.Random(seed), tmp_path / "tasks"
    tasks.mkdir()
    flags = ["--grpc-address", f"127.0.0.1:{free_port()}", "--data-dir", str(tmp_path / "data")]
    daemon = DaemonProcess(tmp_path / "daemon", flags)

    def start_agent() -> "subprocess.Popen[bytes]":
        program = [sys.executable, "-m", "tests.client.cli.task_agent", daemon.address, str(tasks), str(COUNT)]
        with (tmp_path / "agent.log").open("ab") as log:
            return subprocess.Popen(program, env=daemon_environment(), stdout=log, stderr=log)

    agent, steps = start_agent(), ["agent", "tools", "daemon"] * 2 + ["signal"] * COUNT
    draw.shuffle(steps)
    numbers = iter(draw.sample(range(COUNT), COUNT))
    try:
        for step in steps:
            if step == "signal":
                number = next(numbers)
                wait_until((tasks / f"{number}.task").exists, (tmp_path / "agent.log").read_text)
                with Daemon(daemon.address) as client:
                    client.signal_key(f"job-{number}")
            elif step == "daemon":
                daemon.stop(signal.SIGKILL)
                daemon = DaemonProcess(tmp_path / "daemon", flags)
            elif step == "agent":
                agent.kill()
                agent.wait()
                agent = start_agent()
            else:
                wait_until(lambda: children_of(agent.pid), "it has started its tools")  # noqa: B023
                for child in children_of(agent.pid):
                    subprocess.run(["kill", "-9", str(child)], check=False)
        assert agent.wait(PATIENCE_S) == 0
        ends = [json.loads((tasks / f"{number}.end").read_text()) for number in range(COUNT)]
        assert [status for status, _ in ends] == ["completed"] * COUNT
        assert {more["result"]["structuredContent"]["outcome"] for _, more in ends} == {"satisfied"}
        with Daemon(daemon.address) as client:
            assert not list(client.operations())
    finally:
        agent.kill()
        agent.wait()
        daemon.kill()
