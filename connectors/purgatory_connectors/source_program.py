"""Logging, signals, and supervision by a daemon, for programs that run a source."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Coroutine
from typing import Final

from purgatory import log
from purgatory_connectors.errors import SourceRefused

LEVELS: Final = ("debug", "info", "warning", "error")


class NoRepetitions(logging.Filter):
    """Passes each line at most once per `seconds`, ignoring differences in numbers. Client libraries log an unavailable
    broker hundreds of times at once.
    """

    def __init__(self, seconds: float = 30.0, lines_max: int = 1_000) -> None:
        super().__init__()
        self._seconds: Final = seconds
        self._lines_max: Final = lines_max
        self._passed: Final[dict[tuple[str, int, str], float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = (record.name, record.levelno, re.sub(r"\d+", "", record.getMessage()))
        if record.created - self._passed.get(line, 0.0) < self._seconds:
            return False
        if len(self._passed) >= self._lines_max:
            self._passed.clear()
        self._passed[line] = record.created
        return True


def start_logging(form: str, level: str) -> None:
    """Log to stderr. Raises SourceRefused if the format or the level is unknown."""
    if form not in {"text", "json"}:
        raise SourceRefused(f"--log-format {form}: must be text or json")
    if level not in LEVELS:
        raise SourceRefused(f"--log-level {level}: must be one of {', '.join(LEVELS)}")
    log.start_logging(form, level, NoRepetitions())


async def until_stopped(work: Coroutine[object, object, None]) -> None:
    """Run `work` until it ends, or until SIGTERM or SIGINT. Its exceptions propagate."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger("purgatory_connectors").info("stopped")


class Supervisor:
    """The daemon that started this process. Its first line on stdin is {"token": ...}.

    End of file on stdin means that the daemon has ended, for any reason. This process then exits at once; it has
    no state that a kill could damage.
    """

    def __init__(self, token: str) -> None:
        self.token: Final = token

    @classmethod
    def of_this_process(cls) -> Supervisor:
        """Read the token and start to watch stdin. Raises SourceRefused if stdin has no token."""
        try:
            greeting = json.loads(sys.stdin.readline())
            parent = cls(str(greeting["token"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SourceRefused("--supervised is for `purgatory serve --source`, which starts this program") from error
        # A thread: a loop or a library that hangs must not keep an orphan alive.
        threading.Thread(target=_exit_with_stdin, name="watch supervisor", daemon=True).start()
        return parent

    @staticmethod
    def announce(source_name: str) -> None:
        """Send the supervisor the name under which daemons know this source."""
        print(json.dumps({"source": source_name}), flush=True)


def _exit_with_stdin() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)
