"""Short-lived callers: each lives for some seconds, accounts for all its waits, and leaves in its own way."""

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Final

from purgatory_client import AsyncClient, Outcome, Result, waits
from purgatory_client.errors import ClientClosed

from tests.crash.wire_caller import Broken, PushedMarks, WireCaller
from tests.kit.eventually import eventually

PATIENCE_S: Final = 60.0
"""A wait that has not ended after this time is lost: the event that ends it was pushed long before."""
WAIT_S: Final = 45.0
EXPIRES_S: Final = 0.05
NEVER: Final = 2**40
"""An offset that no partition here reaches."""
STEP: Final = 8
BYTES_PER_RECORD: Final = 100


class CallersPlace(ABC):
    """A place in which one caller follows another. The outcomes of their waits are counted in `tally`."""

    def __init__(self, address: str, number: int, seed: int, tally: Counter[str]) -> None:
        self._address: Final = address
        self._number: Final = number
        self._random: Final = random.Random(f"{seed}/{number}")
        self._tally: Final = tally

    async def serve_until(self, ended: asyncio.Event) -> None:
        """Run one caller after another.

        Raises:
            Broken: A caller lost a result, or got one twice.
        """
        while not ended.is_set():
            await self._live()
            self._tally["callers"] += 1

    @abstractmethod
    async def _live(self) -> None:
        """The life of one caller."""


class WireCallersPlace(CallersPlace):
    """Callers that use the protocol directly; their connections break, and they restart in between."""

    def __init__(
        self, address: str, number: int, seed: int, tally: Counter[str], marks: PushedMarks, pace: float
    ) -> None:
        super().__init__(address, number, seed, tally)
        self._marks: Final = marks
        self._pace: Final = pace
        self._lives = 0

    async def _live(self) -> None:
        self._lives += 1
        name = f"churn-{self._number}-{self._lives}"
        caller = WireCaller(name, self._marks, self._random.randrange(2**31))
        for _ in range(self._random.randint(1, 3)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace * self._random.uniform(0.3, 2.0)):
                    await caller.run(self._address)
            self._tally["connections cut"] += 1
            if self._random.random() < 0.5:
                caller.forget()
        if self._random.random() < 0.3:  # never returns: its session is removed with its contents
            self._tally["waits abandoned"] += len(caller.asked) - len(caller.outcomes)
        else:
            await self._finish(caller)
            if self._random.random() < 0.5:
                async with AsyncClient(self._address) as client:
                    await client.close_session(name)
                self._tally["sessions closed"] += 1
        for _, outcome in caller.outcomes.values():
            self._tally[Outcome(outcome).name.lower()] += 1
        self._tally["results sent again"] += caller.repeats

    async def _finish(self, caller: WireCaller) -> None:
        """Stop registering, and stay until everything has ended."""
        caller.is_quiet = True
        running = asyncio.create_task(caller.run(self._address))
        try:
            await eventually(lambda: caller.is_done and not running.done())
        except TimeoutError:
            caller.check_end()  # reports the missing results
        finally:
            running.cancel()
            [error] = await asyncio.gather(running, return_exceptions=True)
        if not isinstance(error, asyncio.CancelledError):
            raise Broken(f"{caller.name} ended by itself") from error
        caller.check_end()


class ClientCallersPlace(CallersPlace):
    """Callers that use the client library: waits of each kind, satisfied, expired, cancelled, or aborted by closing."""

    def __init__(self, address: str, number: int, seed: int, tally: Counter[str]) -> None:
        super().__init__(address, number, seed, tally)
        self._partition: Final = f"churn-{number}"
        self._offset = 0

    async def _live(self) -> None:
        left: list[asyncio.Task[Result]] = []
        async with AsyncClient(self._address, name=self._partition) as client:
            for _ in range(self._random.randint(1, 5)):
                await self._round(client)
            if self._random.random() < 0.5:
                left = [asyncio.create_task(client.produce({self._partition: NEVER})) for _ in range(STEP)]
                await asyncio.sleep(self._random.uniform(0.0, 0.05))
        for seen in await asyncio.gather(*left, return_exceptions=True):
            self._account(isinstance(seen, ClientClosed), "cut off by closing", seen)

    async def _round(self, client: AsyncClient) -> None:
        """Start waits of each kind, and then push the events that end them, which may arrive first."""
        name, start, end = self._partition, self._offset, self._offset + STEP
        self._offset = end
        async with asyncio.timeout(PATIENCE_S):
            appended = [asyncio.create_task(client.produce({name: end - back}, timeout=WAIT_S)) for back in range(STEP)]
            appended += [
                asyncio.create_task(client.fetch({name: start}, timeout=WAIT_S)),
                asyncio.create_task(client.wait_once(waits.produce({name: end}, timeout=WAIT_S))),
                asyncio.create_task(client.wait_once(waits.fetch({name: start}, timeout=WAIT_S))),
            ]
            signalled = asyncio.create_task(client.signal([name], from_now=True, timeout=WAIT_S))
            expiring = [asyncio.create_task(client.produce({name: NEVER}, timeout=EXPIRES_S)) for _ in range(2)]
            cancelled = [asyncio.create_task(client.produce({name: NEVER}, timeout=WAIT_S)) for _ in range(2)]
            await asyncio.sleep(self._random.uniform(0.0, 0.02))
            await client.advance(name, log_end_offset=end, byte_position=end * BYTES_PER_RECORD, high_watermark=end)
            await self._ended(appended, Outcome.SATISFIED)
            # Only now: records above the high watermark cannot be deleted, and the fetches would be out of range.
            deleted = [asyncio.create_task(client.delete_records({name: end}, timeout=WAIT_S))]
            await client.advance(name, log_start_offset=end)
            await self._ended(deleted, Outcome.SATISFIED)
            while not signalled.done():  # a signal that arrives before the wait does not count for it
                await client.signal_key(name)
                await asyncio.sleep(0.01)
            await self._ended([signalled], Outcome.SATISFIED)
            await self._ended(expiring, Outcome.EXPIRED)
            for task in cancelled:
                task.cancel()
            for seen in await asyncio.gather(*cancelled, return_exceptions=True):
                self._account(isinstance(seen, asyncio.CancelledError), "cancelled by the caller", seen)

    async def _ended(self, tasks: Sequence[asyncio.Task[Result]], outcome: Outcome) -> None:
        for seen in await asyncio.gather(*tasks, return_exceptions=True):
            self._account(isinstance(seen, Result) and seen.outcome is outcome, outcome.name.lower(), seen)

    def _account(self, expected: bool, what: str, seen: object) -> None:
        if not expected:
            raise Broken(f"{self._partition}: a wait was to be {what}, and ended with {seen!r}")
        self._tally[what] += 1
