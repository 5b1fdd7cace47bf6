"""Shards: sessions are divided among real daemons, events reach all of them, each decides the signals of its keys, and
`--shards` runs one for each core.
"""

import asyncio
import contextlib
import itertools
import json
import shlex
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import code_pb2
from purgatory_client import AsyncClient, Outcome, batches, errors, events, waits
from purgatory_client.results import Result
from purgatory_client.session import shards as client_shards
from purgatory_client.session.shards import shard_of
from purgatory_client.unary import shards_of
from purgatory_client.wire.sizes import DECISIONS_PER_MESSAGE_MAX

from examples.free_ports import free_ports
from examples.secure_demo.authority import Authority
from purgatory.cli.exit_codes import Exit
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX
from purgatory.extension import StartupError
from purgatory.extensions.fleet.extension import SHARD_NOTE
from purgatory.extensions.fleet.supervisor import Supervisor
from purgatory.journal.directory import DATABASE
from purgatory.replicated_log.replica import MARK
from purgatory.service.setting_sources import SettingsError
from purgatory.service.translate import shards as daemon_shards
from purgatory.service.translate.shards import VALUE_BYTES_MAX
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.client.cli.test_commands import program
from tests.fleet.shard_daemons import client_of, first_answer, refusal_of, session_of, stand_by, start_one, start_shards
from tests.kit.daemon import RunDaemon, StartDaemon, daemon_environment, is_running, run_to_end
from tests.kit.eventually import PATIENCE_S, eventually, until_pending, wait_until
from tests.kit.fleet import ShardSet
from tests.kit.messages import advance_request, high_watermark, produce, register_batch, register_request
from tests.kit.recorded import assert_recorded, cases_of
from tests.sources.publishing import DictSource, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardSet]:
    """Two shards with journals. Tests use sessions and partitions of their own."""
    started = ShardSet(tmp_path_factory.mktemp("shards"))
    yield started
    started.kill()


def test_shard_is_the_crc_of_the_session_id() -> None:
    assert [session_of(shard) for shard in range(2)] == ["session-0", "session-4"]
    for module in (client_shards, daemon_shards):
        found = [module.shard_of(one, 64) for one in ("123456789", "Grüße", "")]
        assert found == [0xCBF43926 % 64, 0xFBD37071 % 64, 0]


async def test_calls_reach_the_shard_of_a_detached_session(shards: ShardSet) -> None:
    for shard in range(2):
        session_id = session_of(shard, name="detached")
        async with AsyncClient(shards.targets[1 - shard]) as client:
            batch = batches.produce(["detached-0"], offsets=[1, 2], timeouts_ms=[600_000])
            assert (await client.register(session_id, 1, batch)).accepted == 2
            assert (await client.operation(session_id, 2)).operation_id == 2
            assert await client.extend([1, 2], 900, session_id=session_id) == []
            assert await client.cancel([1], session_id=session_id) == 1
            assert await client.cancel(partition="detached-0") == 1
            collected = [number async for one in client.results(session_id) for number in one.operation_ids]
            assert sorted(collected) == [1, 2]
            with pytest.raises(errors.NotFound):
                await client.close_session(session_of(shard, name="unknown"))


ELSEWHERE = session_of(1, name="refused")
CALLS: dict[str, Message] = {
    "Register": wire.RegisterRequest(session_id=ELSEWHERE),
    "StreamResults": wire.StreamResultsRequest(session_id=ELSEWHERE),
    "Session": wire.SessionRequest(open=wire.OpenSession(session_id=ELSEWHERE)),
}


@pytest.mark.parametrize("method", CALLS)
def test_session_of_another_shard_is_refused_with_that_shard(shards: ShardSet, method: str) -> None:
    with pytest.raises(grpc.RpcError, match="belongs to shard 1") as refused:
        first_answer(shards.targets[0], method, CALLS[method])
    info = refusal_of(refused.value)
    assert (info.reason, dict(info.metadata)) == ("OTHER_SHARD", {"shard": "1", "target": shards.targets[1]})


def test_stream_of_events_that_are_not_for_all_shards_is_refused(shards: ShardSet) -> None:
    rows = advance_request(high_watermark("streamed", 5)).rows
    with pytest.raises(grpc.RpcError, match="send them to every target") as refused:
        first_answer(shards.targets[1], "AdvanceStream", wire.AdvanceStreamRequest(rows=rows))
    assert refusal_of(refused.value).reason == "ALL_SHARDS_NEEDED"
    request = wire.AdvanceStreamRequest(rows=rows, all_shards=True)
    receipt = first_answer(shards.targets[1], "AdvanceStream", request).receipt
    assert (list(receipt.ended), receipt.unchanged) == ([0], 0)


def test_each_shard_knows_all_targets_and_serves_unary_waits(shards: ShardSet, start_daemon: StartDaemon) -> None:
    for shard, target in enumerate(shards.targets):
        topology = first_answer(target, "GetTopology", wire.GetTopologyRequest())
        assert (topology.shards, list(topology.targets), topology.shard) == (2, shards.targets, shard)
        waited = first_answer(target, "Wait", wire.WaitRequest(operation=produce(1, "unary", 1, 0)))
        assert waited.result.outcome == Outcome.EXPIRED
    alone = first_answer(start_daemon().address, "GetTopology", wire.GetTopologyRequest())
    assert (alone.shards, list(alone.targets), alone.shard) == (1, [], 0)


def test_commands_add_up_what_all_shards_have(shards: ShardSet) -> None:
    def run(*command: str) -> str:
        return program(*command, "--address", shards.targets[1]).stdout

    sessions = [session_of(shard, name="listed") for shard in range(2)]
    for shard, session_id in enumerate(sessions):
        batch = register_batch(produce(1, "listed", 1, 600_000))
        first_answer(shards.targets[shard], "Register", wire.RegisterRequest(session_id=session_id, batch=batch))
    lines = run("status").splitlines()
    for shard, target in enumerate(shards.targets):
        assert any(line.startswith(f"shard {shard} at {target}: 1 pending") for line in lines), lines
    assert sum(kind["pending"] for kind in json.loads(run("status", "--json"))["kinds"]) == 2
    for command in (["ls"], ["ls", "--sort", "remaining"], ["top"]):
        assert all(session_id in run(*command) for session_id in sessions), command
    assert all(session_id in run("ls", "--session", session_id) for session_id in sessions)
    partition = json.loads(run("ls", "--partitions", "--prefix", "listed", "--json"))
    assert partition["watched"] == 2
    hot = list(map(json.loads, run("hot", "--json").splitlines()))
    assert [one["watched"] for one in hot if one["name"] == "listed-0"] == [2]
    for shard, target in enumerate(shards.targets):
        host, _, port = target.rpartition(":")
        with urlopen(f"http://{host}:{int(port) + 1}/page/live/now", timeout=PATIENCE_S) as stream:
            picture = next(json.loads(line[5:]) for line in stream if line.startswith(b"data:") and b'"fleet"' in line)
        assert picture["fleet"] == f"shard {shard} of 2"
    assert "2" in run("cancel", "--partition", "listed-0")


def test_tail_shows_what_ends_at_any_shard(shards: ShardSet, tmp_path: Path) -> None:
    sessions = [session_of(shard, name="tailed") for shard in range(2)]
    numbers = itertools.count(1)

    def all_are_shown() -> bool:
        number = next(numbers)
        for shard, session_id in enumerate(sessions):
            request = register_request(session_id, produce(number, "tailed", 1, 0))
            first_answer(shards.targets[shard], "Register", request)
        return all(session_id in shown.read_text("utf-8") for session_id in sessions)

    shown = tmp_path / "shown"
    with shown.open("w", encoding="utf-8") as output:
        tail = subprocess.Popen(
            [sys.executable, "-m", "purgatory", "tail", "--address", shards.targets[0]],
            env=daemon_environment(), stdout=output,
        )  # fmt: skip
    try:
        wait_until(all_are_shown, "operations of both shards are shown")
    finally:
        tail.kill()
        tail.wait(PATIENCE_S)


async def test_sources_feed_each_shard(shards: ShardSet, caplog: pytest.LogCaptureFixture) -> None:
    """A source that is given every shard ends waits at all of them; one that misses a shard logs a warning."""
    async with running(DictSource({"t/fed": (5, "a")}), shards.targets):
        for target in shards.targets:
            async with AsyncClient(target) as client:
                assert (await client.wait_once(waits.produce({"t/fed-0": 5}, timeout=PATIENCE_S))).satisfied
    assert "shards" not in caplog.text
    async with running(DictSource({}), shards.targets[:1]):
        warning = f"the daemon at {shards.targets[0]} is one of 2 shards"
        await eventually(lambda: warning in caplog.text, "the source warns")


async def test_shards_over_tls(tmp_path: Path) -> None:
    """With one certificate for all shards, clients and commands that trust its authority reach all of them. SIGTERM
    ends all shards in an orderly way, with exit code 0.
    """
    authority = Authority("The shards' authority")
    certificate, key = authority.issue("purgatory", hosts=["127.0.0.1"]).write(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
    flags = ("--tls-certificate-file", str(certificate), "--tls-key-file", str(key))
    shards = await asyncio.to_thread(ShardSet, tmp_path, more=flags)
    try:
        async with contextlib.AsyncExitStack() as stack:
            found = [await client_of(n, 2, shards.targets[1 - n], tls_ca=authority.certificate_pem) for n in range(2)]
            clients = [await stack.enter_async_context(client) for client in found]
            waiting = [asyncio.create_task(one.produce({"tls-0": 1}, timeout=600)) for one in clients]
            for one in await shards_of(clients[0]):
                await until_pending(one, 1)
            status = ("status", "--address", shards.targets[0], "--tls-ca", str(tmp_path / "ca.pem"))
            shown = (await asyncio.to_thread(program, *status)).stdout
            assert shown.count(": 1 pending, 1 session") == 2
            for name in ("web-0", "web-1"):  # one of them is not of the shard that is asked
                gate = await asyncio.to_thread(ready_gate, shards, name, tmp_path / "ca.pem")
                assert "no source that publishes" in gate["reason"]
            assert (await clients[0].advance("tls-0", high_watermark=1)).ended == [2]
            assert all(one.satisfied for one in await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S))
        children = [shards.pid_of(shard) for shard in range(2)]
        assert await asyncio.to_thread(shards.stop) == 0, shards.log
        assert not any(map(is_running, children))
        assert shards.log.count("SIGTERM: shutting down") == 2
        assert "second signal" not in shards.log
    finally:
        await asyncio.to_thread(shards.kill)


def ready_gate(shards: ShardSet, name: str, ca: Path) -> Any:  # noqa: ANN401 - JSON
    """Ask the first shard for a gate, which is not ready."""
    host, _, port = shards.targets[0].rpartition(":")
    url = f"https://{host}:{int(port) + 1}/v1/ready?name={name}&topics=orders"
    with pytest.raises(HTTPError) as answer:
        urlopen(url, context=ssl.create_default_context(cafile=ca), timeout=PATIENCE_S)
    return json.load(answer.value)


def test_children_end_in_order_with_their_supervisor(tmp_path: Path) -> None:
    killed = ShardSet(tmp_path)
    killed.kill()
    assert killed.log.count("standard input is closed: shutting down") == 2


async def test_client_of_daemons_that_disagree_is_refused(tmp_path: Path) -> None:
    a, b, c = (f"127.0.0.1:{port}" for port in free_ports(3))
    daemons = [start_one(tmp_path / "a", [a, b], 0), start_one(tmp_path / "b", [c, b, a], 1)]
    try:
        async with AsyncClient(a, name="x") as client:
            # Shard 1 of 2, and shard 0 or 2 of 3.
            while shard_of(client.session_id, 2) == 0 or shard_of(client.session_id, 3) == 1:
                client._session._core = client._session._new_core()
            with pytest.raises(errors.InvalidRequest, match="belongs to shard"):
                await client.produce({"orders-0": 1}, timeout=600)
    finally:
        for daemon in daemons:
            daemon.kill()


async def test_marks_and_status_name_the_shard_that_is_down(tmp_path: Path) -> None:
    targets = [f"127.0.0.1:{port}" for port in free_ports(2)]
    daemons = [await asyncio.to_thread(start_one, tmp_path / str(shard), targets, shard) for shard in range(2)]
    try:
        async with AsyncClient(targets[0]) as client:
            assert (await client.advance("orders-0", high_watermark=1)).ended == [0]
            await asyncio.to_thread(daemons[1].kill)
            shown = await asyncio.to_thread(program, "status", "--address", targets[0])
            assert f"shard 0 at {targets[0]}: 0 pending" in shown.stdout
            assert f"shard 1 at {targets[1]}: not available" in shown.stdout
            assert f"purgatory: the daemon at {targets[1]} is not available: " in shown.stderr
            assert shown.returncode == Exit.UNAVAILABLE
            with pytest.raises(errors.Unavailable, match=r"shard 1 of 2: .*; shards that have answered: 0"):
                await client.advance("orders-0", high_watermark=2)
            daemons[1] = await asyncio.to_thread(start_one, tmp_path / "again", targets, 1)
            waiting = asyncio.create_task(client.produce({"orders-0": 3}, timeout=600))

            await eventually(lambda: client.advance("orders-0", high_watermark=3), but=errors.Unavailable)
            assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied
    finally:
        for daemon in daemons:
            daemon.kill()


REFUSED = Path(__file__).with_name("refused.txt")
REFUSED_BY_A_CHILD: dict[str, tuple[list[str], str]] = {
    "no port left": (["--shards", "2", "--grpc-address", "127.0.0.1:65535"], "must end in a port from 0 to 65535"),
    "another number": (["--shards", "2", "--data-dir", "sharded"], "of 3, and not of shard"),
}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """The journals of three shards, that of a single daemon, and the copy of a log."""
    for shard in range(3):
        (tmp_path / "sharded" / str(shard)).mkdir(parents=True)
        (tmp_path / "sharded" / str(shard) / SHARD_NOTE).write_text(f"shard {shard} of 3")
    for name, file in (("single", DATABASE), ("copy", MARK)):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    return tmp_path


async def test_settings_that_cannot_keep_the_promises_are_refused(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in refused.txt."""
    monkeypatch.chdir(folders)
    monkeypatch.delattr(Supervisor, "run")  # it would run this process's command line

    async def reason(case: str) -> str:
        with pytest.raises((SettingsError, StartupError)) as refused:
            await stand_by(*shlex.split(case))
        return str(refused.value)

    assert_recorded(REFUSED, [await reason(case) for case in cases_of(REFUSED)])


@pytest.mark.parametrize("case", REFUSED_BY_A_CHILD)
def test_settings_that_are_wrong_for_one_shard_end_all_of_them(folders: Path, case: str) -> None:
    arguments, reason = REFUSED_BY_A_CHILD[case]
    ended = run_to_end(folders, arguments)
    assert (ended.returncode != 0, reason in ended.stderr + ended.stdout) == (True, True), ended


def test_shard_that_cannot_start_ends_all_of_them(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"shard . did not start"):
        ShardSet(tmp_path, more=("--tls-certificate-file", "missing.pem", "--tls-key-file", "missing.pem"))


# Signals: the shard of a key decides its value and failure, and the waits at all shards end alike.

WAITS_S = 120.0
KEYS = 60

OWN, OTHER = (session_of(shard, name="job") for shard in range(2))
"""Keys of shard 0 and of shard 1."""

FAILURE: dict[str, Any] = {"value": b"disk full", "failed": True}
TWO_PROGRAMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two values": ({"value": b"a"}, {"value": b"b"}),
    "a value and a failure": ({"value": b"ok"}, FAILURE),
    "a count and a failure": ({}, FAILURE),
    "a count and a value": ({}, {"value": b"ok"}),
}


def wait_for(readers: Sequence[AsyncClient], keys: Sequence[str]) -> list["asyncio.Task[Result]"]:
    """Wait for each key at each shard; first all keys at the first one."""
    return [asyncio.create_task(client.signal([key], timeout=WAITS_S)) for client in readers for key in keys]


def different(keys: Sequence[str], results: Sequence[Result]) -> list[set[tuple[str, bytes]]]:
    """The results of the waits for a key, for keys whose results differ."""
    read: dict[str, set[tuple[str, bytes]]] = {key: set() for key in keys}
    for result in results:
        [item] = result.partitions.values()
        read[item.name].add((result.outcome.name, item.signal_value))
    assert all(read.values())
    return [found for found in read.values() if len(found) > 1]


async def connect(
    stack: contextlib.AsyncExitStack, targets: Sequence[str]
) -> tuple[list[AsyncClient], list[AsyncClient]]:
    """Readers at both shards, and two programs that signal."""
    readers = [await client_of(shard, 2, targets[0]) for shard in range(2)]
    programs = [AsyncClient(target, give_up_after=WAITS_S) for target in targets]
    for client in [*readers, *programs]:
        await stack.enter_async_context(client)
    return readers, programs


@pytest.mark.parametrize("case", TWO_PROGRAMS)
async def test_waits_at_all_shards_agree_on_signals_of_two_programs(shards: ShardSet, case: str) -> None:
    keys = [f"{case}/{number}" for number in range(KEYS)]
    async with contextlib.AsyncExitStack() as stack:
        readers, programs = await connect(stack, shards.targets)
        waiting = wait_for(readers, keys)
        for target in shards.targets:
            async with AsyncClient(target) as client:
                await until_pending(client, KEYS)
        for key in keys:
            signals = zip(programs, TWO_PROGRAMS[case], strict=True)
            await asyncio.gather(*(program.signal_key(key, **signal) for program, signal in signals))
        assert different(keys, await asyncio.gather(*waiting)) == []
        assert different(keys, await asyncio.gather(*wait_for(readers, keys))) == []


async def test_values_of_a_receipt_are_limited(run_daemon: RunDaemon) -> None:
    """Signals whose values would make the receipt too large are refused, also if the values are those of earlier ones,
    and those before them are applied.
    """
    [daemon] = await start_shards(run_daemon, count=1)
    most = VALUE_BYTES_MAX // SIGNAL_VALUE_BYTES_MAX
    async with AsyncClient(daemon.address) as client:
        with contextlib.suppress(errors.Unavailable):  # of the other shard
            await client.signal_key(OWN, value=bytes(SIGNAL_VALUE_BYTES_MAX))
        columns = event_pb2.EventColumns(keys=[OWN], type=[event_pb2.EVENT_TYPE_SIGNAL] * (most + 2))
        request = wire.AdvanceRequest(columns=columns, all_shards=True, passes_on_decided=True)
        receipt = (await client._stub().Advance(request)).receipt
        assert list(receipt.decided_index) == list(range(most))
        assert [(one.index, one.code) for one in receipt.refusals] == [
            (index, code_pb2.RESOURCE_EXHAUSTED) for index in (most, most + 1)
        ]


async def test_many_signals_in_one_call_reach_both_shards_once(run_daemon: RunDaemon) -> None:
    keys = [f"many/{number}" for number in range(3 * DECISIONS_PER_MESSAGE_MAX + 3)]
    daemons = await start_shards(run_daemon)
    async with AsyncClient(daemons[0].address) as client, AsyncClient(daemons[1].address) as other:
        waiting = [asyncio.create_task(one.wait_once(waits.signal(keys, timeout=600))) for one in (client, other)]
        for one in (client, other):
            await until_pending(one, 1)
        values = [b"value"] + [b""] * (len(keys) - 1)
        receipt = await client.advance_many([
            events.signalled(key, value=value) for key, value in zip(keys, values, strict=True)
        ])  # fmt: skip
        assert (len(receipt.ended), receipt.ended_total, receipt.refusals) == (len(keys), 2, [])
        for result in await asyncio.gather(*waiting):
            assert (result.satisfied, result.partitions[keys[0]].signal_value) == (True, b"value")


async def test_signal_is_applied_nowhere_without_the_shard_of_its_key(run_daemon: RunDaemon) -> None:
    """It raises an error while either shard is down."""
    [daemon] = await start_shards(run_daemon, count=1)
    async with AsyncClient(daemon.address) as client:
        for key in (OWN, OTHER):
            with pytest.raises(errors.Unavailable, match=r"shard 1 of 2: .*; shards that have answered: 0"):
                await client.signal_key(key, value=b"value")
        reached = [await client.wait_once(waits.signal([key], timeout=0)) for key in (OWN, OTHER)]
        assert [one.satisfied for one in reached] == [True, False]
