"""The calls of a flood: for each method of the service, its n-th call.

Each call is as expensive as an ordinary call of its kind can be: batches of 500, pages of 1,000. Methods that need
something to end alternate with calls that register it. The sessions are `SESSIONS`, in turn. Parts of messages are
encoded only once: the concatenation of two encoded messages is one message with the fields of both.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message

from purgatory.v1 import event_pb2, operation_pb2, source_pb2, webhook_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.attacks import TOPIC, Attacker, marks, one_wait, waits
from tests.abuse.http2 import Call, Target

BATCH: Final = 500
SESSIONS: Final = 64
LISTED: Final = 1_000
LISTED_SESSION: Final = "listed"


async def prepare(target: Target) -> None:
    """Create partitions and operations of the attacker's own, so that there is something to list."""
    attacker = Attacker(target.grpc, target.token, channels=1)
    await attacker.call("Advance", marks(LISTED))
    batch = waits(range(1, LISTED + 1), timeout_ms=3_600_000)
    batch.columns.ClearField("partitions")
    for number in range(LISTED):
        batch.columns.partitions.add(topic=TOPIC, partition=number)
    batch.columns.item_index.extend(range(LISTED))
    await attacker.call("Register", wire.RegisterRequest(session_id=LISTED_SESSION, batch=batch))
    await attacker.close()
    assert attacker.tally == {"OK": 2}, f"what is to be listed was not taken: {attacker.tally}"


@cache
def encoded_batch(turn: int, timeout_ms: int) -> bytes:
    """A registration without its session; its ids are above those of the previous turn."""
    first = 1 + BATCH * turn
    batch = waits(range(first, first + BATCH), timeout_ms=timeout_ms)
    return wire.RegisterRequest(batch=batch).SerializeToString()


def register(number: int, timeout_ms: int = 5_000) -> Call:
    session = wire.RegisterRequest(session_id=session_of(number)).SerializeToString()
    return "Register", (session + encoded_batch(number // SESSIONS, timeout_ms),)


def session_of(number: int) -> str:
    return f"flood-{number % SESSIONS}"


@cache
def encoded_partitions() -> bytes:
    without_offset = marks(BATCH)
    without_offset.columns.ClearField("offset")
    return without_offset.SerializeToString()


def rising_marks(number: int) -> bytes:
    moved = wire.AdvanceRequest(columns=event_pb2.EventColumns(offset=[number + 2]))
    return encoded_partitions() + moved.SerializeToString()


@cache
def opened_session(number: int) -> bytes:
    opening = wire.OpenSession(session_id=session_of(number), columns=True)
    return wire.SessionRequest(open=opening).SerializeToString()


@cache
def session_batch(turn: int) -> bytes:
    batch = waits(range(1 + BATCH * turn, 1 + BATCH * (turn + 1)), timeout_ms=1_000)
    return wire.SessionRequest(register=batch).SerializeToString()


def session(number: int) -> Call:
    """Open or take over a session, register a batch in it, and close the sending side."""
    return "Session", (opened_session(number), session_batch(number // SESSIONS))


def after_registration(
    method: str, request: Callable[[int], Message], timeout_ms: int = 5_000
) -> Callable[[int], Call]:
    """Registrations that alternate with calls that depend on them; `request` receives the number of the pair."""

    def call(number: int) -> Call:
        pair = number // 2
        return (method, (request(pair).SerializeToString(),)) if number % 2 else register(pair, timeout_ms)

    return call


def constant(method: str, request: Message) -> Callable[[int], Call]:
    encoded = request.SerializeToString()
    return lambda _number: (method, (encoded,))


def acknowledged(pair: int) -> wire.AcknowledgeRequest:
    """Acknowledge all but the latest registration of the session, whose results may not have arrived yet."""
    sequence = max(0, pair // SESSIONS - 1) * BATCH
    return wire.AcknowledgeRequest(session_id=session_of(pair), sequence=sequence)


def extended(pair: int) -> wire.ExtendRequest:
    """Extend the operations of the registration before."""
    first = 1 + BATCH * (pair // SESSIONS)
    return wire.ExtendRequest(session_id=session_of(pair), operation_ids=range(first, first + BATCH), timeout_ms=5_000)


def asked_operation(number: int) -> Call:
    request = wire.GetOperationRequest(session_id=LISTED_SESSION, operation_id=1 + number % LISTED)
    return "GetOperation", (request.SerializeToString(),)


def asked_partition(number: int) -> Call:
    partition = operation_pb2.TopicPartition(topic=TOPIC, partition=number % LISTED)
    return "GetPartition", (wire.GetPartitionRequest(topic_partition=partition).SerializeToString(),)


@cache
def attached_source(number: int) -> Call:
    """A source for the attacker's topic that reports each single mark as stale, and leaves."""
    hello = source_pb2.SourceHello(name=session_of(number), topic_prefixes=[TOPIC])
    stale = source_pb2.StaleMarks(topic_prefix=TOPIC, exact=True, partitions=range(LISTED))
    report = source_pb2.SourceReport(state=source_pb2.SOURCE_STATE_STALE, stale=[stale])
    messages = source_pb2.AttachSourceRequest(hello=hello), source_pb2.AttachSourceRequest(report=report)
    return "AttachSource", tuple(sent.SerializeToString() for sent in messages)


def asked_ends(number: int) -> Call:
    """Ask a source that is leaving, if there is one."""
    request = source_pb2.GetSourceEndsRequest(topics=[TOPIC])
    return ("GetSourceEnds", (request.SerializeToString(),)) if number % 2 else attached_source(number // 2 % SESSIONS)


WEBHOOKS: Final[dict[str, Any]] = {"webhook_ids": [f"{number}" for number in range(1_000)]}
CONSTANT: Final[dict[str, Message]] = {
    "Wait": one_wait(10),
    "ListOperations": wire.ListOperationsRequest(page_size=1_000),
    "ListPartitions": wire.ListPartitionsRequest(page_size=1_000),
    "ListDeadLetters": webhook_pb2.ListDeadLettersRequest(page_size=1_000),
    "ResendDeadLetters": webhook_pb2.ResendDeadLettersRequest(**WEBHOOKS),
    "DeleteDeadLetters": webhook_pb2.DeleteDeadLettersRequest(**WEBHOOKS),
    "HandOver": wire.HandOverRequest(),
    "ListHotNames": wire.ListHotNamesRequest(limit=1_000),
    "TailResults": wire.TailResultsRequest(),
    "GetTopology": wire.GetTopologyRequest(),
    "GetStatus": wire.GetStatusRequest(remaining_time=True),
}
"""Methods whose calls are all the same."""
FLOODS: Final[dict[str, Callable[[int], Call]]] = {
    **{method: constant(method, request) for method, request in CONSTANT.items()},
    "Session": session,
    "Register": register,
    "StreamResults": after_registration(
        "StreamResults", lambda pair: wire.StreamResultsRequest(session_id=session_of(pair), columns=True), timeout_ms=0
    ),
    "Acknowledge": after_registration("Acknowledge", acknowledged, timeout_ms=0),
    "CloseSession": after_registration(
        "CloseSession", lambda pair: wire.CloseSessionRequest(session_id=session_of(pair))
    ),
    "Advance": lambda number: ("Advance", (rising_marks(number),)),
    "AdvanceStream": lambda number: ("AdvanceStream", (rising_marks(2 * number), rising_marks(2 * number + 1))),
    "AttachSource": lambda number: attached_source(number % SESSIONS),
    "GetSourceEnds": asked_ends,
    "Cancel": after_registration("Cancel", lambda pair: wire.CancelRequest(session_id=session_of(pair))),
    "Extend": after_registration("Extend", extended),
    "GetOperation": asked_operation,
    "GetPartition": asked_partition,
}
"""Functions that return the n-th call of each method."""
