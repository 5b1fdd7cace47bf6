"""The leader: takes appends, serves fetches, and keeps no wait of its own.

What must be waited for is a delayed operation at the daemon; what happens here is sent to it as events:

    append with acks=all          LEADER_APPEND, then DelayedProduce for the offset after the record
    follower fetch                FOLLOWER_PROGRESS; at the log end a DelayedFetch with its replica id
    consumer fetch                DelayedFetch for min_bytes below the high watermark, unless they are there
    delete records                LOG_START_OFFSET, then DelayedDeleteRecords until every replica has followed

The daemon computes the high watermark; the leader only knows the highest that it has been told, which is always safe:
below it everything is on all in-sync replicas, and nothing above it is ever shown to a consumer.
"""

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from purgatory_client import AsyncClient, PartitionResult, Result, events
from purgatory_client.errors import PurgatoryClientError

from examples.replicated_log.child import Starter, run_child, say
from examples.replicated_log.event_queue import EventQueue
from examples.replicated_log.membership import Membership, UnknownReplica
from examples.replicated_log.segments import OffsetOutOfRange, SegmentedLog
from examples.replicated_log.wait_ledger import WaitLedger, Waits
from examples.replicated_log.wire import LOOPBACK, Message, encode_message, read_message

LEADER_EPOCH: Final = 1
MIN_IN_SYNC: Final = 2
CONSUMER: Final = -1
"""In place of a replica id, as in Kafka."""

# Kafka's error codes, as far as this leader gives them.
NONE: Final = 0
UNKNOWN_SERVER_ERROR: Final = -1
OFFSET_OUT_OF_RANGE: Final = 1
NOT_ENOUGH_REPLICAS: Final = 19

Answer = Coroutine[Any, Any, Message]


class Leader:
    def __init__(
        self, client: AsyncClient, partition: str, log: SegmentedLog, leader_id: int, followers: list[int]
    ) -> None:
        self._log = log
        self._partition = partition
        self._ledger = WaitLedger()
        self._waits = Waits(client, partition, self._ledger)
        self._queue = EventQueue(client)
        self._membership = Membership(client, self._queue, partition, leader_id, followers, LEADER_EPOCH)
        self._high_watermark = log.log_start_offset
        self._connections: dict[int, asyncio.StreamWriter] = {}
        self._calls: dict[str, Callable[[dict[str, Any], bytes], Answer]] = {
            "append": self._append,
            "follower_fetch": self._follower_fetch,
            "consumer_fetch": self._consumer_fetch,
            "delete_records": self._delete_records,
            "report": self._report,
        }

    async def serve(self) -> None:
        """Serves on a free port, said to the starter, until cancelled. Ends with an error if the daemon fails it."""
        self._membership.begin(MIN_IN_SYNC)
        self._tell_log_end()
        server = await asyncio.start_server(self._serve_connection, LOOPBACK, 0)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._queue.run())
                group.create_task(self._membership.watch_lag())
                await self._queue.applied()
                say("ready", port=server.sockets[0].getsockname()[1])
        finally:
            server.close()
            self._log.close()

    # One connection: requests are begun in the order they come; answers go out as they are ready.

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers: set[asyncio.Task[None]] = set()
        try:
            while (request := await read_message(reader)) is not None:
                asker = request.header.get("replica_id", CONSUMER)
                if asker in self._membership.follower_ids:
                    self._connections[asker] = writer
                answer = self._calls[request.header["call"]](request.header, request.body)
                task = asyncio.create_task(self._answer(writer, request.header["id"], answer))
                answers.add(task)
                task.add_done_callback(answers.discard)
        finally:
            for task in answers:
                task.cancel()  # nobody is left to be answered: cancels the waits at the daemon too
            for replica_id in [known for known, its_writer in self._connections.items() if its_writer is writer]:
                self._membership.lost(replica_id)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, request_id: int, answer: Answer) -> None:
        try:
            message = await answer
        except OffsetOutOfRange as error:
            message = Message(self._offsets(OFFSET_OUT_OF_RANGE) | {"message": str(error)})
        except (PurgatoryClientError, UnknownReplica) as error:
            message = Message(self._offsets(UNKNOWN_SERVER_ERROR) | {"message": repr(error)})
        writer.write(encode_message(Message(message.header | {"id": request_id}, message.body)))
        with contextlib.suppress(ConnectionError):  # it has gone; its connection's reader sees that too
            await writer.drain()

    # The calls. What must happen in the order of arrival is done before the coroutine is returned.

    def _append(self, request: dict[str, Any], payload: bytes) -> Answer:
        if len(self._membership.in_sync) < MIN_IN_SYNC:
            return self._refuse(NOT_ENOUGH_REPLICAS)
        offset = self._log.append(payload)
        self._tell_log_end()
        return self._acknowledge(offset, request["timeout_ms"])

    async def _acknowledge(self, offset: int, timeout_ms: int) -> Message:
        reached = self._learn(await self._waits.produce(offset + 1, timeout_ms, LEADER_EPOCH))
        return Message(self._offsets(reached.error_code) | {"offset": offset})

    async def _follower_fetch(self, request: dict[str, Any], _: bytes) -> Message:
        offset, replica_id = request["offset"], request["replica_id"]
        if offset < self._log.log_start_offset:
            raise OffsetOutOfRange(
                f"replica {replica_id} wants {offset}, the log starts at {self._log.log_start_offset}"
            )
        await self._membership.fetched(
            replica_id, offset, request["log_start_offset"], self._log.log_end_offset, self._high_watermark
        )
        if offset == self._log.log_end_offset:
            await self._queue.applied()  # first the daemon must know of this log end
            self._learn(await self._waits.fetch(offset, request["wait_ms"], min_bytes=1, replica_id=replica_id))
        return Message(self._offsets(NONE), self._log.read(offset, self._log.log_end_offset, request["bytes_max"]))

    async def _consumer_fetch(self, request: dict[str, Any], _: bytes) -> Message:
        offset, bytes_max = request["offset"], request["bytes_max"]
        records = self._log.read(offset, self._high_watermark, bytes_max)
        if len(records) < request["min_bytes"]:
            self._learn(await self._waits.fetch(offset, request["wait_ms"], request["min_bytes"]))
            records = self._log.read(offset, self._high_watermark, bytes_max)
        return Message(self._offsets(NONE), records)

    async def _delete_records(self, request: dict[str, Any], _: bytes) -> Message:
        offset = request["offset"]
        if offset > self._high_watermark:
            raise OffsetOutOfRange(f"{offset} is above the high watermark {self._high_watermark}")
        self._log.trim(offset)
        self._queue.push(events.log_start_offset(self._partition, offset, leader_epoch=LEADER_EPOCH))
        await self._queue.applied()
        deleted = (await self._waits.delete_records(offset, request["timeout_ms"])).partitions[self._partition]
        return Message(self._offsets(deleted.error_code) | {"low_watermark": deleted.reached_offset})

    async def _report(self, _: dict[str, Any], __: bytes) -> Message:
        state = {"in_sync": self._membership.in_sync, "open": self._ledger.open_count}
        return Message(self._offsets(NONE) | state, self._ledger.to_json())

    async def _refuse(self, error: int) -> Message:
        return Message(self._offsets(error))

    # Events to the daemon, marks from it.

    def _tell_log_end(self) -> None:
        end = self._log.end_position
        self._queue.push(
            events.log_end_offset(
                self._partition,
                end.log_end_offset,
                byte_position=end.byte_position,
                segment_base_offset=end.segment_base_offset,
                leader_epoch=LEADER_EPOCH,
            )
        )

    def _learn(self, result: Result) -> PartitionResult:
        partition = result.partitions[self._partition]
        heard = partition.reached_offset if partition.fetched is None else partition.fetched.high_watermark
        self._high_watermark = max(self._high_watermark, heard)
        return partition

    def _offsets(self, error: int) -> dict[str, Any]:
        return {
            "error": error,
            "high_watermark": self._high_watermark,
            "log_start_offset": self._log.log_start_offset,
            "log_end_offset": self._log.log_end_offset,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--daemon", required=True, help="address of the purgatory daemon")
    parser.add_argument("--partition", required=True, help="topic-partition")
    parser.add_argument("--directory", required=True, type=Path, help="where the log's files are")
    parser.add_argument("--id", required=True, type=int, help="this replica's id")
    parser.add_argument("--followers", required=True, type=int, nargs="+", help="the other replicas' ids")
    options = parser.parse_args()

    async def lead(_: Starter) -> None:
        async with AsyncClient(options.daemon) as client:
            log = SegmentedLog(options.directory)
            await Leader(client, options.partition, log, options.id, options.followers).serve()

    run_child(lead)


if __name__ == "__main__":
    main()
