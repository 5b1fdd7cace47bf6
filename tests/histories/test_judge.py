"""The judge finds each kind of bad history, and nothing in a good one."""

from pathlib import Path
from typing import Any

import pytest

from purgatory.v1 import result_pb2
from tests.histories.judge import Judge, ReportedResult
from tests.histories.planted import PLANTED, ROOT
from tests.kit.recorded import assert_recorded, cases_of

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


BAD = Path(__file__).with_name("bad.txt")


def test_bad_histories_have_complaints() -> None:
    """As in bad.txt."""

    def complaints(case: str, *, is_durable: bool) -> str:
        judge = good(is_durable=is_durable)
        assert judge.at_least("t0") == 7, "what was read is known"
        for step, given in eval(case, globals()):
            getattr(judge, step)(*given)
        judge.check_end()
        return "; ".join(judge.complaints) or "nothing"

    def answer(case: str) -> str:
        durable, lossy = (complaints(case, is_durable=is_durable) for is_durable in (True, False))
        return durable if durable == lossy else f"{durable}\nor {lossy}"

    assert_recorded(BAD, map(answer, cases_of(BAD)))


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_can_still_be_planted(name: str) -> None:
    planted = PLANTED[name]
    assert (ROOT / planted.path).read_text("utf-8").count(planted.right) == 1
