"""Sessions over real streams: results exactly once for the caller, across reconnects, take-overs and slow readers."""

import asyncio

import grpc
import pytest

from purgatory.service.sessions.result_stream import Response
from purgatory.service.settings import HostSettings, LimitsSettings, SessionSettings
from purgatory.service.translate import batch_limits
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import result_pb2
from tests.kit.eventually import eventually
from tests.kit.messages import produce, produce_columns, signal
from tests.kit.served_host import Peer, ServedHost, serving


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


async def test_a_broken_stream_loses_nothing_and_repeats_nothing() -> None:
    async with serving() as served:
        peer = await Peer(served, "s").open()
        await peer.registered(*(produce(place, "orders", place) for place in range(1, 11)))
        await served.high_watermark("orders", 6)
        received = dict(ids_and_sequences(await peer.results()))
        await peer.acknowledge(2)
        await eventually(lambda: served.host.sessions.unacknowledged_results == 4, "2 acknowledged")
        peer.cancel()
        await drained(served, "s")
        await served.high_watermark("orders", 8)
        again = await Peer(served, "s").open(last_sequence=4, columns=True)
        assert again.opened.resumed
        assert again.opened.highest_operation_id == 10
        assert ids_and_sequences(await again.results()) == [(5, 5), (6, 6), (7, 7), (8, 8)]
        await served.high_watermark("orders", 10)
        assert ids_and_sequences(await again.results()) == [(9, 9), (10, 10)]
        assert received == {place: place for place in range(1, 7)}
        await again.acknowledge(10)
        await eventually(lambda: served.host.sessions.unacknowledged_results == 0, "all acknowledged")


async def test_a_second_stream_takes_the_session_over() -> None:
    async with serving() as served:
        first = await Peer(served, "s").open()
        await first.registered(produce(1, "orders", 1))
        second = await Peer(served, "s").open()
        message = await first.read()
        assert message.going_away.reason == wire.GoingAway.REASON_TAKEN_OVER
        assert await first.read_raw() is grpc.aio.EOF
        assert await first.code() == grpc.StatusCode.OK
        await served.high_watermark("orders", 1)
        assert ids_and_sequences(await second.results()) == [(1, 1)]
        assert (await served.status()).sessions_connected == 1


async def test_cancels_are_answered_on_the_stream() -> None:
    async with serving() as served:
        peer = await Peer(served, "s").open()
        await peer.registered(signal(1, "k"), signal(2, "k"))
        await peer.send(cancel=wire.CancelOperations(operation_ids=[2, 7]))
        answer = (await peer.read()).cancelled
        assert (list(answer.cancelled_operation_ids), list(answer.not_pending_operation_ids)) == ([2], [7])
        batch = await peer.results()
        assert ids_and_sequences(batch) == [(1, 2)]
        assert batch.rows.results[0].outcome == result_pb2.OUTCOME_CANCELLED


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


async def test_results_that_are_not_acknowledged_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit registrations are refused one by one, far past it batch by batch; acknowledging makes room."""
    monkeypatch.setattr(batch_limits, "OPERATIONS_MAX", 4)
    settings = HostSettings(limits=LimitsSettings(unacknowledged_results_max=3))
    async with serving(settings) as served:
        await served.high_watermark("orders", 1)
        peer = await Peer(served, "s").open()
        assert (await peer.registered(*(produce(place, "orders", 1) for place in (1, 2, 3)))).accepted == 3
        await peer.results()
        receipt = await peer.registered(*(produce(place, "orders", 1) for place in (4, 5, 6, 7)))
        assert [refusal.code for refusal in receipt.refusals] == [8] * 4
        await peer.results()
        receipt = await peer.registered(produce(8, "orders", 1))
        assert receipt.batch_refusal.code == 8
        assert receipt.highest_operation_id == 7
        assert served.host.sessions.unacknowledged_results == 7
        await peer.acknowledge(7)
        assert (await peer.registered(produce(8, "orders", 1))).accepted == 1
        assert ids_and_sequences(await peer.results()) == [(8, 8)]


LONG_TOPIC = "x" * 200
MANY = 20_000
"""With a long topic in each row, the results are several megabytes: more than an unread connection buffers."""


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
