"""Which replicas are in sync. In a real broker this is the controller's part; here the leader plays it.

A follower leaves the set when its connection ends; it is also reported as fenced, so that it no longer holds back the
high watermark. It may rejoin once it has every committed record. That test must not race with the high watermark, so
the larger set is *proposed* first: from then on the joiner holds back the high watermark, and the value that the daemon
returns afterwards can safely be compared with the joiner's log end.
"""

import asyncio
from dataclasses import dataclass, field

from purgatory_client import AsyncClient, events

from examples.replicated_log.daemon_link import EventQueue


@dataclass
class Follower:
    log_end: int = -1
    is_gone: bool = False
    has_fetched: asyncio.Event = field(default_factory=asyncio.Event)


class Membership:
    """The in-sync set of one partition. Every change is reported to the daemon."""

    def __init__(
        self,
        client: AsyncClient,
        queue: EventQueue,
        partition: str,
        leader_id: int,
        follower_ids: list[int],
        epoch: int,
    ) -> None:
        self._client = client
        self._queue = queue
        self._partition = partition
        self._leader_id = leader_id
        self._epoch = epoch
        self._followers = {replica_id: Follower() for replica_id in follower_ids}
        self._is_joining = False
        self.in_sync = sorted([leader_id, *follower_ids])

    def begin(self, min_in_sync: int) -> None:
        """Report the leader, the replicas, and how many must be in sync for a write to be acknowledged."""
        partition, leader_id, epoch = self._partition, self._leader_id, self._epoch
        self._queue.push(
            events.leadership(
                partition,
                is_leader=True,
                leader_id=leader_id,
                replica_ids=self.in_sync,
                epoch_start_offset=0,
                leader_epoch=epoch,
            ),
            events.in_sync_replicas(
                partition, self.in_sync, leader_id=leader_id, min_in_sync_replicas=min_in_sync, leader_epoch=epoch
            ),
            events.signalled(in_sync_key(partition, self.in_sync)),
        )

    async def fetched(self, replica_id: int, log_end: int, log_start: int, high_watermark: int) -> None:
        """A follower asked for offset `log_end`, so it has stored everything below. It rejoins if it may."""
        follower = self._followers[replica_id]
        follower.log_end, follower.is_gone = log_end, False
        follower.has_fetched.set()
        self._queue.push(
            events.follower_progress(
                self._partition, replica_id, log_end, log_start_offset=log_start, leader_epoch=self._epoch
            )
        )
        if replica_id not in self.in_sync and log_end >= high_watermark:
            await self._try_join(replica_id)

    async def all_have_fetched(self) -> None:
        """Wait until every follower has connected. The leader does not notice the end of one that never did."""
        for follower in self._followers.values():
            await follower.has_fetched.wait()

    def lost(self, replica_id: int) -> None:
        """A follower's connection ended: it leaves the set at once, and waits continue without it."""
        self._followers[replica_id].is_gone = True
        self._push_state(replica_id, fenced=True)
        if replica_id in self.in_sync:
            self._commit([other for other in self.in_sync if other != replica_id])

    async def _try_join(self, replica_id: int) -> None:
        if self._is_joining:
            return  # one change at a time
        before, follower = self.in_sync, self._followers[replica_id]
        proposed = sorted([*before, replica_id])
        self._is_joining = True
        self._push_state(replica_id, fenced=False)
        self._push_set(before, proposed)
        try:
            # The order matters: read the high watermark only after the proposal has been applied.
            await self._queue.applied()
            high_watermark = (await self._client.partition(self._partition)).high_watermark
        finally:
            self._is_joining = False
        # Another replica may have left, or this one disconnected, during the two awaits.
        if self.in_sync is before and not follower.is_gone and follower.log_end >= high_watermark:
            self._commit(proposed)
        else:
            self._push_state(replica_id, fenced=True)
            self._push_set(self.in_sync)

    def _commit(self, in_sync: list[int]) -> None:
        self.in_sync = in_sync
        self._push_set(in_sync)
        self._queue.push(events.signalled(in_sync_key(self._partition, in_sync)))

    def _push_state(self, replica_id: int, *, fenced: bool) -> None:
        is_dead = self._followers[replica_id].is_gone
        self._queue.push(
            events.replica_state(self._partition, replica_id, dead=is_dead, fenced=fenced, leader_epoch=self._epoch)
        )

    def _push_set(self, in_sync: list[int], proposed: list[int] | None = None) -> None:
        self._queue.push(
            events.in_sync_replicas(self._partition, in_sync, proposed=proposed or [], leader_epoch=self._epoch)
        )


def in_sync_key(partition: str, in_sync: list[int]) -> str:
    """The key that is signalled each time exactly these replicas become the in-sync set."""
    return f"{partition}/in-sync/{'-'.join(map(str, in_sync))}"
