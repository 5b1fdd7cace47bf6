"""The host by itself: slices, the reaper and its alarm, notifications of listeners, extensions, and the drain."""

import asyncio
import ctypes
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from purgatory_client.aio import AsyncClient

from purgatory import sizes
from purgatory.clock import NS_PER_MS, SystemClock
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service import draining
from purgatory.service import host as host_module
from purgatory.service import reaper as alarm_module
from purgatory.service import reaper as reaper_module
from purgatory.service.draining import drain
from purgatory.service.host import Host
from purgatory.service.reaper import Alarm, KernelAlarm, LoopAlarm, OnAlarm, make_alarm
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.sizes import CONTROL_MESSAGES_MAX
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import result_pb2
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import produce, produce_run, signal
from tests.kit.served_host import Peer, RecordingListener, apply_events, refused, serving


async def test_dropped_sessions_end_after_a_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the first slice is raised in the caller; the rest is cancelled after a pause."""
    monkeypatch.setattr(sizes, "WORK_PER_SLICE", 20)
    monkeypatch.setattr(host_module, "RETRY_AFTER_FAULT_S", 0)
    host = Host(Engine(EngineLimits(), 1), ManualClock(1), HostSettings())
    deliver, slices = host._deliver, itertools.count(1)

    def failing(now_ms: int, *, by_id: bool, were_stale: bool) -> None:
        deliver(now_ms, by_id=by_id, were_stale=were_stale)
        if (number := next(slices)) in (1, 3, 5):
            raise RuntimeError(f"a fault at {number}")

    session, _ = host.sessions.open("s", 1)
    host.registration(session).register([produce_run(range(1, 101), "orders", range(1, 101))], [])
    monkeypatch.setattr(host, "_deliver", failing)
    with pytest.raises(RuntimeError, match="a fault at 1"):
        host.close_session(session)
    assert host.engine.pending == 90
    await eventually(lambda: host.sessions.of_owner(session.owner.owner_id) is None, "the session is forgotten")
    assert (host.engine.pending, next(slices)) == (0, 11)
    messages = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert messages == ["a fault at 3", "a fault at 5"]


async def test_registered_at_every_await_of_an_event_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "WORK_PER_SLICE", 1)
    events = EventBatch([codes.HIGH_WATERMARK] * 8, partitions=[("orders", 0)], offsets=list(range(1, 9)))
    for turns in itertools.count():
        host = Host(Engine(EngineLimits(), 0), ManualClock(), HostSettings())
        session, _ = host.sessions.open("s", 0)
        applying = asyncio.create_task(apply_events(host, events))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = applying.done()
        waits = OperationBatch(
            [1, 2, 3], partitions=[("orders", 0)], offsets=[1, min(turns, 7) + 1, 8], timeouts_ms=[1_000]
        )
        host.registration(session).register([OperationRun(codes.PRODUCE, waits)], [])
        await applying
        assert host.engine.inspection.counts(codes.PRODUCE).satisfied == 3, f"registered after {turns} turns"
        if was_done:
            assert turns >= 8, "the batch was not interleaved with anything"
            return


async def test_an_earlier_deadline_wakes_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of 20 ms ends although the reaper was sleeping for one of an hour."""
    monkeypatch.setattr(reaper_module, "SLEEP_MS_MAX", 3_600_000)
    async with serving() as served:
        session, _ = served.host.sessions.open("s", served.host.time.now_ms())
        served.host.registration(session).register([produce_run(range(1, 2), "a", [1], 3_600_000)], [])
        await asyncio.sleep(0)
        answer = await served.stub.Wait(wire.WaitRequest(operation=produce(1, "b", 1, 20)), timeout=PATIENCE_S)
        assert answer.result.outcome == result_pb2.OUTCOME_EXPIRED


class MicrosecondClock:
    """A clock that is moved by hand, in microseconds."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us

    def now_ms(self) -> int:
        return self.now_us // 1_000

    def ceiling_ms(self) -> int:
        return -(-self.now_us // 1_000)


def host_of(clock: MicrosecondClock) -> Host:
    """A host whose reaper runs only when the test calls it."""
    return Host(Engine(EngineLimits(), clock.now_ms()), clock, HostSettings())


@pytest.mark.parametrize("part_us", [0, 1, 500, 999])
def test_nothing_expires_before_its_timeout_by_the_finest_clock(part_us: int) -> None:
    clock = MicrosecondClock(10_000 + part_us)
    host = host_of(clock)
    session, _ = host.sessions.open("s", clock.now_ms())
    host.registration(session).register([produce_run(range(1, 2), "a", [1], 30)], [])
    due_us = clock.now_us + 30_000
    while host.engine.pending:
        clock.now_us += 1
        host.reaper.turn()
    assert due_us <= clock.now_us < due_us + 1_000


def test_registrations_do_not_hold_back_those_that_are_due() -> None:
    clock = MicrosecondClock(10_000)
    host = host_of(clock)
    session, _ = host.sessions.open("s", clock.now_ms())
    host.registration(session).register([produce_run(range(1, 2), "a", [1], 30)], [])
    for number in range(2, 200):
        clock.now_us += 300
        host.registration(session).register([produce_run(range(number, number + 1), "b", [1])], [])
        host.reaper.turn()
        assert host.engine.inspection.counts(codes.PRODUCE).expired == (clock.now_us >= 40_000)
    assert session.outbox.last_sequence == 1


class BrokenClock(SystemClock):
    """A clock that fails a given number of times."""

    failures = 0

    def now_ms(self) -> int:
        if self.failures:
            self.failures -= 1
            raise OSError("the clock is broken")
        return super().now_ms()


async def test_the_reaper_survives_whatever_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_module, "RETRY_S", 0.01)
    monkeypatch.setattr(reaper_module, "SLEEP_MS_MAX", 20)
    listener = RecordingListener()
    clock = BrokenClock()
    engine = Engine(EngineLimits(), clock.now_ms())
    host = Host(engine, clock, HostSettings(), listener)
    session, _ = host.sessions.open("s", clock.now_ms())
    host.registration(session).register([produce_run(range(1, 2), "a", [1], 30)], [])
    clock.failures = 2
    host.start()
    await eventually(lambda: listener.reaper_failures == 2, "two failures counted")
    await eventually(lambda: engine.pending == 0, "the wait has expired")
    await eventually(lambda: bool(listener.lags), "the lag of the loop is measured")
    await host.stop()


async def test_drain_answers_every_wait_and_stream_and_refuses_new_work() -> None:
    async with serving() as served:
        unary = asyncio.create_task(_wait(served.stub.Wait, wire.WaitRequest(operation=produce(1, "a", 1))))
        peer = await Peer(served, "s").open()
        silent = served.stub.StreamResults(wire.StreamResultsRequest(session_id="other"))
        await peer.registered(*(signal(place, "k") for place in range(1, 101)))
        await eventually(lambda: served.host.engine.pending == 101, "101 pending")
        await eventually(lambda: served.host.sessions.connected == 2, "both streams are there")
        draining_task = asyncio.create_task(drain(served.host, 5.0))
        batch = await peer.results()
        assert {result.outcome for result in batch.rows.results} == {result_pb2.OUTCOME_SHUTTING_DOWN}
        assert len(batch.rows.results) == 100
        receipt = await peer.registered(signal(101, "k"))
        assert [refusal.code for refusal in receipt.refusals] == [codes.UNAVAILABLE]
        assert (await peer.results()).first_sequence == 101
        await peer.acknowledge(101)
        assert (await peer.read()).going_away.reason == wire.GoingAway.REASON_SHUTTING_DOWN
        assert await peer.code() == grpc.StatusCode.OK
        assert (await silent.read()).HasField("opened")
        assert (await silent.read()).going_away.reason == wire.GoingAway.REASON_SHUTTING_DOWN
        assert (await unary).result.outcome == result_pb2.OUTCOME_SHUTTING_DOWN
        await draining_task
        with refused(grpc.StatusCode.UNAVAILABLE):
            await served.stub.Wait(wire.WaitRequest(operation=produce(1, "a", 1)))
        late = Peer(served, "late")
        await late.send(open=wire.OpenSession(session_id="late"))
        assert await late.code() == grpc.StatusCode.UNAVAILABLE
        status = await served.status()
        assert status.draining
        assert sum(kind.shutting_down for kind in status.kinds) == 101


async def _wait(call: grpc.aio.UnaryUnaryMultiCallable, request: wire.WaitRequest) -> wire.WaitResponse:
    answer: wire.WaitResponse = await call(request)
    return answer


async def test_the_end_does_not_wait_for_a_peer_that_acknowledges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "UNACKNOWLEDGED_MS_MAX", 50)
    async with serving() as served:
        peer = await Peer(served, "s").open()
        await peer.registered(signal(1, "k"))
        await drain(served.host, 30.0)
        assert (await peer.results()).rows.results[0].outcome == result_pb2.OUTCOME_SHUTTING_DOWN
        assert (await peer.read()).HasField("going_away")


LONG_MS = 600_000


def one_wait(timeout_ms: int) -> tuple[Host, Session, ManualClock]:
    """A host with operation 1 of a session, on a clock that is moved by hand."""
    clock = ManualClock(1)
    host = Host(Engine(EngineLimits(), 1), clock, HostSettings())
    session, _ = host.sessions.open("s", 1)
    host.registration(session).register([produce_run([1], timeout_ms=timeout_ms)], [])
    return host, session, clock


async def test_what_is_due_expires_before_it_is_extended() -> None:
    host, session, clock = one_wait(1_000)
    clock.jump(1_001)
    assert host.extend(session, [1], 500) == [False]
    assert (host.engine.pending, session.outbox.last_sequence) == (0, 1)
    clock.jump(10_000)
    host.reaper.turn()
    assert session.outbox.last_sequence == 1


async def test_an_extension_is_a_use_of_the_session() -> None:
    host, session, clock = one_wait(LONG_MS * 10)
    ttl_ms = host.settings.session.ttl_ms
    for _ in range(3):
        clock.jump(ttl_ms - 1)
        assert host.extend(session, [1], 500) == [True]
        host.sessions.drop_expired(host.time.now_ms())
        assert not session.dropped
    clock.jump(ttl_ms)
    host.sessions.drop_expired(host.time.now_ms())
    assert session.dropped


async def test_owner_hears_of_an_extension_by_another_caller() -> None:
    """Its session stream, or its stream of results, has the ids that were pending, and the time from now on."""
    async with serving() as served, AsyncClient(served.address) as client:
        peer = await Peer(served, "s").open()
        await peer.registered(produce(1, "orders", 5), produce(2, "orders", 6))
        assert await client.extend([2, 3], 600, session_id="s") == [3]
        expected = wire.OperationsExtended(operation_ids=[2], timeout_ms=600_000)
        assert (await peer.read()).extended == expected
        results = served.stub.StreamResults(wire.StreamResultsRequest(session_id="s"))
        assert (await results.read()).HasField("opened")
        assert await client.extend([2], 600, session_id="s") == []
        assert (await results.read()).extended == expected
        results.cancel()


async def test_extensions_are_left_out_where_nobody_reads() -> None:
    """They must not take the place of a receipt: a peer that does not read has few."""
    async with serving() as served, AsyncClient(served.address) as client:
        peer = await Peer(served, "s").open()
        await peer.registered(produce(1, "orders", 5))
        [stream] = served.host.sessions.streams()
        stream.wake = lambda: None  # type: ignore[method-assign] # so its writer does nothing
        for _ in range(2 * CONTROL_MESSAGES_MAX):
            await client.extend([1], 600, session_id="s")
        stream.reserve()
        assert stream._unwritten == CONTROL_MESSAGES_MAX


LOOP_RESOLUTION_MS = 1
"""Loops may fire up to this much early, because of their own resolution in time."""

Make = Callable[[OnAlarm], Alarm]
both = pytest.mark.parametrize("make", [KernelAlarm, LoopAlarm])


Rung = asyncio.Queue[tuple[int, float]]
"""When an alarm has fired: monotonic time, nanoseconds, and how late it was, milliseconds."""


def ringing(make: Make) -> tuple[Alarm, Rung]:
    rung = Rung()
    return make(lambda late_ms: rung.put_nowait((time.monotonic_ns(), late_ms))), rung


@both
async def test_rings_at_the_beginning_of_a_millisecond_and_not_before(make: Make) -> None:
    """The alarm fires once the given millisecond has begun, and reports its lateness."""
    alarm, rung = ringing(make)
    for in_ms in (1, 2, 20):
        set_ms = time.monotonic_ns() // NS_PER_MS
        alarm.set(in_ms)
        at_ns, late_ms = await asyncio.wait_for(rung.get(), PATIENCE_S)
        early_ms_max = LOOP_RESOLUTION_MS if make is LoopAlarm else 0
        assert at_ns // NS_PER_MS >= set_ms + in_ms - early_ms_max
        assert 0 <= late_ms <= max(0.0, (at_ns - (set_ms + in_ms) * NS_PER_MS) / NS_PER_MS)
    alarm.close()
    assert rung.empty()


@both
async def test_alarm_that_is_set_again_or_closed_does_not_ring(make: Make) -> None:
    """Even if it is due, and the loop has not processed that yet. A closed one leaves no file open."""
    files = open_files()
    (again, again_rung), (closed, closed_rung), (later, later_rung) = (ringing(make) for _ in range(3))
    again.set(1)
    closed.set(1)
    time.sleep(0.005)  # noqa: ASYNC251 - the loop must not process the expired timers before
    again.set(3_600_000)
    closed.close()
    later.set(3_600_000)
    later.set(5)
    await asyncio.wait_for(later_rung.get(), PATIENCE_S)
    assert again_rung.empty()
    assert closed_rung.empty()
    again.close()
    later.close()
    assert open_files() == files


async def test_the_loop_rings_where_the_kernel_has_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_alarm(print), KernelAlarm)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert isinstance(make_alarm(print), LoopAlarm)
    monkeypatch.undo()
    monkeypatch.setattr(alarm_module, "_checked", refuse)
    assert isinstance(make_alarm(print), LoopAlarm)


def refuse(_answer: int) -> int:
    """Fail as if libc had returned an error."""
    raise OSError(24, "too many open files")


def open_files() -> int:
    """Return the number of open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))
