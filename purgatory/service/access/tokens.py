"""Bearer tokens: random, and stored only as hashes, one per line: `sha256 principal expires created`.

A token has 256 random bits, so it cannot be recovered from its plain SHA-256 by guessing. The timing of the dictionary
lookup reveals nothing useful: an attacker who wants to choose hashes would first have to invert SHA-256.
"""

import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.service.transport.watched_file import read_regular_file


class AccessError(Exception):
    """A policy, a token file or a key set is unusable. The message names the place."""


class BadToken(Exception):
    """A JSON web token is invalid. The message gives the reason, and contains nothing of the token."""


PREFIX: Final = "pgt_"
"""Lets people and scanners for leaked secrets recognize a token."""
TOKEN_BYTES: Final = 32
HASH_LENGTH: Final = 64
HEAD: Final = (
    "# Tokens for purgatory: SHA-256, principal, expiry and creation in Unix seconds. To revoke one, delete its line.\n"
)
NEVER: Final = "never"
TIME_DIGITS_MAX: Final = 15
PRINCIPAL_LENGTH_MAX: Final = 256


class TokensError(AccessError):
    """The file is not a token file. The message names the line."""


class KnownToken(NamedTuple):
    """The principal of a token, and its expiry (Unix seconds; infinity: never)."""

    principal: str
    expires_s: float
    created_s: int = 0


def _parsed(line: str) -> KnownToken | None:
    parts = line.split()
    if len(parts) != len(("hash", "principal", "expiry", "creation")):
        return None
    digest, principal, expires, created = parts
    is_hash = len(digest) == HASH_LENGTH and set(digest) <= set("0123456789abcdef")
    if not is_hash or not (expires == NEVER or _is_time(expires)) or not _is_time(created):
        return None
    return KnownToken(principal, float("inf") if expires == NEVER else float(expires), int(created))


def _is_time(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= TIME_DIGITS_MAX


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def read_tokens(path: Path) -> dict[str, KnownToken]:
    """Read the tokens in a file, by hash. Raises `TokensError`."""
    tokens: dict[str, KnownToken] = {}
    try:
        lines = read_regular_file(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TokensError(f"{path}: {error}") from None
    for number, line in enumerate(lines, 1):
        # A comment keeps the file from being empty after the last token was deleted, see `Access._take_tokens`.
        if not line.strip() or line.startswith("#"):
            continue
        known = _parsed(line)
        if known is None:
            raise TokensError(f"{path}: line {number} is not: SHA-256 in hex, principal, expiry or {NEVER}, creation")
        tokens[line.split()[0]] = known
    return tokens


def add_token(path: Path, principal: str, expires_s: int | None = None) -> str:
    """Create a token for a principal, append its hash to the file, and return the token, which is stored nowhere else.

    `expires_s` is in Unix seconds; None: it never expires. A new file is accessible to its owner only.

    Raises ValueError for an invalid principal name, and `TokensError` if the file is not a token file.
    """
    if not 0 < len(principal) <= PRINCIPAL_LENGTH_MAX or not principal.isprintable() or set(principal) & set(" *#"):
        raise ValueError(
            f"a principal must have 1 to {PRINCIPAL_LENGTH_MAX} printable characters, without space, * and #"
        )
    # Before the new token is made: appending to another kind of file by mistake could not be undone.
    if path.exists():
        read_tokens(path)
    token = new_token()
    line = f"{hash_of(token)} {principal} {NEVER if expires_s is None else expires_s} {int(time.time())}\n"
    # Appended by one write: two commands at the same time do not overwrite the line of the other.
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            line = HEAD + line
        elif os.pread(descriptor, 1, size - 1) != b"\n":  # edited by hand
            line = "\n" + line
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    return token


def is_expired(token: KnownToken) -> bool:
    return time.time() >= token.expires_s
