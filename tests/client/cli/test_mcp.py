"""`purgatory mcp`: the tools through the client of the `mcp` package, over stdio and in this process.

Their answers and refusals are in transcripts/agents.txt.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from purgatory_client import AsyncClient

from purgatory.cli import mcp_server
from tests.client.cli.test_commands import Background, program
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S, until_pending
from tests.played_source import played_source

pytestmark = pytest.mark.sockets


def over_stdio(address: str, mode: str = "auto") -> Client:
    """The program as an agent starts it. `legacy`: the handshake of clients from before July 2026."""
    arguments = ["-m", "purgatory", "mcp", "--address", address]
    return Client(StdioServerParameters(command=sys.executable, args=arguments, env=environment()), mode=mode)


@pytest.fixture
async def looking(shared_daemon: DaemonProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_daemon.address) as client:
        yield client


async def answer(client: Client, tool: str, **arguments: object) -> Any:  # noqa: ANN401 - JSON
    """The structured answer of a tool; its text is the same as JSON."""
    result = await client.call_tool(tool, arguments)
    [text] = result.content
    assert text.type == "text"
    assert not result.is_error, text.text
    assert json.loads(text.text) == result.structured_content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    [text] = result.content
    assert text.type == "text"
    assert result.is_error
    return text.text


@pytest.mark.slow  # starts the program
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_agent_waits_in_one_call(shared_daemon: DaemonProcess, looking: AsyncClient, mode: str) -> None:
    """A call returns when another call sends the signal; until then, `pending` is answered and lists the wait."""
    key = f"agent-{mode}"
    async with over_stdio(shared_daemon.address, mode) as client:
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert tools.keys() == {"wait", "signal", "pending", "caught_up"}
        assert {schema["additionalProperties"] for schema in tools.values()} == {False}
        waiting = asyncio.create_task(answer(client, "wait", targets=[f"signal:{key}@2", "signal:other"], any_of=True))
        async with asyncio.timeout(PATIENCE_S):
            while not (listed := await answer(client, "pending", search=key))["matching"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert listed["operations"][0]["waits_for"] == [f"{key}: 0 of 2", "other: 0 of 1"]
        assert await answer(client, "signal", key=key) == {"ended": 0}
        assert not waiting.done()
        assert await answer(client, "signal", key=key) == {"ended": 1}
        ended = await waiting
        assert (ended["outcome"], ended["details"][0]) == ("satisfied", f"{key}: reached 2 of 2")


@pytest.mark.slow  # starts the program
async def test_a_cancelled_call_and_a_lost_agent_leave_no_wait(
    shared_daemon: DaemonProcess, looking: AsyncClient
) -> None:
    async with over_stdio(shared_daemon.address) as client:
        call = asyncio.create_task(client.call_tool("wait", {"targets": ["gone-0@1"], "timeout_seconds": 1_000}))
        await until_pending(looking, 1)
        call.cancel()
        await until_pending(looking, 0)
        assert (await answer(client, "pending"))["matching"] == 0  # the program still serves
        lost = asyncio.create_task(client.call_tool("wait", {"targets": ["gone-1@1"], "timeout_seconds": 1_000}))
        await until_pending(looking, 1)
    await until_pending(looking, 0)
    assert isinstance((await asyncio.gather(lost, return_exceptions=True))[0], Exception)


@pytest.mark.slow  # starts the program
def test_it_ends_with_its_input_and_on_an_interrupt(shared_daemon: DaemonProcess) -> None:
    """It exits with 0 when stdin ends, and at once on Ctrl-C, although a thread is blocked in reading stdin."""
    for how in ("eof", "interrupt"):
        command = [sys.executable, "-m", "purgatory", "mcp", "--address", shared_daemon.address]
        process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        Background.started.append(process)
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018 - for mypy
        process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert '"id":1' in process.stdout.readline()
        if how == "interrupt":
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == -signal.SIGINT
        _, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (0 if how == "eof" else -signal.SIGINT, "")


async def test_progress_is_reported_while_a_call_waits(looking: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "PROGRESS_S", 0.01)
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert (total, message) == (1_000.0, "still waiting")
        heard.append(progress)
        if len(heard) == 3:
            await looking.signal_key("progress")

    async with Client(mcp_server.make_server(looking)) as client:
        arguments = {"targets": ["signal:progress"], "timeout_seconds": 1_000}
        result = await client.call_tool("wait", arguments, progress_callback=hear)
    assert result.structured_content is not None
    assert result.structured_content["outcome"] == "satisfied"
    assert len(heard) >= 3
    assert heard == sorted(set(heard))


async def test_caught_up_returns_at_the_end_of_the_topic(shared_daemon: DaemonProcess, looking: AsyncClient) -> None:
    async with (
        Client(mcp_server.make_server(looking)) as client,
        played_source(shared_daemon.address, end=3) as feeding,
    ):
        waiting = asyncio.create_task(answer(client, "caught_up", marks=["kafka/agents/log"]))
        await until_pending(looking, 1)
        await feeding.advance(("kafka/agents/log", 0), high_watermark=3)
        ended = await waiting
    assert (ended["outcome"], ended["details"]) == ("satisfied", ["kafka/agents/log-0: reached 3 of 3"])


async def test_a_daemon_that_is_not_there_is_named() -> None:
    async with (
        AsyncClient("127.0.0.1:1", give_up_after=0.1) as absent,
        Client(mcp_server.make_server(absent)) as client,
    ):
        calls: list[tuple[str, dict[str, object]]] = [
            ("wait", {"targets": ["signal:a"]}),
            ("signal", {"key": "a"}),
            ("pending", {}),
            ("caught_up", {"marks": ["kafka/a"]}),
        ]
        for tool, arguments in calls:
            assert "the daemon at 127.0.0.1:1 is not available" in await refusal(client, tool, **arguments)


@pytest.mark.slow  # starts the program
def test_without_its_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError(name='mcp')", "utf-8")
    ended = program("mcp", packages=str(tmp_path))
    remedy = "pip install 'purgatory-waits[mcp]'"
    assert (ended.returncode, ended.stderr) == (1, f"purgatory: `purgatory mcp` needs mcp; install it with: {remedy}\n")
