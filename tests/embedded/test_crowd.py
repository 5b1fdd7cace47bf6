"""The embedded purgatory under many threads: each operation is answered once, no wakeup is lost, none hangs.

`CROWD_OPERATIONS=20000 make test ARGS=tests/embedded/test_crowd.py` runs that many operations in each of the 16
threads.
"""

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine import COMPILED
from purgatory.engine.codes import CANCELLED, EXPIRED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import OperationEnded
from tests.embedded.crowd import KEYS, LONG_TIMEOUT_MS, Crowd, watch
from tests.engine.generic.recording_operation import RecordingOperation, assert_empty, never_called, run_all, wait_until

THREADS = 16
OPERATIONS_EACH = int(os.environ.get("CROWD_OPERATIONS", "700"))


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """The interpreter switches threads a hundred times as often as usual."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s / 100)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.slow
def test_case_23_30_44_a_crowd_that_finishes() -> None:
    """Cases 23, 30 and 44: under 16 threads that register, check, cancel, force and expire on few keys, no satisfiable
    wait is left, and each operation ends once.
    """
    crowd = Crowd(1, THREADS, OPERATIONS_EACH)
    crowd.start()
    crowd.join()
    wait_until(lambda: not any(o.outcome == PENDING and o.timeout_ms != LONG_TIMEOUT_MS for o in crowd.operations))
    wait_until(crowd.is_answered)
    # An operation whose evaluation raised is evaluated again only at the next check: that is its contract, not a lost
    # wakeup.
    waiting = [operation for operation in crowd.operations if operation.outcome == PENDING]
    missed = [operation for operation in waiting if operation.holds() and operation.raises_at != operation.evaluations]
    assert missed == []
    crowd.demand_counts()
    crowd.demand_answers()
    for key in KEYS:
        crowd.raise_mark(key, 1_000)
    for key in (*KEYS, *KEYS):  # twice, for those whose first evaluation raises
        crowd.members[0].answered["satisfied"] += crowd.purgatory.check_and_complete(key)
    assert_empty(crowd.purgatory)
    crowd.demand_counts()
    crowd.demand_answers()
    assert crowd.purgatory.close() == 0
    assert set(crowd.outcomes()) == {SATISFIED, EXPIRED, CANCELLED}


@pytest.mark.slow
def test_crowd_that_is_closed_on_is_answered_once() -> None:
    crowd = Crowd(1, THREADS, OPERATIONS_EACH)
    crowd.start()
    wait_until(lambda: crowd.done > THREADS * OPERATIONS_EACH // 2)
    shut_down: list[int] = []
    closers = [threading.Thread(target=lambda: shut_down.append(crowd.purgatory.close()), daemon=True) for _ in "ab"]
    for closer in closers:
        closer.start()
    watch(closers, lambda: crowd.done)
    crowd.join()
    assert_empty(crowd.purgatory)
    wait_until(crowd.is_answered)
    crowd.demand_counts()
    crowd.demand_answers()
    outcomes = crowd.outcomes()
    assert outcomes[PENDING] == 0
    assert outcomes[SHUTTING_DOWN] == sum(shut_down)
    assert sum(member.answered["closed"] for member in crowd.members) > 0


@pytest.mark.skipif(COMPILED, reason="compiled, force_complete runs in one step that no other thread gets into")
@pytest.mark.parametrize("others_force_too", [False, True])
def test_operation_forced_while_another_thread_registers_it_ends_once(others_force_too: bool) -> None:
    for step in itertools.count(1):
        with EmbeddedPurgatory("forced", never_called, reaper_enabled=False) as purgatory:
            operation = RecordingOperation()

            def intrude(purgatory: EmbeddedPurgatory = purgatory, operation: RecordingOperation = operation) -> None:
                with suppress(OperationEnded):
                    purgatory.try_complete_else_watch(operation, ["k"])
                if others_force_too:
                    operation.force_complete()

            was_reached = run_with_intruder(operation.force_complete, step, intrude)
            assert operation.outcome == SATISFIED
            assert operation.effects == ["complete"], f"step {step}"
            assert_empty(purgatory)
        if not was_reached:
            assert step > 3, "force_complete was not stepped through"
            return


def run_with_intruder(call: Callable[[], object], step: int, intrude: Callable[[], None]) -> bool:
    """Run a call; at its `step`-th line, run `intrude` on another thread. Returns whether that line was reached."""
    lines = itertools.count(1)
    reached: list[int] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401 - the signature that the interpreter calls
        if frame.f_code.co_name != "force_complete" or not frame.f_code.co_filename.endswith("operation.py"):
            return None
        if event == "line" and next(lines) == step:
            reached.append(step)
            run_all(intrude)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return bool(reached)
