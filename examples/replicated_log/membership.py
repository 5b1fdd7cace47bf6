"""Who is in sync: the controller's part, here played by the leader.

A follower leaves the set when its connection ends or it has not caught up for long; it is then also reported as fenced,
so that it no longer holds the high watermark back. It joins again once it has all that is committed. That test must not
race with the high watermark, so the grown set is first *proposed*: from then on the joiner holds the high watermark
back, and what the daemon then says of it can be compared with the joiner's log end.
"""

import asyncio
import time
from typing import Final

from purgatory_client import AsyncClient, events

from examples.replicated_log.daemon_link import EventQueue

LAG_SECONDS_MAX: Final = 10.0


class Follower:
    def __init__(self) -> None:
        self.log_end = -1
        self.gone = False
        self._caught_up_at = self._fetched_at = time.monotonic()
        self._leader_end_then = 0

    def fetched(self, log_end: int, leader_log_end: int) -> None:
        """It has caught up now if it has all there is now, or at its last fetch if it has all there was then."""
        now = time.monotonic()
        if log_end >= leader_log_end:
            self._caught_up_at = now
        elif log_end >= self._leader_end_then:
            self._caught_up_at = max(self._caught_up_at, self._fetched_at)
        self.log_end, self._fetched_at, self._leader_end_then = log_end, now, leader_log_end
        self.gone = False

    @property
    def lag_seconds(self) -> float:
        """Seconds since it last had everything."""
        return time.monotonic() - self._caught_up_at


class Membership:
    """The in-sync set of one partition and the daemon's knowledge of it."""

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
        self._proposed: list[int] | None = None
        self.in_sync = sorted([leader_id, *follower_ids])

    def begin(self, min_in_sync: int) -> None:
        """Tell the daemon who leads, who follows, and how many must be in sync for a write to be acknowledged."""
        self._queue.push(
            events.leadership(
                self._partition,
                is_leader=True,
                leader_id=self._leader_id,
                replica_ids=self.in_sync,
                epoch_start_offset=0,
                leader_epoch=self._epoch,
            ),
            events.in_sync_replicas(
                self._partition,
                self.in_sync,
                leader_id=self._leader_id,
                min_in_sync_replicas=min_in_sync,
                leader_epoch=self._epoch,
            ),
            events.signalled(in_sync_key(self._partition, self.in_sync)),
        )

    async def fetched(
        self, replica_id: int, log_end: int, log_start: int, leader_log_end: int, high_watermark: int
    ) -> None:
        """A follower has asked for `log_end`: it holds all below. Report that, and let it join if it may."""
        self._followers[replica_id].fetched(log_end, leader_log_end)
        self._queue.push(
            events.follower_progress(
                self._partition, replica_id, log_end, log_start_offset=log_start, leader_epoch=self._epoch
            )
        )
        if replica_id not in self.in_sync and log_end >= high_watermark:
            await self._try_join(replica_id)

    def lost(self, replica_id: int) -> None:
        """A follower's connection has ended: it leaves the in-sync set at once, and waits go on without it."""
        self._followers[replica_id].gone = True
        self._leave(replica_id)

    async def watch_lag(self) -> None:
        """Remove followers that have not caught up for LAG_SECONDS_MAX, until cancelled."""
        while True:
            await asyncio.sleep(LAG_SECONDS_MAX / 2)
            for replica_id, follower in self._followers.items():
                if follower.lag_seconds > LAG_SECONDS_MAX and replica_id in self.in_sync:
                    self._leave(replica_id)

    def _leave(self, replica_id: int) -> None:
        self._push_state(replica_id, fenced=True)
        if replica_id in self.in_sync:
            self._commit([other for other in self.in_sync if other != replica_id])

    async def _try_join(self, replica_id: int) -> None:
        if self._proposed is not None:
            return  # one change at a time
        before, follower = self.in_sync, self._followers[replica_id]
        self._proposed = sorted([*before, replica_id])
        self._push_state(replica_id, fenced=False)
        self._push_set(before, self._proposed)
        try:
            await self._queue.applied()
            high_watermark = (await self._client.partition(self._partition)).high_watermark
        finally:
            proposed, self._proposed = self._proposed, None
        if self.in_sync is before and not follower.gone and follower.log_end >= high_watermark:
            self._commit(proposed)
        else:
            self._push_state(replica_id, fenced=True)
            self._push_set(self.in_sync)

    def _commit(self, in_sync: list[int]) -> None:
        self.in_sync = in_sync
        self._push_set(in_sync)
        self._queue.push(events.signalled(in_sync_key(self._partition, in_sync)))

    def _push_state(self, replica_id: int, *, fenced: bool) -> None:
        dead = self._followers[replica_id].gone
        self._queue.push(
            events.replica_state(self._partition, replica_id, dead=dead, fenced=fenced, leader_epoch=self._epoch)
        )

    def _push_set(self, in_sync: list[int], proposed: list[int] | None = None) -> None:
        self._queue.push(
            events.in_sync_replicas(self._partition, in_sync, proposed=proposed or [], leader_epoch=self._epoch)
        )


def in_sync_key(partition: str, in_sync: list[int]) -> str:
    """The key that is signalled each time exactly these replicas have become the in-sync set."""
    return f"{partition}/in-sync/{'-'.join(map(str, in_sync))}"
