"""JSON web tokens: verified with the keys of a key set, which is read from a file or fetched, and kept up to date.

Only asymmetric signatures are accepted. With a symmetric algorithm, anyone who can verify a token could forge one, and
an attacker could sign a token with the public key as the secret.
"""

import asyncio
import base64
import contextlib
import json
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from purgatory.service.access.tokens import PRINCIPAL_LENGTH_MAX, AccessError, BadToken
from purgatory.service.errors import unavailable
from purgatory.service.transport.outbound import NoAnswer, Outbound
from purgatory.service.transport.watched_file import read_regular_file

LOGGER: Final = logging.getLogger(__name__)
ALGORITHMS: Final = [
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
]  # fmt: skip
KEY_AGREEMENT_CURVES: Final = ("X25519", "X448")
LEEWAY_S: Final = 30
"""Maximum difference between the clocks of issuer and daemon."""
FETCH_TIMEOUT_S: Final = 5.0
"""Timeout of the whole exchange. The start of the daemon waits this long for an issuer that does not answer."""
FETCH_INTERVAL_S: Final = 60.0
FETCH_AGAIN_S: Final = 5.0
"""Minimum interval between fetches while no keys have been loaded, and between fetches caused by tokens with an unknown
key.
"""
KEY_SET_BYTES_MAX: Final = 1024 * 1024


class KeySetError(AccessError):
    """The key set is missing or unusable."""


class JsonWebTokens:
    """Verifies tokens of one issuer for one audience."""

    def __init__(
        self,
        key_set: str,
        issuer: str,
        audience: str,
        principal_claim: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`key_set` is a file or an https URL."""
        self._source: Final = key_set
        self._outbound: Final = _outbound(key_set) if "://" in key_set else None
        self._claim: Final = principal_claim
        self._claims: Final = JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
        )
        self._content = b""
        self._now_s: Final = now_s
        self._loaded_s = -FETCH_INTERVAL_S
        self._asked: Final = asyncio.Event()
        self.keys = KeySet([])
        """Replaced by another object when the keys change."""

    async def load(self) -> bool:
        """Read or fetch the key set, and return whether it has changed. Raises `KeySetError` and keeps the previous
        keys.
        """
        # Also if this fails: it limits how often a token with an unknown key causes a load.
        self._loaded_s = self._now_s()
        try:
            content = await self._read()
            # The object must stay the same with its content, because remembered tokens are dropped when it changes.
            if content == self._content:
                return False
            self.keys = await asyncio.to_thread(_parsed, content)
        except (
            NoAnswer, JoseError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
            RecursionError,
        ) as error:  # fmt: skip
            # The issuer's data is untrusted, and the library's errors do not cover every way in which it can be
            # invalid.
            raise KeySetError(f"no key set from {self._source}: {error}") from None
        # After parsing: content that cannot be used is parsed, and reported, again at each load.
        self._content = content
        return True

    async def _read(self) -> bytes:
        if self._outbound is None:
            return await asyncio.to_thread(read_regular_file, Path(self._source))
        answer = await self._outbound.exchange("GET", self._source, [(b"connection", b"close")])
        if 300 <= answer.status < 400:
            raise ValueError(f"HTTP {answer.status}: redirects are not followed; set access.jwt_keys to the final URL")
        if answer.status != HTTPStatus.OK:
            raise ValueError(f"HTTP {answer.status}")
        if not answer.is_whole:
            raise ValueError(f"the answer has more than {KEY_SET_BYTES_MAX} bytes")
        return answer.body

    def load_soon(self) -> None:
        """Load the key set now instead of at the end of the minute."""
        self._asked.set()

    async def load_first(self) -> None:
        """Load the key set. Raises `KeySetError` for a file.

        A key set from the network may arrive later: an unavailable issuer must not keep the daemon from serving others.
        """
        try:
            await self.load()
        except KeySetError as error:
            if self._outbound is None:
                raise
            LOGGER.error("%s; will be retried", error)  # noqa: TRY400 - the message is complete

    async def keep_fresh(self, reloads: Counter[tuple[str, str]]) -> None:
        """Reload the key set every minute, until cancelled. If that fails, the previous set is kept."""
        while True:
            with contextlib.suppress(TimeoutError):
                # Sooner while there are no keys: until then every JSON web token is refused.
                await asyncio.wait_for(self._asked.wait(), FETCH_INTERVAL_S if self.keys else FETCH_AGAIN_S)
            self._asked.clear()
            try:
                if await self.load():
                    reloads["keys", "taken"] += 1
            except KeySetError as error:
                reloads["keys", "refused"] += 1
                LOGGER.error("%s; still using the previous keys", error)  # noqa: TRY400 - the message is complete
            except Exception:
                reloads["keys", "refused"] += 1
                LOGGER.exception("the key set cannot be read; still using the previous keys")

    def verify(self, token: str) -> tuple[str, float]:
        """Return the principal of a token, and when it expires (Unix seconds).

        Raises `BadToken`, and `RpcError` (UNAVAILABLE) if no keys have been loaded yet.
        """
        if not self.keys:
            raise unavailable("the keys that verify JSON web tokens could not be fetched yet")
        try:
            decoded = jwt.decode(token, self.keys, algorithms=ALGORITHMS)
            self._claims.validate(decoded.claims)
            # With the same leeway as the library: otherwise a remembered token would expire before one that is verified
            # now.
            expires_s = float(decoded.claims["exp"]) + LEEWAY_S
        except (JoseError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            # The token is untrusted until it is verified, and the library's errors do not cover every malformed token.
            self._load_for(token)
            raise BadToken(f"the token is not valid: {getattr(error, 'error', '') or type(error).__name__}") from None
        principal = decoded.claims.get(self._claim)
        if not isinstance(principal, str) or not 0 < len(principal) <= PRINCIPAL_LENGTH_MAX:
            raise BadToken(f"the claim {self._claim!r} must be a string of 1 to {PRINCIPAL_LENGTH_MAX} characters")
        return principal, expires_s

    def _load_for(self, token: str) -> None:
        """Reload the keys for a token that names an unknown key: the issuer may have changed keys within the last
        minute.

        Anyone can make such tokens, so the number of reloads is limited.
        """
        now_s, key_id = self._now_s(), _key_id(token)
        if key_id and now_s - self._loaded_s >= FETCH_AGAIN_S and key_id not in {key.kid for key in self.keys}:
            # Now and not at the end of the load: a flood of such tokens asks for one load only.
            self._loaded_s = now_s
            self.load_soon()


def _key_id(token: str) -> str:
    """Return the id of the key in the token's header; empty: there is none, or the header cannot be read."""
    header = token.partition(".")[0]
    try:
        content: Any = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    except (ValueError, RecursionError):
        return ""
    key_id = content.get("kid") if isinstance(content, dict) else ""
    return key_id if isinstance(key_id, str) else ""


def _outbound(url: str) -> Outbound:
    """Create the HTTP client; it uses the proxy of the environment, if any. Raises `KeySetError` unless the URL is
    https.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise KeySetError(f"access.jwt_keys: not an https URL: {url}")
    return Outbound(
        timeout_s=FETCH_TIMEOUT_S,
        answer_bytes_max=KEY_SET_BYTES_MAX,
        ssl_context=ssl.create_default_context(),
        proxy_url=None if proxy_bypass(parts.hostname) else getproxies().get("https"),
    )


def _parsed(content: bytes) -> KeySet:
    """Return the keys of a key set that can verify a token. With other keys, every token signed by them would be
    refused.
    """
    document: Any = json.loads(content)
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("not a JSON web key set")  # noqa: TRY004 - the content of a file, not an argument
    keys = KeySet.import_key_set(cast("Any", document)).keys
    usable = [key for key in keys if _can_verify(key)]
    if not usable:
        raise ValueError(f"none of its {len(keys)} keys can verify a signature by any of {', '.join(ALGORITHMS)}")
    return KeySet(usable)


def _can_verify(key: Key) -> bool:
    if key.get("crv") in KEY_AGREEMENT_CURVES:  # the library would use these as EdDSA keys
        return False
    return bool(JWSRegistry.filter_algorithms(key, ALGORITHMS)) and "verify" in (key.get("key_ops") or ["verify"])
