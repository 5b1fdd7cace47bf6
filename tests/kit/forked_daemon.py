"""Starts daemons by forking a process that has imported their modules.

Importing takes 0.5 of the 0.7 s of processor time until a daemon serves, and a run of the suite starts 500 of them.
The standard library's fork server imports once for each worker of pytest. From there on a daemon runs as by the
command: `purgatory.__main__.main`, in a process of its own. Signals during the imports are tested by
tests/deploy/test_startup_signals.py, which executes the command.
"""

import contextlib
import importlib
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from purgatory.__main__ import main

_FORKING: Final = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["purgatory.cli.app", "purgatory.run_daemon", "purgatory.extensions.installed"])


WEBHOOKS: Final = "purgatory.extensions.webhooks.webhooks"
TEST_CONSTANTS: Final = {
    "purgatory.service.http.monitoring.INTERVAL_S": 0.0,
    f"{WEBHOOKS}.RETRY_FIRST_MS": 20,
    f"{WEBHOOKS}.RETRY_LONGEST_MS": 20,
}
"""In all daemons of tests: metrics are computed for each request, and webhooks are repeated soon."""


def set_constants(values: Mapping[str, float]) -> None:
    for name, value in values.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)


class ForkedDaemon:
    """The part of `subprocess.Popen` that tests use. `constants` are set in the new process, by their full names."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        constants: Mapping[str, float],
    ) -> None:
        log.touch()  # tests read it from now on
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        given = (list(arguments), str(folder), dict(environment), str(log), open_files, {**TEST_CONSTANTS, **constants})
        self._process: Final = _FORKING.Process(target=_serve, args=given)
        self._process.start()
        self._lock: Final = threading.Lock()
        pid = self._process.pid
        assert pid is not None, "it has been started"
        self.pid: Final = pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it, or None."""
        with self._lock:  # the fork server reports the code once, to the first that reads it
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired after `timeout` seconds."""
        multiprocessing.connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None, "without a timeout, it has ended"
            raise subprocess.TimeoutExpired("purgatory serve", timeout)
        return code

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by now; `Popen` does the same
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _serve(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    log: str,
    open_files: tuple[int, int],
    constants: dict[str, float],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(written, sys.stdout.fileno())
    os.dup2(written, sys.stderr.fileno())
    set_constants(constants)
    sys.argv = ["purgatory", "serve", *arguments]
    main()
