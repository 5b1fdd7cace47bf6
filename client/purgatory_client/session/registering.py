"""Registers a batch in any session by a unary call, repeated until the daemon has answered."""

from dataclasses import dataclass
from typing import Final

import grpc.aio

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_client.errors import PurgatoryClientError
from purgatory_client.many import WaitColumns
from purgatory_client.session.retry import Retry
from purgatory_client.wire.decode_results import refusal_error
from purgatory_client.wire.encode_waits import fill_with_many

CALL_TIMEOUT: Final = 30.0
"""Seconds that an attempt may take."""
NEVER_LOST: Final = -1.0


@dataclass(frozen=True, slots=True)
class Registered:
    """What became of a batch.

    Attributes:
        accepted: How many operations were registered.
        already_known: How many have an id that the daemon knew before; nothing was done for them.
        refusals: The errors of refused operations by operation id; each of these also ends as a result.
    """

    accepted: int
    already_known: int
    refusals: dict[int, PurgatoryClientError]


async def register(
    stub: PurgatoryServiceStub, session_id: str, batch: WaitColumns, give_up_after: float | None
) -> Registered:
    """Register the batch, whose ids begin with `batch.operation_id`."""
    request = wire.RegisterRequest(session_id=session_id)
    request.batch.batch_id = 1
    fill_with_many(request.batch.columns, batch, batch.pending_positions(), NEVER_LOST, 0.0)
    retry = Retry(give_up_after)
    while True:
        try:
            receipt = (await stub.Register(request, timeout=CALL_TIMEOUT)).receipt
        except grpc.aio.AioRpcError as error:
            await retry.pause(error)
        else:
            refusals = {refusal.operation_id: refusal_error(refusal) for refusal in receipt.refusals}
            return Registered(receipt.accepted, receipt.already_known, refusals)
