"""The memory budget: its size, what counts towards it, and refusals when it is full. Free memory is given back."""

import asyncio
import ctypes
import gc
import random
import subprocess
import sys
import tempfile
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.waiting.tables import Owner
from purgatory.service.access.account import Account
from purgatory.service.budget import garbage
from purgatory.service.budget.garbage import trim_while_idle
from purgatory.service.budget.memory_watch import LOG_INTERVAL_S, TRIM_INTERVAL_S, MemoryWatch, resident_bytes
from purgatory.service.budget.shares import SHARE_OF_MACHINE, available_bytes, budget_bytes, cgroup_limits
from purgatory.service.errors import BatchRejected, RpcError
from purgatory.service.host import Host
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.rpc.grpc_options import largest_message_bytes
from purgatory.service.sessions.outbox import Outbox
from purgatory.service.settings import GrpcSettings, HostSettings, LimitsSettings, Settings
from purgatory.service.translate.parts import size_of
from purgatory.service.translate.result_slices import slices_of
from purgatory.testing import ManualClock
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import register_batch
from tests.kit.recorded import assert_recorded, cases_of
from tests.kit.served_host import apply_events

MIB = 1024 * 1024


def make_host() -> tuple[Host, Metrics]:
    metrics = Metrics()
    return Host(Engine(EngineLimits(), 0), ManualClock(), HostSettings(), metrics), metrics


# The size of the budget.

CONTROL_GROUPS = Path(__file__).with_name("control_groups.txt")


def test_the_budget_is_what_was_set_or_most_of_what_there_is() -> None:
    assert budget_bytes(512 * MIB) == 512 * MIB
    assert 0 < budget_bytes(0) == int(available_bytes() * SHARE_OF_MACHINE)


def test_limits_of_control_groups_are_found(tmp_path: Path) -> None:
    """As in control_groups.txt."""

    def limits(case: str) -> str:
        membership, *files = case.split(" ")
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "cgroup").write_text(f"{membership}\n".replace(",", "\n"), "utf-8")
        for name, _, value in (file.partition("=") for file in files):
            path = folder / "mounted" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n", "utf-8")
        return str(sorted(set(cgroup_limits(folder / "cgroup", folder / "mounted"))))

    assert_recorded(CONTROL_GROUPS, map(limits, cases_of(CONTROL_GROUPS)))


def test_messages_are_a_part_of_the_budget() -> None:
    small = Settings(limits=LimitsSettings(memory_bytes_max=512 * MIB))
    large = Settings(limits=LimitsSettings(memory_bytes_max=64 * 1024 * MIB))
    assert largest_message_bytes(small) == 4 * MIB
    assert largest_message_bytes(large) == large.grpc.message_bytes_max
    assert largest_message_bytes(Settings(grpc=GrpcSettings(message_bytes_max=2048), limits=small.limits)) == 2048


@pytest.mark.parametrize(("given", "is_taken"), [(0, True), (1, False), (128 * MIB - 1, False), (128 * MIB, True)])
def test_a_budget_below_what_the_program_takes_is_refused(given: int, is_taken: bool) -> None:
    """A budget of 0 is not a setting, and below 128 MiB no work would fit; such values are refused."""
    if is_taken:
        assert LimitsSettings(memory_bytes_max=given).memory_bytes_max == given
    else:
        with pytest.raises(ValueError, match="0 or at least"):
            LimitsSettings(memory_bytes_max=given)


# Refusals.


@pytest.mark.parametrize(("spare", "fits"), [(-1, False), (0, True)])
def test_a_unary_wait_fits_to_the_byte(spare: int, fits: bool) -> None:
    host, metrics = make_host()
    budget, nobody = host.shares.budget, host.shares.accounts.nobody
    budget.bytes_max = budget.held_bytes() + budget.operations_bytes(1, 50) + spare
    host.gate.check_unary_wait(nobody, 0)
    if fits:
        host.gate.check_unary_items(nobody, 50)
    else:
        with pytest.raises(RpcError, match="memory") as raised:
            host.gate.check_unary_items(nobody, 50)
        assert raised.value.code == codes.RESOURCE_EXHAUSTED
    assert metrics.rejected[codes.RESOURCE_EXHAUSTED] == budget.refusals == (not fits)


async def test_while_memory_is_short_marks_are_still_taken() -> None:
    host, _ = make_host()
    nobody = host.shares.accounts.nobody
    host.sessions.open("known", 0)
    known = EventBatch([codes.HIGH_WATERMARK], partitions=[("orders", 0)], item_indexes=[0], offsets=[1])
    assert (await apply_events(host, known)).refusals == []
    host.shares.budget.is_short = True
    with pytest.raises(BatchRejected, match="budget"):
        host.gate.check_memory(nobody, 1, 1)
    for refused in (
        lambda: host.sessions.open("new", 0),
        lambda: host.gate.check_unary_items(nobody, 1),
        lambda: host.gate.check_answer(nobody),
    ):
        with pytest.raises(RpcError, match="memory") as raised:
            refused()
        assert raised.value.code == codes.RESOURCE_EXHAUSTED
    assert host.sessions.open("known", 0)
    known.offsets[0] = 2
    assert (await apply_events(host, known)).refusals == []
    new = EventBatch([codes.HIGH_WATERMARK], partitions=[("payments", 0)], item_indexes=[0], offsets=[1])
    assert [refusal.code for refusal in (await apply_events(host, new)).refusals] == [codes.RESOURCE_EXHAUSTED]


def test_the_watch_tells_the_budget_gives_memory_back_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Memory is given back at most once a second. If that does not help, it is short, which is logged now and then."""
    host, _ = make_host()
    budget = host.shares.budget
    budget.bytes_max = 1_000
    sizes, trims = [700], []

    def trim(_: int) -> int:
        trims.append(sizes[0])
        return 1

    watch = MemoryWatch(budget, lambda: sizes[0], trim)
    watch.look(0.0)
    assert (budget.is_short, trims, caplog.records) == (False, [], [])
    sizes[0] = 1_001
    watch.look(0.1)
    watch.look(0.2)
    assert (budget.is_short, len(trims)) == (True, 1)
    watch.look(0.1 + TRIM_INTERVAL_S)
    assert (len(trims), len(caplog.records)) == (2, 1)
    assert "exceeds the budget of 1000" in caplog.text
    watch.look(0.1 + LOG_INTERVAL_S)
    assert len(caplog.records) == 2
    sizes[0] = 1_000
    watch.look(0.2 + LOG_INTERVAL_S)
    assert not budget.is_short


def test_late_calls_are_ended_before_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """From three quarters of the budget on, if much of it is uncounted. Until then the uncounted memory reduces the
    shares.
    """
    host, _ = make_host()
    budget = host.shares.budget
    budget.bytes_max = 100 * MIB
    sizes, asked, trims = [75 * MIB], list[bool](), list[int]()

    def end_late_calls(*, is_short: bool) -> int:
        asked.append(is_short)
        return 7

    def trim(_: int) -> int:
        trims.append(sizes[0])
        return 1

    watch = MemoryWatch(budget, lambda: sizes[0], trim, end_late_calls)
    watch.look(0.0)
    assert asked == []
    budget.program_bytes = 70 * MIB
    sizes[0] = 76 * MIB
    watch.look(0.1)
    assert (asked, trims, budget.uncounted_bytes) == ([], [], 0)
    budget.program_bytes = 60 * MIB
    free = share_of_memory(host)
    watch.look(0.2)
    assert (asked, trims, budget.uncounted_bytes) == ([False], [76 * MIB], 16 * MIB)
    assert share_of_memory(host) == free - 16 * MIB * 2 // 3
    sizes[0] = 50 * MIB
    watch.look(0.2 + TRIM_INTERVAL_S)
    assert (asked, trims, budget.uncounted_bytes) == ([False], [76 * MIB, 50 * MIB], 0)
    assert share_of_memory(host) == free
    sizes[0] = 101 * MIB
    watch.look(0.3 + TRIM_INTERVAL_S)
    assert asked == [False, True]
    assert caplog.text.count("their messages were late") == 1


def share_of_memory(host: Host) -> int:
    """The bytes of memory that an account without any may hold, found by bisection."""
    account = Account("someone", host.shares.accounts)
    low, high = 0, host.shares.budget.bytes_max
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if host.shares.memory_refusal(account, middle) else (middle, high)
    return low


def test_the_process_is_measured() -> None:
    assert resident_bytes() > MIB


# Counted memory.


def test_the_size_of_a_batch_is_told_from_the_message() -> None:
    """The size of rows is their number, and for items an estimate from their bytes."""
    columns = operation_pb2.OperationColumns(operation_id=[1, 2, 3], item_index=[0, 1, 0, 1])
    assert size_of(wire.RegisterBatch(columns=columns)) == (3, 4)
    assert size_of(wire.RegisterBatch(columns=operation_pb2.OperationColumns(operation_id=[1, 2]))) == (2, 2)
    # The terms of a composite may repeat a name, so one index may stand for all of them.
    repeated = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_COMPOSITE, operation_id=[1, 2, 3], item_count=[500]
    )
    assert size_of(wire.RegisterBatch(columns=repeated)) == (3, 1_500)
    items = [
        operation_pb2.ProducePartition(topic_partition=operation_pb2.TopicPartition(topic="t", partition=number))
        for number in range(50)
    ]
    row = operation_pb2.Operation(operation_id=1, produce=operation_pb2.Produce(partitions=items))
    operations, most_items = size_of(register_batch(row))
    assert operations == 1
    assert most_items >= 50


def test_the_estimate_of_results_is_near_what_they_take() -> None:
    for together in (1, 1_000):
        engine = Engine(EngineLimits(), 0)
        owner = engine.add_owner()
        outbox = Outbox()
        last_id = 0
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(1_000 // together):
                ids = list(range(last_id + 1, last_id + 1 + together))
                last_id += together
                batch = OperationBatch(ids, partitions=[("orders", 0)], item_indexes=[0], offsets=[9], timeouts_ms=[0])
                engine.perform(owner, Register(codes.PRODUCE, batch), 0)
                for completions in engine.take_completions():
                    outbox.append(slices_of(completions))
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert taken / 2.5 < outbox.held_bytes < taken * 2.5, f"{together} together: {outbox.held_bytes} for {taken}"


SHAPES = ["single", "wide", "fetches", "keys", "terms", "partitions", "replicas"]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_engines_estimate_is_near_what_it_takes(shape: str) -> None:
    random.seed(1)
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    tracemalloc.start()
    try:
        before, counted = tracemalloc.get_traced_memory()[0], engine.memory_bytes()
        fill(engine, owner, shape)
        engine.take_completions()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    estimate = engine.memory_bytes() - counted
    assert taken / 2 < estimate < taken * 2, f"{estimate} for {taken}"


def fill(engine: Engine, owner: Owner, shape: str) -> None:
    """Fill the engine with some megabytes of one shape."""
    if shape in ("partitions", "replicas"):
        count = 2_000 if shape == "partitions" else 50
        names = [(f"topic-{number}", number) for number in range(count)]
        places = list(range(count))
        for replica_id in range(1, 2 if shape == "partitions" else 300):
            kinds = [codes.FOLLOWER_PROGRESS] * count
            events = EventBatch(kinds, partitions=names, item_indexes=places, offsets=[5], replica_ids=[replica_id])
            engine.perform(None, Apply(events), 0, 10**9)
        return
    operations, items = (200, 100) if shape == "wide" else (5_000, 1)
    kind = {"fetches": codes.FETCH, "keys": codes.SIGNAL, "terms": codes.COMPOSITE}.get(shape, codes.PRODUCE)
    for first in range(0, operations, 100):
        count = 100 * items
        batch = OperationBatch(
            list(range(first + 1, first + 101)),
            partitions=[("topic", number) for number in range(100)],
            keys=[f"key-{first + number}" for number in range(100)],
            item_counts=[items],
            item_indexes=[place % 100 + (100 if shape == "terms" else 0) for place in range(count)],
            offsets=[random.randrange(1, 1_000) for _ in range(count)],
            timeouts_ms=[60_000],
            min_bytes=[1_000_000] if shape == "fetches" else [],
        )
        assert engine.perform(owner, Register(kind, batch), 0).refusals == []


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def no_collections() -> Iterator[None]:
    """The collector runs only when it is called."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
async def test_garbage_is_collected_only_while_nothing_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = [1]
    asked = 0

    def count() -> int:
        nonlocal asked
        asked += 1
        return pending[0]

    cycle = weakref.ref(Cycle())
    monkeypatch.setattr(garbage, "TRIM_INTERVAL_S", 0.001)
    trimming = asyncio.create_task(trim_while_idle(count))
    await eventually(lambda: asked >= 3, "it looks whether anybody waits")
    assert cycle() is not None
    pending[0] = 0
    await eventually(lambda: cycle() is None, "the cycle is gone")
    trimming.cancel()


POOLS_OF_THREADS = """
import ctypes, sys, threading
from purgatory.service.budget import garbage
if sys.argv[1] == "one":
    garbage.use_one_arena()
libc = ctypes.CDLL(None)
both = threading.Barrier(2)
def allocate():
    both.wait()
    libc.malloc(100_000)
    both.wait()
threads = [threading.Thread(target=allocate) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc's allocator")
@pytest.mark.parametrize(("how", "one"), [("one", True), ("as it comes", False)])
def test_threads_allocate_from_one_pool(how: str, one: bool) -> None:
    ran = subprocess.run([sys.executable, "-c", POOLS_OF_THREADS, how], capture_output=True, text=True, check=True)
    pools = ran.stdout.count("<heap nr=")
    assert (pools == 1) is one, f"{pools} pools: {ran.stdout}"
