"""A few days of a daemon and its clients, and faults that the checker must report."""

import pytest
from purgatory_client import Result, ResultColumns, waits

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, Register
from tests.histories.day.call_log import CallLog, SimulatedCall
from tests.histories.day.checker import Checker
from tests.histories.day.engine_tap import EngineCall
from tests.histories.day.model import Run, run_of
from tests.histories.day.plan import Plan, PlannedWait
from tests.histories.history import History
from tests.histories.worlds import day

SEEDS = (20, 69, 511, 17)
"""Together these seeds have every kind of operation, fault and restart, every limit, both event loops and a drain. The
last one has small internal sizes and a listener that raises.
"""


@pytest.mark.slow  # a day takes about a second
@pytest.mark.sockets
@pytest.mark.parametrize("seed", SEEDS)
def test_a_simulated_day(seed: int) -> None:
    """Each wait ends once as expected, and the daemon becomes empty."""
    history = History(seed, frozenset(day.FAULTS))
    day.run(history)
    assert not history.judge.complaints, "\n".join(history.judge.complaints[:10])


# The checker reports faults.

ITEM = (("log", 0), 5)
PRODUCE = OperationBatch([1], partitions=[("log", 0)], offsets=[5], timeouts_ms=[100])


def mark(offset: int) -> EngineCall:
    batch = EventBatch([codes.HIGH_WATERMARK], partitions=[("log", 0)], offsets=[offset])
    return EngineCall(Apply(batch), -1, 1_020, 1)


def run_with(call: EngineCall, batch: OperationBatch = PRODUCE) -> Run:
    added = EngineCall("add_owner", 1, 0)
    return run_of([added, EngineCall(Register(codes.PRODUCE, batch), 1, 1_000), call], {1: "s"})


def judged(run: Run, seen: dict[str, int], *, submitted_ms: float = 999.2, ended_ms: float = 1_020.5) -> list[str]:
    """The complaints about one produce wait with this result at its caller, given the expected run."""
    call = SimulatedCall(0, PlannedWait(codes.PRODUCE, (ITEM,), 100), submitted_ms)
    wait = waits.produce({"log-0": 5}, timeout=0.1)
    wait.operation_id = 1
    call.note(wait, "s")
    if seen:
        columns = ResultColumns(codes.PRODUCE, lambda _: [])
        columns.names = [("log", 0)]
        columns.outcomes, columns.waited_ms, columns.lateness_ms = [seen["outcome"]], [seen["waited_ms"]], [0]
        columns.item_indexes, columns.error_codes = [0], [seen["code"]]
        columns.required_offsets, columns.reached_offsets, columns.log_start_offsets = [5], [5], [0]
        columns.estimated_remaining_ms, columns.paces_per_second = [-1], [-1.0]
        columns.stale_ms, columns.stale_reasons = [-1], [""]
        columns.signal_values, columns.signal_values_left_out = [b""], [False]
        call.result, call.ended_ms = Result(columns, 0, 0), ended_ms
    ledger = CallLog(calls=[call])
    checker = Checker(Plan(1), ledger, [run])
    checker.check()
    return checker.complaints


SATISFIED = {"outcome": codes.SATISFIED, "waited_ms": 20, "code": 0}


@pytest.mark.parametrize(
    ("call", "seen", "ended_ms"),
    [
        (mark(4), SATISFIED, 1_020.5),
        (mark(5), SATISFIED | {"outcome": codes.EXPIRED, "code": 7}, 1_020.5),
        (mark(5), SATISFIED | {"code": 7}, 1_020.5),
        (mark(5), SATISFIED | {"waited_ms": 19}, 1_020.5),
        (mark(5), SATISFIED, 1_010.0),
        (EngineCall("remove_owner", 1, 1_020), SATISFIED | {"outcome": codes.CANCELLED, "code": 7}, 1_020.5),
        (mark(5), {}, 0.0),
    ],
    ids=["no mark", "not expired", "code", "time", "before it was", "result of a dropped session", "lost"],
)
def test_the_checker_finds_what_must_not_be(call: EngineCall, seen: dict[str, int], ended_ms: float) -> None:
    """Each planted fault causes one complaint; the correct result causes none."""
    assert judged(run_with(mark(5)), SATISFIED) == []
    assert len(judged(run_with(call), seen, ended_ms=ended_ms)) == 1
