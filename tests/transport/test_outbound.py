"""Host names of servers that the daemon calls are resolved on threads that nothing waits for at exit."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from purgatory import threads
from purgatory.service.transport.outbound import system_addresses
from tests.kit.eventually import eventually


async def test_names_are_looked_up_by_the_system() -> None:
    assert "127.0.0.1" in await system_addresses("localhost", 80)
    for name in ("a..b", "x" * 64 + ".example", "no.such.name.invalid"):
        with pytest.raises(OSError, match=r"\w"):
            await system_addresses(name, 80)


async def test_lookups_that_hang_are_limited_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the maximum number of lookups hangs, further ones are refused; afterwards they work."""
    answered = threading.Event()
    hanging = threading.Semaphore(0)

    def hang(*_: object, **__: object) -> Any:  # noqa: ANN401 - as in the function that it replaces
        hanging.release()
        answered.wait(30)
        return []

    monkeypatch.setattr(threads, "BLOCKING_CALLS_MAX", 2)
    monkeypatch.setattr(threads, "_blocking_calls", set())
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    lookups = [asyncio.ensure_future(system_addresses("hangs.example", 80)) for _ in range(2)]
    for _ in lookups:
        assert await asyncio.to_thread(hanging.acquire, timeout=30)
    for lookup in lookups:
        lookup.cancel()
    with pytest.raises(OSError, match="2 other blocking calls are running"):
        await system_addresses("c.example", 80)
    answered.set()

    async def is_free() -> bool:
        return await system_addresses("d.example", 80) == []

    await eventually(is_free, "a lookup is allowed again", but=OSError)
