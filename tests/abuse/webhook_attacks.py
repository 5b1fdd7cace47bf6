"""Webhook receivers that attack the daemon which calls them.

During each attack, an honest principal has a prompt receiver of its own, which must receive all its webhooks.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.attacks import TOPIC, Attack, Attacker, Target
from tests.abuse.result import Tally

HOSTS: Final = 70
"""More than `webhooks.posts_max`. They have the addresses from 127.0.0.2 on."""
RESULTS: Final = 64
"""Results of each attacking session: as many as the daemon sends at a time."""
HONEST_PER_SECOND: Final = 20
LAST_S: Final = 5.0
"""Maximum delay of the last honest webhooks."""
INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000
INTERIM_COUNT_MAX: Final = 2_000
"""Maximum of these blocks on one connection: 50 MB."""


Receivers = Callable[[contextlib.AsyncExitStack], Awaitable[list[int]]]
"""Starts receivers that end with the stack, and returns their ports. The first is at 127.0.0.2, and so on."""


def ended_waits(ids: range, topic: str) -> wire.RegisterBatch:
    """Waits that expire at once; each results in a webhook."""
    item = operation_pb2.ProducePartition(
        topic_partition=operation_pb2.TopicPartition(topic=topic, partition=0), required_offset=1 << 40
    )
    operations = [
        operation_pb2.Operation(operation_id=number, timeout_ms=0, produce=operation_pb2.Produce(partitions=[item]))
        for number in ids
    ]
    return wire.RegisterBatch(rows=operation_pb2.OperationRows(operations=operations))


class HonestWebhooks:
    """An honest session with a callback, its receiver, and the webhooks received."""

    def __init__(self, address: str) -> None:
        self._caller: Final = Attacker(address, "", channels=1)  # a caller without a credential counts as honest here
        self._url = ""
        self.sent = 0
        self.received: Final[set[bytes]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled at the end of the program, of which Python 3.11 would log a traceback.
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
                await reader.readexactly(int(fields[b"content-length"]))
                self.received.add(fields[b"webhook-id"])
                writer.write(b"HTTP/1.1 204 OK\r\n\r\n")
        writer.close()

    async def send(self) -> None:
        """Cause one webhook."""
        self.sent += 1
        batch = ended_waits(range(self.sent, self.sent + 1), "honest")
        request = wire.RegisterRequest(session_id="honest", batch=batch, callback_url=self._url)
        assert await self._caller.call("Register", request) is not None, f"honest: {self._caller.tally}"

    async def all_received(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while len(self.received) < self.sent:  # noqa: ASYNC110 - a count
                    await asyncio.sleep(0.05)
        return len(self.received) == self.sent

    async def run(self, attack: Receivers, target: Target) -> Tally:
        """Send one webhook before the attack, and `HONEST_PER_SECOND` during it."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server, contextlib.AsyncExitStack() as opened:
            self._url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            await self.send()
            assert await self.all_received(30.0), "no webhook arrives without an attack"
            tally = await name_receivers(target, await attack(opened))
            for _ in range(round(HONEST_PER_SECOND * target.seconds)):
                await self.send()
                await asyncio.sleep(1 / HONEST_PER_SECOND)
            await self.all_received(LAST_S)
            await self._caller.close()
        return tally + Counter(undelivered=self.sent - len(self.received))


async def name_receivers(target: Target, ports: list[int]) -> Tally:
    """Create a session with many webhooks for each receiver."""
    attacker = Attacker(target.grpc, target.token)
    for place, port in enumerate(ports):
        url = f"http://127.0.0.{place + 2}:{port}/"
        batch = ended_waits(range(1, RESULTS + 1), TOPIC)
        await attacker.call(
            "Register", wire.RegisterRequest(session_id=f"r-{place}", batch=batch, callback_url=url), place
        )
    await attacker.close()
    return attacker.tally


async def silent(opened: contextlib.AsyncExitStack) -> list[int]:
    """70 receivers whose connections are accepted by the system and never read."""
    sockets = [
        opened.enter_context(socket.create_server((f"127.0.0.{place + 2}", 0), backlog=512)) for place in range(HOSTS)
    ]
    return [one.getsockname()[1] for one in sockets]


async def endless(opened: contextlib.AsyncExitStack) -> list[int]:
    """Receivers that send interim responses endlessly, as fast as they are read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(INTERIM_COUNT_MAX):
                writer.write(INTERIM)
                await writer.drain()
        writer.close()

    ports: list[int] = []
    for place in range(HOSTS):
        server = await opened.enter_async_context(await asyncio.start_server(serve, f"127.0.0.{place + 2}", 0))
        ports.append(server.sockets[0].getsockname()[1])
    return ports


def with_honest_webhooks(receivers: Receivers) -> Attack:
    """Add honest webhooks to an attack; the tally has the number `undelivered`."""
    return lambda target: HonestWebhooks(target.grpc).run(receivers, target)


ATTACKS: Final[dict[str, Attack]] = {
    "silent-receivers": with_honest_webhooks(silent),
    "endless-receivers": with_honest_webhooks(endless),
}
