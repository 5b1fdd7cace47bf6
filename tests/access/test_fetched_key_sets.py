"""Key sets over HTTPS: an issuer's server is untrusted until its certificate is verified, and limited even then."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import h11
import pytest
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey

from examples.secure_demo.authority import Authority
from purgatory.service.access import json_web_tokens
from purgatory.service.access.json_web_tokens import JsonWebTokens, KeySetError
from purgatory.service.transport.outbound import READ_BYTES
from tests.access.guarded import POLICY
from tests.access.test_json_web_tokens import AUDIENCE, ISSUER, claims, signed
from tests.kit.daemon import RunDaemon

Serve = Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Answers one request, whose head has been read."""

BYTES_MAX: Final = 64 * 1024 * 1024
"""An endless answer is ended after this many bytes."""


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers])
    return f"{head}\r\n\r\n".encode() + body


def says(answer: bytes) -> Serve:
    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return serve


def repeats(first: bytes, part: bytes) -> Serve:
    """Send an endless answer as fast as it is read."""

    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        for _ in range(BYTES_MAX // len(part)):
            writer.write(part)
            await writer.drain()

    return serve


async def drips(writer: asyncio.StreamWriter) -> None:
    """Send a byte every 50 ms, so that no single read takes long."""
    for byte in response("200 OK", b" " * 1_000):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def serving_keys(context: ssl.SSLContext | None, serve: Serve) -> AsyncIterator[int]:
    """Serve on a free port of loopback, and yield it. Without a context: plain HTTP."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await serve(writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


EC = ECKey.generate_key("P-256", {"kid": "ec"})
OTHER = ECKey.generate_key("P-256", {"kid": "other"})
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def key_set(*keys: Any) -> bytes:  # noqa: ANN401 - any key
    return json.dumps(KeySet(list(keys)).as_dict(private=False)).encode()


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's context for 127.0.0.1, whose authority is trusted."""
    authority = Authority("An authority for key sets")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*authority.issue("issuer", hosts=["127.0.0.1"]).write(tmp_path, "issuer"))
    (tmp_path / "trusted.crt").write_bytes(authority.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted.crt"))
    return served


def tokens_from(port: int, scheme: str = "https") -> JsonWebTokens:
    return JsonWebTokens(f"{scheme}://127.0.0.1:{port}/keys", ISSUER, AUDIENCE, "sub")


async def test_keys_from_a_trusted_server_verify_tokens(context: ssl.SSLContext) -> None:
    async with serving_keys(context, says(response("200 OK", key_set(EC)))) as port:
        tokens = tokens_from(port)
        assert await tokens.load()
        assert not await tokens.load(), "the same content is not a new set"
    assert tokens.verify(signed(claims(), key=EC))[0] == "root"


async def test_an_unknown_authority_is_refused(context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with serving_keys(context, says(response("200 OK", key_set(EC)))) as port:
        with pytest.raises(KeySetError, match="CERTIFICATE_VERIFY_FAILED"):
            await tokens_from(port).load()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("is_https", [True, False])
async def test_redirects_are_not_followed(context: ssl.SSLContext, status: str, *, is_https: bool) -> None:
    visited: list[int] = []

    async def serve_other(writer: asyncio.StreamWriter) -> None:
        visited.append(1)
        writer.write(response("200 OK", key_set(OTHER)))

    async with serving_keys(context if is_https else None, serve_other) as other:
        place = f"location: {'https' if is_https else 'http'}://127.0.0.1:{other}/keys"
        async with serving_keys(context, says(response(status, b"", place))) as port:
            tokens = tokens_from(port)
            with pytest.raises(KeySetError, match=r"redirects are not followed; set access\.jwt_keys to the final URL"):
                await tokens.load()
    assert not visited
    assert not tokens.keys


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (drips, "no answer within"),
        (repeats(b"", CONTINUE), "more than 1048576 bytes"),
        (repeats(CHUNKED, b"400\r\n" + b" " * 1024 + b"\r\n"), "more than 1048576 bytes"),
        (says(response("500 Oops")), "HTTP 500"),
        (says(response("200 OK", b"[" * 100_000)), "RecursionError|recursion"),
        (says(b"SSH-2.0-OpenSSH\r\n"), "RemoteProtocolError"),
        (says(b""), "disconnected"),
    ],
    ids=["drip", "100 continue", "endless", "500", "nested", "no http", "nothing"],
)  # fmt: skip
async def test_the_exchange_is_limited(
    context: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    serve: Serve,
    said: str,
) -> None:
    """There is one deadline, one limit of bytes and small reads; the previous keys are kept and still verify tokens."""
    received: list[int] = []
    receive_data = h11.Connection.receive_data

    def noted(connection: h11.Connection, data: bytes) -> None:
        received.append(len(data))
        receive_data(connection, data)

    monkeypatch.setattr(h11.Connection, "receive_data", noted)
    monkeypatch.setattr(json_web_tokens, "FETCH_TIMEOUT_S", 0.3 if serve is drips else 300.0)
    async with serving_keys(context, serve) as port:
        tokens = tokens_from(port)
        tokens.keys = KeySet([EC])
        with pytest.raises(KeySetError, match=said):
            await tokens.load()
    assert tokens.verify(signed(claims(), key=EC))
    assert max(received, default=0) <= READ_BYTES


RSA = RSAKey.generate_key(2048)
UNUSABLE = {
    "symmetric": OctKey.generate_key(256),
    "for encryption": RSAKey.import_key(RSA.as_dict() | {"use": "enc"}),
    "of another algorithm": RSAKey.import_key(RSA.as_dict() | {"alg": "RSA-OAEP"}),
    "not for verifying": ECKey.generate_key("P-256", {"key_ops": ["sign"]}),
    "of an unsupported curve": ECKey.generate_key("secp256k1"),
    "for key agreement": OKPKey.generate_key("X25519"),
}


@pytest.mark.parametrize("why", UNUSABLE)
async def test_a_set_without_a_usable_key_changes_nothing(tmp_path: Path, why: str) -> None:
    """With it every caller would be refused. If another key is usable, the unusable one is ignored."""
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(EC))
    tokens = JsonWebTokens(str(path), ISSUER, AUDIENCE, "sub")
    await tokens.load_first()
    path.write_bytes(key_set(UNUSABLE[why]))
    with pytest.raises(KeySetError, match="none of its 1 keys can verify"):
        await tokens.load()
    assert tokens.verify(signed(claims(), key=EC))
    with pytest.raises(KeySetError, match="none of its 1 keys can verify"):
        await JsonWebTokens(str(path), ISSUER, AUDIENCE, "sub").load_first()
    path.write_bytes(key_set(UNUSABLE[why], EC))
    assert await tokens.load()
    assert [key.kid for key in tokens.keys] == ["ec"]


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.extend((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n"))
        writer.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxy:
        address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        for variable in (f"http://us%65r:secret@{address}", address):
            asked.clear()
            monkeypatch.setenv("https_proxy", variable)
            with pytest.raises(KeySetError):
                await JsonWebTokens("https://issuer.invalid/keys", ISSUER, AUDIENCE, "sub").load()
            assert asked[0] == b"CONNECT issuer.invalid:443 HTTP/1.1"
            credential = b"Proxy-Authorization: Basic " + base64.b64encode(b"user:secret")
            assert (credential in asked) == ("secret" in variable)
        asked.clear()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with pytest.raises(KeySetError, match="ConnectError"):
            await tokens_from(1).load()
    assert not asked


async def test_a_dripping_issuer_delays_neither_readiness_nor_the_end(
    run_daemon: RunDaemon, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(json_web_tokens, "FETCH_TIMEOUT_S", 0.3)
    (tmp_path / "policy.toml").write_text(POLICY, "utf-8")
    async with serving_keys(context, drips) as port:
        daemon = await run_daemon(
            "--access-policy-file", str(tmp_path / "policy.toml"),
            "--access-jwt-keys", f"https://127.0.0.1:{port}/keys",
            "--access-jwt-issuer", ISSUER, "--access-jwt-audience", AUDIENCE,
        )  # fmt: skip
        assert "no answer within" in daemon.log
        await daemon.stop()
