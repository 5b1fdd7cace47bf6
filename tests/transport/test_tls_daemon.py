"""The real daemon with TLS: which certificates are accepted, over gRPC and HTTP, also while its files change."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from examples.secure_demo.authority import Authority, Issued
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.kit.daemon import InProcessDaemon, RunDaemon, StartDaemon
from tests.kit.eventually import PATIENCE_S, eventually
from tests.transport.callers import certificate_served, client_context, fetched, metric, secure_channel, status_of
from tests.transport.conftest import TlsFolder

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


@pytest.mark.parametrize("is_reachable", [False, True])
def test_daemon_that_trusts_other_machines_says_so(
    start_daemon: StartDaemon, tls_folder: TlsFolder, is_reachable: bool
) -> None:
    """TLS alone keeps nobody out: without a policy or client certificates, a warning names both."""
    # A name of loopback that counts as an address that other machines can reach.
    address = "127.1:0" if is_reachable else "127.0.0.1:0"
    daemon = start_daemon(*tls_folder.flags(), "--http-address", address)
    assert ("all their callers are trusted: set access.policy_file" in daemon.log) is is_reachable


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
