"""JSON web tokens: verified with the keys of a key set, which is read from a file or fetched and kept fresh.

Only asymmetric signatures count: with a symmetric one, whoever can verify a token could make one, and a public key
taken for a secret would verify what a stranger signed with it.
"""

import asyncio
import json
import logging
import urllib.request
from pathlib import Path
from typing import Any, Final, cast

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry

from purgatory.service.access.errors import AccessError

LOGGER: Final = logging.getLogger(__name__)
ALGORITHMS: Final = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
    "EdDSA",
]
LEEWAY_S: Final = 30
"""How far the clocks of issuer and daemon may be apart."""
FETCH_TIMEOUT_S: Final = 10.0
FETCH_INTERVAL_S: Final = 60.0
KEY_SET_BYTES_MAX: Final = 1024 * 1024


class BadToken(Exception):
    """The token is not a valid one. The message says why, and holds nothing of the token."""


class KeySetError(AccessError):
    """There is no key set where one should be."""


class JsonWebTokens:
    """Verifies tokens of one issuer for one audience."""

    def __init__(self, key_set: str, issuer: str, audience: str, principal_claim: str) -> None:
        """`key_set` is a file or an https URL."""
        self._source: Final = key_set
        self._claim: Final = principal_claim
        self._claims: Final = JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
        )
        self._keys = KeySet([])

    async def load(self) -> None:
        """Reads or fetches the key set. Raises `KeySetError`, and keeps the keys it had."""
        try:
            self._keys = await asyncio.to_thread(_read_keys, self._source)
        except (OSError, ValueError, JoseError) as error:
            raise KeySetError(f"no key set from {self._source}: {error}") from None

    async def keep_fresh(self) -> None:
        """Loads the key set again every minute, until cancelled. A set that cannot be had leaves the old one."""
        while True:
            await asyncio.sleep(FETCH_INTERVAL_S)
            try:
                await self.load()
            except KeySetError as error:
                LOGGER.error("%s; the keys of before are kept", error)  # noqa: TRY400 - the message says it all

    def verify(self, token: str) -> tuple[str, float]:
        """The principal of a token, and when it expires (Unix seconds). Raises `BadToken`."""
        try:
            decoded = jwt.decode(token, self._keys, algorithms=ALGORITHMS)
            self._claims.validate(decoded.claims)
        except (JoseError, ValueError) as error:
            raise BadToken(f"the token is not valid: {getattr(error, 'error', '') or type(error).__name__}") from None
        principal = decoded.claims.get(self._claim)
        if not isinstance(principal, str) or not principal:
            raise BadToken(f"the token has no text in its claim {self._claim!r}")
        return principal, float(decoded.claims["exp"]) + LEEWAY_S


def _read_keys(source: str) -> KeySet:
    if "://" not in source:
        return _parsed(Path(source).read_bytes())
    if not source.startswith("https://"):
        raise ValueError("the URL of a key set must be https")
    with urllib.request.urlopen(source, timeout=FETCH_TIMEOUT_S) as answer:  # noqa: S310 - https only, see above
        return _parsed(answer.read(KEY_SET_BYTES_MAX))


def _parsed(content: bytes) -> KeySet:
    document: Any = json.loads(content)
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("is not a JSON web key set")  # noqa: TRY004 - of a file, not of an argument
    return KeySet.import_key_set(cast("Any", document))
