"""Progress on stderr, from Spark's status tracker."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from purgatory_pipeline.spark import progress
from pyspark import SparkContext


class Tracked:
    """A Spark context at some point of its work: jobs of stages, each (tasks, done)."""

    def __init__(self, jobs: Sequence[Sequence[tuple[int, int]]], active: Sequence[int] = ()) -> None:
        self.stages = dict(enumerate(stage for job in jobs for stage in job))
        self.jobs: dict[int, list[int]] = {}
        for job in jobs:
            first = sum(len(stages) for stages in self.jobs.values())
            self.jobs[len(self.jobs)] = list(range(first, first + len(job)))
        self.active = list(active)

    def statusTracker(self) -> Tracked:  # noqa: N802
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return self.active

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802
        return list(self.jobs)

    def getJobInfo(self, job: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(stageIds=self.jobs[job])

    def getStageInfo(self, stage: int) -> SimpleNamespace | None:  # noqa: N802
        tasks, done = self.stages[stage]
        return SimpleNamespace(numTasks=tasks, numCompletedTasks=done) if tasks else None


def context(jobs: Sequence[Sequence[tuple[int, int]]], active: Sequence[int] = ()) -> SparkContext:
    return cast("SparkContext", Tracked(jobs, active))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_reached_adds_up_stages_and_tasks() -> None:
    """A stage is done with its last task; of later stages only the number is known."""
    at = progress.job_progress(context([[(4, 4), (8, 3), (0, 0)], [(2, 0)]], active=[1, 3]))
    assert at == progress.JobProgress(stages=4, stages_done=1, tasks=14, tasks_done=7)
    assert at.line("report", 12.4) == "report: stage 2 of 4, 7 of 14 tasks, 12 s"
    assert progress.job_progress(context([])) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lines() -> Iterator[list[progress.ProgressLine]]:
    """Lines started by a test, closed at its end."""
    begun: list[progress.ProgressLine] = []
    yield begun
    for line in begun:
        line.close()


@pytest.mark.slow  # lines come twice a second
def test_terminal_has_one_line_that_goes_away(lines: list[progress.ProgressLine]) -> None:
    """On a terminal one line is redrawn in place, and erased at the end."""
    stream = Terminal()
    lines.append(progress.ProgressLine(context([[(4, 1)]], [0]), "replay", stream, quiet_s=0))
    wait_until(lambda: stream.getvalue().count("\r") >= 2)
    lines[0].close()
    shown = stream.getvalue()
    assert shown.startswith("\rreplay: stage 1 of 1, 1 of 4 tasks")
    assert "\n" not in shown
    assert shown.endswith(" \r")


@pytest.mark.slow  # see above
def test_log_gets_a_line_now_and_then(lines: list[progress.ProgressLine]) -> None:
    """A log has one line immediately, and the next one later."""
    stream = io.StringIO()
    lines.append(progress.ProgressLine(context([[(4, 1)]], [0]), "replay", stream, quiet_s=0))
    wait_until(lambda: "\n" in stream.getvalue())
    lines[0].close()
    assert stream.getvalue().startswith("replay: stage 1 of 1, 1 of 4 tasks")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("stream", "elapsed_s", "said_s", "due"),
    [
        (Terminal(), 3.9, 99, False),
        (Terminal(), 4.0, 0.5, True),
        (io.StringIO(), 3.9, 99, False),
        (io.StringIO(), 4.0, 99, True),
        (io.StringIO(), 99, 14.9, False),
        (io.StringIO(), 99, 15.0, True),
    ],
)
def test_short_work_prints_nothing(
    lines: list[progress.ProgressLine], stream: io.StringIO, elapsed_s: float, said_s: float, due: bool
) -> None:
    """There is no line in the first four seconds; then always one on a terminal, and one every 15 s in a log."""
    lines.append(progress.ProgressLine(context([]), "replay", stream))
    assert lines[0].is_due(elapsed_s, said_s) == due


@pytest.mark.slow  # see above
def test_a_stopped_context_ends_it(lines: list[progress.ProgressLine]) -> None:
    """A context that was stopped in between is not an error."""
    broken = cast("SparkContext", SimpleNamespace())
    stream = Terminal()
    lines.append(progress.ProgressLine(broken, "replay", stream, quiet_s=0))
    wait_until(lambda: not lines[0].is_watching)
    assert stream.getvalue() == ""
