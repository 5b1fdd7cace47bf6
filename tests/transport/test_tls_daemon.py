"""The real daemon with TLS: which certificates are accepted, over gRPC and HTTP, also while its files change.

Our client and its command line over TLS and with tokens, against the real daemon.
"""

import asyncio
import logging
import ssl
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from purgatory_client import AsyncClient, Client
from purgatory_client.errors import PermissionDenied, Unauthenticated, Unavailable
from purgatory_client.session.channel import ChannelSecurity, Token, open_channel

from examples.secure_demo.authority import Authority, Issued
from purgatory.cli.app import SUMMARIES, app, load
from purgatory.service.access.tokens import add_token
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.client.test_blocking import environment
from tests.kit.daemon import InProcessDaemon, RunDaemon, ServeDaemon, access_flags
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.programs import run_program
from tests.kit.recorded import assert_values_recorded
from tests.transport.callers import certificate_served, client_context, fetched, metric, secure_channel, status_of
from tests.transport.conftest import TlsFolder

ARGUMENTS = Path(__file__).with_name("arguments.txt")

OK = grpc.StatusCode.OK
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
NOTHING = wire.AdvanceStreamRequest(rows=event_pb2.EventRows())


async def test_both_ports_speak_tls_1_3_only(run_daemon: RunDaemon, tls_folder: TlsFolder) -> None:
    """Plain text and old versions are not answered."""
    daemon = await run_daemon(*tls_folder.flags())
    authority = tls_folder.authority
    assert await status_of(daemon.address, authority) is OK
    assert len(await served_everywhere(daemon, authority)) == 1
    left_s = await metric(daemon.http_address, "purgatory_tls_certificate_expiry_seconds", authority)
    assert 29 * 86_400 < left_s < 30 * 86_400
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        assert await PurgatoryServiceStub(channel).GetStatus(wire.GetStatusRequest(), timeout=5).code() is UNAVAILABLE
    with pytest.raises(aiohttp.ClientError):
        await fetched(daemon.http_address, "/healthz", authority, scheme="http")
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        context = client_context(authority)
        with pytest.warns(DeprecationWarning, match="TLSVersion"):
            context.minimum_version = context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")
        for address in (daemon.address, daemon.http_address):
            host, _, port = address.rpartition(":")
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await asyncio.open_connection(host, int(port), ssl=context)


async def test_only_valid_unrevoked_certificates_of_the_authority_are_served(
    run_daemon: RunDaemon, tls_folder: TlsFolder
) -> None:
    """HTTP probes need none. Health and reflection refuse a revoked one too, and reveal only that it is revoked."""
    authority = tls_folder.authority
    now, hour = datetime.now(UTC), timedelta(hours=1)
    right, revoked = authority.issue("orders"), authority.issue("laptop")
    unusable = {
        "none": None,
        "expired": authority.issue("orders", valid_from=now - 2 * hour, valid_until=now - hour),
        "not yet valid": authority.issue("orders", valid_from=now + hour, valid_until=now + 2 * hour),
        "of another authority": Authority("Another").issue("orders"),
        "of another authority that calls itself the same": Authority("The test's authority").issue("orders"),
    }
    tls_folder.put("clients.crl", authority.revocation_list([revoked.serial_number]))
    daemon = await run_daemon(*tls_folder.flags(client_auth=True, crl=True))

    assert await status_of(daemon.address, authority, right) is OK
    assert await status_of(daemon.address, authority, revoked) is UNAUTHENTICATED
    for why, client in unusable.items():
        assert await status_of(daemon.address, authority, client) is UNAVAILABLE, why
    async with secure_channel(daemon.address, authority, revoked) as channel:
        call = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert await call.code() is UNAUTHENTICATED
        assert await call.details() == f"the certificate {revoked.serial_number:x} of CN=laptop has been revoked"

    for client in (revoked, None):
        for path, status in {"/metrics": 403, "/": 403, "/healthz": 200, "/readyz": 200}.items():
            assert (await fetched(daemon.http_address, path, authority, client))[0] == status
    for why in ("expired", "not yet valid", "of another authority"):
        with pytest.raises(aiohttp.ClientError):
            await fetched(daemon.http_address, "/healthz", authority, unusable[why])
    assert await metric(daemon.http_address, "purgatory_tls_revoked_total", authority, right) == 4


RELOADS = "purgatory_tls_reloads_total"
KEPT = "the new TLS files cannot be used; still using the old ones: tls."
TAKEN = "new TLS files are in use"


async def served_everywhere(daemon: InProcessDaemon, authority: Authority) -> set[int]:
    """The serial numbers of the certificates that both ports present to new connections."""
    return {
        await certificate_served(daemon.address, authority, "h2"),
        await certificate_served(daemon.http_address, authority, "http/1.1"),
    }


async def until_served(daemon: InProcessDaemon, authority: Authority, issued: Issued) -> None:
    """Return once new connections to both ports get this certificate."""

    async def is_served() -> bool:
        return await served_everywhere(daemon, authority) == {issued.serial_number}

    await eventually(is_served, "the new certificate is served")


async def test_new_certificate_is_served_while_streams_stay_open(run_daemon: RunDaemon, tls_folder: TlsFolder) -> None:
    daemon = await run_daemon(*tls_folder.flags())
    async with secure_channel(daemon.address, tls_folder.authority) as channel:
        stream = PurgatoryServiceStub(channel).AdvanceStream()
        new = tls_folder.issue_server()
        for served in (None, new):
            if served is not None:
                tls_folder.put_server(served)
                await until_served(daemon, tls_folder.authority, served)
            await stream.write(NOTHING)
            assert isinstance(await stream.read(), wire.AdvanceStreamResponse)
    assert await metric(daemon.http_address, RELOADS, tls_folder.authority, result="taken") >= 1


async def test_files_behind_a_link_that_is_swapped(run_daemon: RunDaemon, tls_folder: TlsFolder) -> None:
    """Files are reloaded when they are links through a folder link that is replaced, as in a mounted secret."""
    folder = tls_folder.folder
    first, second = tls_folder.issue_server(), tls_folder.issue_server()
    for generation, issued in (("first", first), ("second", second)):
        (folder / generation).mkdir()
        issued.write(folder / generation, "server")
    (folder / "data").symlink_to("first")
    for name in ("server.crt", "server.key"):
        (folder / name).unlink()
        (folder / name).symlink_to(Path("data") / name)
    daemon = await run_daemon(*tls_folder.flags())
    assert await served_everywhere(daemon, tls_folder.authority) == {first.serial_number}
    (folder / "new").symlink_to("second")
    (folder / "new").replace(folder / "data")
    await until_served(daemon, tls_folder.authority, second)


SPOILT: dict[str, Callable[[TlsFolder], None]] = {
    "another key": lambda files: files.put("server.key", files.issue_server().key_pem),
    "no key": lambda files: (files.folder / "server.key").unlink(),
    "half a certificate": lambda files: files.put("server.crt", files.issue_server().certificate_pem[:200]),
    "a foreign list": lambda files: files.put("clients.crl", Authority("Another").revocation_list([])),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
async def test_broken_files_change_nothing(
    run_daemon: RunDaemon, tls_folder: TlsFolder, spoil: Callable[[TlsFolder], None]
) -> None:
    client = tls_folder.authority.issue("orders")
    daemon = await run_daemon(*tls_folder.flags(client_auth=True, crl=True))
    spoil(tls_folder)
    await eventually(lambda: KEPT in daemon.log, KEPT)
    assert await status_of(daemon.address, tls_folder.authority, client) is OK
    for result, count in (("refused", 1), ("taken", 0)):
        assert await metric(daemon.http_address, RELOADS, tls_folder.authority, client, result=result) == count
    tls_folder.put_server(tls_folder.issue_server())
    tls_folder.put("clients.crl", tls_folder.authority.revocation_list([client.serial_number]))

    async def is_refused() -> bool:
        return await status_of(daemon.address, tls_folder.authority, client) is UNAUTHENTICATED

    await eventually(is_refused, "the list in which it is revoked is in use")


async def test_new_authority_of_clients(run_daemon: RunDaemon, tls_folder: TlsFolder) -> None:
    authority, other = tls_folder.authority, Authority("The next authority")
    old, new = authority.issue("orders"), other.issue("orders")
    daemon = await run_daemon(*tls_folder.flags(client_auth=True))
    assert await status_of(daemon.address, authority, old) is OK
    tls_folder.put("clients.crt", other.certificate_pem)
    await eventually(lambda: TAKEN in daemon.log, TAKEN)
    assert await status_of(daemon.address, authority, old) is UNAVAILABLE
    assert await status_of(daemon.address, authority, new) is OK
    assert (await fetched(daemon.http_address, "/metrics", authority, new))[0] == 200
    with pytest.raises(aiohttp.ClientError):
        await fetched(daemon.http_address, "/metrics", authority, old)


async def test_revoked_certificate_loses_its_open_stream(run_daemon: RunDaemon, tls_folder: TlsFolder) -> None:
    authority = tls_folder.authority
    client = authority.issue("orders")
    daemon = await run_daemon(*tls_folder.flags(client_auth=True, crl=True))
    async with secure_channel(daemon.address, authority, client) as channel:
        stream = PurgatoryServiceStub(channel).AdvanceStream()
        await stream.write(NOTHING)
        assert isinstance(await stream.read(), wire.AdvanceStreamResponse)
        tls_folder.put("clients.crl", authority.revocation_list([client.serial_number]))
        await eventually(lambda: TAKEN in daemon.log, TAKEN)
        await stream.write(NOTHING)
        assert await stream.code() is UNAUTHENTICATED


POLICY = '[[grant]]\nto = ["orders"]\nroles = ["wait", "advance", "observe"]\ntopics = ["orders"]\n'


@pytest.fixture
def access(tmp_path: Path) -> list[str]:
    """Flags of a policy by which the principal "orders" may use its topic, with no tokens yet."""
    return access_flags(tmp_path, POLICY)


def pems(issued: Issued) -> dict[str, Any]:
    """A client certificate as arguments of a client."""
    return {"tls_certificate": issued.certificate_pem, "tls_key": issued.key_pem}


async def use(client: AsyncClient) -> None:
    """Use every kind of transport: a session's stream, the stream of events, unary calls."""
    await client.advance("orders-1", high_watermark=7)
    assert (await client.produce({"orders-1": 7}, timeout=10)).satisfied
    assert (await client.status()).version


async def test_certificates_as_paths_and_as_bytes_at_any_of_several_addresses(
    run_daemon: RunDaemon, tls_folder: TlsFolder, access: list[str]
) -> None:
    """The common name is the principal. The certificate of the daemon must be valid for the first address of a list."""
    daemon = await run_daemon(*tls_folder.flags(client_auth=True), *access)
    issued, other = tls_folder.authority.issue("orders"), tls_folder.authority.issue("payments")
    certificate, key = map(str, issued.write(tls_folder.folder, "orders"))
    by_path = {"tls_ca": tls_folder.folder / "clients.crt", "tls_certificate": certificate, "tls_key": key}
    by_content = {"tls_ca": tls_folder.authority.certificate_pem, **pems(issued)}
    for address, security in ((daemon.address, by_path), (f"localhost:1,{daemon.address}", by_content)):
        async with AsyncClient(address, **security) as client:
            await use(client)
    async with AsyncClient(daemon.address, **by_content | pems(other)) as client:
        with pytest.raises(PermissionDenied):
            await client.advance("orders-1", high_watermark=8)
    async with AsyncClient(f"127.0.0.9:1,{daemon.address}", **by_content) as client:
        # The error is that of the address that was tried last.
        with pytest.raises(Unavailable, match=r"its certificate is for another host|Connection refused"):
            await client.status()


@pytest.mark.parametrize(("form", "tls"), [("text", False), ("text", True), ("file", True), ("function", True)])
async def test_every_call_sends_the_token_that_is_read_for_it(
    run_daemon: RunDaemon, tls_folder: TlsFolder, access: list[str], tmp_path: Path, form: str, tls: bool
) -> None:
    daemon = await run_daemon(*access, *(tls_folder.flags() if tls else ()))
    authority = tls_folder.authority.certificate_pem if tls else None
    first, second = (add_token(tmp_path / "tokens", "orders", None) for _ in range(2))
    path = tmp_path / "token"
    path.write_text("of nobody\n")
    shown = "of nobody"
    forms: dict[str, Token] = {"text": first, "file": path, "function": lambda: shown}

    async with AsyncClient(daemon.address, tls_ca=authority, token=forms[form]) as client:
        for token in (first, second):
            if form != "text":
                with pytest.raises(Unauthenticated, match="the token is not known"):
                    await client.status()
            path.write_text(token + "\n")
            shown = token
            await eventually(client.status, "the token is known", but=Unauthenticated)
            await use(client)
            path.write_text("of nobody")
            shown = "of nobody"
    async with AsyncClient(daemon.address, tls_ca=authority) as client:
        with pytest.raises(Unauthenticated, match="show a bearer token or a client certificate"):
            await client.produce({"orders-1": 7}, timeout=10)


async def test_daemon_that_cannot_be_trusted(run_daemon: RunDaemon, tls_folder: TlsFolder) -> None:
    daemon = await run_daemon(*tls_folder.flags(client_auth=True))
    own = pems(tls_folder.authority.issue("orders"))
    untrusted: list[dict[str, Any]] = [
        {"tls_ca": Authority("Another").certificate_pem, **own},
        {"tls_ca": tls_folder.authority.certificate_pem},
        {"tls": True, **own},
        {},
    ]
    for security in untrusted:
        async with AsyncClient(daemon.address, give_up_after=0.2, **security) as client:
            with pytest.raises(Unavailable):
                await client.status()
            with pytest.raises(Unavailable):
                await client.produce({"orders-1": 7}, timeout=10)


def test_blocking_client_and_command_line(
    serve_daemon: ServeDaemon, tls_folder: TlsFolder, access: list[str], tmp_path: Path
) -> None:
    """Exit code 17 for a caller that is not authenticated or not authorized, 13 without trust."""
    path = tmp_path / "token"
    token = add_token(tmp_path / "tokens", "orders", None)
    path.write_text(token)
    nobody = tmp_path / "nobody"
    nobody.write_text("of nobody")
    daemon = serve_daemon(*tls_folder.flags(), *access)
    ca = str(tls_folder.folder / "clients.crt")
    with Client(daemon.address, tls_ca=ca, token=token) as client:
        client.advance("orders-1", high_watermark=7)
        assert client.produce({"orders-1": 7}, timeout=10).satisfied

    def purgatory(*arguments: str, **variables: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*arguments, "--address", daemon.address], env=variables)
        return done.exit_code, done.stderr

    advance = "advance", "orders-1", "--high-watermark", "7"
    assert purgatory(*advance, "--tls-ca", ca, "--token-file", str(path)) == (0, "")
    unknown = purgatory(*advance, PURGATORY_TLS_CA=ca, PURGATORY_TOKEN_FILE=str(nobody))
    assert unknown == (17, "purgatory: the token is not known\n")
    code, denied = purgatory("wait", "payments-1@7", PURGATORY_TLS_CA=ca, PURGATORY_TOKEN_FILE=str(path))
    assert code == 17, denied
    assert "wait" in denied
    assert "payments" in denied


def test_error_over_tls_is_one_line_with_the_remedy(
    serve_daemon: ServeDaemon, tls_folder: TlsFolder, tmp_path: Path
) -> None:
    """In processes of their own, because gRPC writes its log past Python."""
    secure, plain = serve_daemon(*tls_folder.flags()), serve_daemon()
    other, key, authority = tmp_path / "other.crt", tls_folder.folder / "server.key", tls_folder.folder / "clients.crt"
    other.write_bytes(Authority("Another").certificate_pem)
    for arguments, remedy in (
        (f"status -a {secure.address}", "if this daemon speaks TLS: give tls_ca or --tls-ca"),
        (f"wait a-1@1 -a {secure.address} --tls", "its certificate is not from a trusted authority: give that one"),
        (f"wait a-1@1 -a {secure.address} --tls-ca {other}", "give that one as tls_ca or --tls-ca"),
        (f"status -a {secure.address} --tls-ca {key}", "tls_ca, tls_certificate or tls_key is not a PEM file"),
        (f"status -a {plain.address} --tls-ca {authority}", "this daemon does not speak TLS"),
        (f"wait a-1@1 -a {plain.http_address}", "answers HTTP/1 and not gRPC"),
        (f"ready pod kafka/a -t 0 --http http://{secure.http_address}", "for a daemon with TLS, write https://"),
        (f"ready pod kafka/a -t 0 --http https://{secure.http_address}", "give that one as tls_ca or --tls-ca"),
        (f"ready pod kafka/a -t 0 --http https://{plain.http_address}", "this daemon does not speak TLS"),
    ):
        done = run_program([sys.executable, "-m", "purgatory", *arguments.split()], code=13, env=environment())
        assert (done.stdout, done.stderr.count("\n"), remedy in done.stderr) == ("", 1, True), done.stderr


def test_every_command_that_calls_the_daemon_can_be_secured() -> None:
    parameters = [{option.name for option in load(name).params} for name in SUMMARIES]
    calling = [names for names in parameters if "address" in names]
    assert len(calling) >= 8
    assert all(names >= {"tls", "tls_ca", "tls_certificate", "tls_key", "token_file"} for names in calling)


def test_arguments_that_cannot_be_used() -> None:
    """As in arguments.txt."""
    assert_values_recorded(ARGUMENTS, {"ChannelSecurity": ChannelSecurity, "Path": Path})


@pytest.mark.parametrize(
    ("address", "warned"),
    [("127.0.0.1:1", False), ("[::1]:1", False), ("localhost:1", False), ("unix:/x", False), ("10.0.0.1:1", True)],
)
async def test_token_in_the_clear_is_warned_of(address: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    channel = open_channel(address, ChannelSecurity(token="secret"))
    await channel.close()
    assert [record.getMessage() for record in caplog.records] == (
        [f"the token for {address} is sent unencrypted; use TLS (tls_ca=...)"] if warned else []
    )
