"""`purgatory mcp`: the tools through the client of the `mcp` package, over stdio and in this process."""

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
from tests.kit.eventually import PATIENCE_S, eventually
from tests.played_source import played_source

pytestmark = pytest.mark.sockets


def over_stdio(address: str, mode: str = "auto") -> Client:
    """The program as an agent starts it. `legacy`: the handshake of clients from before July 2026."""
    arguments = ["-m", "purgatory", "mcp", "--address", address]
    return Client(StdioServerParameters(command=sys.executable, args=arguments, env=environment()), mode=mode)


@pytest.fixture
async def looking(shared_daemon: DaemonProcess) -> AsyncIterator[AsyncClient]:
    """A client for inspecting the shared daemon."""
    async with AsyncClient(shared_daemon.address) as client:
        yield client


async def until_waiting(client: AsyncClient, partition: str, *, pending: bool = True) -> None:
    async def is_so() -> bool:
        return bool([one async for one in client.operations(partition=partition)]) == pending

    await eventually(is_so, f"a wait on {partition} is pending: {pending}")


async def answer(client: Client, tool: str, **arguments: object) -> Any:  # noqa: ANN401 - JSON
    """The structured answer of a tool; its text is the same as JSON."""
    result = await client.call_tool(tool, arguments)
    [text] = result.content
    assert text.type == "text"
    assert not result.is_error, text.text
    assert json.loads(text.text) == result.structured_content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: object) -> str:
    """The message of a call that failed."""
    result = await client.call_tool(tool, arguments)
    [text] = result.content
    assert text.type == "text"
    assert result.is_error
    return text.text


@pytest.mark.slow  # starts the program
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_agent_waits_in_one_call(shared_daemon: DaemonProcess, looking: AsyncClient, mode: str) -> None:
    """A call returns when a signal is sent through another; meanwhile `pending` lists it, and is answered."""
    key = f"agent-{mode}"
    async with over_stdio(shared_daemon.address, mode) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"wait", "signal", "pending", "caught_up"}
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
        await until_waiting(looking, "gone-0")
        call.cancel()
        await until_waiting(looking, "gone-0", pending=False)
        assert (await answer(client, "pending"))["matching"] == 0  # the program still serves
        lost = asyncio.create_task(client.call_tool("wait", {"targets": ["gone-1@1"], "timeout_seconds": 1_000}))
        await until_waiting(looking, "gone-1")
    await until_waiting(looking, "gone-1", pending=False)
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


async def test_a_wait_that_ends_otherwise_says_why(looking: AsyncClient) -> None:
    async with Client(mcp_server.make_server(looking)) as client:
        await looking.advance("slow-0", high_watermark=10)
        waiting = asyncio.create_task(answer(client, "wait", targets=["slow-0@1000"], timeout_seconds=0.5))
        await until_waiting(looking, "slow-0")
        await looking.advance("slow-0", high_watermark=20)
        ended = await waiting
        assert ended["outcome"] == "expired"
        assert "slow-0: reached 20 of 1000" in ended["details"][0]
        assert "would have been reached in about" in ended["details"][0]
        failing = asyncio.create_task(answer(client, "wait", targets=["slow-0@1000"]))
        await until_waiting(looking, "slow-0")
        await looking.advance("slow-0", removed=True)
        assert (await failing)["outcome"] == "failed"


@pytest.mark.parametrize(
    ("tool", "arguments", "closest"),
    [
        ("wait", {"targets": ["a-0@1", "b-0@1"], "any": True}, "any_of"),
        ("wait", {"targets": ["a-0@1"], "timeout": 1}, "timeout_seconds"),
        ("caught_up", {"marks": ["pg/main/all"], "as_of": "00:00"}, "marks"),
        ("signal", {"key": "k", "counts": 2}, "count"),
        ("pending", {"serach": "a"}, "search"),
    ],
)
async def test_unknown_argument_is_refused_with_the_closest(
    looking: AsyncClient, tool: str, arguments: dict[str, Any], closest: str
) -> None:
    async with Client(mcp_server.make_server(looking)) as client:
        message = await refusal(client, tool, **arguments)
        assert message == f"{tool} has no argument {list(arguments)[-1]!r}; did you mean {closest!r}?"
        assert {one.input_schema["additionalProperties"] for one in (await client.list_tools()).tools} == {False}


async def test_marks_and_signals_are_one_wait(looking: AsyncClient) -> None:
    """All of them, any of them, or none because a target of `unless` came first; the details name each."""
    async with Client(mcp_server.make_server(looking)) as client:
        await looking.advance("mixed-0", high_watermark=42)
        targets = ["mixed-0@42", "signal:mixed"]
        unless = ["mixed-0@43", "signal:mixed/failed"]
        late = await answer(client, "wait", targets=targets, unless=unless, timeout_seconds=0)
        assert (late["outcome"], late["details"]) == (
            "expired",
            [
                "mixed-0: reached 42 of 42",
                "mixed: reached 0 of 1, error 7 REQUEST_TIMED_OUT",
                "unless mixed-0: reached 42 of 43",
                "unless mixed/failed: reached 0 of 1",
            ],
        )
        assert (await answer(client, "wait", targets=targets, any_of=True))["outcome"] == "satisfied"
        waiting = asyncio.create_task(answer(client, "wait", targets=targets, unless=unless))
        await until_waiting(looking, "mixed-0")
        [listed] = (await answer(client, "pending", search="mixed"))["operations"]
        assert listed["waits_for"][1:] == ["mixed: 0 of 1", "unless mixed-0: 42 of 43", "unless mixed/failed: 0 of 1"]
        await looking.signal_key("mixed/failed")
        ended = await waiting
        assert ended["outcome"] == "failed"
        assert ended["details"][0] == "mixed-0: reached 42 of 42"
        assert ended["details"][3] == "unless mixed/failed: reached 1 of 1, error 1002 UNLESS_REACHED"


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
    async with Client(mcp_server.make_server(looking)) as client:
        assert "no source that publishes 'kafka/agents/log' is attached" in await refusal(
            client, "caught_up", marks=["kafka/agents/log"]
        )
        async with played_source(shared_daemon.address, end=3) as feeding:
            waiting = asyncio.create_task(answer(client, "caught_up", marks=["kafka/agents/log"]))
            await until_waiting(looking, "kafka/agents/log-0")
            await feeding.advance(("kafka/agents/log", 0), high_watermark=3)
            ended = await waiting
    assert (ended["outcome"], ended["details"]) == ("satisfied", ["kafka/agents/log-0: reached 3 of 3"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": []}, "at least 1 item"),
        ({"targets": ["orders-3"]}, "expected partition@offset, like orders-3@42"),
        ({"targets": ["orders-3@1"], "unless": ["signal-1"]}, "expected partition@offset, like orders-3@42"),
        ({"targets": ["signal:"]}, "key"),
        ({"targets": ["orders-3@" + "9" * 5_000]}, "9" * 40 + " does not fit in 64 bits"),
        ({"targets": ["signal:a"], "timeout_seconds": "1_0"}, "valid number"),
        ({"targets": ["signal:a"], "timeout_seconds": -1}, "greater than or equal to 0"),
        ({"targets": ["signal:a"], "timeout_seconds": 1e9}, "less than or equal to"),
    ],
)
async def test_a_bad_call_gets_an_answer_that_says_what_to_do(
    looking: AsyncClient, arguments: dict[str, object], message: str
) -> None:
    async with Client(mcp_server.make_server(looking)) as client:
        assert message in await refusal(client, "wait", **arguments)
        assert (await answer(client, "pending"))["matching"] == 0


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
