"""The silence of a worker or a source excludes pauses of the daemon, and heartbeats that the daemon refused."""

import asyncio

import pytest
from purgatory_client import batches, waits
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import InvalidRequest
from purgatory_client.events import signalled
from purgatory_client.results import Outcome

from purgatory.clock import PAUSE_MS_MIN, SETTLE_MS, EngineTime, ListeningTime
from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.service.listeners.listener import Listener
from purgatory.service.sources.source_table import SILENT_MS_MAX, SourceTable
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.http.http_serving import HttpCaller, serving_http
from tests.kit.messages import key_signalled
from tests.kit.served_host import Peer, ServedHost, serving

TIMEOUT_MS = 2_000


def test_heartbeat_timeouts_that_make_no_sense_are_refused_by_the_client() -> None:
    with pytest.raises(InvalidRequest, match="must be from -1"):
        batches.signal(["a"], heartbeat_timeouts_ms=[-2])
    with pytest.raises(InvalidRequest, match="at least 1 ms"):
        waits.signal(["a"], heartbeat_timeout=0)
    with pytest.raises(InvalidRequest, match="give bytes"):
        signalled("a", value="text")  # type: ignore[arg-type]


async def test_heartbeat_timeouts_of_a_batch_are_those_of_its_operations() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        many = client.signal_many(["a", "b"], timeouts_ms=[60_000, 200], heartbeat_timeouts_ms=[20, -1])
        assert list((await many).outcomes) == [Outcome.FAILED, Outcome.EXPIRED]


def listening_time(clock: ManualClock) -> ListeningTime:
    """A listening time with its first tick."""
    listening = ListeningTime(EngineTime(clock))
    listening.tick()
    return listening


def ticks(listening: ListeningTime, clock: ManualClock, ms: int) -> None:
    """Let time pass with ticks."""
    for _ in range(ms // 100):
        clock.jump(100)
        assert listening.take_pause(clock.now_ms()) == 0
        listening.tick()


def test_time_with_ticks_is_listening_time() -> None:
    """Up to the longest time between two ticks that is not a pause."""
    clock = ManualClock(1_000)
    listening = listening_time(clock)
    ticks(listening, clock, 500)
    clock.jump(PAUSE_MS_MIN)
    assert (listening.take_pause(clock.now_ms()), listening.now_ms()) == (0, 1_500 + PAUSE_MS_MIN)


def test_pause_stops_listening_time_until_it_has_settled() -> None:
    """Also before it has been taken, and never backwards."""
    clock = ManualClock(1_000)
    listening = listening_time(clock)
    clock.jump(100)
    assert listening.now_ms() == 1_100
    clock.jump(5_000)
    assert listening.now_ms() == 1_100
    assert listening.take_pause(clock.now_ms()) == 5_100 + SETTLE_MS
    ticks(listening, clock, SETTLE_MS)
    assert listening.now_ms() == 1_100
    ticks(listening, clock, 300)
    assert listening.now_ms() == 1_300


def test_second_pause_while_the_first_settles_counts_once() -> None:
    """Only the time that it adds counts: the first one included the time to settle."""
    clock = ManualClock(1_000)
    listening = listening_time(clock)
    clock.jump(5_000)
    first_ms = listening.take_pause(clock.now_ms())
    clock.jump(1_000)
    assert first_ms + listening.take_pause(clock.now_ms()) == 6_000 + SETTLE_MS


def test_time_before_the_first_tick_is_no_pause() -> None:
    """The host has not been started yet."""
    clock = ManualClock(1_000)
    listening = ListeningTime(EngineTime(clock))
    clock.jump(60_000)
    assert (listening.take_pause(clock.now_ms()), listening.now_ms()) == (0, 61_000)


def test_source_is_not_silent_because_of_a_pause() -> None:
    """Its next report may be in the socket."""
    clock = ManualClock(1_000)
    listening, table = listening_time(clock), SourceTable()
    table.attach("s", "", ["m/"], listening.now_ms())
    clock.jump(SILENT_MS_MAX + 1)
    listening.take_pause(clock.now_ms())
    (stream,) = (stream for source in table for stream in source.streams)
    assert not stream.why(listening.now_ms()).endswith("has been silent")
    ticks(listening, clock, SETTLE_MS + SILENT_MS_MAX + 100)
    assert stream.why(listening.now_ms()).endswith("has been silent")


def silent_after(timeout_ms: int) -> operation_pb2.Operation:
    """A wait for a key that fails after a silence."""
    keys = [operation_pb2.SignalKey(key="k")]
    condition = operation_pb2.Signal(keys=keys, heartbeat_timeout_ms=timeout_ms)
    return operation_pb2.Operation(operation_id=1, timeout_ms=1_000_000, signal=condition)


async def passes(served: ServedHost, ms: int) -> None:
    """Let time pass as the reaper sees it, with ticks."""
    assert isinstance(served.clock, ManualClock)
    for _ in range(ms // 100):
        served.clock.jump(100)
        served.host.reaper.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


class Refusing(Listener):
    """Refuses work, as an archive whose queue is full does."""

    refuses = False

    def reason_to_refuse(self) -> Refusal | None:
        return Refusal(0, codes.UNAVAILABLE, "", "the queue is full") if self.refuses else None


async def beat(caller: HttpCaller, way: str) -> int:
    """Send a heartbeat of the key, and return the code of the answer."""
    event = key_signalled("k", count=0)
    rows = event_pb2.EventRows(events=[event])
    if way == "HTTP":
        ending = await caller.unary("Advance", wire.AdvanceRequest(rows=rows), wire.AdvanceResponse)
        return int(ending.status.code)
    stub = caller.served.stub
    if way == "stream":
        call = stub.AdvanceStream(iter([wire.AdvanceStreamRequest(rows=rows)]))
    else:
        call = stub.Advance(wire.AdvanceRequest(rows=rows))
    code: int = (await call.code()).value[0]
    return code


@pytest.mark.parametrize("way", ["call", "stream", "HTTP"])
async def test_refused_heartbeat_ends_a_silence(way: str) -> None:
    """The worker has sent it; that the daemon does not take it is not the worker's fault."""
    clock, listener = ManualClock(1_000), Refusing()
    async with serving_http(clock=clock, listener=listener) as caller:
        served = caller.served
        peer = await Peer(served, "s").open()
        await peer.registered(silent_after(TIMEOUT_MS))
        await passes(served, TIMEOUT_MS - 100)
        listener.refuses = True
        assert await beat(caller, way) == codes.UNAVAILABLE
        await passes(served, TIMEOUT_MS - 100)
        assert served.host.engine.pending == 1
        await passes(served, 100)
        assert served.host.engine.pending == 0
