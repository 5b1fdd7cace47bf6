"""A pytest plugin for runs on a mutant: the same examples each time, and a limit for endless loops.

Time is CPU time of the process, so that a busy machine kills no mutant. mutmut has its own limits, but by wall clock;
pyproject.toml raises those out of the way.
"""

import resource
import signal
from collections.abc import Generator
from types import FrameType
from typing import Final

import hypothesis
import pytest
from mutmut.mutation import trampoline

ACTIVE_MUTANT: Final = trampoline.get_mutant_under_test
TEST_CPU_S_MAX: Final = 20
"""Several times as long as the slowest test takes on the engine as instrumented by mutmut."""
MEMORY_BYTES_MAX: Final = 4 * 1024**3


class OverBudgetError(BaseException):
    """The test used up its CPU time. A BaseException, so that no `except Exception` under test swallows it."""


def pytest_configure() -> None:
    active = ACTIVE_MUTANT()
    # Called on each call of the engine; reading the environment, as mutmut does, costs more than the call.
    trampoline.get_mutant_under_test = lambda: active
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    signal.signal(signal.SIGPROF, over_budget)


def pytest_collection_finish() -> None:
    """Late, because tests/conftest.py loads its own profile. Without shrinking: the first failure is enough."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    hypothesis.settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def over_budget(_signal: int, _frame: FrameType | None) -> None:
    raise OverBudgetError
