"""Signed tokens: "as1.SIGNATURE.TOKEN". Only programs that have a key can make one, and others can only pass it on."""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from purgatory_client.errors import InvalidRequest

SIGNED: Final = "as1."
KEY_BYTES_MIN: Final = 16
SIGNATURE_BYTES: Final = 16
"""Of SHA-256's 32: 128 bits cannot be guessed, and headers stay short."""

Key = bytes | str


def checked_keys(keys: Sequence[Key]) -> tuple[bytes, ...]:
    """The keys as bytes. Raises InvalidRequest for one that is too short, or for one that is not in a list."""
    if isinstance(keys, Key):
        raise InvalidRequest("keys", "give a list of keys, of which the first one signs")
    found = tuple(key.encode() if isinstance(key, str) else key for key in keys)
    if any(len(key) < KEY_BYTES_MIN for key in found):
        raise InvalidRequest("keys", f"a key is shorter than {KEY_BYTES_MIN} bytes")
    return found


def sign(token: str, keys: tuple[bytes, ...]) -> str:
    """The token with a signature by the first key; as it is without keys."""
    return f"{SIGNED}{_signature(token, keys[0])}.{token}" if keys else token


def verified(token: str, keys: tuple[bytes, ...]) -> str:
    """The token without its signature. Raises InvalidRequest unless one of the keys has made it."""
    is_signed = token.startswith(SIGNED)
    if not keys:
        if is_signed:
            raise InvalidRequest("token", "it is signed, and this application has no keys: give it `keys`")
        return token
    signature, _, content = token.removeprefix(SIGNED).partition(".")
    # A list: which of the keys fits shows neither in the answer nor in its time.
    fits = [hmac.compare_digest(_signature(content, key).encode(), signature.encode()) for key in keys]
    if not is_signed or not any(fits):
        raise InvalidRequest("token", "it is not signed with a key of this application; repeat the request without it")
    return content


def _signature(token: str, key: bytes) -> str:
    digest = hmac.digest(key, (SIGNED + token).encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest[:SIGNATURE_BYTES]).decode("ascii").rstrip("=")
