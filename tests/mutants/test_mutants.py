"""Our own part of `make mutants`: which survivors count, and the limit for endless loops."""

import signal
from collections.abc import Iterator

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants import budget

SHOWN = """\
# purgatory.engine.heap.x_push__mutmut_3: survived
--- purgatory/engine/heap.py
+++ purgatory/engine/heap.py
@@ -1,3 +1,3 @@
 def push(size: int) -> None:
-    reserve(size + 1)
+    reserve(size + 2)
"""


@pytest.fixture
def on_over_budget() -> Iterator[None]:
    """The plugin's signal handler, as on a mutant."""
    before = signal.signal(signal.SIGPROF, budget.over_budget)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize(
    ("function", "pattern", "is_equivalent"),
    [
        ("purgatory.engine.heap.x_push", r"reserve\(", True),
        ("purgatory.engine.*", r"^\+ *reserve\(size \+ 2\)$", True),
        ("purgatory.engine.heap.x_pop", r"reserve\(", False),
        ("purgatory.engine.heap.x_push", r"def push", False),
    ],
)
def test_equivalent_by_function_and_changed_line(
    monkeypatch: pytest.MonkeyPatch, function: str, pattern: str, is_equivalent: bool
) -> None:
    """An entry excuses mutants of its function whose changed lines match; unchanged lines and headers do not count."""
    monkeypatch.setattr(mutants, "EQUIVALENT", ((function, pattern, "only a reserve"),))
    reason = mutants.reason_of("purgatory.engine.heap.x_push__mutmut_3", SHOWN)
    assert reason == ("only a reserve" if is_equivalent else "")


def test_endless_loop_is_over_budget(monkeypatch: pytest.MonkeyPatch, on_over_budget: None) -> None:
    """A test that uses up its CPU time fails, and the timer is off afterwards."""
    monkeypatch.setattr(budget, "TEST_CPU_S_MAX", 0.05)
    call = budget.pytest_runtest_call()
    next(call)
    try:
        while True:
            pass
    except budget.OverBudgetError as error:
        with pytest.raises(budget.OverBudgetError):
            call.throw(error)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
