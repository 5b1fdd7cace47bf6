"""Shards on two hosts: each shard is a pair of daemons, one on each host, and all of them write to one log.

The hosts are two addresses of this machine. `make fleet-crash ARGS="--shards 4"` runs it with four shards.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from purgatory_client import AsyncClient, errors
from purgatory_client.unary import shards_of

from examples.free_ports import free_ports
from purgatory.replicated_log.open_log import open_log
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.fleet.audit import check_files
from tests.fleet.shard_daemons import client_of, first_answer
from tests.kit.commands import fleet_command
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.fleet import Member

HOSTS: Final = ("127.0.0.2", "127.0.0.3")
SILENCE: Final = ("--fleet-silence-ms", "3000")
MARK: Final = "orders-0"


class HostRun:
    """Starts the daemons, and starts again what has ended, unless it was taken down. `run` does everything."""

    def __init__(self, folder: Path, log_uri: str, shards: int) -> None:
        self._folder: Final = folder
        self._log_uri: Final = log_uri
        ports = iter(free_ports(shards * len(HOSTS)))
        self._places: Final = [[f"{host}:{next(ports)}" for host in HOSTS] for _ in range(shards)]
        self.targets: Final = [",".join(places) for places in self._places]
        self._pairs: Final[list[list[Member]]] = [[] for _ in range(shards)]
        self._down: Final[set[Member]] = set()

    async def run(self) -> int:
        """Return the number of groups in the log. What a fleet promises is asserted."""
        supervisor = asyncio.create_task(self._supervise())
        try:
            await self._start()
            await self._check_topology()
            async with contextlib.AsyncExitStack() as stack:
                # All of them know shard 0 only, before they ask.
                found = [
                    await client_of(n, len(self.targets), self.targets[0], give_up_after=None)
                    for n in range(len(self.targets))
                ]
                clients = [await stack.enter_async_context(client) for client in found]
                await self._lose_a_host(clients)
                await self._hand_over(clients)
        finally:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)
            for member in self._members():
                member.end()
        return sum(self._audit(shard) for shard in range(len(self.targets)))

    def _members(self) -> list[Member]:
        return [member for pair in self._pairs for member in pair]

    async def _supervise(self) -> None:
        while True:
            for member in self._members():
                if member not in self._down:
                    member.start_if_ended()
            await asyncio.sleep(0.05)

    async def _start(self) -> None:
        for host in range(len(HOSTS)):
            for shard, pair in enumerate(self._pairs):
                flags = (*SILENCE, "--fleet-targets", " ".join(self.targets), "--fleet-shard", str(shard))
                name, place = f"{shard}{'ab'[host]}", self._places[shard][host]
                pair.append(Member(name, self._folder, self._log_uri, flags, grpc_address=place))
            for shard, pair in enumerate(self._pairs):
                await asyncio.to_thread(pair[host].until, "/readyz")
                await self._leader(shard)

    async def _leader(self, shard: int, *others: Member) -> Member:
        """The daemon that leads a shard, once there is one that is not among the others."""
        found: Member | None = None

        async def leads() -> bool:
            nonlocal found
            for member in self._pairs[shard]:
                if member not in others and await asyncio.to_thread(member.answers, "/leaderz"):
                    found = member
            return found is not None

        await eventually(leads, f"a daemon leads shard {shard}")
        assert found is not None
        return found

    async def _check_topology(self) -> None:
        """Leaders and standbys know all shards, and which is their own."""
        for shard, pair in enumerate(self._pairs):
            for member in pair:
                known = await asyncio.to_thread(
                    first_answer, member.grpc_address, "GetTopology", wire.GetTopologyRequest()
                )
                assert (known.shards, list(known.targets), known.shard) == (len(self.targets), self.targets, shard)

    async def _lose_a_host(self, clients: list[AsyncClient]) -> None:
        """With all daemons of either host killed, each shard continues on the other one."""
        waiting = await self._wait_for(clients, 1)
        for host in range(len(HOSTS)):
            await self._take_down([pair[host] for pair in self._pairs])
            for shard in range(len(self._pairs)):
                await self._leader(shard)
            await self._bring_back()
        assert not any(one.done() for one in waiting)
        await _advance(clients[-1], 1, waiting)

    async def _hand_over(self, clients: list[AsyncClient]) -> None:
        """`purgatory fleet handover` lets the other daemon of one shard lead; with `--balance`, the first of each shard
        leads again. No wait ends.
        """
        waiting = await self._wait_for(clients, 2)
        for shard, target in enumerate(self.targets):
            leader = await self._leader(shard)
            while await asyncio.to_thread(fleet_command, ["handover", "--address", target]) != 0:
                leader = await self._leader(shard)  # on a busy machine, the standby may just have taken over
            await self._leader(shard, leader)
        await self._bring_back()
        await asyncio.to_thread(fleet_command, ["handover", "--balance", "--address", self.targets[0]])
        for first, _ in self._pairs:
            await asyncio.to_thread(first.until, "/leaderz")
        assert not any(one.done() for one in waiting)
        await _advance(clients[0], 2, waiting)

    async def _wait_for(self, clients: list[AsyncClient], offset: int) -> "list[asyncio.Task[bool]]":
        """Begin a wait in each shard; returns when all of them are registered."""

        async def wait(client: AsyncClient) -> bool:
            return (await client.produce({MARK: offset}, timeout=600)).satisfied

        async def all_wait() -> bool:
            try:
                names = [await one.hot_names() for one in await shards_of(clients[0])]
            except errors.Unavailable:
                return False
            return [one.watched for found in names for one in found if one.name == MARK] == [1] * len(clients)

        waiting = [asyncio.create_task(wait(client)) for client in clients]
        await eventually(all_wait, "each shard has a wait")
        return waiting

    async def _take_down(self, members: list[Member]) -> None:
        self._down.update(members)
        for member in members:
            await asyncio.to_thread(member.end)

    async def _bring_back(self) -> None:
        self._down.clear()
        for member in self._members():
            await asyncio.to_thread(member.until, "/readyz")

    def _audit(self, shard: int) -> int:
        """Compare the files of a shard with its part of the log; returns the number of groups."""
        with contextlib.closing(open_log(self._log_uri, shard)) as log:
            return check_files(log, [self._folder / f"{shard}{host}" for host in "ab"])


async def _advance(client: AsyncClient, offset: int, waiting: "list[asyncio.Task[bool]]") -> None:
    """Send a mark until all shards have answered; all waits must end."""

    async def is_sent() -> bool:
        with contextlib.suppress(errors.Unavailable):
            await client.advance(MARK, high_watermark=offset)
            return True
        return False

    await eventually(is_sent, "all shards have answered")
    assert all(await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S))
