"""Every block of the documentation is tagged, and works: it runs here, or in the test named here, or it is parsed."""

import ast
import asyncio
import base64
import importlib
import importlib.util
import json
import os
import re
import shlex
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import pytest
from purgatory_client import AsyncClient, Client, batches
from purgatory_client.sources.log_positions import offset_of_lsn
from purgatory_connectors.cli import app as source_app
from purgatory_pipeline.cli import app as pipeline_app

from examples import long_poll
from examples.free_ports import free_port
from purgatory.cli.app import app as purgatory_app
from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.flags import read_command_line
from tests.docs.pages import ROOT, WHERE, Block, blocks, comparable, play, shell, texts
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.played_source import played_source

LANGUAGES: Final = {"console", "go", "haproxy", "java", "json", "nginx", "python", "sh", "sql", "text", "toml", "ts"}
SESSIONS: Final[dict[str, str]] = WHERE["sessions"]
APPS: Final = {"purgatory": purgatory_app, "purgatory-pipeline": pipeline_app, "purgatory-source": source_app}


def name_of(block: Block) -> str:
    return f"{block.page}: {block.text.splitlines()[0].removeprefix('$ ')[:40]}"


def in_language(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language]


def session(name: str) -> Block:
    """The session with this name, as in `SESSIONS`, without the setup of the shell, with fewer waits and more time."""
    page, _, command = name.partition(": ")
    [block] = [one for one in in_language("console") if one.page == page and f"$ {command}" in one.text[:80]]
    text = block.text.replace("$ source .venv/bin/activate\n", "").replace("100000", "1000")
    return block._replace(text=text.replace("--timeout 30s", "--timeout 30m"))


def test_every_block_names_its_language() -> None:
    assert [name_of(block) for block in blocks() if block.language not in LANGUAGES] == []


def test_every_command_block_runs() -> None:
    """Blocks of commands and programs are in one of the tables above, so that a new page cannot be left out."""
    known = {*WHERE["run_elsewhere"], *(f"{page} sh" for page in WHERE["shell"]["pages"])}
    programs = [block for block in blocks() if block.language in {"go", "java", "sh", "sql", "ts"}]
    assert [name_of(block) for block in programs if f"{block.page} {block.language}" not in known] == []


def test_every_session_runs_or_has_a_reason() -> None:
    """Each console block is in exactly one of the tables of sessions; each entry has a block, and its test exists."""
    named = dict.fromkeys([*SESSIONS, *WHERE["sessions_elsewhere"], *WHERE["not_run"]], 0)
    unclear = []
    for block in in_language("console"):
        first = next(command for command in block.commands if not command.startswith("source "))
        start = f"{block.page}: {first}"
        found = [name for name in named if start.startswith(name)]
        best = max(found, key=len, default=None)
        if best is None:
            unclear.append(name_of(block))
        else:
            named[best] += 1
    assert unclear == []
    assert [name for name, count in named.items() if count == 0] == []
    assert [test for test in WHERE["sessions_elsewhere"].values() if not (ROOT / test).exists()] == []


@pytest.mark.parametrize("block", WHERE["run_elsewhere"])
def test_the_test_of_a_page_names_it(block: str) -> None:
    page, language = block.split()
    test = (ROOT / WHERE["run_elsewhere"][block]).read_text("utf-8")
    assert texts(page, language)
    assert Path(page).name in test or Path(page).parent.name in test


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_prints_what_the_page_shows(name: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    block = session(name)
    assert play(SESSIONS[name], block.commands, tmp_path, at(daemon)) == comparable(block.output)


def test_the_front_page_shows_the_session_of_the_readme() -> None:
    """The site begins with the session that is played for the README."""
    shown = session("README.md: purgatory wait orders-3@42").text
    assert [block.text for block in in_language("console") if block.page == "docs/index.md"] == [
        shown.replace("30m", "30s")
    ]


def secret(folder: Path) -> str:
    path = folder / "secret"
    path.write_text(f"whsec_{base64.b64encode(bytes(32)).decode()}\n")
    path.chmod(0o600)
    return str(path)


def at(daemon: DaemonProcess) -> dict[str, str]:
    """The environment of a shell whose `purgatory` calls this daemon."""
    return {"PURGATORY_ADDRESS": daemon.address, "PURGATORY_HTTP_URL": f"http://{daemon.http_address}"}


def test_waits_survive_the_crash_of_the_readme(tmp_path: Path) -> None:
    """The daemon of the page is killed and started again; each of its waits ends once. With shorter waits."""
    commands = session("README.md: purgatory serve --data-dir").commands
    commands = [command.replace("10m", "3s") for command in commands]
    addresses = {name: f"127.0.0.1:{free_port()}" for name in ("PURGATORY_GRPC_ADDRESS", "PURGATORY_HTTP_ADDRESS")}
    places = {**addresses, "PURGATORY_ADDRESS": addresses["PURGATORY_GRPC_ADDRESS"]}
    lines = play("", commands, tmp_path, places)
    ended = [int(line.split()[0]) for line in lines if line.endswith(" expired after T")]
    assert sorted(ended) == list(range(1, 1_001))


@pytest.mark.parametrize("page", WHERE["shell"]["pages"])
def test_commands_without_a_shown_output_succeed(page: str, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Each shell block of the page runs; the daemon knows the mark of the examples and may call their webhook."""
    script = """
        set -e
        switch_traffic() { echo switched; }
        offset=5
    """
    for text in texts(page, "sh"):
        if not text.startswith("buf "):  # tests/strangers/test_grpc_page.py runs it
            script += text.replace("5000", "50").replace("curl ", "curl --fail-with-body -sS ")
    if page == "docs/faq.md":
        script += "purgatory show orders-3"
    script = script.replace(
        "purgatory dead-letters --resend-all", "purgatory dead-letters --resend-all || test $? = 16"
    )
    flags = ("--webhooks-allowed-hosts", "hooks.example.org", "--webhooks-secret-file", secret(tmp_path))
    daemon = start_daemon(*flags)
    with Client(daemon.address) as client:
        client.advance("search-index-0", high_watermark=5)
        client.advance("orders-3", high_watermark=41)
    done = shell(script.replace("127.0.0.1:7441", daemon.http_address), tmp_path, at(daemon))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_answer_on_the_http_page_has_the_fields_of_the_real_one(daemon: DaemonProcess, tmp_path: Path) -> None:
    [call, *_] = texts("docs/http.md", "sh")
    [shown, *_] = texts("docs/http.md", "json")
    done = shell(call.replace("127.0.0.1:7441", daemon.http_address).replace("5000", "50"), tmp_path, at(daemon))
    answer = json.loads(done.stdout)["result"]
    expected = json.loads(shown)["result"]
    answer.pop("latenessMs", None)  # left out if the daemon was on time to the millisecond
    assert answer.keys() == expected.keys()
    assert answer["partitions"] == expected["partitions"]


CONSOLE: Final = [(block.page, command) for block in in_language("console") for command in block.commands]


def programs(command: str) -> list[list[str]]:
    """The calls of a command line, as words, without comments and variables."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("();<>|&"):
            calls.append([])
        elif calls[-1] or "=" not in word:
            calls[-1].append(word)
    return [call for call in calls if call and not any("…" in word for word in call)]


def check_arguments(words: list[str]) -> None:
    """Parse the arguments of one of our programs, without running it. Raises for unknown commands and options."""
    command: Any = APPS[words[0]]
    with mock.patch.dict(os.environ):  # --master and --conf are passed to Spark by it
        context = command.make_context(words[0], words[1:])
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("page", "command"), CONSOLE, ids=[f"{page} {command[:50]}" for page, command in CONSOLE])
def test_command_line_of_a_session_is_valid(page: str, command: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for words in programs(command):
        if words[:2] == ["purgatory", "serve"]:
            read_command_line(words[2:], "purgatory serve", ALL_SETTINGS)
        elif words[0] in APPS:
            check_arguments(words)
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), command
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]), command
        elif words[0] == "pip":
            [extras] = re.findall(r"purgatory-waits\[(.*)\]", command)
            assert set(extras.split(",")) <= project["optional-dependencies"].keys(), command


@pytest.mark.parametrize("block", in_language("json") + in_language("toml"), ids=name_of)
def test_block_of_data_is_well_formed(block: Block) -> None:
    assert json.loads(block.text) if block.language == "json" else tomllib.loads(block.text)


class ChangeEvent(NamedTuple):
    """An event of a change data capture, as docs/lsn.md uses it."""

    commit_lsn: str = "0/16B3748"


async def run_python(block: Block, daemon: DaemonProcess, client: AsyncClient, folder: Path) -> None:
    """Run a block as the body of a coroutine, in an empty folder, with the names that its reader has."""
    names: dict[str, Any] = {
        "client": client,
        "lsn": 9_000,
        "event": ChangeEvent(),
        "midnight": datetime.now(UTC),
        "ship": print,
    }
    names |= {"first": await client.token({"orders-3": 1}), "second": await client.token({"orders-3": 2})}
    for module in ("purgatory_client", "purgatory_client.sources.position_tokens"):
        names |= vars(importlib.import_module(module))
    source = block.text.replace("127.0.0.1:7440", daemon.address).replace('"calls.db"', repr(str(folder / "calls.db")))
    program = compile(source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(program, names)
    if asyncio.iscoroutine(running):
        await asyncio.wait_for(running, 60)


RUN_PYTHON: Final = [
    block
    for block in in_language("python")
    if block.page not in {*WHERE["parsed"], "docs/embedded.md", "docs/sources.md"}
    and f"{block.page} python" not in WHERE["run_elsewhere"]
    and "ca.crt" not in block.text  # one call with the settings of TLS, whose files are not there
]


@pytest.mark.slow
@pytest.mark.parametrize("page", dict.fromkeys(block.page for block in RUN_PYTHON))
async def test_python_of_a_page_runs_at_a_daemon(page: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    async with played_source(daemon.address, end=43) as client:
        for block in RUN_PYTHON:
            if block.page == page:
                await prepare(client)  # again for each block: some of them remove marks
                await run_python(block, daemon, client, tmp_path)


async def prepare(client: AsyncClient) -> None:
    """Report the marks, the signal and the wait that the pages talk about."""
    for mark in ("orders-3", "orders-4", "kafka/billing/orders-3", "kafka/billing/orders-0"):
        await client.advance(mark, high_watermark=43)
    for mark in ("pg/main/r1", "pg/main/all"):
        await client.advance(mark, high_watermark=offset_of_lsn("0/F000000"))
    await client.signal_key("job-17", value=b"done")
    await client.register("night", 17, batches.produce(["later-0"], offsets=[9, 9], indexes=[0, 0]))


def test_the_embedded_page_runs() -> None:
    """The blocks of the page in turn, in one namespace: a poll is answered by a message, and timers run when due."""
    answers: list[tuple[int, list[str]]] = []
    modules = ("purgatory.embedded", "purgatory.timer", "purgatory.testing")
    names = {name: value for module in modules for name, value in vars(importlib.import_module(module)).items()}
    names |= {"board": long_poll.Board(), "room": "lobby", "number": 0, "timeout_ms": 50, "message": "hello"}
    names |= {"operation": long_poll.NewMessages(long_poll.Board(), "lobby", 0, 30_000), "request": "a request"}
    names |= {"answer": lambda code, messages: answers.append((code, messages)), "send_again": print}
    for text in texts("docs/embedded.md", "python"):
        exec(text, names)
    names["purgatory"].close()
    assert answers == [(204, [])]


async def test_source_on_the_page_reports_its_mark_and_end(daemon: DaemonProcess) -> None:
    names = vars(importlib.import_module("purgatory_client")) | vars(
        importlib.import_module("purgatory_client.sources.source_link")
    )
    names |= {"look": lambda: 21, "watch_closely": print}
    [text] = texts("docs/sources.md", "python")
    code = compile(
        text.replace("127.0.0.1:7440", daemon.address), "sources.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    running = asyncio.create_task(eval(code, names))
    async with AsyncClient(daemon.address) as client:
        assert (await client.produce({"room/kitchen-0": 21}, timeout=60)).outcome.name == "SATISFIED"
        assert (await client.ends(["room/kitchen"])).offsets == {"room/kitchen-0": 21}
    running.cancel()


@pytest.mark.parametrize("block", in_language("python"), ids=name_of)
def test_python_is_python(block: Block) -> None:
    """Blocks that are parts of something larger are at least valid."""
    compile(block.text, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
