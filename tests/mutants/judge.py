"""Runs the engine's tests once, within a copy of the tree, until the first one fails; says which, in a JSON file.

`python -m tests.mutants.judge RESULT [KNOWN]`, in the copy. Without KNOWN, a JSON file, it measures what each test
costs on the whole engine. With it that test goes first which caught the same mutant the last time; then those that are
cheap for how many mutants they have caught, and those named for the broken module; and a test that takes far longer
than it did on the whole engine has failed.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest

import purgatory.engine
from tests.mutants import simulated_days
from tests.mutants.known import Known

TESTS = ("tests/engine", simulated_days.__file__)
MEMORY_BYTES_MAX = 2 * 1024**3
CPU_SECONDS_MAX = 300
"""For all tests together, several times what the whole engine takes; whoever uses it up is ended by the system."""

NAMED_FOR_IT = 0.02
"""A test named for the broken module goes where it would go if it cost this part of what it does."""

CAUGHT_BEFORE = 10
"""A test goes where it would go if it cost the less the more mutants it has caught: so much for each."""

COST_FACTOR = 4
COST_SLACK_S = 2.0
"""A test may take COST_FACTOR times its cost, and this much more: CPU seconds, so that a busy machine is no fault."""


class TooLong(BaseException):
    """A test has used up its time: an endless loop, most likely."""


class Judge:
    """The pytest plugin: order, time box and verdict."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.file_prefix = f"test_{Path(known.module).name}"
        self.costs: dict[str, float] = {}
        self.caught_by = ""
        self.says = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=self.place)

    def place(self, item: pytest.Item) -> float:
        if item.nodeid == self.known.last:
            return -1.0
        cost = self.known.costs.get(item.nodeid, 0.0) / (1 + CAUGHT_BEFORE * self.known.caught.get(item.nodeid, 0))
        return cost * NAMED_FOR_IT if item.path.name.startswith(self.file_prefix) else cost

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        before = self.known.costs.get(item.nodeid)
        began = time.process_time()
        if before is not None:
            signal.setitimer(signal.ITIMER_PROF, COST_SLACK_S + COST_FACTOR * before)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.costs[item.nodeid] = time.process_time() - began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.caught_by:
            self.caught_by = report.nodeid
            crash: Any = getattr(report.longrepr, "reprcrash", None)
            self.says = crash.message.splitlines()[0] if crash is not None else "an error while it was collected"


def stop(_number: int, _frame: FrameType | None) -> None:
    """The time box closes."""
    raise TooLong


def main() -> None:
    """Judge the engine of the current directory."""
    result = Path(sys.argv[1])
    known = Known(**json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))) if len(sys.argv) > 2 else Known()
    engine = Path(str(purgatory.engine.__file__))
    assert engine.is_relative_to(Path.cwd()), f"{engine} is not the copy under {Path.cwd()}"
    assert not purgatory.engine.COMPILED, "mutants need the uncompiled engine"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    signal.signal(signal.SIGPROF, stop)
    hypothesis.settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )
    hypothesis.settings.load_profile("mutants")
    judge = Judge(known)
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *TESTS], plugins=[judge])
    verdict = {"code": int(code), "caught_by": judge.caught_by, "says": judge.says, "costs": judge.costs}
    result.write_text(json.dumps(verdict), encoding="utf-8")


if __name__ == "__main__":
    main()
