"""Lessons 19 to 27, where not told of the engine alone: ends that come twice, torn, or after a cancel."""

import asyncio
import random
import signal
import threading
from collections import Counter

import pytest
from purgatory_client import AsyncClient, Outcome, waits
from purgatory_client.session.session_core import SessionCore

from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine.codes import EXPIRED, SATISFIED
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2, result_pb2
from tests.client.session.flaky_proxy import FlakyProxy
from tests.client.session.wire_script import opened, results, sent
from tests.client.until import until_pending
from tests.daemon_process import DaemonProcess
from tests.engine.generic.recording_operation import DEADLINE_S, RecordingOperation, never_told
from tests.lessons.daemon_calls import DaemonCalls, produce_columns
from tests.service.serving import Peer, produce
from tests.service.serving import signal as signal_wait

LONG = 120.0


@pytest.mark.parametrize("is_met", [True, False])
def test_lesson_20_an_end_waits_until_the_condition_has_been_looked_at(is_met: bool) -> None:
    """The timer comes while try_complete runs: on_complete is not run beside it, and there is one end."""
    clock = ManualClock()
    with EmbeddedPurgatory("lesson-20", never_told, clock=clock, reaper_enabled=False) as purgatory:
        log: list[str] = []
        at_the_timer, release = threading.Event(), threading.Event()

        class SlowLook(RecordingOperation):
            def try_complete(self) -> bool:
                self.evaluations += 1
                if self.evaluations < 3:
                    return False
                log.append("look begins")
                assert release.wait(DEADLINE_S)
                log.append("look ends")
                return self.force_complete() if is_met else False

        def expire() -> None:
            at_the_timer.set()
            purgatory.advance_clock()

        operation = SlowLook(10)
        operation.when_completed = lambda: log.append("completed")
        purgatory.try_complete_else_watch(operation, ["k"])
        clock.jump(10)
        checking = threading.Thread(target=purgatory.check_and_complete, args=("k",))
        checking.start()
        expiring = threading.Thread(target=expire)
        expiring.start()
        assert at_the_timer.wait(DEADLINE_S)
        release.set()
        checking.join(DEADLINE_S)
        expiring.join(DEADLINE_S)
        assert log in (["look begins", "look ends", "completed"], ["completed"])
        assert operation.effects == (["complete", "expire"] if operation.outcome == EXPIRED else ["complete"])
        if is_met and log[0] == "look begins":
            assert operation.outcome == SATISFIED
        assert purgatory.pending == purgatory.num_delayed == 0


async def test_lesson_21_nothing_comes_after_a_cancel(daemon: DaemonProcess) -> None:
    """Cancels race with the event: "cancelled" means that end and no other, "not pending" that there is one."""
    many, chunk = 3_000, 50
    rng = random.Random(21)
    async with DaemonCalls(daemon) as calls, AsyncClient(daemon.address) as other:
        peer = await calls.session("s")
        await peer.register(*(produce(number, "orders", number) for number in range(1, many + 1)))
        assert (await peer.receipt()).accepted == many
        ids = rng.sample(range(1, many + 1), many)

        async def cancel_all() -> None:
            for start in range(0, many, chunk):
                cancel = purgatory_service_pb2.CancelOperations(operation_ids=ids[start : start + chunk])
                await peer.send(cancel=cancel)

        async def advance() -> None:
            for offset in range(100, many + 1, 100):
                await other.advance("orders-0", high_watermark=offset)

        racing = asyncio.gather(cancel_all(), advance())
        outcomes: dict[int, int] = {}
        cancelled: set[int] = set()
        too_late: set[int] = set()
        while len(outcomes) < many or len(cancelled) + len(too_late) < many:
            message = await peer.read()
            if message.HasField("cancelled"):
                cancelled |= set(message.cancelled.cancelled_operation_ids)
                too_late |= set(message.cancelled.not_pending_operation_ids)
                continue
            for result in message.results.rows.results:
                assert result.operation_id not in outcomes, "an operation ended twice"
                outcomes[result.operation_id] = result.outcome
        await racing
        assert {outcomes[number] for number in cancelled} <= {result_pb2.OUTCOME_CANCELLED}
        assert {outcomes[number] for number in too_late} <= {result_pb2.OUTCOME_SATISFIED}
        assert cancelled.isdisjoint(too_late)
        peer.cancel()


async def test_lesson_24_one_bad_item_does_not_repeat_the_good_ones(daemon: DaemonProcess) -> None:
    """A batch with refused items, sent again as a whole, registers nothing twice; a refused event is named."""
    async with DaemonCalls(daemon) as calls:
        peer = await calls.session("s")
        batch = [produce(number, "orders", -7 if number % 3 == 0 else 1) for number in range(1, 10)]
        await peer.register(*batch)
        receipt = await peer.receipt()
        assert [refusal.operation_id for refusal in receipt.refusals] == [3, 6, 9]
        ends = Counter(result.operation_id for result in (await peer.results()).rows.results)
        for repeat in range(2, 5):
            await peer.register(*batch, batch_id=repeat)
            again = await peer.receipt()
            assert (again.accepted, again.already_known, len(again.refusals)) == (0, 9, 0)
        events = [
            event_pb2.Event(
                topic_partition=operation_pb2.TopicPartition(topic="orders"),
                high_watermark=event_pb2.HighWatermark(offset=offset),
            )
            for offset in (-7, 1)
        ]
        rows = event_pb2.EventRows(events=events)
        answer = await calls.stub.Advance(purgatory_service_pb2.AdvanceRequest(rows=rows))
        assert ([refusal.index for refusal in answer.receipt.refusals], list(answer.receipt.ended)) == ([0], [0, 6])
        while ends.total() < 9:
            ends.update(result.operation_id for result in (await peer.results()).rows.results)
        assert ends == dict.fromkeys(range(1, 10), 1)
        produces = (await calls.status()).kinds[0]
        assert (produces.registered, produces.satisfied, produces.pending) == (6, 6, 0)
        peer.cancel()


async def test_lesson_25_what_is_delivered_again_is_the_same(daemon: DaemonProcess) -> None:
    """Unacknowledged results come again on the next stream under the same sequence numbers and ids."""

    async def read(peer: Peer, count: int) -> list[tuple[int, int, int]]:
        rows: list[tuple[int, int, int]] = []
        while len(rows) < count:
            batch = await peer.results()
            numbered = enumerate(batch.rows.results, batch.first_sequence)
            rows += [(number, one.operation_id, one.outcome) for number, one in numbered]
        return rows

    async with DaemonCalls(daemon) as calls:
        peer = await calls.session("s")
        await peer.register(*(signal_wait(number, "k", number) for number in range(1, 31)))
        await peer.receipt()
        first = await read(peer, 30)
        for _ in range(3):
            peer.cancel()
            peer = await calls.session("s")
            assert peer.opened.resumed
            assert await read(peer, 30) == first
        peer.cancel()


def test_lesson_25_the_client_drops_what_it_has_seen() -> None:
    """A result that is delivered twice ends its wait once: the sequence number tells."""
    core = SessionCore("s", 10)
    core.receive(opened(), 0.0)
    for _ in range(3):
        core.submit(waits.signal(["k"], timeout=5), 0.0)
    sent(core, 0.0)
    delivered = [core.receive(results(1, [2, 1], kind=4), 0.0), core.receive(results(1, [2, 1], kind=4), 0.0)]
    delivered.append(core.receive(results(1, [2, 1, 3], kind=4), 0.0))
    assert [len(ended) for ended in delivered] == [2, 0, 1]


async def test_lesson_25_a_long_wait_outlives_many_connections(daemon: DaemonProcess) -> None:
    """A wait far longer than any connection is registered once and ends once, however often it is taken up again."""
    async with (
        FlakyProxy(daemon.address) as proxy,
        AsyncClient(daemon.address) as direct,
        AsyncClient(proxy.address) as client,
    ):
        waiting = asyncio.create_task(client.produce({"orders-0": 1}, timeout=LONG))
        await until_pending(direct, 1)
        for offset in range(1, 6):
            proxy.drop_all()
            other = await client.produce({"orders-1": offset}, timeout=0.001)
            assert other.outcome is Outcome.EXPIRED
        await direct.advance("orders-0", high_watermark=1)
        assert (await waiting).satisfied
        produces = (await direct.status()).kinds[0]
        assert (produces.registered, produces.satisfied, produces.expired) == (6, 1, 5)


@pytest.mark.slow
async def test_lesson_26_what_fell_due_while_stopped_fires_once(daemon: DaemonProcess) -> None:
    """A daemon that stood still past every deadline expires each wait once when it goes on, and says how late."""
    many = 500
    async with AsyncClient(daemon.address) as client:
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(client.produce_many(["orders-0"], offsets=[1] * many, timeouts_ms=[1_500]))
        await until_pending(client, many)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            due = asyncio.Event()
            loop.call_later(1.6, due.set)
            await due.wait()
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        answer = await waiting
        assert answer.count(Outcome.EXPIRED) == many
        assert all(result.lateness > 0 for result in answer)
        produces = (await client.status()).kinds[0]
        assert (produces.registered, produces.expired, produces.pending) == (many, many, 0)


async def test_lesson_26_a_batch_of_columns_is_not_fired_again(daemon: DaemonProcess) -> None:
    """Sent once more after it has expired, a batch is known already: nothing fires a second time."""
    async with DaemonCalls(daemon) as calls:
        peer = await calls.session("s", columns=True)
        batch = produce_columns(range(1, 101), timeout_ms=1)
        await peer.send(register=batch)
        assert (await peer.receipt()).accepted == 100
        ended = 0
        while ended < 100:
            ended += len((await peer.results()).columns.operation_id)
        await peer.send(register=batch)
        again = await peer.receipt()
        assert (again.accepted, again.already_known) == (0, 100)
        assert (await calls.status()).kinds[0].expired == 100
        peer.cancel()
