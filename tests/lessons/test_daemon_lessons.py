"""Bugs of other projects (docs/lessons.md) as tests of the daemon: herds, floods, leaks and shutdown."""

import asyncio
import itertools
import random

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from purgatory_client import AsyncClient

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.host import Host
from purgatory.service.settings import HostSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2, result_pb2
from tests.abuse.result import memory_mb
from tests.kit.daemon import RunDaemon, StartDaemon
from tests.kit.eventually import eventually
from tests.kit.messages import produce, produce_columns, produce_run
from tests.kit.served_host import DaemonChannel, Peer, apply_events, serving
from tests.service.test_daemon import fetch_page, sums_by_kind


@pytest.mark.slow
async def test_a_herd_goes_in_slices_and_events_in_between() -> None:
    herd, clock = 100_000, ManualClock(1)
    async with serving(clock=clock) as served:
        host = served.host
        session, _ = host.sessions.open("s", 1)
        for place in range(10):
            host.registration(session).register(
                [
                    produce_run(
                        range(place * herd // 10 + 1, (place + 1) * herd // 10 + 1), f"t-{place}", [10**6], 1_000
                    )
                ],
                [],
            )
        assert host.engine.pending == herd
        turns: list[int] = []

        async def watch() -> None:
            while host.engine.pending:
                before = host.engine.pending
                await asyncio.sleep(0)
                turns.append(before - host.engine.pending)

        watching = asyncio.create_task(watch())
        clock.jump(1_000)
        host.reaper.wake()
        pending_at_events: list[int] = []
        while host.engine.pending:
            pending_at_events.append(host.engine.pending)
            await apply_events(host, EventBatch([codes.HIGH_WATERMARK], partitions=[("other", 0)], offsets=[1]))
            await asyncio.sleep(0)
        await watching
        ended_between = [before - after for before, after in itertools.pairwise([*pending_at_events, 0])]
        assert max(turns) <= sizes.EXPIRED_PER_SLICE
        assert max(ended_between) <= 4 * sizes.EXPIRED_PER_SLICE
        assert session.outbox.last_sequence == herd


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


async def read_results(peer: Peer, count: int) -> tuple[set[int], int]:
    """Read `count` results as columns; returns their outcomes and the last sequence number."""
    outcomes: set[int] = set()
    last = 0
    while count > 0:
        batch = await peer.results()
        outcomes |= set(batch.columns.outcome)
        count -= len(batch.columns.operation_id)
        last = batch.first_sequence + len(batch.columns.operation_id) - 1
    return outcomes, last


@pytest.mark.slow
async def test_a_flood_of_registrations_does_not_grow_the_daemon(start_daemon: StartDaemon) -> None:
    """In each round half the registrations are refused and the others cancelled early: memory levels off."""
    room, flood = 5_000, 10_000
    daemon = start_daemon("--limits-pending-operations-max", str(room))
    async with DaemonChannel(daemon.address) as calls:
        peer = await Peer(calls, "s").open(columns=True)
        used_mb: list[float] = []
        for round_number in range(8):
            first = round_number * flood + 1
            await peer.send(register=produce_columns(range(first, first + flood), timeout_ms=2**31 - 1))
            receipt = await peer.receipt()
            assert (receipt.accepted, len(receipt.refusals)) == (room, flood - room)
            assert {refusal.code for refusal in receipt.refusals} == {8}
            assert (await read_results(peer, flood - room))[0] == {result_pb2.OUTCOME_REFUSED}
            assert await calls.pending() == room
            await calls.stub.Cancel(purgatory_service_pb2.CancelRequest(session_id="s"))
            outcomes, last = await read_results(peer, room)
            assert outcomes == {result_pb2.OUTCOME_CANCELLED}
            await peer.acknowledge(last)
            used_mb.append(memory_mb(daemon))
        assert await calls.pending() == 0
        assert used_mb[-1] < 1.25 * used_mb[3], used_mb
        peer.cancel()


async def test_gauges_are_right_whoever_closes_first(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon("--session-ttl-ms", "100", "--session-heartbeat-interval-ms", "200")
    rng = random.Random(36)

    async def live(calls: DaemonChannel, number: int) -> None:
        session_id = f"s-{number % 6}"
        peer = Peer(calls, session_id)
        try:
            await peer.open()
            highest = peer.opened.highest_operation_id
            await peer.register(*(produce(highest + i, f"orders-{number % 3}", i) for i in range(1, 6)))
            for _ in range(rng.randrange(3)):
                await peer.read()
            if rng.random() < 0.5:
                await calls.stub.Cancel(purgatory_service_pb2.CancelRequest(session_id=session_id))
        except (grpc.RpcError, AssertionError, asyncio.InvalidStateError):
            pass  # another stream has taken over the session: that is the race under test
        finally:
            peer.cancel()

    async def page() -> str:
        """The metrics, none of which is negative."""
        text = (await asyncio.to_thread(fetch_page, daemon, "/metrics"))[1]
        gauges = [family for family in text_string_to_metric_families(text) if family.type == "gauge"]
        assert [sample for family in gauges for sample in family.samples if sample.value < 0] == []
        return text

    def metric(text: str, name: str) -> float:
        """The sum over all labels."""
        return sum(sums_by_kind(text, name).values())

    async with DaemonChannel(daemon.address) as calls, AsyncClient(daemon.address) as other:
        for _ in range(12):
            lives = [asyncio.create_task(live(calls, number)) for number in range(12)]
            for topic in range(3):
                await other.advance((f"orders-{topic}", 0), high_watermark=rng.randint(1, 6))
                await page()
            await asyncio.gather(*lives)

        async def are_all_gone() -> bool:
            text = await page()
            gauges = ("purgatory_pending_operations", "purgatory_watched_entries", "purgatory_result_backlog")
            return all(metric(text, name) == 0 for name in gauges) and metric(text, "purgatory_sessions") <= 1

        await eventually(are_all_gone, "everything that the vanished left is gone")
        text = await page()
        streams = [metric(text, f"purgatory_streams_{what}_total") for what in ("connected", "disconnected")]
        assert streams[0] - streams[1] == metric(text, "purgatory_sessions_connected")
        kinds = (await calls.status()).kinds
        assert kinds[0].registered > 100, "hardly anybody got as far as registering"
        assert all(k.registered == k.satisfied + k.failed + k.expired + k.cancelled for k in kinds)
