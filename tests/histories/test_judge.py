"""The judge finds each kind of bad history, and nothing in a good one."""

from typing import Any

import pytest

from purgatory.v1 import result_pb2
from tests.histories.judge import Judge, ReportedResult

SATISFIED, EXPIRED = result_pb2.OUTCOME_SATISFIED, result_pb2.OUTCOME_EXPIRED
DONE = ReportedResult(1, SATISFIED, 40, b"content")
LATE = ReportedResult(2, EXPIRED, 2_000, b"")


def good() -> Judge:
    """Two operations over two connections, of which the second repeats a result; a mark, and a read that is lost."""
    history = Judge()
    history.opened("s", 0)
    history.registering("s", 1, 2_000, 10.0)
    history.registering("s", 2, 2_000, 10.0)
    history.receipt("s", 2)
    history.reported("s", "i", 1, DONE, 10.1)
    history.opened("s", 2)
    history.reported("s", "i", 1, DONE, 11.0)
    history.reported("s", "i", 2, LATE, 12.0)
    history.sending("t0", 5)
    history.acknowledged("t0", 5)
    history.sending("t0", 7)
    history.read("t0", 7, history.at_least("t0"), is_durable=False)
    history.read("t0", 5, history.at_least("t0"))
    history.read("t0", 7, history.at_least("t0"))
    return history


def test_good_history() -> None:
    """A repeated result, and a mark that is shown but lost before it is acknowledged, break no rule."""
    history = good()
    history.check_end()
    assert history.complaints == []


Step = tuple[str, Any]
THIRD: Step = ("registering", ("s", 3, 2_000, 12.0))


def reported(operation_id: int, outcome: int, waited_ms: int, at_s: float, place: tuple[str, int] = ("i", 3)) -> Step:
    return "reported", ("s", *place, ReportedResult(operation_id, outcome, waited_ms, b""), at_s)


BAD: dict[str, tuple[str, list[Step]]] = {
    "other operation": ("result 1 was", [("reported", ("s", "i", 1, DONE._replace(operation_id=2), 12.0))]),
    "other outcome": ("result 2 was", [("reported", ("s", "i", 2, LATE._replace(outcome=SATISFIED), 12.0))]),
    "other content": ("result 1 was", [("reported", ("s", "i", 1, DONE._replace(content=b"x"), 12.0))]),
    "second result": (r"operation 1 ended as \('i', 1\)", [("reported", ("s", "i", 3, DONE, 12.0))]),
    "in another life": (r"operation 1 ended as \('i', 1\)", [("reported", ("s", "j", 1, DONE, 12.0))]),
    "never asked": ("never registered", [reported(9, SATISFIED, 0, 12.0)]),
    "refused": ("never registered", [THIRD, ("refused", ("s", [3])), reported(3, SATISFIED, 0, 12.1)]),
    "never ended": ("1 operations never ended, such as 3", [THIRD]),
    "missing number": ("3 results, numbered up to 4", [THIRD, reported(3, SATISFIED, 0, 12.1, ("i", 4))]),
    "early by both clocks": ("expired after 1730 of 2000 ms", [THIRD, reported(3, EXPIRED, 1_730, 13.73)]),
    "early by the caller's": ("waited for longer than the 1730 ms", [THIRD, reported(3, EXPIRED, 2_000, 13.73)]),
    "early by the daemon's": ("expired after 2100 of 2000 ms", [THIRD, reported(3, EXPIRED, 1_730, 14.1)]),
    "time that did not pass": ("waited for longer than", [THIRD, reported(3, SATISFIED, 3_600_000, 12.1)]),
    "lost receipt": ("2 was receipted, but it opens with 1", [("opened", ("s", 1))]),
    "lost mark": ("6 was read; 7 was known", [("read", ("t0", 6, 7))]),
    "mark from nowhere": ("8 was read; 0 was known before, 7 was sent", [("read", ("t0", 8, 0))]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_history(name: str) -> None:
    """Each of these steps breaks one rule, which the first complaint names."""
    complaint, steps = BAD[name]
    history = good()
    assert history.at_least("t0") == 7, "what was read is known"
    for step, given in steps:
        getattr(history, step)(*given)
    history.check_end()
    with pytest.raises(AssertionError, match=complaint):
        assert not history.complaints, history.complaints[0]
