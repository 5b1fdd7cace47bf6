"""The judge finds each kind of bad history, and nothing in a good one."""

from typing import Any

import pytest

from purgatory.v1 import result_pb2
from tests.histories.judge import Broken, Judge, ReportedResult
from tests.histories.planted import PLANTED, ROOT

SATISFIED, EXPIRED = result_pb2.OUTCOME_SATISFIED, result_pb2.OUTCOME_EXPIRED
CANCELLED = result_pb2.OUTCOME_CANCELLED
DONE = ReportedResult(1, SATISFIED, 40, "content", [("t0", 5)])
LATE = ReportedResult(2, EXPIRED, 2_000, "")


def good(*, is_durable: bool = True) -> Judge:
    """Two operations over two connections, of which the second repeats a result; a mark, and a read that is lost."""
    judge = Judge(is_durable=is_durable)
    judge.opened("s", 0, 0)
    judge.registering("s", 1, 2_000, 10.0, needs=[("t0", 4)])
    judge.registering("s", 2, 2_000, 10.0, needs=[("t0", 8)])
    judge.receipt("s", 2, 10.0)
    judge.sending("t0", 5)
    judge.reported("s", "i", 1, DONE, 10.1)
    judge.opened("s", 2, 0)
    judge.reported("s", "i", 1, DONE, 11.0)
    judge.reported("s", "i", 2, LATE, 12.0)
    judge.acknowledged("t0", 5, 12.0)
    judge.sending("t0", 7)
    judge.read("t0", 7, judge.at_least("t0"), is_durable=False)
    judge.read("t0", 5, judge.at_least("t0"))
    judge.read("t0", 7, judge.at_least("t0"))
    return judge


def test_result_repeated_and_mark_only_shown_break_no_rule() -> None:
    judge = good()
    judge.check_end()
    assert judge.complaints == []


Step = tuple[str, Any]
THIRD: Step = ("registering", ("s", 3, 2_000, 12.0, None, [("t0", 6)]))


def reported(
    operation_id: int, outcome: int, waited_ms: int, at_s: float, place: tuple[str, int] = ("i", 3), reached: int = 6
) -> Step:
    return "reported", ("s", *place, ReportedResult(operation_id, outcome, waited_ms, "", [("t0", reached)]), at_s)


BAD: dict[str, tuple[str, list[Step]]] = {
    "other operation": ("result 1 was", [("reported", ("s", "i", 1, DONE._replace(operation_id=2), 12.0))]),
    "other outcome": ("result 2 was", [("reported", ("s", "i", 2, LATE._replace(outcome=SATISFIED), 12.0))]),
    "other content": ("result 1 was", [("reported", ("s", "i", 1, DONE._replace(content="x"), 12.0))]),
    "second result": (r"operation 1 ended as \('i', 1\)", [("reported", ("s", "i", 3, DONE, 12.0))]),
    "in another life": (r"operation 1 ended as \('i', 1\)", [("reported", ("s", "j", 1, DONE, 12.0))]),
    "never asked": ("never registered", [reported(9, SATISFIED, 0, 12.0)]),
    "refused": ("never registered", [THIRD, ("refused", ("s", [3])), reported(3, SATISFIED, 0, 12.1)]),
    "never ended": ("1 operations never ended, such as 3", [THIRD]),
    "skipped number": ("result 4 came after 2", [THIRD, reported(3, CANCELLED, 0, 12.1, ("i", 4))]),
    "missing number": (
        "3 results, numbered up to 4",
        [THIRD, ("opened", ("s", 2, 3)), reported(3, CANCELLED, 0, 12.1, ("i", 4))],
    ),
    "early by both clocks": ("expired after 1730 of 2000 ms", [THIRD, reported(3, EXPIRED, 1_730, 13.73)]),
    "early by the caller's": ("waited for longer than the 1730 ms", [THIRD, reported(3, EXPIRED, 2_000, 13.73)]),
    "early by the daemon's": ("expired after 2100 of 2000 ms", [THIRD, reported(3, EXPIRED, 1_730, 14.1)]),
    "expired though satisfied": (
        "had been satisfied before its deadline",
        [THIRD, ("receipt", ("s", 3, 12.1)), ("acknowledged", ("t0", 6, 13.9)), reported(3, EXPIRED, 2_000, 14.1)],
    ),
    "time that did not pass": ("waited for longer than", [THIRD, reported(3, SATISFIED, 3_600_000, 12.1)]),
    "not reached": ("t0 had not reached 6", [THIRD, reported(3, SATISFIED, 0, 12.1, reached=5)]),
    "reached by nothing": ("t0 had not reached 6", [THIRD, reported(3, SATISFIED, 0, 12.1, reached=8)]),
    "cancelled in vain": (
        "3 was cancelled, and ended as",
        [THIRD, ("cancelled", ("s", [3])), reported(3, SATISFIED, 0, 12.1)],
    ),
    "lost receipt": ("2 was receipted, but it opens with 1", [("opened", ("s", 1))]),
    "lost mark": ("6 was read; 7 was known", [("read", ("t0", 6, 7))]),
    "mark from nowhere": ("8 was read; 7 was sent", [("read", ("t0", 8, 0))]),
}
LOSSY = {
    "other operation", "other outcome", "other content", "second result", "in another life", "missing number",
    "expired though satisfied", "cancelled in vain", "lost receipt", "lost mark",
}  # fmt: skip
"""What is right where a crash may lose what was acknowledged."""


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_bad_history_has_the_complaint(name: str, is_durable: bool) -> None:
    complaint, steps = BAD[name]
    judge = good(is_durable=is_durable)
    assert judge.at_least("t0") == 7, "what was read is known"
    for step, given in steps:
        getattr(judge, step)(*given)
    judge.check_end()
    if not is_durable and name in LOSSY:
        judge.check()
        return
    with pytest.raises(Broken, match=complaint):
        judge.check()


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_can_still_be_planted(name: str) -> None:
    planted = PLANTED[name]
    assert (ROOT / planted.path).read_text("utf-8").count(planted.right) == 1
