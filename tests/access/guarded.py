"""A host that is served under a policy, and callers with tokens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc

from purgatory.clock import SystemClock
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.access.access import Access
from purgatory.service.access.tokens import HEAD, add_token
from purgatory.service.host import Host
from purgatory.service.settings import AccessSettings, HostSettings
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.kit.served_host import start_server

ROLES = ("wait", "advance", "observe", "admin")
NOBODY = "nobody"
"""A caller without a credential."""

POLICY = Path(__file__).with_name("policy.toml").read_text("utf-8")
"""A principal for each role, which has it on `mine-*` and `mine/*`, and one with all roles."""


class Caller:
    """One principal's channel to a guarded host."""

    def __init__(self, address: str, authorization: str | None, host: Host | None = None) -> None:
        self.host = host
        self.channel = grpc.aio.insecure_channel(address)
        self.stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(self.channel)
        self.metadata = () if authorization is None else (("authorization", authorization),)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def call(self, rpc: str, request: Any) -> Any:  # noqa: ANN401 - any message
        """Make a unary call."""
        return await getattr(self.stub, rpc)(request, metadata=self.metadata)

    def stream(self, rpc: str, *request: Any) -> Any:  # noqa: ANN401 - any call
        """Make a streaming call."""
        return getattr(self.stub, rpc)(*request, metadata=self.metadata)


class Guarded:
    """A served host, its access control, and the tokens of its callers."""

    def __init__(self, host: Host, access: Access, folder: Path, port: int) -> None:
        self.host = host
        self.access = access
        self.audit = host.sessions.accounts.audit
        self.policy_file = folder / "policy.toml"
        self.tokens_file = folder / "tokens"
        self.address = f"127.0.0.1:{port}"

    def caller(self, principal: str, token: str | None = None) -> Caller:
        """Return a caller with a new token, or with the given one."""
        if principal == NOBODY:
            return Caller(self.address, None, self.host)
        if token is None:
            token = add_token(self.tokens_file, principal)
            self.access.reload()
        return Caller(self.address, f"Bearer {token}", self.host)

    async def asks(self, authorization: str | None) -> None:
        """Make one call with this authorization header."""
        async with Caller(self.address, authorization) as caller:
            await caller.call("GetStatus", wire.GetStatusRequest())

    def use_policy(self, text: str) -> None:
        """Replace the policy, and read it at once."""
        self.policy_file.write_text(text, "utf-8")
        self.access.reload()


@asynccontextmanager
async def guarding(
    folder: Path,
    policy: str = POLICY,
    prepare: Callable[[Host], None] = lambda _host: None,
    host_settings: HostSettings | None = None,
    **settings: Any,  # noqa: ANN401 - any of AccessSettings
) -> AsyncIterator[Guarded]:
    """Serve a new host under a policy until the block ends. `prepare` runs before, while everything is allowed."""
    policy_file, tokens_file = folder / "policy.toml", folder / "tokens"
    policy_file.write_text(policy, "utf-8")
    tokens_file.write_text(HEAD, "utf-8")
    clock = SystemClock()
    host = Host(Engine(EngineLimits(), clock.now_ms()), clock, host_settings or HostSettings())
    prepare(host)
    given = AccessSettings(policy_file=policy_file, tokens_file=tokens_file, **settings)
    access = Access(given, host.sessions.accounts, lambda _context: "")
    await access.start()
    server, port = await start_server(host, identify=access.identify)
    fresh = asyncio.create_task(access.keep_fresh())
    try:
        yield Guarded(host, access, folder, port)
    finally:
        fresh.cancel()
        await server.stop(0)
        await host.stop()
