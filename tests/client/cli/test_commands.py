"""The command line against a real daemon, where a transcript cannot show it: processes, values that differ, JSON."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner
from purgatory_client import Client, batches
from purgatory_client.waits import produce
from purgatory_client.waits import signal as signal_wait

from purgatory.cli.app import app
from purgatory.cli.exit_codes import Exit
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.programs import run_program
from tests.played_source import played_source

PROGRAM = [sys.executable, "-m", "purgatory"]
Answer = subprocess.CompletedProcess[str]
Run = Callable[..., Answer]


class Background:
    """A running command. A fixture in conftest.py kills it if the test leaves it running."""

    started: ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(self, address: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments, "--address", address],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(self.process)

    def end(self) -> tuple[int, str, str]:
        """Wait for the command to end; returns its exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def purgatory(*arguments: str, address: str = "") -> Answer:
    """Run `purgatory` with these arguments in this process."""
    environment = {"PURGATORY_ADDRESS": address, "COLUMNS": "80"}
    done = CliRunner().invoke(app, arguments, prog_name="purgatory", env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(arguments, done.exit_code, done.stdout, done.stderr)


def program(*arguments: str, packages: str = "") -> Answer:
    """Run `purgatory` as a process; `packages`: a folder of Python packages that is first on the path."""
    found = environment()
    path = f"{packages}:{found['PYTHONPATH']}".strip(":")
    return run_program([*PROGRAM, *arguments], code=None, env={**found, "PYTHONPATH": path})


def until_waiting(client: Client, *, pending: bool = True, **name: str) -> None:
    """Return when a wait on a partition or key is pending, or none is."""
    wait_until(lambda: bool(list(client.operations(**name))) == pending, f"pending on {name}: {pending}")  # type: ignore[arg-type]


def test_a_token_is_a_target(run: Run, looking: Client) -> None:
    """A token is used without other targets, with its epochs: its offsets mean nothing in later epochs."""
    looking.advance("token-0", leader_epoch=3, is_leader=True)
    looking.advance("token-0", high_watermark=5)
    token = looking.token({"token-0": 5})
    assert run("wait", token, "--timeout", "0").returncode == Exit.OK
    assert run("wait", token, "token-0@5").returncode == Exit.USAGE
    assert run("wait", token[:-3], "--timeout", "0").returncode == Exit.USAGE
    looking.advance("token-0", leader_epoch=4, is_leader=True)
    answer = run("wait", token, "--timeout", "0", "--json")
    assert (answer.returncode, json.loads(answer.stdout)["partitions"]["token-0"]["error_code"]) == (Exit.FAILED, 74)


def test_an_interrupted_wait_is_cancelled_at_the_daemon(shared_daemon: DaemonProcess, looking: Client) -> None:
    waiting = Background(shared_daemon.address, "wait", "ctrl-1@5", "--timeout", "10m")
    until_waiting(looking, partition="ctrl-1")
    waiting.process.send_signal(signal.SIGINT)
    code, out, err = waiting.end()
    assert (code, out) == (130, "")
    assert "interrupted" in err
    until_waiting(looking, partition="ctrl-1", pending=False)


def test_wait_says_that_its_daemon_shuts_down(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    waiting = Background(daemon.address, "wait", "orders-3@42")
    with Client(daemon.address) as client:
        until_waiting(client, partition="orders-3")
    assert daemon.stop() == 0
    code, out, _ = waiting.end()
    assert code == 14
    assert out.startswith("shutting down after")


async def test_caught_up_with_empty_topics(start_daemon: StartDaemon, run: Run) -> None:
    """A topic without records is satisfied at once, with exit code 0, through every entry point."""
    daemon = start_daemon()
    async with played_source(daemon.address, end=0, partitions=0) as client:
        by_topic = await asyncio.to_thread(run, "caught-up", "kafka/quiet", "--json", address=daemon.address)
        assert by_topic.returncode == 0, by_topic.stderr
        assert json.loads(by_topic.stdout) == {
            "kind": "produce", "outcome": "satisfied", "waited": 0.0, "lateness": 0.0, "partitions": {},
        }  # fmt: skip
        printed = await asyncio.to_thread(run, "caught-up", "kafka/g/quiet", "--token", address=daemon.address)
        assert printed.returncode == 0, printed.stderr
        token = printed.stdout.strip()
        by_token = await asyncio.to_thread(run, "wait", token, address=daemon.address)
        assert (by_token.returncode, by_token.stdout) == (0, "satisfied after 0.000 s\n"), by_token.stderr
        assert (await client.caught_up("g", ["quiet"], timeout=PATIENCE_S)).satisfied
        assert (await client.wait_for(token)).partitions == {}


def test_show_explains_why_a_wait_is_pending(run: Run, looking: Client) -> None:
    looking.advance("paced-1", leader_epoch=1, is_leader=True, leader_id=1, replica_ids=[1, 2], in_sync_replicas=[1, 2])
    looking.advance("paced-1", log_end_offset=2_000_000, replica=(2, 10, 0))
    offsets, timeouts_ms = [12, 1_000_000], [3_600_000, 60_000]
    looking.register("paced", 1, batches.produce(["paced-1"], offsets=offsets, timeouts_ms=timeouts_ms, indexes=[0, 0]))
    still = run("show", "paced/1").stdout
    assert (
        "    held back: in-sync replica 2 (at 10)\n    no estimate yet: no progress measured since the wait began\n"
        in still
    )
    looking.advance("paced-1", replica=(2, 11, 0))
    in_time = re.compile(r"^    [\d,]+\.\d a second: reached in about \S+( \S+)?, in time$", re.MULTILINE)
    wait_until(lambda: in_time.search(run("show", "paced/1").stdout), "it will be in time")
    wait_until(lambda: run("show", "paced/2").stdout.rstrip().endswith(" too late"), "it will be too late")
    item = json.loads(run("show", "paced/1", "--json").stdout)["items"][0]
    assert (item["reached_offset"], item["held_back_by"]) == (11, "in-sync replica 2 (at 11)")
    assert item["pace_per_second"] * item["estimated_remaining"] == pytest.approx(1, rel=0.1)
    assert looking.cancel(session_id="paced") == 2


def test_help_of_serve_is_that_of_the_daemon() -> None:
    assert "--grpc-address" in program("serve", "--help").stdout


def test_serve_without_the_server_packages_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError('No module named uvloop', name='uvloop')\n")
    answer = program("serve", packages=str(tmp_path))
    assert answer.returncode == 1
    remedy = "install it with: pip install 'purgatory-waits[server]', or run: uvx 'purgatory-waits[server]' serve"
    assert answer.stderr == f"purgatory: `purgatory serve` needs uvloop; {remedy}\n"


def test_value_that_is_not_plain_text_is_escaped_or_base64(run: Run, looking: Client, tmp_path: Path) -> None:
    """Different values are never printed alike, and arguments from a shell are sent unchanged."""
    for key, value in (("cli/ff", b"\xff"), ("cli/fe", b"\xfe")):
        (tmp_path / "value").write_bytes(value)
        assert run("signal", key, "--value-file", str(tmp_path / "value")).returncode == 0
        item = json.loads(run("wait", "--signal", key, "--json").stdout)["partitions"][key]
        assert (item["signal_value_base64"], "signal_value" in item) == (b64encode(value).decode(), False)
        assert f"value \\x{value.hex()}\n" in run("wait", "--signal", key).stdout
    assert run("signal", "cli/shell", "--value", os.fsdecode(b"\xff")).returncode == 0
    assert looking.signal(["cli/shell"], timeout=0).partitions["cli/shell"].signal_value == b"\xff"
    assert run("signal", "cli/text", "--value", "done\x1b[2J").returncode == 0
    assert "value done\\x1b[2J\n" in run("wait", "--signal", "cli/text").stdout


def test_each_extended_operation_is_reported(run: Run, looking: Client) -> None:
    looking.register("cli-extend", 1, batches.produce(["cli-extend-0"], offsets=[1, 1], timeouts_ms=[60_000]))
    both = run("extend", "cli-extend/1", "cli-extend/2", "--timeout", "1h")
    assert (both.returncode, both.stdout) == (0, "cli-extend/1: extended\ncli-extend/2: extended\n")
    assert looking.operation("cli-extend", 2).remaining > 3_000
    one = run("extend", "cli-extend/1", "cli-extend/9", "--json")
    assert (one.returncode, json.loads(one.stdout)) == (16, {"cli-extend/1": True, "cli-extend/9": False})
    looking.close_session("cli-extend")


def test_an_interrupted_load_says_what_it_leaves(shared_daemon: DaemonProcess, run: Run, looking: Client) -> None:
    command = Background(shared_daemon.address, "load", "-n", "10", "--session", "stopped", "--topic", "stopped")
    until_waiting(looking, partition="stopped-9")
    command.process.send_signal(signal.SIGINT)
    code, _, error = command.end()
    advice = "the registered waits stay pending; cancel them with: purgatory cancel --session stopped"
    assert (code, error) == (130, f"purgatory: interrupted; {advice}\n")
    assert re.search(r"time left: 10 up to 10m; first expires in (9m \d+s|10m), last in", run("status").stdout)
    assert looking.cancel(session_id="stopped") == 10


# Commands that follow what happens.


EVIL = "evil:key:\x1b[31m\u202e[red]"  # ":key:" is an emoji to rich
SHOWN = "evil:key:\\x1b[31m\\u202e[red]"


def followed(daemon: DaemonProcess, client: Client, *arguments: str) -> Answer:
    """Run `purgatory tail -n 1` while waits end one after another, until it prints a matching one."""
    client.advance("tailed-0", high_watermark=1)
    with ThreadPoolExecutor(1) as thread:
        tail = thread.submit(purgatory, "tail", "--count", "1", *arguments, address=daemon.address)
        while not tail.done():
            client.wait_once(signal_wait({EVIL: 1}, timeout=0.02))
            client.wait_once(produce({"tailed-0": 0}, timeout=1))
        return tail.result()


def test_tail_prints_one_escaped_line_for_a_result(shared_daemon: DaemonProcess, looking: Client) -> None:
    answer = followed(shared_daemon, looking, "--outcome", "expired")
    assert (answer.returncode, answer.stderr) == (Exit.OK, "")
    assert answer.stdout.count("\n") == 1
    assert re.search(r"expired +signal +after \d+\.\d+ s", answer.stdout)
    assert SHOWN in answer.stdout
    assert "\x1b" not in answer.stdout
    assert "\u202e" not in answer.stdout


def test_tail_as_json_has_only_the_chosen_kind(shared_daemon: DaemonProcess, looking: Client) -> None:
    told = json.loads(followed(shared_daemon, looking, "--kind", "produce", "--json").stdout)
    assert (told["kind"], told["outcome"], told["session_id"], told["operation_id"]) == ("produce", "satisfied", "", 0)
    assert told["items"][0]["name"] == "tailed-0"


def test_hot_lists_most_watched_first(shared_daemon: DaemonProcess, looking: Client) -> None:
    looking.advance("cold-0", high_watermark=1)
    looking.register(
        "hot", 1, batches.produce(["hot-1", "hot-2"], offsets=[9, 9, 9], indexes=[0, 1, 0], item_counts=[2, 1])
    )
    looking.register("hot", 3, batches.signal([EVIL, "hot"], indexes=[0, 1], item_counts=[2]))
    answer = purgatory("hot", "--json", address=shared_daemon.address)
    names = [(one["name"], one["is_key"], one["watched"]) for one in map(json.loads, answer.stdout.splitlines())]
    assert names[0] == ("hot-1", False, 2)
    assert sorted(names[1:]) == [(EVIL, True, 1), ("hot", True, 1), ("hot-2", False, 1)]
    table = purgatory("hot", "--limit", "1", address=shared_daemon.address).stdout.splitlines()
    assert [line.split() for line in table] == [["watched", "what", "name"], ["2", "partition", "hot-1"]]
    assert SHOWN in purgatory("hot", address=shared_daemon.address).stdout
    looking.close_session("hot")


def test_watch_shows_it_again_until_interrupted(shared_daemon: DaemonProcess) -> None:
    watching = Background(shared_daemon.address, "ls", "--watch", "100ms")
    assert watching.process.stdout is not None
    heading = watching.process.stdout.readline()
    assert heading
    while watching.process.stdout.readline() != heading:
        assert watching.process.poll() is None
    watching.process.send_signal(signal.SIGINT)
    code, _, err = watching.end()
    assert code == Exit.INTERRUPTED
    assert "nothing was changed" in err
