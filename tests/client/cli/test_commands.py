"""The command line against a real daemon: exit codes, stdout and stderr. Ctrl-C and imports need real processes."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner
from purgatory_client import AsyncClient, Client, batches
from purgatory_client.sources.source_link import EndsWanted, SourceLink, SourceState

from purgatory.cli.app import app
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError, follower, ids, key_counts, operation_reference, partition_offsets, seconds
from tests.client.test_blocking import environment
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import PATIENCE_S
from tests.played_source import until_live

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


@pytest.fixture
def run(shared_daemon: DaemonProcess) -> Run:
    """Run `purgatory` with these arguments against the shared daemon."""

    def call(*arguments: str, address: str = shared_daemon.address) -> Answer:
        return purgatory(*arguments, address=address)

    return call


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
    return subprocess.run(
        [*PROGRAM, *arguments],
        env={**found, "PYTHONPATH": f"{packages}:{found['PYTHONPATH']}".strip(":")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture
def looking(shared_daemon: DaemonProcess) -> Iterator[Client]:
    """A client for inspecting the shared daemon."""
    with Client(shared_daemon.address) as client:
        yield client


def test_a_record_is_reached_by_the_next_offset(run: Run, looking: Client) -> None:
    """A mark of 42 does not mean that record 42 was processed; a mark of 43 does."""
    looking.advance("record-0", high_watermark=42)
    assert run("wait", "record-0@42", "--timeout", "0").returncode == Exit.OK
    assert run("wait", "record-0@42", "--record", "--timeout", "0").returncode == Exit.EXPIRED
    looking.advance("record-0", high_watermark=43)
    assert run("wait", "record-0@42", "--record", "--timeout", "0").returncode == Exit.OK
    assert run("wait", "record-0@42", "--record", "--fetch").returncode == Exit.USAGE


def test_a_token_is_a_target(run: Run, looking: Client) -> None:
    """A token is used without other targets, with its epochs: its offsets mean nothing in later epochs."""
    looking.advance("token-0", leader_epoch=3, is_leader=True)
    looking.advance("token-0", high_watermark=5)
    token = looking.token({"token-0": 5})
    assert run("wait", token, "--timeout", "0").returncode == Exit.OK
    assert run("wait", token, "token-0@5").returncode == Exit.USAGE
    assert run("wait", token[:-3], "--timeout", "0").returncode == Exit.REFUSED
    looking.advance("token-0", leader_epoch=4, is_leader=True)
    answer = run("wait", token, "--timeout", "0", "--json")
    assert (answer.returncode, json.loads(answer.stdout)["partitions"]["token-0"]["error_code"]) == (Exit.FAILED, 74)


def until_waiting(client: Client, partition: str, *, pending: bool = True) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while bool(list(client.operations(partition=partition))) != pending:
        assert time.monotonic() < deadline, f"still not so: a wait on {partition} is pending is {pending}"
        time.sleep(0.01)


def test_the_first_wait_of_the_readme(shared_daemon: DaemonProcess, run: Run, looking: Client) -> None:
    """`wait` blocks until another command advances the partition; then both print the result and exit with 0."""
    waiting = Background(shared_daemon.address, "wait", "orders-3@42", "--timeout", "30s")
    until_waiting(looking, "orders-3")
    listed = run("ls")
    assert listed.returncode == 0
    assert "orders-3@42" in listed.stdout
    advanced = run("advance", "orders-3", "--high-watermark", "42")
    assert advanced.returncode == 0
    assert advanced.stdout == "1 event: 1 wait ended\n"
    code, out, err = waiting.end()
    assert (code, err) == (0, "")
    assert re.fullmatch(r"satisfied after \d+\.\d{3} s\n  orders-3: reached 42 of 42\n", out)


def test_an_expired_wait_says_how_far_it_came(shared_daemon: DaemonProcess, run: Run, looking: Client) -> None:
    """An expired wait exits with 11 on time and shows the offset reached and the estimate, also as JSON."""
    looking.advance("expires-1", high_watermark=10)
    waiting = Background(shared_daemon.address, "wait", "expires-1@1000", "--timeout", "1500ms")
    until_waiting(looking, "expires-1")
    looking.advance("expires-1", high_watermark=20)
    code, out, _ = waiting.end()
    assert code == 11
    assert "expires-1: reached 20 of 1000" in out
    assert re.search(r"would have been reached in about [\d.]+(s|m|h)( \d+[sm])? at [\d,]+\.\d a second", out)
    still = run("wait", "expires-1@1000", "--timeout", "50ms", "--json")
    assert still.returncode == 11
    document = json.loads(still.stdout)
    assert document["outcome"] == "expired"
    assert document["partitions"]["expires-1"]["reached_offset"] == 20
    assert document["partitions"]["expires-1"]["estimated_remaining"] is None


def test_a_failed_and_a_cancelled_wait(shared_daemon: DaemonProcess, run: Run, looking: Client) -> None:
    """Exit code 10 if the partition is removed, 12 if an operator cancels."""
    failing = Background(shared_daemon.address, "wait", "goes-1@5")
    until_waiting(looking, "goes-1")
    assert run("advance", "goes-1", "--removed").returncode == 0
    code, out, _ = failing.end()
    assert code == 10
    assert "error 3 UNKNOWN_TOPIC_OR_PARTITION" in out
    waiting = Background(shared_daemon.address, "wait", "stays-1@5")
    until_waiting(looking, "stays-1")
    cancelled = run("cancel", "--partition", "stays-1")
    assert (cancelled.returncode, cancelled.stdout) == (0, "1 operation cancelled\n")
    assert waiting.end()[0] == 12
    assert run("cancel", "--partition", "stays-1").returncode == 16


def test_a_session_is_closed(shared_daemon: DaemonProcess, run: Run, looking: Client) -> None:
    """`close` prints what it cancelled and dropped; exit code 16 if there is no such session."""
    looking.register("left-behind", 1, batches.produce(["left-0"], offsets=[9, 10], indexes=[0, 0]))
    closed = run("close", "left-behind")
    assert (closed.returncode, closed.stdout) == (0, "closed: 2 operations cancelled, 0 results dropped\n")
    assert run("close", "left-behind").returncode == 16


def test_an_interrupted_wait_is_cancelled_at_the_daemon(shared_daemon: DaemonProcess, looking: Client) -> None:
    """Ctrl-C cancels the wait at the daemon; exit code 130 and a message on stderr."""
    waiting = Background(shared_daemon.address, "wait", "ctrl-1@5", "--timeout", "10m")
    until_waiting(looking, "ctrl-1")
    waiting.process.send_signal(signal.SIGINT)
    code, out, err = waiting.end()
    assert (code, out) == (130, "")
    assert "interrupted" in err
    until_waiting(looking, "ctrl-1", pending=False)


def test_a_daemon_that_shuts_down_or_is_not_there(start_daemon: StartDaemon, run: Run) -> None:
    """Exit code 14 if the daemon shuts down during a wait, 13 if no daemon is running."""
    daemon = start_daemon()
    waiting = Background(daemon.address, "wait", "orders-3@42")
    with Client(daemon.address) as client:
        until_waiting(client, "orders-3")
    assert daemon.stop() == 0
    code, out, _ = waiting.end()
    assert code == 14
    assert out.startswith("shutting down after")
    absent = run("wait", "orders-3@42", address=daemon.address)
    assert absent.returncode == 13
    assert absent.stdout == ""
    assert f"the daemon at {daemon.address} is not available" in absent.stderr


def test_caught_up_where_nothing_feeds_the_marks(run: Run) -> None:
    """Without a source, the exit code is 13 and the daemon's message is shown. `--token` does not wait, so it
    accepts no `--fail-when-stale`.
    """
    asked = run("caught-up", "kafka/billing/orders", "--fail-when-stale", "1s")
    assert (asked.returncode, asked.stdout) == (13, "")
    assert asked.stderr == "purgatory: no source that publishes 'kafka/billing/orders' is attached\n"
    both = run("caught-up", "kafka/orders", "--token", "--fail-when-stale", "1s")
    assert both.returncode == 2


async def test_caught_up_with_empty_topics(start_daemon: StartDaemon, run: Run) -> None:
    """A topic without records is satisfied at once, with exit code 0, through every entry point."""
    daemon = start_daemon()

    async def answer(link: SourceLink) -> None:
        async for asked in link:
            if isinstance(asked, EndsWanted):
                await link.report(SourceState.LIVE)  # its reports must not be older than three seconds
                await link.answer_ends(asked.ask_id, [])

    async with AsyncClient(daemon.address) as client, client.attach_source("kafka", ["kafka/"]) as link:
        answering = asyncio.create_task(answer(link))
        await link.report(SourceState.LIVE)
        await until_live(client)
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
        answering.cancel()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["wait", "orders@42"], "'orders' is not a partition"),
        (["wait", "orders-3"], "expected partition@offset, like orders-3@42"),
        (["wait", "orders-3@42", "--timeout", "soon"], "not a duration: 'soon'"),
        (["wait", "orders-3@1", "orders-3@2"], "orders-3 is given twice"),
        (["wait", "a-1@1", "--fetch", "--signal"], "cannot be combined"),
        (["wait", "signal:a", "--heartbeat", "5s"], "require --signal"),
        (["wait", "signal:a", "a-1@1", "--from-now"], "require --signal"),
        (["wait"], "TARGET"),
        (["advance"], "a partition or --signal KEY"),
        (["advance", "orders-3"], "no event given"),
        (["advance", "orders-3", "--replica", "x"], "2:41"),
        (["cancel"], "exactly one of"),
        (["cancel", "nonsense"], "SESSION/ID"),
        (["ls", "--kind", "nonsense"], "not a kind"),
        (["ls", "--watch", "0"], "--watch 0 is too short"),
        (["status", "--watch", "0"], "--watch 0 is too short"),
        (["hot", "--watch", "0"], "--watch 0 is too short"),
        (["tail", "--outcome", "refused"], "not an outcome: 'refused'; expected one of satisfied, "),
        (["tail", "--kind", "delay"], "not a kind: 'delay'; expected one of produce, "),
        (["show", "nonsense"], "is not a partition"),
        (["dead-letters", "--resend-all", "--delete", "1.1"], "--resend, --resend-all and --delete cannot be combined"),
        (["tail", "--count", "1_0"], "'1_0' is not a number"),
        (["load", "--rate", "1_0"], "'1_0' is not a number"),
        (["advance", "orders-3", "--in-sync-replicas", "1,1_0"], "not a list of replica ids"),
        (["fleet", "init", "postgresql://host/db", "--shards", "1_0"], "'1_0' is not a number"),
        (["--nonsense"], "nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_usage(run: Run, arguments: list[str], says: str) -> None:
    """Exit code 2, with a correction on stderr."""
    answer = run(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert says in answer.stderr


def test_what_the_daemon_refuses(run: Run) -> None:
    """Exit code 15 with the daemon's message for a bad value and for a stale epoch; 16 for an unknown object."""
    refused = run("wait", "orders-3@-5")
    assert refused.returncode == 15
    assert "required_offset" in refused.stderr
    assert run("advance", "stale-1", "--high-watermark", "5", "--leader-epoch", "7").returncode == 0
    stale = run("advance", "stale-1", "--high-watermark", "6", "--leader-epoch", "6")
    assert stale.returncode == 15
    assert stale.stdout == "1 event, 1 refused: 0 waits ended\n"
    assert "leader_epoch" in stale.stderr
    assert run("show", "never-heard-of-1").returncode == 16
    assert run("show", "no-session/7").returncode == 16


def test_waits_of_the_other_kinds(run: Run) -> None:
    """Fetches, delete-records and signals are selected by a flag."""
    assert run("advance", "kinds-1", "--log-end-offset", "10", "--high-watermark", "10").returncode == 0
    fetched = run("wait", "kinds-1@4", "--fetch", "--min-bytes", "6")
    assert fetched.returncode == 0
    assert "6 bytes from 4" in fetched.stdout
    assert run("wait", "kinds-1@4", "--fetch", "--min-bytes", "7", "-t", "50ms").returncode == 11
    assert run("advance", "kinds-1", "--log-start-offset", "10").returncode == 0
    assert run("wait", "kinds-1", "--delete-records").returncode == 0
    assert run("advance", "--signal", "job-17", "--count", "2", "--json").returncode == 0
    assert run("wait", "--signal", "job-17@2", "other", "--any").returncode == 0
    assert run("wait", "--signal", "job-17", "--from-now", "-t", "50ms").returncode == 11


def test_every_event_has_its_option(run: Run, looking: Client) -> None:
    """The options of `advance` change the partition's state."""
    assert run(
        "advance", "all-1", "--leader", "--leader-epoch", "3", "--leader-id", "1", "--replicas", "1,2,3",
        "--in-sync-replicas", "1,2", "--min-in-sync-replicas", "2", "--log-end-offset", "50", "--byte-position", "5000",
        "--replica", "2:40:0", "--fenced-replica", "3",
    ).returncode == 0  # fmt: skip
    partition = looking.partition("all-1")
    assert (partition.leader_epoch, partition.leader_id, partition.in_sync_replica_ids) == (3, 1, [1, 2])
    assert (partition.log_end_offset, partition.high_watermark, partition.min_in_sync_replicas) == (50, 40, 2)
    assert [replica.fenced for replica in partition.replicas if replica.replica_id == 3] == [True]
    grown = ["--log-end-offset", "60", "--replica", "2:60", "--last-stable-offset", "45"]
    assert run("advance", "all-1", *grown).returncode == 0
    partition = looking.partition("all-1")
    assert (partition.high_watermark, partition.last_stable_offset) == (60, 45)
    assert run("advance", "all-1", "--last-stable-offset", "-1", "--truncate-to", "55").returncode == 0
    assert looking.partition("all-1").last_stable_offset == 55
    assert run("advance", "all-1", "--storage-failed").returncode == 0
    assert looking.partition("all-1").storage_failed
    assert run("advance", "all-1", "--storage-online").returncode == 0
    assert run("advance", "all-1", "--follower", "--leader-epoch", "4").returncode == 0
    assert not looking.partition("all-1").is_leader
    shown = run("show", "all-1")
    assert "replica 2: log end 60, in sync" in shown.stdout
    assert run("advance", "all-1", "--moved").returncode == 0


def shown_until(run: Run, reference: str, text: str) -> str:
    """What `show` prints, once it contains a text."""
    deadline = time.monotonic() + PATIENCE_S
    while text not in (shown := run("show", reference).stdout):
        assert time.monotonic() < deadline, f"{text!r} was not shown: {shown}"
    return shown


def test_show_explains_why_a_wait_is_pending(run: Run, looking: Client) -> None:
    """`show` names the replica that holds the wait back, the pace, and whether it will be in time; also as JSON."""
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
    soon = shown_until(run, "paced/1", "a second: reached in about ")
    assert re.search(r"^    [\d,]+\.\d a second: reached in about \S+( \S+)?, in time$", soon, re.MULTILINE)
    assert shown_until(run, "paced/2", "a second: reached in about ").rstrip().endswith(" too late")
    item = json.loads(run("show", "paced/1", "--json").stdout)["items"][0]
    assert (item["reached_offset"], item["held_back_by"]) == (11, "in-sync replica 2 (at 11)")
    assert item["pace_per_second"] * item["estimated_remaining"] == pytest.approx(1, rel=0.1)
    assert looking.cancel(session_id="paced") == 2


def test_listings_are_plain_off_a_terminal(run: Run, looking: Client) -> None:
    """In a pipe, output has no colours and is not truncated; with --json it has one object per line."""
    name = "a-very-long-topic-name-" * 8 + "-1"
    looking.advance(name, high_watermark=5)
    listed = run("ls", "--partitions")
    assert name in listed.stdout
    assert "\x1b" not in listed.stdout
    lines = run("ls", "--partitions", "--json").stdout.splitlines()
    assert name in {json.loads(line)["name"] for line in lines}
    status = run("status", "--json")
    assert json.loads(status.stdout)["kinds"][0]["kind"] == "produce"
    assert "registered" in run("status").stdout


def test_serve_passes_its_flags_on_to_the_daemon() -> None:
    """`serve --help` prints the daemon's own help."""
    assert "--grpc-address" in program("serve", "--help").stdout


def test_serve_without_the_server_packages_says_what_to_install(tmp_path: Path) -> None:
    """Without the server extra, one line says that it is missing, and what to type."""
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError('No module named uvloop', name='uvloop')\n")
    answer = program("serve", packages=str(tmp_path))
    assert answer.returncode == 1
    remedy = "install it with: pip install 'purgatory-waits[server]', or run: uvx 'purgatory-waits[server]' serve"
    assert answer.stderr == f"purgatory: `purgatory serve` needs uvloop; {remedy}\n"


def test_parsing() -> None:
    """Durations, targets, keys and followers are parsed in the forms that users write."""
    assert [seconds(text) for text in ("500ms", "30s", "2m", "1h", "1d", "1.5", "0.5 s", "0")] == [
        0.5, 30, 120, 3_600, 86_400, 1.5, 0.5, 0,
    ]  # fmt: skip
    assert partition_offsets(["a-1@5", "b-c-2@7"]) == {"a-1": 5, "b-c-2": 7}
    assert partition_offsets(["a-1", "b-2@3"], -1) == {"a-1": -1, "b-2": 3}
    assert key_counts(["job", "mail@example", "k@3"]) == {"job": 1, "mail@example": 1, "k": 3}
    assert (follower("2:41"), follower("2:41:7")) == ((2, 41, None), (2, 41, 7))
    for text in ("", "-5s", "9" * 400, "5 weeks", "\u0663s", "1_0s"):
        with pytest.raises(UsageError):
            seconds(text)


def test_numbers_of_thousands_of_digits_are_out_of_range() -> None:
    """They are parsed, cut, for the same refusal as any other number that does not fit into 64 bits."""
    long, cut = "9" * 5_000, 10**40 - 1
    assert partition_offsets([f"a-1@{long}", f"a-2@-{long}"]) == {"a-1": cut, "a-2": -cut}
    assert (key_counts([f"k@{long}"]), follower(f"2:{long}"), ids(f"1, {long}")) == (
        {"k": cut},
        (2, cut, None),
        [1, cut],
    )
    assert operation_reference(f"session/{long}") == ("session", cut)
