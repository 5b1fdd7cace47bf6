"""Spark's progress on stderr: nothing for short work, then one line, redrawn on a terminal and repeated in a log."""

import atexit
import sys
import threading
import time
from dataclasses import dataclass
from typing import Final, TextIO

from pyspark import SparkContext

QUIET_S: Final = 4.0
"""Work shorter than this shows no progress."""
TERMINAL_S: Final = 0.5
LOG_S: Final = 15.0
"""Seconds between two lines in a log."""


@dataclass(frozen=True)
class JobProgress:
    """Stages and tasks of the running jobs."""

    stages: int
    stages_done: int
    tasks: int
    tasks_done: int

    def line(self, name: str, elapsed_s: float) -> str:
        return (
            f"{name}: stage {min(self.stages_done + 1, self.stages)} of {self.stages}, "
            f"{self.tasks_done} of {self.tasks} tasks, {elapsed_s:.0f} s"
        )


def job_progress(context: SparkContext) -> JobProgress | None:
    """Progress of the running jobs; None while Spark is idle."""
    tracker = context.statusTracker()
    active = set(tracker.getActiveStageIds())
    stages, done, tasks, tasks_done = 0, 0, 0, 0
    for job in tracker.getActiveJobsIds():
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            stage_info = tracker.getStageInfo(stage)
            stages += 1
            if stage_info is None:
                continue
            tasks += stage_info.numTasks
            tasks_done += stage_info.numCompletedTasks
            done += stage not in active and stage_info.numCompletedTasks == stage_info.numTasks > 0
    return JobProgress(stages, done, tasks, tasks_done) if stages else None


class ProgressLine:
    """Polls a Spark context from its own thread and writes its progress."""

    def __init__(self, context: SparkContext, name: str, stream: TextIO, quiet_s: float = QUIET_S) -> None:
        self._context = context
        self._name = name
        self._stream = stream
        self._quiet_s = quiet_s
        self._terminal = stream.isatty()
        self._width = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._thread.start()

    @property
    def is_watching(self) -> bool:
        """False once closed, or once the context has stopped."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stops the thread and clears the line."""
        self._ended.set()
        self._thread.join(timeout=5)

    def is_due(self, elapsed_s: float, said_s: float) -> bool:
        """Whether to write a line, `elapsed_s` after the start and `said_s` after the previous one."""
        return elapsed_s >= self._quiet_s and (self._terminal or said_s >= LOG_S)

    def _watch(self) -> None:
        started = time.monotonic()
        said = started - LOG_S
        while not self._ended.wait(TERMINAL_S):
            now = time.monotonic()
            if not self.is_due(now - started, now - said):
                continue
            try:
                seen = job_progress(self._context)
            except Exception:  # noqa: BLE001 -- a context that is being stopped may raise anything
                break
            if seen is not None:
                self._write(seen.line(self._name, now - started))
                said = now
            else:
                self._clear()
        self._clear()

    def _write(self, line: str) -> None:
        if self._terminal:
            self._stream.write(f"\r{line:<{self._width}}")
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def _clear(self) -> None:
        if self._terminal and self._width:
            self._stream.write(f"\r{'':<{self._width}}\r")
            self._stream.flush()
            self._width = 0


_shown: ProgressLine | None = None


def show(context: SparkContext, name: str) -> None:
    """Shows the context's progress from now on. Only the first call in a process has an effect."""
    global _shown  # noqa: PLW0603 -- a program has one terminal
    if _shown is None:
        _shown = ProgressLine(context, name, sys.stderr)
        atexit.register(stop)


def stop() -> None:
    global _shown  # noqa: PLW0603 -- see show
    if _shown is not None:
        _shown.close()
        _shown = None
