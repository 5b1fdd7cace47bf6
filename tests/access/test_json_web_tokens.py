"""JSON web tokens: accepted signatures, principals and expiry; and their keys over HTTPS.

An issuer's server is untrusted until its certificate is verified, and limited even then.
"""

import asyncio
import base64
import contextlib
import hmac
import json
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey

from examples.secure_demo.authority import Authority
from purgatory.service.access import json_web_tokens
from purgatory.service.access.json_web_tokens import (
    FETCH_AGAIN_S,
    KEY_SET_BYTES_MAX,
    LEEWAY_S,
    JsonWebTokens,
    KeySetError,
)
from purgatory.service.access.tokens import BadToken
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.access.guarded import POLICY, Caller, guarding
from tests.kit.daemon import RunDaemon
from tests.kit.eventually import eventually
from tests.kit.recorded import assert_recorded, cases_of
from tests.kit.served_host import refused

ISSUER, AUDIENCE = "https://issuer.example", "purgatory"
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
OKP = OKPKey.generate_key("Ed25519", {"kid": "okp"})
STRANGER = ECKey.generate_key("P-256", {"kid": "ec"})
KEYS = {"RS256": RSA, "PS512": RSA, "ES256": EC, "EdDSA": OKP}


def claims(**changed: Any) -> dict[str, Any]:  # noqa: ANN401 - any claim
    """Valid claims, with the given changes; None: the claim is omitted."""
    now_s = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "root", "exp": now_s + 600, "nbf": now_s, "iat": now_s}
    return {name: value for name, value in (good | changed).items() if value is not None}


def signed(content: dict[str, Any], algorithm: str = "ES256", key: Any = None) -> str:  # noqa: ANN401 - any key
    key = key or KEYS[algorithm]
    return jwt.encode({"alg": algorithm, "kid": key.kid}, content, key, algorithms=[algorithm])


def unsigned(header: dict[str, Any], content: object, signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(content).encode(), signature]
    return ".".join(in_base64(part) for part in parts)


def in_base64(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def key_set(*keys: Any) -> bytes:  # noqa: ANN401 - any key
    return json.dumps(KeySet(list(keys)).as_dict(private=False)).encode()


def write_keys(path: Path, *keys: Any) -> Path:  # noqa: ANN401 - any key
    path.write_bytes(key_set(*keys))
    return path


async def verifier(path: Path, claim: str = "sub") -> JsonWebTokens:
    made = JsonWebTokens(str(path), ISSUER, AUDIENCE, claim)
    await made.load_first()
    return made


@pytest.fixture
async def tokens(tmp_path: Path) -> JsonWebTokens:
    return await verifier(write_keys(tmp_path / "keys.json", RSA, EC, OKP))


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # deprecated, but issuers still send it
@pytest.mark.parametrize("algorithm", KEYS)
async def test_asymmetric_signature_is_valid_until_expiry_plus_leeway(tokens: JsonWebTokens, algorithm: str) -> None:
    content = claims()
    assert tokens.verify(signed(content, algorithm)) == ("root", content["exp"] + LEEWAY_S)


async def test_another_claim_may_name_the_principal(tmp_path: Path) -> None:
    tokens = await verifier(write_keys(tmp_path / "keys.json", EC), "client_id")
    assert tokens.verify(signed(claims(client_id="ci")))[0] == "ci"
    with pytest.raises(BadToken, match="client_id"):
        tokens.verify(signed(claims()))


def signed_with_a_secret(secret: bytes) -> str:
    """Signed without the library, which refuses a public key as a secret."""
    unfinished = unsigned({"alg": "HS256", "kid": "ec"}, claims()).rpartition(".")[0]
    return f"{unfinished}.{in_base64(hmac.digest(secret, unfinished.encode(), 'sha256'))}"


BAD = Path(__file__).with_name("bad_tokens.txt")


async def test_other_tokens_are_refused_and_not_quoted(tokens: JsonWebTokens) -> None:
    """As in bad_tokens.txt."""

    def reason(case: str) -> str:
        token = eval(case, globals())
        with pytest.raises(BadToken) as raised:
            tokens.verify(token)
        assert not [part for part in token.split(".") if len(part) > 8 and part in str(raised.value)]
        return str(raised.value)

    assert_recorded(BAD, map(reason, cases_of(BAD)))


PIECES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["ES256", "ec"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64"]), inner),
    max_leaves=6,
)


@settings(max_examples=50)
@given(header=PIECES, content=PIECES, signature=st.binary(max_size=70))
async def test_any_text_is_at_worst_a_bad_token(header: Any, content: Any, signature: bytes) -> None:  # noqa: ANN401 - any JSON value
    made = JsonWebTokens("unread", ISSUER, AUDIENCE, "sub")
    made.keys = KeySet([EC, RSA])
    with pytest.raises(BadToken):
        made.verify(unsigned(header, content, signature))


async def test_file_that_is_no_key_set_leaves_the_previous_keys(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.json", EC)
    tokens = await verifier(path)
    for content in ("", "{}", "[]", '{"keys": []}', '{"keys": [{}]}', '{"keys": [7]}', '{"keys": [{"kty": "EC"}]}'):
        path.write_text(content)
        with pytest.raises(KeySetError, match="no key set"):
            await tokens.load()
        assert tokens.verify(signed(claims()))
    path.unlink()
    with pytest.raises(KeySetError):
        await verifier(path)


async def test_a_key_set_comes_over_https_only(tmp_path: Path) -> None:
    """While its issuer cannot be reached, tokens are answered with UNAVAILABLE, because they may be valid."""
    async with guarding(
        tmp_path, jwt_keys="https://127.0.0.1:1/keys", jwt_issuer=ISSUER, jwt_audience=AUDIENCE
    ) as served:
        with refused(grpc.StatusCode.UNAVAILABLE, "could not be fetched yet"):
            await served.asks(f"Bearer {signed(claims())}")
    for url in ("http://127.0.0.1:1/keys", "file:///etc/keys", "https:///keys"):
        with pytest.raises(KeySetError, match="not an https URL"):
            JsonWebTokens(url, ISSUER, AUDIENCE, "sub")


async def test_withdrawn_key_is_refused_although_it_was_verified_before(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.json", EC)
    async with guarding(tmp_path, jwt_keys=str(path), jwt_issuer=ISSUER, jwt_audience=AUDIENCE) as served:
        old, new = signed(claims()), signed(claims(), "RS256")
        for _ in range(2):
            await served.asks(f"Bearer {old}")
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            await served.asks(f"Bearer {new}")
        write_keys(path, RSA)
        served.access.reload()
        await eventually(lambda: served.audit.reloads["keys", "taken"])
        await served.asks(f"Bearer {new}")
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            await served.asks(f"Bearer {old}")


async def test_an_unknown_key_has_the_keys_loaded_now_and_then(tmp_path: Path) -> None:
    """At most once in five seconds, and not for tokens with a known key or none."""
    now_s = 100.0
    path = write_keys(tmp_path / "keys.json", EC)
    tokens = JsonWebTokens(str(path), ISSUER, AUDIENCE, "sub", lambda: now_s)
    await tokens.load_first()
    reloads: Counter[tuple[str, str]] = Counter()
    fresh = asyncio.create_task(tokens.keep_fresh(reloads))
    new = signed(claims(), "RS256")

    async def loads(token: str) -> bool:
        with pytest.raises(BadToken):
            tokens.verify(token)
        return tokens._asked.is_set()

    assert not await loads(new), "the keys are as fresh as may be"
    now_s += FETCH_AGAIN_S
    for harmless in (signed(claims(), key=STRANGER), unsigned({"alg": "ES256"}, claims()), "a.b.c", "...", "é.b.c"):
        assert not await loads(harmless)
    others: list[Any] = [7, ["x"], {}, ""]
    for kid in others:
        assert not await loads(unsigned({"alg": "ES256", "kid": kid}, claims()))
    write_keys(path, EC, RSA)
    assert await loads(new)
    await eventually(lambda: reloads["keys", "taken"])
    assert tokens.verify(new)[0] == "root"
    assert not await loads(unsigned({"alg": "ES256", "kid": "no such"}, claims()))
    fresh.cancel()


async def test_principals_of_both_sorts_of_token_are_the_same(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.json", EC)
    async with guarding(tmp_path, jwt_keys=str(path), jwt_issuer=ISSUER, jwt_audience=AUDIENCE) as served:
        opaque = served.caller("root")
        registered = wire.RegisterRequest(session_id="s", batch=wire.RegisterBatch(rows={}))
        async with opaque, Caller(served.address, f"Bearer {signed(claims())}") as verified:
            await opaque.call("Register", registered)
            await verified.call("CloseSession", wire.CloseSessionRequest(session_id="s"))


# Key sets over HTTPS.


Serve = Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Answers one request, whose head has been read."""


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers])
    return f"{head}\r\n\r\n".encode() + body


def says(answer: bytes) -> Serve:
    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
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


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's context for 127.0.0.1, whose authority is trusted."""
    authority = Authority("An authority for key sets")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*authority.issue("issuer", hosts=["127.0.0.1"]).write(tmp_path, "issuer"))
    (tmp_path / "trusted.crt").write_bytes(authority.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted.crt"))
    return served


def tokens_from(port: int) -> JsonWebTokens:
    return JsonWebTokens(f"https://127.0.0.1:{port}/keys", ISSUER, AUDIENCE, "sub")


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


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_redirects_are_not_followed(context: ssl.SSLContext, scheme: str) -> None:
    visited: list[int] = []

    async def serve_other(writer: asyncio.StreamWriter) -> None:
        visited.append(1)
        writer.write(response("200 OK", key_set(STRANGER)))

    async with serving_keys(context if scheme == "https" else None, serve_other) as other:
        place = f"location: {scheme}://127.0.0.1:{other}/keys"
        for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"):
            async with serving_keys(context, says(response(status, b"", place))) as port:
                tokens = tokens_from(port)
                with pytest.raises(KeySetError, match=r"not followed; set access\.jwt_keys to the final URL"):
                    await tokens.load()
    assert (visited, list(tokens.keys)) == ([], [])


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (drips, "no answer within"),
        (says(response("200 OK", b" " * KEY_SET_BYTES_MAX)), f"more than {KEY_SET_BYTES_MAX} bytes"),
        (says(response("500 Oops")), "HTTP 500"),
        (says(response("200 OK", b"[" * 100_000)), "RecursionError|recursion|Stack overflow"),
        (says(b"SSH-2.0-OpenSSH\r\n"), "RemoteProtocolError"),
        (says(b""), "disconnected"),
    ],
    ids=["drip", "long", "500", "nested", "no http", "nothing"],
)
async def test_previous_keys_are_kept_if_the_exchange_fails(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, serve: Serve, said: str
) -> None:
    """Webhooks are sent by the same client, and their tests have all of its limits."""
    monkeypatch.setattr(json_web_tokens, "FETCH_TIMEOUT_S", 0.3 if serve is drips else 300.0)
    async with serving_keys(context, serve) as port:
        tokens = tokens_from(port)
        tokens.keys = KeySet([EC])
        with pytest.raises(KeySetError, match=said):
            await tokens.load()
    assert tokens.verify(signed(claims(), key=EC))


UNUSABLE = {
    "symmetric": OctKey.generate_key(256),
    "for encryption": RSAKey.import_key(RSA.as_dict() | {"use": "enc"}),
    "of another algorithm": RSAKey.import_key(RSA.as_dict() | {"alg": "RSA-OAEP"}),
    "not for verifying": ECKey.generate_key("P-256", {"key_ops": ["sign"]}),
    "of an unsupported curve": ECKey.generate_key("secp256k1"),
    "for key agreement": OKPKey.generate_key("X25519"),
}


@pytest.mark.parametrize("why", UNUSABLE)
async def test_set_without_a_usable_key_changes_nothing(tmp_path: Path, why: str) -> None:
    """With it every caller would be refused. If another key is usable, the unusable one is ignored."""
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(EC))
    tokens = JsonWebTokens(str(path), ISSUER, AUDIENCE, "sub")
    await tokens.load_first()
    path.write_bytes(key_set(UNUSABLE[why]))
    for load in (tokens.load, JsonWebTokens(str(path), ISSUER, AUDIENCE, "sub").load_first):
        with pytest.raises(KeySetError, match="none of its 1 keys can verify"):
            await load()
    assert tokens.verify(signed(claims(), key=EC))
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
