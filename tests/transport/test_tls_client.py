"""Our client and its command line over TLS and with tokens, against the real daemon."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from purgatory_client import AsyncClient, Client
from purgatory_client.errors import InvalidRequest, PermissionDenied, Unauthenticated, Unavailable
from purgatory_client.session.channel import ChannelSecurity, Token, open_channel

from examples.secure_demo.authority import Authority, Issued
from purgatory.cli.app import SUMMARIES, app, load
from purgatory.service.access.tokens import add_token
from tests.kit.daemon import RunDaemon, ServeDaemon, access_flags
from tests.kit.eventually import eventually
from tests.transport.conftest import TlsFolder

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
        with pytest.raises(Unavailable, match=r"Hostname Verification Check failed|Connection refused"):
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
    assert purgatory(*advance, PURGATORY_TOKEN_FILE=str(path))[0] == 13


def test_every_command_that_calls_the_daemon_can_be_secured() -> None:
    parameters = [{option.name for option in load(name).params} for name in SUMMARIES]
    calling = [names for names in parameters if "address" in names]
    assert len(calling) >= 8
    assert all(names >= {"tls", "tls_ca", "tls_certificate", "tls_key", "token_file"} for names in calling)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ChannelSecurity(certificate=b""), "tls_certificate and tls_key must be given together"),
        (lambda: ChannelSecurity(key=b""), "tls_certificate and tls_key must be given together"),
        (lambda: ChannelSecurity(ca="/missing/ca").credentials(), "tls_ca: cannot be read from /missing/ca"),
        (lambda: ChannelSecurity(token=Path("/missing/token")).metadata(), "token: cannot be read from /missing/token"),
        (lambda: ChannelSecurity(token="").metadata(), "token: must be one line of printable ASCII"),
        (lambda: ChannelSecurity(token="two\nlines").metadata(), "token: must be one line of printable ASCII"),
        (lambda: ChannelSecurity(token="schlüssel").metadata(), "token: must be one line of printable ASCII"),
    ],
)
def test_arguments_that_cannot_be_used(build: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        build()
    assert "lines" not in str(caught.value)
    assert "schl" not in str(caught.value)


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
