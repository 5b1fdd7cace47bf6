"""Connections of webhooks: a host is resolved, its addresses are checked, and one of just these is connected to.

The HTTP library is given the connection, so it has no chance to resolve the name a second time and get another answer.
TLS still checks the certificate against the name.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpcore

from purgatory.service.webhooks.callback_rules import CallbackRules

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host, the preferred one first. Raises OSError."""

RESOLVER_THREADS: Final = 8


class SystemResolver:
    """Asks the system, on threads of its own: a name server that hangs must not keep those of others busy."""

    def __init__(self) -> None:
        self._threads: Final = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="webhook names")

    async def __call__(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _addresses, host, port)
        return list(dict.fromkeys(found))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _addresses(host: str, port: int) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class PinnedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to addresses that `rules` allow. Raises `CallbackNotAllowed` and what httpcore's own does."""

    def __init__(self, rules: CallbackRules, resolve: Resolve) -> None:
        self._rules: Final = rules
        self._resolve: Final = resolve
        self._network: Final = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as the library calls it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} has no address: {error.strerror or error}") from error
        failed: httpcore.ConnectError | None = None
        for address in self._rules.allowed_addresses(host, addresses):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                failed = error
        assert failed is not None, f"no address of {host} was tried"
        raise failed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
