"""Shards: daemons among which sessions are divided. Each session has its shard; events go to all of them.

A client learns of them by a refusal, so that a daemon without shards costs nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.event_pb2 import EventRows
from purgatory_client.errors import InvalidRequest, PurgatoryClientError
from purgatory_client.wire import sizes

OTHER_SHARD: Final = "OTHER_SHARD"
ALL_SHARDS_NEEDED: Final = "ALL_SHARDS_NEEDED"

Exchange = Callable[[wire.AdvanceStreamRequest], Awaitable[wire.AdvanceReceipt]]


class ShardRefusal(NamedTuple):
    """Why a daemon refused a call because of shards; with OTHER_SHARD, the address of the one to use."""

    reason: str
    target: str


def shard_of(session_id: str, shards: int) -> int:
    return crc32(session_id.encode()) % shards


def shard_refusal(error: BaseException | None) -> ShardRefusal | None:
    """The refusal in a status of gRPC. None: the error has another cause."""
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
        return None
    status = rpc_status.from_call(error)
    for detail in () if status is None else status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.reason in {OTHER_SHARD, ALL_SHARDS_NEEDED}:
            return ShardRefusal(info.reason, info.metadata.get("target", ""))
    return None


async def send_to_all(shards: Sequence[Exchange], request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
    """Send events to all shards; returns once all of them have answered.

    A signal is decided by the shard of its key, and then passed on to the others.

    Raises:
        PurgatoryClientError: Not all of them have. The message names those that have.
    """
    request.all_shards = request.passes_on_decided = True
    failed: dict[int, BaseException] = {}
    receipts = await _exchanged(shards, dict.fromkeys(range(len(shards)), request), failed)
    ended = [sum(counts) for counts in zip(*(one.ended for one in receipts.values()), strict=True)]
    refusals = {refusal.index: refusal for one in receipts.values() for refusal in one.refusals}
    of_others = {
        shard: [
            decided
            for other, one in receipts.items()
            if other != shard
            for decided in zip(one.decided_index, one.decided, strict=True)
        ]
        for shard in receipts
    }
    for start in range(0, max(map(len, of_others.values()), default=0), sizes.DECISIONS_PER_MESSAGE_MAX):
        parts = {shard: found[start : start + sizes.DECISIONS_PER_MESSAGE_MAX] for shard, found in of_others.items()}
        requests = {
            shard: wire.AdvanceStreamRequest(rows=EventRows(events=[event for _, event in part]), all_shards=True)
            for shard, part in parts.items()
            if part and shard not in failed
        }
        for shard, answer in (await _exchanged(shards, requests, failed)).items():
            indexes = [index for index, _ in parts[shard]]
            for index, count in zip(indexes, answer.ended, strict=True):
                ended[index] += count
            for refusal in answer.refusals:
                refusal.index = indexes[refusal.index]
                refusals.setdefault(refusal.index, refusal)
    _raise_first(failed, len(shards))
    return wire.AdvanceReceipt(
        ended=ended,
        ended_total=sum(ended),
        unchanged=min(one.unchanged for one in receipts.values()),
        refusals=[refusals[index] for index in sorted(refusals)],  # one shard is enough to refuse an event
    )


async def _exchanged(
    shards: Sequence[Exchange], requests: Mapping[int, wire.AdvanceStreamRequest], failed: dict[int, BaseException]
) -> dict[int, wire.AdvanceReceipt]:
    """The receipts of the shards that answer. The errors of the others are added to `failed`."""
    calls = (shards[shard](request) for shard, request in requests.items())
    answers = dict(zip(requests, await asyncio.gather(*calls, return_exceptions=True), strict=True))
    failed |= {shard: answer for shard, answer in answers.items() if isinstance(answer, BaseException)}
    return {shard: answer for shard, answer in answers.items() if not isinstance(answer, BaseException)}


def _raise_first(failed: Mapping[int, BaseException], shards: int) -> None:
    if not failed:
        return
    shard = min(failed)
    error = failed[shard]
    if not isinstance(error, PurgatoryClientError):
        raise error
    answered = ", ".join(str(shard) for shard in range(shards) if shard not in failed) or "none"
    text = f"shard {shard} of {shards}: {error}; shards that have answered: {answered}"
    made = InvalidRequest("", text) if isinstance(error, InvalidRequest) else type(error)(text)
    for name in {"address", "is_answer"}.intersection(dir(error)):
        setattr(made, name, getattr(error, name))
    raise made from error
