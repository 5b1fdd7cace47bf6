"""Sessions over real streams: take-overs, slow readers, heartbeats, and calls that break the rules.

Ends of sessions: by a call, soon after they are finished, or when their time to live has passed. A cursor
acknowledges results only of the incarnation in which it was issued.
"""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import WaitFailed

from purgatory.service.sessions import session_table
from purgatory.service.sessions.result_stream import Response
from purgatory.service.settings import HostSettings, LimitsSettings, SessionSettings
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import key_signalled, produce, produce_columns, register_request, signal
from tests.kit.served_host import Peer, ServedHost, refused, serving


def ids_and_sequences(batch: wire.ResultBatch) -> list[tuple[int, int]]:
    """Return (sequence, operation id) of each result, in either shape."""
    ids = [*batch.columns.operation_id, *(result.operation_id for result in batch.rows.results)]
    return list(enumerate(ids, batch.first_sequence))


async def drained(served: ServedHost, session_id: str) -> None:
    """Wait until a session has no stream."""
    session = served.host.sessions.get(session_id)
    await eventually(lambda: session.stream is None, "the stream is detached")


async def test_who_missed_results_is_told_as_often_as_it_asks() -> None:
    async with serving() as served:
        for _ in range(2):
            peer = await Peer(served, "s").open(last_sequence=24)
            assert not peer.opened.resumed
            peer.cancel()
            await drained(served, "s")
        peer = await Peer(served, "s").open(last_sequence=24)
        assert (await peer.registered(signal(7, "k", 1))).accepted == 1
        assert ids_and_sequences(await peer.results()) == [(1, 7)]
        peer.cancel()
        await drained(served, "s")
        again = await Peer(served, "s").open(last_sequence=1)
        assert again.opened.resumed


@pytest.mark.parametrize(
    "messages",
    [
        [{"heartbeat": wire.Heartbeat()}],
        [{"open": wire.OpenSession(session_id="")}],
        [{"open": wire.OpenSession(session_id="x" * 129)}],
        [{"open": wire.OpenSession(session_id="s")}, {"open": wire.OpenSession(session_id="s")}],
        [{"open": wire.OpenSession(session_id="s")}, {}],
        [{"open": wire.OpenSession(session_id="s")}, {"acknowledge": wire.AcknowledgeResults(sequence=1)}],
    ],
)
async def test_a_stream_that_breaks_the_rules_ends(messages: list[dict[str, object]]) -> None:
    async with serving() as served:
        peer = Peer(served, "s")
        for message in messages:
            await peer.send(**message)
        assert await peer.code() == grpc.StatusCode.INVALID_ARGUMENT
        await served.status()


async def test_a_session_ends_some_time_after_its_last_stream() -> None:
    clock = ManualClock(1_000)
    settings = HostSettings(session=SessionSettings(heartbeat_interval_ms=40, ttl_ms=5_000))
    async with serving(settings, clock=clock) as served:
        peer = await Peer(served, "s").open()
        await peer.registered(signal(1, "k"), signal(2, "j"))
        peer.cancel()
        await drained(served, "s")
        clock.jump(4_999)
        await asyncio.sleep(0.05)
        assert served.host.engine.pending == 2
        clock.jump(1)
        await eventually(lambda: served.host.engine.pending == 0, "the waits are freed")
        status = await served.status()
        assert (status.sessions, sum(kind.cancelled for kind in status.kinds)) == (0, 2)
        again = await Peer(served, "s").open(last_sequence=17)
        assert not again.opened.resumed
        assert again.opened.highest_operation_id == 0


async def test_both_sides_hear_each_other() -> None:
    """The daemon sends heartbeats when it has nothing else to send, and ends a stream whose peer sends none."""
    clock = ManualClock(1_000)
    async with serving(HostSettings(session=SessionSettings(heartbeat_interval_ms=40)), clock=clock) as served:
        peer = await Peer(served, "s").open()
        clock.jump(40)
        assert (await peer.read_raw()).HasField("heartbeat")
        await peer.send(heartbeat=wire.Heartbeat())
        [stream] = served.host.sessions.streams()
        await eventually(lambda: stream.last_read_ms == 1_040, "heard")
        clock.jump(121)
        assert await peer.code() == grpc.StatusCode.UNAVAILABLE
        assert "heartbeats" in await peer.details()
        await drained(served, "s")


async def test_a_half_closed_stream_ends_when_all_is_told() -> None:
    async with serving() as served:
        peer = await Peer(served, "s").open()
        await peer.register(produce(1, "orders", 1), signal(2, "k", 40))
        await peer.half_close()
        await peer.receipt()
        await served.high_watermark("orders", 1)
        assert ids_and_sequences(await peer.results()) == [(1, 1)]
        assert ids_and_sequences(await peer.results()) == [(2, 2)]
        assert await peer.read_raw() is grpc.aio.EOF
        assert await peer.code() == grpc.StatusCode.OK


async def test_finished_sessions_make_room() -> None:
    """Without stream, pending operations and unacknowledged results; others are kept."""
    async with serving(HostSettings(limits=LimitsSettings(sessions_max=3))) as served:
        pending, unacknowledged, finished = [await Peer(served, name).open() for name in ("p", "u", "f")]
        await served.high_watermark("orders", 1)
        await pending.register(produce(1, "orders", 9))
        for peer in (unacknowledged, finished):
            await peer.register(produce(1, "orders", 1))
            await peer.receipt()
            await peer.results()
        await finished.acknowledge(1)
        await eventually(lambda: served.host.sessions.unacknowledged_results == 1, "acknowledged")
        for peer in (pending, unacknowledged, finished):
            peer.cancel()
        await eventually(lambda: served.host.sessions.connected == 0, "all have left")
        new = await Peer(served, "new").open()
        assert [name for name in ("p", "u", "f", "new") if served.host.sessions.find(name)] == ["p", "u", "new"]
        further = Peer(served, "further")
        await further.send(open=wire.OpenSession(session_id="further"))
        assert await further.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        new.cancel()


async def test_text_that_is_not_utf8_is_invalid() -> None:
    """It ends a stream, and the error of a unary call states the cause."""
    data = wire.WaitRequest(operation=signal(1, "AAAA")).SerializeToString().replace(b"AAAA", b"\xff\xfe\xfdA")
    async with serving() as served:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "UTF-8"):
            await served.raw("Wait")(data)
        method: grpc.aio.StreamStreamMultiCallable = served.channel.stream_stream(
            "/purgatory.v1.PurgatoryService/Session"
        )
        stream = method()
        await stream.write(data)
        assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_cancels_are_answered_on_the_stream() -> None:
    async with serving() as served:
        peer = await Peer(served, "s").open()
        await peer.registered(signal(1, "k"), signal(2, "k"))
        await peer.send(cancel=wire.CancelOperations(operation_ids=[2, 7]))
        answer = (await peer.read()).cancelled
        assert (list(answer.cancelled_operation_ids), list(answer.not_pending_operation_ids)) == ([2], [7])
        assert ids_and_sequences(await peer.results()) == [(1, 2)]


async def test_call_past_its_deadline_cancels_its_wait() -> None:
    async with serving() as served:
        with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
            await served.stub.Wait(wire.WaitRequest(operation=produce(1, "orders", 42)), timeout=0.05)
        await eventually(lambda: served.host.engine.pending == 0, "none pending")
        assert sum(kind.cancelled for kind in (await served.status()).kinds) == 1


async def test_failed_signal_is_raised_with_its_reason() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        await client.signal_key("job", value="disk full: \u00e4\u00f6".encode(), failed=True)
        result = await client.signal(["job"], timeout=60)
        with pytest.raises(WaitFailed, match="job: 1 of 1 \\(error 1003: disk full: \u00e4\u00f6\\)"):
            result.raise_for_outcome()


async def test_a_stream_of_events_is_answered_in_order() -> None:
    async with serving() as served:
        peer, stream = await Peer(served, "s").open(), served.stub.AdvanceStream()
        await peer.registered(signal(1, "done"))
        event = key_signalled("done")
        for events in ([event], [], [event, event]):
            await stream.write(wire.AdvanceStreamRequest(rows=event_pb2.EventRows(events=events)))
        answers = [(await stream.read()).receipt for _ in range(3)]
        assert [list(answer.ended) for answer in answers] == [[1], [], [0, 0]]
        await stream.done_writing()
        assert await stream.code() == grpc.StatusCode.OK


LONG_TOPIC = "x" * 200
MANY = 20_000
"""With a long topic in each row, the results are several megabytes: more than an unread connection buffers."""


async def test_second_stream_takes_the_session_over() -> None:
    """The first one is notified, and ends with OK."""
    async with serving() as served:
        first = await Peer(served, "s").open()
        second = await Peer(served, "s").open()
        assert (await first.read()).going_away.reason == wire.GoingAway.REASON_TAKEN_OVER
        assert await first.code() == grpc.StatusCode.OK
        assert (await second.registered(produce(1, "orders", 1))).accepted == 1


async def test_a_stream_that_is_not_read_can_be_taken_over() -> None:
    async with serving(HostSettings(session=SessionSettings(heartbeat_interval_ms=200))) as served:
        stuck = await Peer(served, "s").open()
        await stuck.send(register=produce_columns(range(1, MANY + 1), LONG_TOPIC))
        assert (await stuck.receipt()).accepted == MANY
        [stream] = served.host.sessions.streams()
        await served.high_watermark(LONG_TOPIC, 1)
        second = await Peer(served, "s").open(columns=True)
        received = 0
        while received < MANY:
            received += len((await second.results()).columns.operation_id)
        await eventually(lambda: stream.ended, "the first stream has ended")
        assert (await served.status()).sessions_connected == 1


async def test_receipts_that_keep_coming_do_not_hold_up_results() -> None:
    """A turn for results is used for results; receipts that came while it was awaited are written before them."""
    async with serving() as served:
        await served.high_watermark("orders", 42)
        peer = await Peer(served, "s").open()
        assert (await peer.registered(produce(1, "orders", 42))).accepted == 1
        peer.cancel()
        await drained(served, "s")
        host, written = served.host, list[str]()
        stream = host.sessions.attach(
            host.sessions.get("s"),
            wire.SessionResponse,
            last_sequence=0,
            columns=False,
            expects_heartbeats=False,
            now_ms=host.time.now_ms(),
        )

        async def write(message: Response | bytes) -> None:
            written.append("results" if isinstance(message, bytes) else str(message.WhichOneof("message")))
            if written[-1] == "results":
                stream.shut_down()

        async def turn() -> None:
            await asyncio.sleep(0)
            stream.send(wire.SessionResponse(receipt=wire.Receipt(batch_id=len(written))))

        async with asyncio.timeout(10):
            await stream.run_writer(write, host.time.now_ms, turn)
        assert written == ["receipt", "results", "going_away"]


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
