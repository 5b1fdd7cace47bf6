"""Who calls, and whether it may: policy, tokens and certificates, read again while the daemon serves.

The policy and the tokens are read at the start and whenever their files change. A file that cannot be read then is
logged, and what was read before stays: a typing error must neither open the daemon nor shut everybody out.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc

from purgatory.service.access.access_policy import AccessPolicy, PolicyError, read_policy
from purgatory.service.access.account import Account, Accounts
from purgatory.service.access.json_web_tokens import BadToken, JsonWebTokens
from purgatory.service.access.roles import CALLS
from purgatory.service.access.tokens import KnownToken, TokensError, hash_of, is_expired, read_tokens
from purgatory.service.rpc.statuses import CallRefused, permission_denied, unauthenticated
from purgatory.service.settings import AccessSettings

LOGGER: Final = logging.getLogger(__name__)
RELOAD_INTERVAL_S: Final = 1.0
VERIFIED_MAX: Final = 10_000
"""Verified tokens that are remembered until they expire, so that a signature is checked once."""
LOOPBACK: Final = ("ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]", "unix:")

Context = grpc.aio.ServicerContext[Any, Any]
PrincipalOfPeer = Callable[[Context], str]
"""The principal that a verified client certificate names; empty: there is none. Raises `CallRefused` for a revoked
one."""


class Access:
    """Tells callers apart. Raises `PolicyError`, `TokensError` from the start; later they are logged."""

    def __init__(self, settings: AccessSettings, accounts: Accounts, principal_of_peer: PrincipalOfPeer) -> None:
        self._settings: Final = settings
        self._accounts: Final = accounts
        self._principal_of_peer: Final = principal_of_peer
        self._policy: AccessPolicy | None = None
        self._tokens: dict[str, KnownToken] = {}
        self._verified: Final[dict[bytes, KnownToken]] = {}
        self._seen: Final[dict[Path, object]] = {}
        self._json_web_tokens: Final = _json_web_tokens(settings)
        self._read_changed()

    @property
    def is_open(self) -> bool:
        """Whether there is no policy: nobody is asked who they are, and everything is allowed."""
        return self._settings.policy_file is None

    async def start(self) -> None:
        """Reads the key set, where there is one. Raises `KeySetError`."""
        if self._json_web_tokens is not None:
            await self._json_web_tokens.load()

    async def keep_fresh(self) -> None:
        """Reads files again when they have changed, until cancelled."""
        if self._json_web_tokens is None:
            await self._watch_files()
        else:
            await asyncio.gather(self._watch_files(), self._json_web_tokens.keep_fresh())

    def identify(self, method: str) -> Callable[[Context], Account]:
        """For a method: on whose account its calls are served. What it returns raises `CallRefused`."""
        roles = CALLS[method]
        nobody = self._accounts.nobody

        def account_of(context: Context) -> Account:
            if self._policy is None:
                return nobody
            account = self._accounts.of(self._principal_of(context, method))
            if not account.grants.holds_any(roles):
                self._accounts.audit.refused("role", account.principal, method, role="/".join(sorted(roles)))
                raise permission_denied(" or ".join(sorted(roles)), f"the call {method}")
            return account

        return account_of

    # Who.

    def _principal_of(self, context: Context, method: str) -> str:
        try:
            return self._proven_principal(context)
        except CallRefused as refused:
            why = f"{_host(context.peer())}: {refused.message}"
            self._accounts.audit.refused("unauthenticated", "", method, name=why)
            raise

    def _proven_principal(self, context: Context) -> str:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return self._principal_of_token(value if isinstance(value, str) else value.decode("latin-1"))
        principal = self._principal_of_peer(context)
        if principal:
            return principal
        assert self._policy is not None
        if self._policy.loopback_principal and context.peer().startswith(LOOPBACK):
            return self._policy.loopback_principal
        raise unauthenticated("show a bearer token or a client certificate")

    def _principal_of_token(self, header: str) -> str:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise unauthenticated("the authorization is not a bearer token")
        known = self._tokens.get(hash_of(token))
        if known is None and self._json_web_tokens is not None and token.count(".") == 2:
            known = self._verify(token, self._json_web_tokens)
        if known is None:
            raise unauthenticated("the token is not known")
        if is_expired(known):
            raise unauthenticated("the token has expired")
        return known.principal

    def _verify(self, token: str, json_web_tokens: JsonWebTokens) -> KnownToken:
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verified.get(digest)
        if known is None:
            try:
                known = KnownToken(*json_web_tokens.verify(token))
            except BadToken as error:
                raise unauthenticated(str(error)) from None
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[digest] = known
        return known

    # Files.

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            try:
                self._read_changed()
            except (PolicyError, TokensError) as error:
                LOGGER.error("%s; what was read before is kept", error)  # noqa: TRY400 - the message says it all

    def _read_changed(self) -> None:
        policy_file, tokens_file = self._settings.policy_file, self._settings.tokens_file
        if tokens_file is not None and self._has_changed(tokens_file):
            self._tokens = read_tokens(tokens_file)
        if policy_file is not None and self._has_changed(policy_file):
            is_first = self._policy is None
            self._policy = read_policy(policy_file)
            self._accounts.use_grants(self._policy.of)
            if not is_first:
                self._accounts.audit.acted("policy replaced", "")

    def _has_changed(self, path: Path) -> bool:
        """Whether the file is another than when this was asked last, whatever is in it."""
        try:
            status = path.stat()
            seen: object = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError as error:
            seen = error.errno
        changed = self._seen.get(path) != seen
        self._seen[path] = seen
        return changed


def _json_web_tokens(settings: AccessSettings) -> JsonWebTokens | None:
    if settings.jwt_keys is None:
        return None
    assert settings.jwt_issuer is not None, "the settings were validated"
    assert settings.jwt_audience is not None, "the settings were validated"
    return JsonWebTokens(settings.jwt_keys, settings.jwt_issuer, settings.jwt_audience, settings.jwt_principal_claim)


def _host(peer: str) -> str:
    """'ipv4:127.0.0.1:4711' -> 'ipv4:127.0.0.1': ports would make each connection look like another caller."""
    return peer.rpartition(":")[0]
