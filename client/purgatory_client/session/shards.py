"""Shards: daemons among which sessions are divided. Each session has its shard; events go to all of them.

A client learns of them by a refusal, so that a daemon without shards costs nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client.base_errors import InvalidRequest, PurgatoryClientError

OTHER_SHARD: Final = "OTHER_SHARD"
ALL_SHARDS_NEEDED: Final = "ALL_SHARDS_NEEDED"

Exchange = Callable[[wire.AdvanceStreamRequest], Awaitable[wire.AdvanceReceipt]]


class ShardRefusal(NamedTuple):
    """Why a daemon refused a call because of shards; with OTHER_SHARD, the address of the one to use."""

    reason: str
    target: str


def shard_of(session_id: str, shards: int) -> int:
    """The shard to which a session belongs."""
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

    Raises:
        PurgatoryClientError: Not all of them have. The message names those that have applied the events.
    """
    request.all_shards = True
    answers = await asyncio.gather(*(exchange(request) for exchange in shards), return_exceptions=True)
    receipts = [answer for answer in answers if isinstance(answer, wire.AdvanceReceipt)]
    if len(receipts) == len(shards):
        return _together(receipts)
    failed = [(shard, answer) for shard, answer in enumerate(answers) if isinstance(answer, BaseException)]
    shard, error = failed[0]
    if not isinstance(error, PurgatoryClientError):
        raise error
    without = {shard for shard, _ in failed}
    applied = ", ".join(str(shard) for shard in range(len(shards)) if shard not in without) or "none"
    text = f"shard {shard} of {len(shards)}: {error}; shards that have applied these events: {applied}"
    raise (InvalidRequest("", text) if isinstance(error, InvalidRequest) else type(error)(text)) from error


def _together(receipts: Sequence[wire.AdvanceReceipt]) -> wire.AdvanceReceipt:
    """One receipt of all shards. An event that one of them refused counts as refused."""
    refusals = {refusal.index: refusal for receipt in receipts for refusal in receipt.refusals}
    return wire.AdvanceReceipt(
        ended=map(sum, zip(*(receipt.ended for receipt in receipts), strict=True)),
        ended_total=sum(receipt.ended_total for receipt in receipts),
        unchanged=min(receipt.unchanged for receipt in receipts),
        refusals=[refusals[index] for index in sorted(refusals)],
    )
