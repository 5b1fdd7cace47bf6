"""A few days of a daemon and its clients, and faults that the checker must report."""

from dataclasses import replace

import pytest
from purgatory_client import Result, ResultColumns, waits

from tests.engine import plain
from tests.histories.day.actors import CallLog, SimulatedCall
from tests.histories.day.checker import Checker, DaemonEnd, DaemonRecord
from tests.histories.day.plan import Request, draw_plan
from tests.histories.history import History
from tests.histories.worlds import day

SEEDS = (20, 69, 511, 17)
"""Together these seeds have every kind of operation, fault and restart, every limit, both event loops and a drain. The
last one has small internal sizes and a listener that raises.
"""


@pytest.mark.slow  # a day takes about a second
@pytest.mark.sockets
@pytest.mark.parametrize("seed", SEEDS)
def test_each_wait_of_a_day_ends_once_as_in_the_engine(seed: int) -> None:
    history = History(seed, frozenset(day.FAULTS))
    day.run(history)
    assert not history.judge.complaints, "\n".join(history.judge.complaints[:10])


# The checker reports faults.

NAME = ("log", 0)
OPERATION = plain.Operation(plain.PRODUCE, 1, 100, (plain.Item(NAME, 5),))
ENDED = plain.Ended(0, 1, plain.PRODUCE, plain.SATISFIED, 20, 0, (plain.EndedItem(NAME, 0, 5, 5, 0),))
END = DaemonEnd("s", ENDED, 1_020, has_result=True)
NOT_REACHED = (plain.EndedItem(NAME, 7, 5, 4, 0),)


def received(outcome: int, waited_ms: int, code: int) -> Result:
    """A result of the client for this wait."""
    columns = ResultColumns(plain.PRODUCE, lambda _: [])
    columns.names = [NAME]
    columns.outcomes, columns.waited_ms, columns.lateness_ms = [outcome], [waited_ms], [0]
    columns.item_indexes, columns.error_codes = [0], [code]
    columns.required_offsets, columns.reached_offsets, columns.log_start_offsets = [5], [5], [0]
    columns.estimated_remaining_ms, columns.paces_per_second = [-1], [-1.0]
    columns.stale_ms, columns.stale_reasons = [-1], [""]
    columns.signal_values, columns.signal_values_left_out = [b""], [False]
    return Result(columns, 0, 0)


def complaints(end: DaemonEnd, result: Result | None, ended_ms: float) -> list[str]:
    """The complaints about one wait with this result at its caller, which the daemon has ended so."""
    wait = waits.produce({"log-0": 5}, timeout=0.1)
    wait.operation_id = 1
    call = SimulatedCall(0, Request((OPERATION,), "client"), 999.2, "s", wait, ended_ms, result)
    record = DaemonRecord()
    record.ends.append(end)
    checker = Checker(draw_plan(1), CallLog(calls=[call]), [record])
    checker.check()
    return checker.complaints


SATISFIED = received(plain.SATISFIED, 20, 0)


@pytest.mark.parametrize(
    ("end", "result", "ended_ms"),
    [
        (replace(END, ended=ENDED._replace(outcome=plain.EXPIRED, items=NOT_REACHED)), SATISFIED, 1_020.5),
        (END, received(plain.EXPIRED, 20, 7), 1_020.5),
        (END, received(plain.SATISFIED, 20, 7), 1_020.5),
        (END, received(plain.SATISFIED, 19, 0), 1_020.5),
        (END, SATISFIED, 1_010.0),
        (replace(END, has_result=False), SATISFIED, 1_020.5),
        (END, None, -1.0),
    ],
    ids=["expired", "not expired", "code", "time", "before it was", "result of a dropped session", "lost"],
)
def test_checker_complains_once_about_each_fault(end: DaemonEnd, result: Result | None, ended_ms: float) -> None:
    assert complaints(END, SATISFIED, 1_020.5) == []
    assert len(complaints(end, result, ended_ms)) == 1
