"""Authentication by policy, tokens and certificates. The files are reloaded while the daemon serves.

The policy and the tokens are read at the start and whenever their files change. If a changed file is unusable, this is
logged and the previous content stays in force: a typing error must neither open the daemon nor lock all callers out. A
new policy takes effect between two steps of the event loop, so a message, or the part of a long message that is
processed at a time, is judged by a single policy.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from purgatory.service.access import tokens
from purgatory.service.access.access_policy import AccessPolicy, read_policy
from purgatory.service.access.account import Account, Accounts
from purgatory.service.access.audit import AUDITED_CALL, NO_ROLE, UNAUTHENTICATED
from purgatory.service.access.roles import CALLS, OBSERVE
from purgatory.service.errors import RpcError, permission_denied, unauthenticated
from purgatory.service.settings import AccessSettings
from purgatory.service.transport.watched_file import WatchedFile

if TYPE_CHECKING:
    from purgatory.service.access.json_web_tokens import JsonWebTokens

LOGGER: Final = logging.getLogger(__name__)
RELOAD_INTERVAL_S: Final = 1.0
VERIFIED_MAX: Final = 10_000
"""Verified tokens that are remembered, so that each signature is verified once. At the limit all are forgotten."""
LOOPBACK: Final = ("ipv4:127.", "ipv6:%5B::1%5D:", "ipv6:[::1]:")
DOTS: Final = 2
"""Number of dots in a JSON web token. Our own tokens contain none."""

Context = grpc.aio.ServicerContext[Any, Any]
PrincipalOfPeer = Callable[[Context], str]
"""Returns the principal that a verified client certificate names; empty: there is none. Raises `RpcError` for a revoked
certificate.
"""


class Access:
    """Identifies callers. The constructor raises `PolicyError` and `TokensError`; later errors are logged."""

    def __init__(self, settings: AccessSettings, accounts: Accounts, principal_of_peer: PrincipalOfPeer) -> None:
        self._settings: Final = settings
        self._accounts: Final = accounts
        self._principal_of_peer: Final = principal_of_peer
        self._policy: AccessPolicy | None = None
        self._tokens: dict[str, tokens.KnownToken] = {}
        self._tokens_in_memory: Final[dict[str, tokens.KnownToken]] = {}
        self._verified: Final[dict[bytes, tokens.KnownToken]] = {}
        self._verified_with: object = None
        """The keys that verified the remembered tokens. When the keys change, all tokens are verified again."""
        self._json_web_tokens: Final = _json_web_tokens(settings)
        self._files: Final = [
            WatchedFile(what, path, take)
            for what, path, take in (
                ("tokens", settings.tokens_file, self._take_tokens),
                ("policy", settings.policy_file, self._take_policy),
            )
            if path is not None
        ]
        for file in self._files:
            file.take()

    async def start(self) -> None:
        """Read the key set, if one is configured. Raises `KeySetError`."""
        if self._json_web_tokens is not None:
            await self._json_web_tokens.load_first()

    async def keep_fresh(self) -> None:
        """Reload changed files, until cancelled."""
        if self._json_web_tokens is None:
            await self._watch_files()
        else:
            await asyncio.gather(self._watch_files(), self._json_web_tokens.keep_fresh(self._accounts.audit.reloads))

    def make_token(self, principal: str) -> str:
        """Create a token that is valid until this daemon ends and is not stored in a file."""
        token = tokens.new_token()
        self._tokens_in_memory[tokens.hash_of(token)] = tokens.KnownToken(principal, float("inf"))
        return token

    def identify(self, method: str) -> Callable[[Context], Account]:
        """Return a function that identifies a call's account. `method`: the called method. The function raises
        `RpcError`.
        """
        roles = CALLS[method]
        nobody, audit = self._accounts.nobody, self._accounts.audit

        def account_of(context: Context) -> Account:
            if self._policy is None:
                return nobody
            AUDITED_CALL.set((method, context.peer()))
            try:
                account = self._accounts.of(self._proven_principal(context, self._policy))
            except RpcError as refused:
                audit.refused(UNAUTHENTICATED, "", name=refused.message)
                raise
            if not account.grants.holds_any(roles):
                any_of = " or ".join(sorted(roles))
                audit.refused(NO_ROLE, account.principal, role=any_of)
                raise permission_denied(any_of, f"the call {method}")
            return account

        return account_of

    def check_page(self, path: str, peer: str, authorization: str | None, certified: str) -> None:
        """Check access to a page of the HTTP site: under a policy, the caller needs the role observe on any name.

        `certified` is the principal of a verified client certificate; empty: there is none. Raises `RpcError`.
        """
        if self._policy is None:
            return
        AUDITED_CALL.set((path, peer))
        audit = self._accounts.audit
        principal = certified
        try:
            # As for calls: a token decides alone, even if the certificate would do.
            if authorization is not None:
                principal = self._principal_of_token(authorization)
            elif not certified:
                raise unauthenticated("show a bearer token or a client certificate")
        except RpcError as refused:
            audit.refused(UNAUTHENTICATED, "", name=refused.message)
            raise
        if not self._policy.of(principal).holds_any(frozenset({OBSERVE})):
            audit.refused(NO_ROLE, principal, role=OBSERVE)
            raise permission_denied(OBSERVE, f"the page {path}")

    # Authentication.

    def _proven_principal(self, context: Context, policy: AccessPolicy) -> str:
        for key, value in context.invocation_metadata() or ():
            # A token decides alone: a caller whose token is refused must not pass by its certificate or its address.
            if key == "authorization":
                return self._principal_of_token(value if isinstance(value, str) else value.decode("latin-1"))
        certified = self._principal_of_peer(context)
        if certified:
            return certified
        if policy.loopback_principal and context.peer().startswith(LOOPBACK):
            return policy.loopback_principal
        raise unauthenticated("show a bearer token or a client certificate")

    def _principal_of_token(self, header: str) -> str:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise unauthenticated("the authorization is not a bearer token")
        digest = tokens.hash_of(token)
        # Our own tokens first: a look-up by hash costs less than the signature of a JSON web token.
        known = self._tokens.get(digest) or self._tokens_in_memory.get(digest)
        if known is None and self._json_web_tokens is not None and token.count(".") == DOTS:
            known = self._verify(token, self._json_web_tokens)
        if known is None:
            raise unauthenticated("the token is not known")
        # At each use: a remembered token was valid when it was verified, and may have expired since.
        if tokens.is_expired(known):
            raise unauthenticated("the token has expired")
        return known.principal

    def _verify(self, token: str, json_web_tokens: "JsonWebTokens") -> tokens.KnownToken:
        if json_web_tokens.keys is not self._verified_with:  # its key may have been withdrawn
            self._verified.clear()
            self._verified_with = json_web_tokens.keys
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verified.get(digest)
        if known is None:
            try:
                known = tokens.KnownToken(*json_web_tokens.verify(token))
            except tokens.BadToken as error:
                raise unauthenticated(str(error)) from None
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[digest] = known
        return known

    # Files.

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            for file in self._files:
                if file.has_settled():
                    self._read_again(file)

    def reload(self) -> None:
        """Read the policy and the tokens now, changed or not, and the key set soon, as requested by a SIGHUP."""
        for file in self._files:
            self._read_again(file)
        if self._json_web_tokens is not None:
            self._json_web_tokens.load_soon()

    def _read_again(self, file: WatchedFile) -> None:
        reloads = self._accounts.audit.reloads
        try:
            file.take()
        except tokens.AccessError as error:
            LOGGER.error("%s; still using the previous version", error)  # noqa: TRY400 - the message is complete
            reloads[file.what, "refused"] += 1
        except Exception:
            LOGGER.exception("the %s file cannot be read; still using the previous version", file.what)
            reloads[file.what, "refused"] += 1
        else:
            reloads[file.what, "taken"] += 1

    def _take_tokens(self, path: Path) -> None:
        """Read the tokens. An empty file raises `TokensError`, because it was truncated or is not written yet: a file
        whose last token was deleted still has its comment.
        """
        found = tokens.read_tokens(path)
        if not found and not path.read_bytes().strip():
            raise tokens.TokensError(
                f"{path}: the file is empty; make a token with `purgatory token new NAME --tokens {path}`"
            )
        self._tokens = found

    def _take_policy(self, path: Path) -> None:
        is_first = self._policy is None
        policy = read_policy(path)
        # Both without an await in between, so no call is judged by half of the new policy.
        self._policy = policy
        self._accounts.use_policy(policy.of, policy.shares_of)
        if not is_first:
            self._accounts.audit.acted("policy read again", "")


def _json_web_tokens(settings: AccessSettings) -> "JsonWebTokens | None":
    if settings.jwt_keys is None:
        return None
    assert settings.jwt_issuer is not None, "the settings were validated"
    assert settings.jwt_audience is not None, "the settings were validated"
    from purgatory.service.access.json_web_tokens import JsonWebTokens  # noqa: PLC0415 - few need it, and slow to import

    return JsonWebTokens(settings.jwt_keys, settings.jwt_issuer, settings.jwt_audience, settings.jwt_principal_claim)
