"""Lessons about ownership and shutdown (docs/lessons.md): locks, isolation of keys, and closing."""

import ast
import asyncio
import itertools
import random
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Outcome, errors

import purgatory
from purgatory.engine import COMPILED
from tests.client.until import until_pending
from tests.conftest import StartDaemon
from tests.daemon_process import DaemonProcess
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest
from tests.service.test_daemon import fetch_page, sums_by_kind

LONG = 600.0
ENDS = {"expired", "cancelled", "shutting_down"}
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
THREADS = {"threading", "multiprocessing", "concurrent.futures", "_thread"}


def test_there_is_no_lock_to_take_in_the_wrong_order() -> None:
    """Engine and service create no lock and no thread, except for a pool of threads in one module for large JSON texts,
    which share nothing; `purgatory.threads` runs calls that may hang, which share nothing either.

    The only locks belong to the embedded purgatory and the timer, one each.
    """
    package = Path(purgatory.__file__).parent
    makers: dict[str, int] = {}
    for path in itertools.chain((package / "engine").rglob("*.py"), (package / "service").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            pooled = {"concurrent.futures"} if path.name == "connect_codecs.py" else set()
            assert not THREADS & set(names) - pooled, f"{path.name} imports {names}"
            if isinstance(node, ast.Call):
                made = ast.unparse(node.func).rpartition(".")[2]
                assert made not in LOCKS, f"{path.name}:{node.lineno} makes a {made}"
    for path in itertools.chain(*map(package.glob, ("*.py", "embedded/*.py", "timer/*.py"))):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        locks = sum(ast.unparse(call.func).rpartition(".")[2] in LOCKS for call in calls)
        if locks:
            makers[path.name] = locks
    assert makers == {"threaded.py": 1, "tasks.py": 2}


def random_life(seed: int, keys: int) -> list[tuple[int, plain.Operation | plain.Event | int]]:
    """(key, operation or event of that key), and (-1, milliseconds to advance)."""
    rng = random.Random(seed)
    life: list[tuple[int, plain.Operation | plain.Event | int]] = []
    for operation_id in range(1, 2_001):
        key = rng.randrange(keys)
        name, draw = ("orders", key), rng.random()
        if draw < 0.6:
            item = plain.Item(name, rng.randint(1, 60))
            life.append((key, plain.Operation(plain.PRODUCE, operation_id, rng.randint(1, 300), (item,))))
        elif draw < 0.9:
            life.append((key, plain.Event(plain.HIGH_WATERMARK, name, rng.randint(1, 60))))
        elif draw < 0.95:
            life.append((key, plain.Event(plain.PARTITION_REMOVED, name)))
        else:
            life.append((-1, rng.randint(1, 40)))
    return life


def ends_in_shards(life: list[tuple[int, plain.Operation | plain.Event | int]], shards: int) -> list[plain.Ended]:
    """The ends of all operations if each key is assigned to a shard by its number."""
    engines = [EngineUnderTest() for _ in range(shards)]
    owners = [engine.add_owner() for engine in engines]
    now_ms = 0
    for key, what in [*life, (-1, 1_000)]:
        if isinstance(what, int):
            now_ms += what
            for engine in engines:
                engine.engine.advance_clock(now_ms, 100_000)
        elif isinstance(what, plain.Operation):
            engines[key % shards].register(owners[key % shards], [what], now_ms)
        else:
            engines[key % shards].apply([what], now_ms)
    rows = [row for engine in engines for row in engine.take_ended()]
    return sorted(rows, key=lambda row: row.operation_id)


@pytest.mark.parametrize("seed", range(3))
def test_keys_share_nothing(seed: int) -> None:
    """The same run in one engine and in 2 or 7, each with its share of the keys: every operation ends the same."""
    life = random_life(seed, 14)
    whole = ends_in_shards(life, 1)
    assert len(whole) > 1_000
    assert ends_in_shards(life, 2) == whole
    assert ends_in_shards(life, 7) == whole


def test_work_on_a_key_does_not_grow_with_the_others() -> None:
    """The same work on one key takes as many evaluations with 10 other watched keys as with 10,000."""
    evaluations = []
    for others in (10, 10_000):
        under_test = EngineUnderTest()
        owner = under_test.add_owner()
        crowd = [
            plain.Operation(plain.PRODUCE, number, 60_000, (plain.Item(("other", number), 5),))
            for number in range(1, others + 1)
        ]
        under_test.register(owner, crowd, 0)
        before = under_test.engine.counts(plain.PRODUCE).evaluations
        for offset in range(1, 101):
            wait = plain.Operation(plain.PRODUCE, 20_000 + offset, 60_000, (plain.Item(("orders", 0), offset),))
            under_test.register(owner, [wait], 0)
            assert under_test.apply([plain.Event(plain.HIGH_WATERMARK, ("orders", 0), offset)], 0)[0].ended == 1
        evaluations.append(under_test.engine.counts(plain.PRODUCE).evaluations - before)
    assert evaluations[0] == evaluations[1]


@pytest.mark.slow
async def test_sigterm_with_a_hundred_thousand_waits(start_daemon: StartDaemon) -> None:
    """Each wait ends as SHUTTING_DOWN, and the process exits with 0, long before its grace period is over."""
    many = 100_000 if COMPILED else 20_000
    daemon = start_daemon("--shutdown-grace-ms", "600000")
    async with AsyncClient(daemon.address) as client:
        waiting = asyncio.create_task(
            client.produce_many(["orders-0"], offsets=range(1, many + 1), timeouts_ms=[600_000])
        )
        await until_pending(client, many)
        exit_code, answer = await asyncio.gather(asyncio.to_thread(daemon.stop), waiting)
    assert exit_code == 0
    assert answer.count(Outcome.SHUTTING_DOWN) == many
    assert f"{many} pending operations ended as shutting down" in daemon.log
    assert "Traceback" not in daemon.log
    assert "unacknowledged" not in daemon.log


async def test_out_of_time_cancelled_and_shut_down_are_three_things(daemon: DaemonProcess) -> None:
    """Each has its own outcome, its own error (if requested) and its own counter; none logs a warning."""
    async with AsyncClient(daemon.address) as client:
        expired = await client.produce({"orders-0": 1}, timeout=0.001)
        waiting = asyncio.create_task(client.produce({"orders-1": 1}, timeout=LONG))
        await until_pending(client, 1)
        assert await client.cancel(partition="orders-1") == 1
        cancelled = await waiting
        text = (await asyncio.to_thread(fetch_page, daemon, "/metrics"))[1]
        waiting = asyncio.create_task(client.produce({"orders-1": 1}, timeout=LONG))
        await until_pending(client, 1)
        exit_code, shut_down = await asyncio.gather(asyncio.to_thread(daemon.stop), waiting)
    assert exit_code == 0
    outcomes = [result.outcome for result in (expired, cancelled, shut_down)]
    assert outcomes == [Outcome.EXPIRED, Outcome.CANCELLED, Outcome.SHUTTING_DOWN]
    for result, error in zip(
        (expired, cancelled, shut_down),
        (errors.WaitExpired, errors.WaitCancelled, errors.WaitShutDown),
        strict=True,
    ):
        with pytest.raises(error):
            result.raise_for_outcome()
    lines = [line for line in text.splitlines() if line.startswith("purgatory_outcomes_total") and "produce" in line]
    said = {word: line.rpartition(" ")[2] for line in lines for word in line.split('"') if word in ENDS}
    assert said == {"expired": "1.0", "cancelled": "1.0", "shutting_down": "0.0"}
    assert sums_by_kind(text, "purgatory_registered_total")["produce"] == 2
    assert not [line for line in daemon.log.splitlines() if "WARNING" in line or "ERROR" in line]


async def test_a_partition_is_removed_while_its_waits_end(daemon: DaemonProcess) -> None:
    """Simultaneous removal, cancels and events on one partition do not block each other; each wait ends once."""
    async with AsyncClient(daemon.address) as client, AsyncClient(daemon.address) as other:
        for _ in range(10):
            waiting = [asyncio.create_task(client.produce({"orders-0": i}, timeout=LONG)) for i in range(1, 101)]
            await until_pending(other, 100)
            await asyncio.gather(
                other.advance("orders-0", high_watermark=30),
                other.cancel(partition="orders-0"),
                other.advance("orders-0", removed=True),
                client.cancel(session_id=client.session_id),
            )
            outcomes = {result.outcome for result in await asyncio.gather(*waiting)}
            assert outcomes <= {Outcome.SATISFIED, Outcome.CANCELLED, Outcome.FAILED}
        produces = (await other.status()).kinds[0]
        assert produces.registered == produces.satisfied + produces.cancelled + produces.failed == 1_000
