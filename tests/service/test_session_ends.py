"""Ends of sessions: by a call, soon after they are finished, or when their time to live has passed. A cursor
acknowledges results only of the incarnation in which it was issued.
"""

from collections.abc import Awaitable, Callable

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from purgatory.service.sessions import session_table
from purgatory.service.settings import HostSettings, LimitsSettings, SessionSettings
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import produce, register_request, signal
from tests.kit.served_host import Peer, ServedHost, refused, serving
from tests.service.test_sessions import drained, ids_and_sequences

TTL_MS = 5_000


async def close(served: ServedHost, session_id: str = "s") -> tuple[int, int]:
    answer = await served.stub.CloseSession(wire.CloseSessionRequest(session_id=session_id))
    return answer.cancelled, answer.results_dropped


async def register(served: ServedHost, *operation_ids: int) -> str:
    """Register operations that are satisfied at once; returns the session's incarnation."""
    request = register_request("s", *(produce(operation_id, "orders", 1) for operation_id in operation_ids))
    return str((await served.stub.Register(request)).incarnation)


async def run_out(served: ServedHost) -> None:
    """Let the session's time to live pass."""
    assert isinstance(served.clock, ManualClock)
    served.clock.jump(TTL_MS)
    await eventually(lambda: served.host.sessions.find("s") is None, "the session is dropped")


@pytest.mark.parametrize("end", [close, run_out])
async def test_a_cursor_of_an_earlier_incarnation_acknowledges_nothing(
    end: Callable[[ServedHost], Awaitable[object]],
) -> None:
    settings = HostSettings(session=SessionSettings(ttl_ms=TTL_MS, heartbeat_interval_ms=40))
    async with serving(settings, clock=ManualClock(1_000)) as served:
        await served.high_watermark("orders", 1)
        old = await register(served, 1, 2, 3)
        await end(served)
        new = await register(served, 1, 2, 3, 4, 5)
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
        session = served.host.sessions.get("s")
        assert (session.outbox.unacknowledged, session.owner.highest_operation_id) == (5, 5)


async def test_a_cursor_of_this_incarnation_acknowledges() -> None:
    async with serving() as served:
        await served.high_watermark("orders", 1)
        own = await register(served, 1, 2, 3)
        assert await register(served, 4) == own
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


async def left_after(served: ServedHost, clock: ManualClock, ahead_ms: int, expected: set[str]) -> None:
    """Move the clock, after which exactly these sessions are left."""
    host = served.host
    clock.jump(ahead_ms)
    host.sessions.drop_expired(host.time.now_ms())
    assert {name for name in ("blank", "done", "unary", "pending", "unread") if host.sessions.find(name)} == expected


async def test_finished_sessions_go_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that were used by unary calls, or have anything left, are kept for their whole time to live."""
    monkeypatch.setattr(session_table, "FINISHED_TTL_MS", 500)
    settings = HostSettings(session=SessionSettings(ttl_ms=60_000))
    clock = ManualClock()
    async with serving(settings, clock=clock) as served:
        await served.high_watermark("orders", 1)
        peers = {name: await Peer(served, name).open() for name in ("blank", "done", "pending", "unread")}
        for name in ("done", "unread"):
            await peers[name].registered(produce(1, "orders", 1))
            await peers[name].results()
        await peers["done"].acknowledge(1)
        await peers["pending"].registered(signal(1, "k"))
        await eventually(lambda: served.host.sessions.unacknowledged_results == 1, "acknowledged")
        await served.stub.Register(register_request("unary", produce(1, "orders", 1)))
        await served.stub.Acknowledge(wire.AcknowledgeRequest(session_id="unary", sequence=1))
        await left_after(served, clock, 1_000, {"blank", "done", "unary", "pending", "unread"})
        for peer in peers.values():
            peer.cancel()
        await eventually(lambda: served.host.sessions.connected == 0, "all have left")
        await left_after(served, clock, 499, {"blank", "done", "unary", "pending", "unread"})
        await left_after(served, clock, 1, {"unary", "pending", "unread"})
        await left_after(served, clock, 58_500, {"pending", "unread"})
        await left_after(served, clock, 1_000, set())


async def test_a_closed_session_is_gone_at_once() -> None:
    """Its operations end without a result, and its stream with the reason."""
    async with serving() as served:
        await served.high_watermark("orders", 1)
        peer = await Peer(served, "s").open()
        await peer.registered(produce(1, "orders", 1), produce(2, "orders", 9), signal(3, "k"))
        await peer.results()
        assert await close(served) == (2, 1)
        assert (await peer.read()).going_away.reason == wire.GoingAway.REASON_SESSION_CLOSED
        assert await peer.read_raw() is grpc.aio.EOF
        assert served.host.engine.pending == 0
        assert (await served.status()).sessions == 0
        with refused(grpc.StatusCode.NOT_FOUND, "session"):
            await close(served)
        again = await Peer(served, "s").open()
        assert not again.opened.resumed
        assert await close(served) == (0, 0)


async def test_who_finds_no_room_is_told_when_there_will_be() -> None:
    settings = HostSettings(LimitsSettings(sessions_max=1), SessionSettings(ttl_ms=60_000))
    clock = ManualClock()
    async with serving(settings, clock=clock) as served:
        await served.stub.Register(register_request("a", produce(1, "orders", 1)))
        clock.jump(20_000)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await served.stub.Register(register_request("b", produce(1, "orders", 1)))
        status = rpc_status.from_call(failed.value)
        assert status is not None
        advice = error_details_pb2.RetryInfo()
        assert status.details[1].Unpack(advice)
        assert advice.retry_delay.ToMilliseconds() == 40_000


class WithinAMillisecond(ManualClock):
    """A clock between two milliseconds, so that each registration moves the engine ahead of it."""

    def ceiling_ms(self) -> int:
        return self.now_ms() + 1


@pytest.mark.parametrize("call", ["Session", "Register", "StreamResults", "CloseSession"])
async def test_a_session_ends_in_the_millisecond_of_a_registration(call: str) -> None:
    """A session is evicted or closed while the engine is ahead of the clock; the call succeeds."""
    settings = HostSettings(limits=LimitsSettings(sessions_max=1))
    registration = register_request("s", signal(1, "k"))
    async with serving(settings, clock=WithinAMillisecond(1_000)) as served:
        await served.high_watermark("orders", 1)
        if call == "CloseSession":
            await served.stub.Register(registration)
        else:
            (await Peer(served, "finished").open()).cancel()
            await eventually(lambda: served.host.sessions.connected == 0, "the first caller has left")
        finished = next(iter(served.host.sessions))
        await served.stub.Wait(wire.WaitRequest(operation=produce(1, "orders", 1)))
        if call == "Session":
            await Peer(served, "s").open()
        elif call == "Register":
            await served.stub.Register(registration)
        elif call == "StreamResults":
            stream = served.stub.StreamResults(wire.StreamResultsRequest(session_id="s"))
            await eventually(lambda: served.host.sessions.connected == 1, "the stream is attached")
            stream.cancel()
        else:
            await served.stub.CloseSession(wire.CloseSessionRequest(session_id="s"))
        assert finished.dropped
        assert served.host.sessions.of_owner(finished.owner.owner_id) is not finished
