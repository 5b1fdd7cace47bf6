"""Lessons about time (docs/lessons.md): clocks that jump, many deadlines at once, and timers after a restart."""

import ast
import asyncio
import itertools
import random
from pathlib import Path

import pytest

import purgatory
from purgatory.engine import COMPILED, codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service import reaper as reaper_module
from purgatory.service.host import Host
from purgatory.service.registration import Registration
from purgatory.service.settings import HostSettings, SessionSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from tests.engine.world import World
from tests.service.serving import apply_events, serving


def produces(count: int, timeout_ms: int, topic: str = "orders", first_id: int = 1) -> OperationRun:
    """Equal waits that nothing will satisfy."""
    ids = list(range(first_id, first_id + count))
    return OperationRun(
        codes.PRODUCE, OperationBatch(ids, partitions=[(topic, 0)], offsets=[10**6], timeouts_ms=[timeout_ms])
    )


def test_the_wall_clock_is_read_where_it_is_shown_and_nowhere_else() -> None:
    """Thirteen modules of daemon and client read the wall clock: four to display it, the archive to record it, the
    journal and the outbox because they outlive the machine's monotonic clock, three for tokens and certificates,
    which expire by it, two for webhooks, which are signed with it and answered with dates, and one for the start of
    spans.
    """
    daemon = Path(purgatory.__file__).parent
    client = daemon.parent / "client" / "purgatory_client"
    found: set[str] = set()
    for path in itertools.chain(daemon.rglob("*.py"), client.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {
                "time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today",
            }:  # fmt: skip
                found.add(path.name)
    assert found == {
        "continued_time.py", "host.py", "inspection_calls.py", "outbox_gate.py", "run_details.py",
        "certificate_files.py", "commands.py", "tokens.py", "result_tail.py", "daemon_views.py", "signing.py",
        "wait_spans.py", "webhook_poster.py",
    }  # fmt: skip


def test_expiry_goes_by_the_deadline_whatever_idles() -> None:
    """With 9,000 idle sessions that each have a long wait, and others that come and go, short waits end on time."""
    clock = ManualClock(1)
    host = Host(Engine(EngineLimits(), 1), clock, HostSettings(session=SessionSettings(ttl_ms=50)))
    idle = [host.sessions.open(f"idle-{number}", 1)[0] for number in range(9_000)]
    for session in idle:
        Registration(host, session).register([produces(1, 3_600_000)], [])
        host.sessions.touch(session, 3_600_000)  # used again later: their time to live is not part of this lesson
    short, _ = host.sessions.open("short", 1)
    rng = random.Random(52)
    for number in range(1, 201):
        come_and_go, _ = host.sessions.open(f"churn-{number % 7}", clock.now_ms())
        highest = come_and_go.owner.highest_operation_id
        Registration(host, come_and_go).register([produces(1, 3_600_000, "churn", highest + 1)], [])
        Registration(host, short).register([produces(1, rng.randint(1, 40), f"t-{number}", number)], [])
        clock.jump(host.engine.next_expiration_ms() - clock.now_ms())
        host.reaper.turn()
    while short.owner.pending:
        clock.jump(host.engine.next_expiration_ms() - clock.now_ms())
        host.reaper.turn()
    _, slices = short.outbox.take(1_000)
    lateness = [ms for part in slices for ms in part.completions.lateness_ms[part.start : part.stop]]
    assert lateness == [0] * 200
    assert host.engine.pending >= 9_000


@pytest.mark.slow
async def test_a_herd_goes_in_slices_and_events_in_between() -> None:
    """With 100,000 waits due at once, no iteration of the loop ends more than a slice; events are served in between."""
    herd, clock = 100_000 if COMPILED else 30_000, ManualClock(1)
    async with serving(clock=clock) as served:
        host = served.host
        session, _ = host.sessions.open("s", 1)
        for place in range(10):
            Registration(host, session).register(
                [produces(herd // 10, 1_000, f"t-{place}", place * herd // 10 + 1)], []
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
        assert max(turns) <= reaper_module.EXPIRED_PER_SLICE
        assert max(ended_between) <= 4 * reaper_module.EXPIRED_PER_SLICE
        assert session.outbox.last_sequence == herd


def test_a_change_of_leader_does_not_give_time_anew() -> None:
    """New epochs, truncation and recovered storage do not change deadlines."""
    world = World()
    world.lead("orders-0", 1)
    handle = world.produce({"orders-0": 5, "orders-1": 5}, timeout_ms=100)
    for epoch in range(2, 12):
        world.wait(9)
        world.lead("orders-0", epoch)
        world.truncate("orders-0", 0)
    assert world.wait(9) == 0
    assert world.wait(1) == 1
    assert world.result(handle).waited_ms == 100
