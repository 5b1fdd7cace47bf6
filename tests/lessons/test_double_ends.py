"""Lessons about completion (docs/lessons.md): operations that end twice, in part, or after a cancel."""

import asyncio
import signal
import threading

import pytest
from purgatory_client import AsyncClient, Outcome

from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine.codes import EXPIRED, SATISFIED
from purgatory.testing import ManualClock
from tests.client.until import until_pending
from tests.daemon_process import DaemonProcess
from tests.engine.generic.recording_operation import DEADLINE_S, RecordingOperation, never_called
from tests.service.serving import DaemonChannel, Peer, produce_columns

LONG = 120.0


@pytest.mark.parametrize("is_met", [True, False])
def test_an_end_waits_until_the_condition_has_been_looked_at(is_met: bool) -> None:
    """If the timer fires while try_complete runs, on_complete does not run concurrently, and there is one end."""
    clock = ManualClock()
    with EmbeddedPurgatory("double-ends", never_called, clock=clock, reaper_enabled=False) as purgatory:
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


@pytest.mark.slow
async def test_what_fell_due_while_stopped_fires_once(daemon: DaemonProcess) -> None:
    """A daemon that was stopped past every deadline then expires each wait once, and reports the lateness."""
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


async def test_a_batch_of_columns_is_not_fired_again(daemon: DaemonProcess) -> None:
    """A batch sent again after it has expired is already known: nothing fires a second time."""
    async with DaemonChannel(daemon.address) as calls:
        peer = await Peer(calls, "s").open(columns=True)
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
