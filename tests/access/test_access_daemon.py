"""The real daemon under a policy: certificates and tokens, restarts, history, and secrecy of tokens."""

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import grpc
import pytest

from purgatory.service.access.roles import PERMISSION_DENIED
from purgatory.service.access.tokens import AccessError, add_token, hash_of
from purgatory.service.setting_sources import SettingsError
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.access.guarded import POLICY, Caller
from tests.archive.archive_kit import rows_of
from tests.kit.daemon import InProcessDaemon, RunDaemon, StartDaemon, access_flags
from tests.kit.eventually import eventually
from tests.kit.messages import high_watermark, produce, register_request
from tests.kit.programs import serve_command
from tests.kit.served_host import refused
from tests.service.test_daemon import fetch_page
from tests.transport.callers import secure_channel
from tests.transport.conftest import TlsFolder


async def test_a_certificate_names_the_principal(run_daemon: RunDaemon, tls_folder: TlsFolder, tmp_path: Path) -> None:
    """A token overrides it, and the loopback principal affects neither."""
    tls = tls_folder.flags(client_auth=True)
    flags = [*tls, *access_flags(tmp_path, f'loopback_principal = "root"\n{POLICY}')]
    token = add_token(tmp_path / "tokens", "advance")
    daemon = await run_daemon(*flags)
    client = tls_folder.authority.issue("observe")
    async with secure_channel(daemon.address, tls_folder.authority, client) as channel:
        stub = PurgatoryServiceStub(channel)
        listed = await stub.ListPartitions(wire.ListPartitionsRequest())
        assert not listed.partitions
        with refused(grpc.StatusCode.PERMISSION_DENIED, "needs the role advance for the call Advance"):
            await stub.Advance(wire.AdvanceRequest(rows={}))
        authorization = (("authorization", f"Bearer {token}"),)
        await stub.Advance(wire.AdvanceRequest(rows={}), metadata=authorization)
        with refused(grpc.StatusCode.PERMISSION_DENIED):
            await stub.ListPartitions(wire.ListPartitionsRequest(), metadata=authorization)
    await daemon.stop()


async def test_a_sighup_reads_the_files_again(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """At once, changed or not; a broken policy is logged and the old one is kept."""
    daemon = start_daemon(*access_flags(tmp_path, POLICY))
    token = add_token(tmp_path / "tokens", "observe")
    (tmp_path / "policy.toml").write_text("[[grant]", "utf-8")
    daemon.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "still using the previous version" in daemon.log)
    async with Caller(daemon.address, f"Bearer {token}") as caller:
        await caller.call("ListPartitions", wire.ListPartitionsRequest())
        with refused(grpc.StatusCode.PERMISSION_DENIED):
            await caller.call("Advance", wire.AdvanceRequest(rows={}))
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("policy.toml", '[[grant]]\nto = ["a"]\nroles = ["wiat"]\ntopics = ["*"]', "grant 1, roles 1"),
        ("policy.toml", 'loopback_principal = "root"\n', r"contains no \[\[grant\]\]"),
        ("policy.toml", None, "set policy_file"),
        ("tokens", "nonsense\n", "line 1"),
        ("tokens", "\n", "is empty"),
        ("keys", None, "no key set"),
    ],
)
async def test_daemon_does_not_start_with_unusable_access_files(
    run_daemon: RunDaemon, tmp_path: Path, file: str, content: str | None, said: str
) -> None:
    flags = access_flags(tmp_path, POLICY)
    if content is not None:
        (tmp_path / file).write_text(content, "utf-8")
    elif file == "keys":
        flags += ["--access-jwt-keys", str(tmp_path / "absent")]
        flags += ["--access-jwt-issuer", "issuer", "--access-jwt-audience", "audience"]
    else:
        flags = flags[2:]
    with pytest.raises((AccessError, SettingsError), match=said):
        await run_daemon(*flags)


async def test_archive_has_the_principals_of_waits_and_events(run_daemon: RunDaemon, tmp_path: Path) -> None:
    flags = access_flags(tmp_path, POLICY)
    tokens = {name: add_token(tmp_path / "tokens", name) for name in ("root", "wait")}
    daemon = await run_daemon(*flags, "--archive", str(tmp_path / "archive"))
    for name, token in tokens.items():
        async with Caller(daemon.address, f"Bearer {token}") as caller:
            if name == "root":
                await caller.call("Advance", wire.AdvanceRequest(rows={"events": [high_watermark("mine-2", 5)]}))
            await caller.call("Wait", wire.WaitRequest(operation=produce(1, "mine-2", 1)))
            if name == "wait":
                request = register_request("s", produce(1, "mine-1", 9), produce(2, "yours-1", 9))
                assert (await caller.call("Register", request)).receipt.accepted == 1
    await daemon.stop()
    tables = {name: rows_of(tmp_path / "archive", name) for name in ("registrations", "outcomes", "events")}
    waits, ended = (
        [(row["principal"], row["topic"]) for row in tables[table] if not row["session_number"]]
        for table in ("registrations", "outcomes")
    )
    assert waits == ended == [("root", "mine-2"), ("wait", "mine-2")]
    assert [row["principal"] for row in tables["events"]] == ["root"]
    names = ("operation_id", "topic", "principal", "refusal_code")
    kept = {tuple(row[name] for name in names) for row in tables["registrations"] if row["session_number"]}
    assert kept == {(1, "mine-1", "wait", 0), (2, "yours-1", "wait", PERMISSION_DENIED)}


async def test_pages_beyond_loopback_need_the_role_observe(run_daemon: RunDaemon, tmp_path: Path) -> None:
    """Probes need no role, and on loopback no access is checked."""
    tokens = {name: add_token(tmp_path / "tokens", name) for name in ("observe", "wait")}
    flags = access_flags(tmp_path, POLICY)
    # 127.1 is loopback to the system, but not to the daemon.
    open_to_all = await run_daemon(*flags)
    asking = await run_daemon(*flags, "--http-address", "127.1:0", "--insecure")
    async with aiohttp.ClientSession() as session:

        async def status(daemon: InProcessDaemon, path: str, authorization: str | None = None) -> int:
            headers = {} if authorization is None else {"Authorization": authorization}
            port = daemon.http_address.rpartition(":")[2]
            async with session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as answer:
                assert (answer.status == 401) == ("WWW-Authenticate" in answer.headers)
                return answer.status

        for path in ("/metrics", "/"):
            assert await status(open_to_all, path) == 200
            assert await status(asking, path) == 401
            assert await status(asking, path, "Bearer pgt_unknown") == 401
            assert await status(asking, path, f"Basic {tokens['observe']}") == 401
            assert await status(asking, path, f"Bearer {tokens['wait']}") == 403
            assert await status(asking, path, f"Bearer {tokens['observe']}") == 200
        for path in ("/healthz", "/readyz"):
            assert await status(asking, path) == 200
    assert "purgatory.audit" in asking.log
    assert "/metrics" in asking.log
    assert not [token for token in tokens.values() if token in asking.log]


async def test_tokens_and_hashes_are_in_no_log_metric_or_printed_setting(
    start_daemon: StartDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*access_flags(tmp_path, POLICY), "--log-level", "debug", "--log-format", "json"]
    good = add_token(tmp_path / "tokens", "observe")
    bad = f"{good[:-4]}oooo"
    daemon = start_daemon(*flags)
    async with Caller(daemon.address, f"Bearer {good}") as one, Caller(daemon.address, f"Bearer {bad}") as other:
        await one.call("GetStatus", wire.GetStatusRequest())
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            await other.call("GetStatus", wire.GetStatusRequest())
        with refused(grpc.StatusCode.PERMISSION_DENIED):
            await one.call("Advance", wire.AdvanceRequest(rows={}))
    metrics = (await asyncio.to_thread(fetch_page, daemon, "/metrics"))[1]
    assert 'purgatory_access_refusals_total{reason="unauthenticated"} 1.0' in metrics
    assert 'purgatory_access_refusals_total{reason="role"} 1.0' in metrics
    assert serve_command([*flags, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert daemon.stop() == 0
    lines = [json.loads(line) for line in daemon.log.splitlines()]
    audited = [json.loads(line["message"]) for line in lines if line["logger"] == "purgatory.audit"]
    assert [line["reason"] for line in audited] == ["unauthenticated", "role"]
    for secret in (good, bad, good[8:30], hash_of(good), hash_of(bad)):
        assert not [text for text in (daemon.log, metrics, printed) if secret in text]
