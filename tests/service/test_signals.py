"""Signals: their values and failures up to the results of waits, and what counts as silence of a worker."""

from __future__ import annotations

import asyncio

import pytest
from purgatory_client import batches, waits
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import EventRefused, InvalidRequest, WaitFailed
from purgatory_client.events import signalled
from purgatory_client.results import Outcome

from purgatory.clock import PAUSE_MS_MIN, SETTLE_MS, EngineTime, ListeningTime
from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.service.sources.source_table import SILENT_MS_MAX, SourceTable
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.http.http_serving import HttpCaller, serving_http
from tests.kit.messages import key_signalled, signal
from tests.kit.served_host import Peer, RecordingListener, ServedHost, serving


async def test_failed_signal_is_raised_with_its_reason() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        await client.signal_key("job", value="disk full: \u00e4\u00f6".encode(), failed=True)
        result = await client.signal(["job"], timeout=60)
        with pytest.raises(WaitFailed, match="job: 1 of 1 \\(error 1003: disk full: \u00e4\u00f6\\)"):
            result.raise_for_outcome()


async def test_events_of_one_call_keep_their_order() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        events = [signalled("a"), signalled("a", value=b"one"), signalled("a", 0), signalled("a", value=b"two")]
        receipt = await client.advance_many(events)
        assert receipt.raise_for_refusals().ended == [0, 0, 0, 0]
        item = (await client.signal({"a": 3}, timeout=0)).partitions["a"]
        assert (item.reached_offset, item.signal_value) == (3, b"one")


async def test_values_of_results_that_wait_for_a_reader() -> None:
    """They are stored together, and their memory is counted until they are acknowledged."""
    async with serving() as served:
        peer = await Peer(served, "s").open()
        await peer.registered(*(signal(number, f"k{number}", 60_000) for number in range(1, 151)))
        peer.cancel()
        for number in range(1, 151):
            await signal_with_value(served, f"k{number}", b"%d" % number * 10)
        outbox = served.host.sessions.open("s", served.host.time.now_ms())[0].outbox
        outbox.check()
        for columns in (False, True):
            assert await values_read(served, columns=columns) == {n: b"%d" % n * 10 for n in range(1, 151)}
        before = outbox.held_bytes
        peer = await Peer(served, "s").open(150)
        assert outbox.held_bytes == 0 < before
        peer.cancel()


async def signal_with_value(served: ServedHost, key: str, value: bytes) -> None:
    event = key_signalled(key, value=value)
    assert (await served.advance(event)).ended_total == 1


async def values_read(served: ServedHost, *, columns: bool) -> dict[int, bytes]:
    """All unacknowledged results of the session `s`: the value of each operation."""
    peer = await Peer(served, "s").open(columns=columns)
    found: dict[int, bytes] = {}
    while len(found) < 150:
        batch = await peer.results()
        if columns:
            values = [b"", *batch.columns.signal_values]
            indexes = list(batch.columns.signal_value_index)
            ids = batch.columns.operation_id
            found.update((number, values[index]) for number, index in zip(ids, indexes, strict=True))
        else:
            found.update((row.operation_id, row.partitions[0].signal_value) for row in batch.rows.results)
    peer.cancel()
    return found


async def test_values_that_cannot_be_sent_change_nothing() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        with pytest.raises(EventRefused, match="value: has 4097 bytes; at most 4096 are allowed"):
            await client.signal_key("job", value=b"x" * 4097)
        with pytest.raises(EventRefused, match="count: 0 is a heartbeat"):
            await client.signal_key("job", 0, failed=True)
        with pytest.raises(InvalidRequest, match="give bytes"):
            await client.signal_key("job", value="text")  # type: ignore[arg-type]
        assert served.host.engine.inspection.signal_key_count == 0


async def test_heartbeat_timeouts_of_a_batch() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        many = client.signal_many(["a", "b"], timeouts_ms=[60_000, 200], heartbeat_timeouts_ms=[20, -1])
        assert list((await many).outcomes) == [Outcome.FAILED, Outcome.EXPIRED]
        refused = await client.signal_many(["a"], timeouts_ms=[200], heartbeat_timeouts_ms=[-1])
        assert list(refused.outcomes) == [Outcome.EXPIRED]
        with pytest.raises(InvalidRequest, match="must be from -1"):
            batches.signal(["a"], heartbeat_timeouts_ms=[-2])
        with pytest.raises(InvalidRequest, match="at least 1 ms"):
            waits.signal(["a"], heartbeat_timeout=0)


TIMEOUT_MS = 2_000


def listening_time(clock: ManualClock) -> ListeningTime:
    """A listening time with its first tick."""
    listening = ListeningTime(EngineTime(clock))
    listening.tick()
    return listening


def ticks(listening: ListeningTime, clock: ManualClock, ms: int) -> None:
    """Let time pass with ticks."""
    for _ in range(ms // 100):
        clock.jump(100)
        assert listening.take_pause() == 0
        listening.tick()


def test_time_with_ticks_is_listening_time() -> None:
    """Up to the longest time between two ticks that is no pause."""
    clock = ManualClock(1_000)
    listening = listening_time(clock)
    ticks(listening, clock, 500)
    clock.jump(PAUSE_MS_MIN)
    assert (listening.take_pause(), listening.now_ms()) == (0, 1_500 + PAUSE_MS_MIN)


def test_pause_stops_listening_time_until_it_has_settled() -> None:
    """Also before it has been taken, and never backwards."""
    clock = ManualClock(1_000)
    listening = listening_time(clock)
    clock.jump(100)
    assert listening.now_ms() == 1_100
    clock.jump(5_000)
    assert listening.now_ms() == 1_100
    assert listening.take_pause() == 5_100 + SETTLE_MS
    ticks(listening, clock, SETTLE_MS)
    assert listening.now_ms() == 1_100
    ticks(listening, clock, 300)
    assert listening.now_ms() == 1_300


def test_second_pause_while_the_first_settles_counts_once() -> None:
    """Only what it adds: the first one has counted the time to settle."""
    clock = ManualClock(1_000)
    listening = listening_time(clock)
    clock.jump(5_000)
    first_ms = listening.take_pause()
    clock.jump(1_000)
    assert first_ms + listening.take_pause() == 6_000 + SETTLE_MS


def test_time_before_the_first_tick_is_no_pause() -> None:
    """The host has not been started yet."""
    clock = ManualClock(1_000)
    listening = ListeningTime(EngineTime(clock))
    clock.jump(60_000)
    assert (listening.take_pause(), listening.now_ms()) == (0, 61_000)


def test_source_is_not_silent_because_of_a_pause() -> None:
    """Its next report may be in the socket."""
    clock = ManualClock(1_000)
    listening, table = listening_time(clock), SourceTable()
    table.attach("s", "", ["m/"], listening.now_ms())
    clock.jump(SILENT_MS_MAX + 1)
    listening.take_pause()
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


async def test_host_counts_no_pause_as_silence() -> None:
    clock = ManualClock(1_000)
    async with serving(clock=clock) as served:
        peer = await Peer(served, "s").open()
        await peer.registered(silent_after(TIMEOUT_MS))
        clock.jump(60_000)
        served.host.reaper.wake()
        await passes(served, SETTLE_MS + TIMEOUT_MS - 100)
        assert served.host.engine.pending == 1
        await passes(served, 200)
        assert served.host.engine.pending == 0


class Refusing(RecordingListener):
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
