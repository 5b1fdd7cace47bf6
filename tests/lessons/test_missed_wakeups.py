"""Lessons about wakeups (docs/lessons.md): waits that are never woken, or that are delayed by other waits."""

import asyncio
import itertools
import threading

import pytest
from purgatory_client import AsyncClient, Outcome

from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.codes import SATISFIED
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service import host as host_module
from purgatory.service.host import Host
from purgatory.service.registration import Registration
from purgatory.service.settings import HostSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from tests.daemon_process import DaemonProcess
from tests.engine.generic.recording_operation import DEADLINE_S, RecordingOperation, never_called
from tests.service.serving import (
    DaemonChannel,
    Peer,
    apply_events,
    eventually,
    produce_columns,
)

LONG = 120.0


@pytest.mark.parametrize("at_evaluation", [1, 2])
def test_state_that_changes_while_it_is_looked_at(at_evaluation: int) -> None:
    """A change and check by another thread right after an evaluation read "not yet" completes the operation."""
    with EmbeddedPurgatory("missed-wakeups", never_called) as purgatory:
        others: list[threading.Thread] = []

        def change_and_check(operation: RecordingOperation) -> None:
            operation.is_met = True
            purgatory.check_and_complete("k")

        class LookedAt(RecordingOperation):
            def try_complete(self) -> bool:
                self.evaluations += 1
                if self.evaluations == at_evaluation:
                    # The state was read as "not met"; the event happens before that result is used.
                    others.append(threading.Thread(target=change_and_check, args=(self,)))
                    others[0].start()
                    return False
                return self.force_complete() if self.is_met else False

        operation = LookedAt()
        purgatory.try_complete_else_watch(operation, ["k"])
        others[0].join(DEADLINE_S)
        assert operation.outcome == SATISFIED
        assert operation.effects == ["complete"]
        assert purgatory.pending == purgatory.watched == 0


async def test_registered_at_every_await_of_an_event_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait registered between any two slices of a batch of events is satisfied when the batch is done."""
    monkeypatch.setattr(host_module, "WORK_PER_SLICE", 1)
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
        Registration(host, session).register([OperationRun(codes.PRODUCE, waits)], [])
        await applying
        assert host.engine.counts(codes.PRODUCE).satisfied == 3, f"registered after {turns} turns"
        if was_done:
            assert turns >= 8, "the batch was not interleaved with anything"
            return


async def test_one_event_is_enough_beside_noisy_readers(daemon: DaemonProcess) -> None:
    """While other callers constantly read and wait on the same partition, a wait ends by its one event, each time."""
    async with AsyncClient(daemon.address) as client, AsyncClient(daemon.address) as noisy:
        over = False

        async def make_noise() -> int:
            rounds = 0
            while not over:
                waiting = asyncio.create_task(noisy.fetch({"offsets-0": 0}, min_bytes=10**9, timeout=LONG))
                await noisy.partition("offsets-0")
                assert len([one async for one in noisy.operations(partition="offsets-0")]) <= 9
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                rounds += 1
            return rounds

        await client.advance("offsets-0", high_watermark=0)
        noise = [asyncio.create_task(make_noise()) for _ in range(8)]
        for offset in range(1, 101):
            waiting = asyncio.create_task(client.produce({"offsets-0": offset}, timeout=LONG))
            await client.advance("offsets-0", high_watermark=offset)
            assert (await waiting).satisfied
        over = True
        assert sum(await asyncio.gather(*noise)) > 8


async def test_a_reader_that_lags_keeps_nobody_waiting_and_misses_nothing(daemon: DaemonProcess) -> None:
    """Results of an unread stream are kept and a sibling is served; when it is read, all arrive without a gap."""
    many, topic = 20_000, "x" * 200
    async with DaemonChannel(daemon.address) as calls, AsyncClient(daemon.address) as sibling:
        slow = await Peer(calls, "slow").open()
        await slow.send(register=produce_columns(range(1, many + 1), topic))
        assert (await slow.receipt()).accepted == many
        await sibling.advance((topic, 0), high_watermark=1)
        for offset in range(1, 51):
            waiting = asyncio.create_task(sibling.produce({"orders-0": offset}, timeout=LONG))
            await sibling.advance("orders-0", high_watermark=offset)
            assert (await waiting).satisfied
        assert (await calls.status()).unacknowledged_results >= many
        read: list[int] = []
        while len(read) < many:
            batch = await slow.results()
            assert batch.first_sequence == len(read) + 1
            read += [result.operation_id for result in batch.rows.results]
        assert read == list(range(1, many + 1))
        slow.cancel()


async def test_fetches_end_by_what_is_produced(daemon: DaemonProcess) -> None:
    """With consumers under steady produce, no fetch times out, and all together wait less than one timeout."""
    rounds, consumers = 30, 8
    async with AsyncClient(daemon.address) as client:
        await client.advance("orders-0", log_end_offset=0, high_watermark=0)

        async def consume() -> tuple[float, int]:
            offset, waited = 0, 0.0
            while offset < rounds:
                result = await client.fetch({"orders-0": offset}, timeout=LONG)
                assert result.outcome is Outcome.SATISFIED
                reached = result.partitions["orders-0"].fetched
                assert reached is not None
                assert reached.high_watermark > offset
                offset, waited = reached.high_watermark, waited + result.waited
            return waited, offset

        async def somebody_waits() -> bool:
            return sum(kind.pending for kind in (await client.status()).kinds) > 0

        consuming = [asyncio.create_task(consume()) for _ in range(consumers)]
        for offset in range(1, rounds + 1):
            await eventually(somebody_waits, "somebody waits")
            await client.advance("orders-0", log_end_offset=offset, high_watermark=offset)
        ends = await asyncio.gather(*consuming)
        assert [offset for _, offset in ends] == [rounds] * consumers
        assert sum(waited for waited, _ in ends) < LONG


@pytest.mark.slow
async def test_events_do_not_queue_behind_registrations(daemon: DaemonProcess) -> None:
    """While one caller floods the daemon with registrations, events of another are answered before these are done."""
    batches, size = 120, 1_000
    async with DaemonChannel(daemon.address) as calls, AsyncClient(daemon.address) as other:
        peer = await Peer(calls, "flood").open(columns=True)
        receipts = 0

        async def pour() -> None:
            for number in range(batches):
                first = number * size + 1
                await peer.send(register=produce_columns(range(first, first + size), offset=10**6))

        async def count_receipts() -> None:
            nonlocal receipts
            while receipts < batches:
                assert (await peer.receipt()).accepted == size
                receipts += 1

        async def pour_and_count() -> None:
            await asyncio.gather(pour(), count_receipts())

        pouring = asyncio.create_task(pour_and_count())
        await eventually(lambda: receipts > 0, "the flood has begun")
        answered: list[int] = []
        while not pouring.done():
            await other.advance("orders-1", high_watermark=len(answered) + 1)
            answered.append(receipts)
        await pouring
        assert len([at for at in answered if at < batches]) >= 3, answered
        assert await calls.pending() == batches * size
        assert (await other.advance("orders-0", high_watermark=10**6)).ended_total == batches * size
        peer.cancel()
