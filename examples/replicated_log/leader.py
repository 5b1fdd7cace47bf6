"""The leader: accepts appends, serves fetches, and has no timers or wait lists of its own.

Each request that must wait becomes a delayed operation at the daemon, and every change is sent as an event:

    append with acks=all          LEADER_APPEND, then DelayedProduce for the offset after the record; for a record that
                                  its producer sent before, only the wait
    follower fetch                FOLLOWER_PROGRESS; at the log end a DelayedFetch with the replica's id
    consumer fetch                DelayedFetch for min_bytes, unless enough is below the high watermark
    delete records                LOG_START_OFFSET, then DelayedDeleteRecords until every replica has followed

The daemon computes the high watermark. The leader knows only the highest value that a result contained. That value may
be old, which is safe: everything below it is on all in-sync replicas, and consumers never see anything above it.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio
from purgatory_client import AsyncClient, PartitionResult, Result, events

from examples.replicated_log.daemon_link import EventQueue, WaitLedger
from examples.replicated_log.log_file import LogFile, OffsetOutOfRange
from examples.replicated_log.membership import Membership
from examples.replicated_log.wire import LOOPBACK, OPTIONS, SERVICE, Context, Message, call_handler, stream_handler

EPOCH: Final = 1
MIN_IN_SYNC: Final = 2
NOT_ENOUGH_REPLICAS: Final = 19
"""Kafka's error code."""
OUT_OF_ORDER_SEQUENCE: Final = 45
"""Kafka's error code: a record before this one has not arrived."""


class Leader:
    """The leader of one partition. If the daemon refuses an event, the task group of `queue` fails."""

    def __init__(
        self,
        client: AsyncClient,
        queue: EventQueue,
        membership: Membership,
        partition: str,
        log: LogFile,
        ledger: WaitLedger | None = None,
    ) -> None:
        self._client = client
        self._queue = queue
        self._membership = membership
        self._partition = partition
        self._log = log
        self._high_watermark = log.log_start_offset
        self._server: Final = grpc.aio.server(options=OPTIONS)
        self._sequences: dict[int, list[int]] = {}
        """For each producer, the offsets of its records by sequence number. A broker keeps only the last few."""
        self.ledger: Final = ledger or WaitLedger()
        self.duplicates = 0
        """Records that were not appended, because their producer had sent them before."""

    async def start(self) -> int:
        """Serve on a free port of loopback; returns the port."""
        self._membership.begin(MIN_IN_SYNC)
        self._report_log_end()
        handlers = {
            "append": stream_handler(self._append),
            "follower_fetch": stream_handler(self._follower_fetch),
            "consumer_fetch": call_handler(self._consumer_fetch),
            "delete_records": call_handler(self._delete_records),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        port = self._server.add_insecure_port(f"{LOOPBACK}:0")
        await self._queue.applied()
        await self._server.start()
        return port

    async def stop(self) -> None:
        await self._server.stop(None)
        self._log.close()

    # A caller that disconnects cancels its handler, and with it the wait at the daemon.

    async def _append(self, requests: AsyncIterator[Message], context: Context) -> None:
        """Append records in the order received; acknowledge each one when its wait ends."""
        writing = asyncio.Lock()

        async def acknowledge(offset: int, sequence: int | None, timeout_s: float) -> None:
            wait = self._client.produce({self._partition: offset + 1}, timeout=timeout_s, leader_epochs=EPOCH)
            reached = self._learn(await self.ledger.record("produce", wait))
            async with writing:
                await context.write(self._answer({"offset": offset, "sequence": sequence, "error": reached.error_code}))

        async with asyncio.TaskGroup() as group:
            async for request in requests:
                if len(self._membership.in_sync) < MIN_IN_SYNC:
                    async with writing:
                        await context.write(self._answer({"offset": -1, "error": NOT_ENOUGH_REPLICAS}))
                    continue
                sequence = request.fields.get("sequence")
                offset = self._append_once(request)
                if offset is None:
                    async with writing:
                        await context.write(self._answer({"sequence": sequence, "error": OUT_OF_ORDER_SEQUENCE}))
                    continue
                group.create_task(acknowledge(offset, sequence, request.fields["timeout_s"]))

    def _append_once(self, request: Message) -> int | None:
        """Append a record, unless its producer numbers its records and this one is known. Returns the offset, or None
        if a record before it is missing.
        """
        known = None
        if "producer_id" in request.fields:
            sequence: int = request.fields["sequence"]
            known = self._sequences.setdefault(request.fields["producer_id"], [])
            if sequence > len(known):
                return None
            if sequence < len(known):
                self.duplicates += 1
                return known[sequence]
        offset = self._log.append(request.body)
        self._report_log_end()
        if known is not None:
            known.append(offset)
        return offset

    async def _follower_fetch(self, requests: AsyncIterator[Message], _: Context) -> AsyncIterator[Message]:
        """Serve one follower, fetch by fetch. The end of the stream means that the follower is gone."""
        replica_id = None
        try:
            async for request in requests:
                replica_id, offset = request.fields["replica_id"], request.fields["offset"]
                log_start = request.fields["log_start_offset"]
                await self._membership.fetched(replica_id, offset, log_start, self._high_watermark)
                if offset == self._log.log_end_offset:
                    await self._queue.applied()  # otherwise the daemon may not know this log end yet
                    await self._wait_to_fetch(request, replica_id=replica_id)
                yield self._answer({}, self._log.read(offset, self._log.log_end_offset, request.fields["bytes_max"]))
        finally:
            if replica_id is not None:
                self._membership.lost(replica_id)

    async def _consumer_fetch(self, request: Message, _: Context) -> Message:
        offset, bytes_max = request.fields["offset"], request.fields["bytes_max"]
        records = self._log.read(offset, self._high_watermark, bytes_max)
        if len(records) < request.fields["min_bytes"]:
            await self._wait_to_fetch(request, min_bytes=request.fields["min_bytes"])
            records = self._log.read(offset, self._high_watermark, bytes_max)
        return self._answer({}, records)

    async def _delete_records(self, request: Message, _: Context) -> Message:
        offset = request.fields["offset"]
        if offset > self._high_watermark:
            raise OffsetOutOfRange(f"{offset} is above the high watermark {self._high_watermark}")
        self._log.trim(offset)
        self._queue.push(events.log_start_offset(self._partition, offset, leader_epoch=EPOCH))
        await self._queue.applied()
        wait = self._client.delete_records({self._partition: offset}, timeout=request.fields["timeout_s"])
        deleted = (await self.ledger.record("delete_records", wait)).partitions[self._partition]
        return self._answer({"error": deleted.error_code, "low_watermark": deleted.reached_offset})

    async def _wait_to_fetch(self, request: Message, min_bytes: int = 1, replica_id: int | None = None) -> None:
        """Wait for bytes: up to the high watermark, or for a follower (`replica_id`) up to the log end."""
        offsets, timeout = {self._partition: request.fields["offset"]}, request.fields["wait_s"]
        wait = self._client.fetch(offsets, min_bytes=min_bytes, timeout=timeout, replica_id=replica_id)
        self._learn(await self.ledger.record("fetch", wait))

    def _report_log_end(self) -> None:
        log = self._log
        self._queue.push(
            events.log_end_offset(
                self._partition,
                log.log_end_offset,
                byte_position=log.byte_position,
                segment_base_offset=0,
                leader_epoch=EPOCH,
            )
        )

    def _learn(self, result: Result) -> PartitionResult:
        """Take the high watermark from a result. Results may arrive out of order, hence the maximum."""
        partition = result.partitions[self._partition]
        mark = partition.reached_offset if partition.fetched is None else partition.fetched.high_watermark
        self._high_watermark = max(self._high_watermark, mark)
        return partition

    def _answer(self, fields: dict[str, Any], body: bytes = b"") -> Message:
        marks = {"high_watermark": self._high_watermark, "log_start_offset": self._log.log_start_offset}
        return Message(marks | fields, body)
