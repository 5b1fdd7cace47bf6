"""Incarnations of sessions: a cursor acknowledges results only of the incarnation in which it was issued."""

from collections.abc import Awaitable, Callable

import grpc
import pytest

from purgatory.service.settings import HostSettings, SessionSettings
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import produce, register_batch
from tests.kit.served_host import Peer, ServedHost, refused, serving
from tests.service.test_sessions import drained, ids_and_sequences

TTL_MS = 5_000


def batch_of(*operation_ids: int) -> wire.RegisterBatch:
    """Operations that are satisfied at once."""
    operations = [produce(operation_id, "orders", 1) for operation_id in operation_ids]
    return register_batch(*operations)


async def register(served: ServedHost, *operation_ids: int, incarnation: str = "") -> wire.RegisterResponse:
    request = wire.RegisterRequest(session_id="s", batch=batch_of(*operation_ids), incarnation=incarnation)
    response: wire.RegisterResponse = await served.stub.Register(request)
    return response


async def close(served: ServedHost) -> None:
    await served.stub.CloseSession(wire.CloseSessionRequest(session_id="s"))


async def run_out(served: ServedHost) -> None:
    """Let the session's time to live pass."""
    assert isinstance(served.clock, ManualClock)
    served.clock.jump(TTL_MS)
    await eventually(lambda: served.host.sessions.find("s") is None, "the session is dropped")


@pytest.mark.parametrize("end", [close, run_out])
async def test_a_cursor_of_an_earlier_incarnation_acknowledges_nothing(
    end: Callable[[ServedHost], Awaitable[None]],
) -> None:
    settings = HostSettings(session=SessionSettings(ttl_ms=TTL_MS, heartbeat_interval_ms=40))
    async with serving(settings, clock=ManualClock(1_000)) as served:
        await served.high_watermark("orders", 1)
        old = (await register(served, 1, 2, 3)).incarnation
        await end(served)
        new = (await register(served, 1, 2, 3, 4, 5)).incarnation
        assert len(bytes.fromhex(old)) == len(bytes.fromhex(new)) == 8
        assert old != new
        for columns in (False, True):
            peer = await Peer(served, "s").open(3, incarnation=old, columns=columns)
            opened = peer.opened
            assert (opened.resumed, opened.incarnation, opened.highest_operation_id) == (False, new, 5)
            assert ids_and_sequences(await peer.results()) == [(place, place) for place in range(1, 6)]
            peer.cancel()
            await drained(served, "s")
        request = wire.StreamResultsRequest(session_id="s", last_sequence=3, incarnation=old)
        stream = served.stub.StreamResults(request)
        opened = (await stream.read()).opened
        assert (opened.resumed, opened.incarnation, opened.newest_sequence) == (False, new, 5)
        assert ids_and_sequences((await stream.read()).results)[0] == (1, 1)
        stream.cancel()
        with refused(grpc.StatusCode.NOT_FOUND, old):
            await served.stub.Acknowledge(wire.AcknowledgeRequest(session_id="s", sequence=3, incarnation=old))
        with refused(grpc.StatusCode.NOT_FOUND, old):
            await register(served, 6, incarnation=old)
        session = served.host.sessions.get("s")
        assert (session.outbox.unacknowledged, session.owner.highest_operation_id) == (5, 5)


async def test_a_cursor_of_this_incarnation_acknowledges() -> None:
    async with serving() as served:
        await served.high_watermark("orders", 1)
        own = (await register(served, 1, 2, 3)).incarnation
        assert (await register(served, 4, incarnation=own)).incarnation == own
        for last_sequence, incarnation in ((1, own), (2, "")):
            peer = await Peer(served, "s").open(last_sequence, incarnation=incarnation)
            opened = peer.opened
            assert (opened.resumed, opened.incarnation, opened.newest_sequence) == (True, own, 4)
            assert (await peer.results()).first_sequence == last_sequence + 1
            peer.cancel()
            await drained(served, "s")
        await served.stub.Acknowledge(wire.AcknowledgeRequest(session_id="s", sequence=4, incarnation=own))
        assert served.host.sessions.get("s").outbox.unacknowledged == 0


async def test_the_opening_states_what_is_pending_and_the_largest_message() -> None:
    async with serving() as served:
        await register(served, 1)
        peer = await Peer(served, "s").open()
        assert (peer.opened.pending, peer.opened.message_bytes_max) == (1, 4_194_304)
