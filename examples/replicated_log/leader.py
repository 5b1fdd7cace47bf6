"""The leader: takes appends, serves fetches, and keeps no wait of its own.

What must be waited for is a delayed operation at the daemon; what happens here is sent to it as events:

    append with acks=all          LEADER_APPEND, then DelayedProduce for the offset after the record
    follower fetch                FOLLOWER_PROGRESS; at the log end a DelayedFetch with its replica id
    consumer fetch                DelayedFetch for min_bytes below the high watermark, unless they are there
    delete records                LOG_START_OFFSET, then DelayedDeleteRecords until every replica has followed

The daemon computes the high watermark; the leader only knows the highest that a result brought, which is always safe:
below it everything is on all in-sync replicas, and nothing above it is ever shown to a consumer.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc.aio
from purgatory_client import AsyncClient, PartitionResult, Result, events

from examples.replicated_log.child import Starter, run_child, say
from examples.replicated_log.daemon_link import EventQueue, WaitLedger
from examples.replicated_log.log_file import LogFile, OffsetOutOfRange
from examples.replicated_log.membership import Membership
from examples.replicated_log.wire import LOOPBACK, OPTIONS, SERVICE, Context, Message, call_handler, stream_handler

LEADER_EPOCH: Final = 1
MIN_IN_SYNC: Final = 2
NOT_ENOUGH_REPLICAS: Final = 19
"""Kafka's error code."""


class Leader:
    """The leader of one partition. An error in a call is gRPC's to report; one of the daemon ends the group."""

    def __init__(
        self, client: AsyncClient, queue: EventQueue, membership: Membership, partition: str, log: LogFile
    ) -> None:
        self._client = client
        self._queue = queue
        self._membership = membership
        self._partition = partition
        self._log = log
        self._ledger = WaitLedger()
        self._high_watermark = log.log_start_offset

    async def serve(self) -> None:
        """Serve on a free port, said to the starter, until cancelled."""
        self._membership.begin(MIN_IN_SYNC)
        self._report_log_end()
        server = grpc.aio.server(options=OPTIONS)
        handlers = {
            "append": stream_handler(self._append),
            "follower_fetch": stream_handler(self._follower_fetch),
            "consumer_fetch": call_handler(self._consumer_fetch),
            "delete_records": call_handler(self._delete_records),
            "report": call_handler(self._report),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        port = server.add_insecure_port(f"{LOOPBACK}:0")
        await self._queue.applied()
        await server.start()
        say("ready", port=port)
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(None)
            self._log.close()

    # The calls. A caller that goes away cancels its call, and with it the wait at the daemon.

    async def _append(self, requests: AsyncIterator[Message], context: Context) -> None:
        """Records are appended in the order in which they come, and acknowledged as their waits end."""
        writing = asyncio.Lock()

        async def acknowledge(offset: int, timeout_s: float) -> None:
            wait = self._client.produce({self._partition: offset + 1}, timeout=timeout_s, leader_epochs=LEADER_EPOCH)
            reached = self._learn(await self._ledger.entered("produce", wait))
            async with writing:
                await context.write(self._answer({"offset": offset, "error": reached.error_code}))

        async with asyncio.TaskGroup() as group:
            async for request in requests:
                if len(self._membership.in_sync) < MIN_IN_SYNC:
                    async with writing:
                        await context.write(self._answer({"offset": -1, "error": NOT_ENOUGH_REPLICAS}))
                    continue
                offset = self._log.append(request.body)
                self._report_log_end()
                group.create_task(acknowledge(offset, request.fields["timeout_s"]))

    async def _follower_fetch(self, requests: AsyncIterator[Message], _: Context) -> AsyncIterator[Message]:
        """One fetch after the other. When the stream ends, the follower has gone."""
        replica_id = None
        try:
            async for request in requests:
                replica_id, offset = request.fields["replica_id"], request.fields["offset"]
                log_start, log_end = request.fields["log_start_offset"], self._log.log_end_offset
                if offset >= self._log.log_start_offset:
                    await self._membership.fetched(replica_id, offset, log_start, log_end, self._high_watermark)
                    if offset == self._log.log_end_offset:
                        await self._queue.applied()  # first the daemon must know of this log end
                        await self._wait_to_fetch("fetch/follower", request, replica_id=replica_id)
                # Below the log's start, also when it moved meanwhile, there is nothing; the answer says where to go on.
                is_there, end = offset >= self._log.log_start_offset, self._log.log_end_offset
                yield self._answer({}, self._log.read(offset, end, request.fields["bytes_max"]) if is_there else b"")
        finally:
            if replica_id is not None:
                self._membership.lost(replica_id)

    async def _consumer_fetch(self, request: Message, _: Context) -> Message:
        offset, bytes_max = request.fields["offset"], request.fields["bytes_max"]
        records = self._log.read(offset, self._high_watermark, bytes_max)
        if len(records) < request.fields["min_bytes"]:
            await self._wait_to_fetch("fetch/consumer", request, min_bytes=request.fields["min_bytes"])
            records = self._log.read(offset, self._high_watermark, bytes_max)
        return self._answer({}, records)

    async def _delete_records(self, request: Message, _: Context) -> Message:
        offset = request.fields["offset"]
        if offset > self._high_watermark:
            raise OffsetOutOfRange(f"{offset} is above the high watermark {self._high_watermark}")
        self._log.trim(offset)
        self._queue.push(events.log_start_offset(self._partition, offset, leader_epoch=LEADER_EPOCH))
        await self._queue.applied()
        wait = self._client.delete_records({self._partition: offset}, timeout=request.fields["timeout_s"])
        deleted = (await self._ledger.entered("delete_records", wait)).partitions[self._partition]
        return self._answer({"error": deleted.error_code, "low_watermark": deleted.reached_offset})

    async def _report(self, _: Message, __: Context) -> Message:
        state = {"in_sync": self._membership.in_sync, "open": self._ledger.open_count}
        return self._answer(state, self._ledger.to_json())

    # Waits at the daemon, events to it, marks from it.

    async def _wait_to_fetch(
        self, who: str, request: Message, min_bytes: int = 1, replica_id: int | None = None
    ) -> None:
        """As a consumer up to the high watermark, as a follower (`replica_id`) up to the log end."""
        offsets, timeout = {self._partition: request.fields["offset"]}, request.fields["wait_s"]
        wait = self._client.fetch(offsets, min_bytes=min_bytes, timeout=timeout, replica_id=replica_id)
        self._learn(await self._ledger.entered(who, wait))

    def _report_log_end(self) -> None:
        self._queue.push(
            events.log_end_offset(
                self._partition,
                self._log.log_end_offset,
                byte_position=self._log.byte_size,
                segment_base_offset=0,
                leader_epoch=LEADER_EPOCH,
            )
        )

    def _learn(self, result: Result) -> PartitionResult:
        partition = result.partitions[self._partition]
        heard = partition.reached_offset if partition.fetched is None else partition.fetched.high_watermark
        self._high_watermark = max(self._high_watermark, heard)
        return partition

    def _answer(self, fields: dict[str, Any], body: bytes = b"") -> Message:
        marks = {"high_watermark": self._high_watermark, "log_start_offset": self._log.log_start_offset}
        return Message(marks | fields, body)


async def lead(_: Starter, daemon: str, partition: str, directory: str, replica_id: int, followers: list[int]) -> None:
    async with AsyncClient(daemon) as client, asyncio.TaskGroup() as group:
        queue = EventQueue(client, group)
        membership = Membership(client, queue, partition, replica_id, followers, LEADER_EPOCH)
        group.create_task(membership.watch_lag())
        await Leader(client, queue, membership, partition, LogFile(Path(directory))).serve()


if __name__ == "__main__":
    run_child(lead)
