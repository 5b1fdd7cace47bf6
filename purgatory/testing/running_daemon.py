"""A daemon for tests, as a process or in this one, and waits for it that need no sleeps.

pytest imports this module in each run of a project that has the package, so gRPC and the daemon are imported only when
a daemon is started.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from purgatory_client import Client, Result

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 15.0
"""Longer than the daemon's own grace period, which is 10 s."""

POLL_S: Final = 0.01
RETRY_S: Final = 0.05
LOOKUP_S_MIN: Final = 1.0
"""With less time, the error would be that time ran out, instead of the daemon's reason."""

LOG_LINES_MAX: Final = 40
"""The last lines of a log that an error shows."""

TIMEOUT_S: Final = 30.0
_LISTEN: Final = ("--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
_ENDS_WITH_PARENT: Final = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
"""Linux sends the daemon this signal when its parent dies, for example a test run that is killed (PR_SET_PDEATHSIG)."""

_PROGRAM: Final = "from purgatory.__main__ import main; main()"


class DaemonFailed(Exception):
    """The daemon did not start, or ended by itself. The message contains the end of its log."""


class RunningDaemon:
    """A daemon that serves.

    Attributes:
        address: The gRPC address, host:port, for programs under test and for `AsyncClient`.
        http_address: The HTTP address, host:port. Empty if the daemon was started elsewhere.
        client: A blocking client of it.
    """

    def __init__(self, client: "Client", http_address: str = "") -> None:
        self.address: Final = client.address
        self.http_address: Final = http_address
        self.client: Final = client

    def processed(self, group: str, *topics: str, timeout: float = TIMEOUT_S, label: str = "kafka") -> "Result":
        """Wait until a Kafka consumer group has processed everything that was written to topics before this call.

        The daemon needs a source that follows the cluster (docs/sources.md). While none is attached, or it does not
        know a topic yet, the call tries again.

        Args:
            group: The consumers' `group.id`.
            topics: The topics, at least one.
            timeout: Seconds.
            label: The cluster's label, if its source was configured with another one than kafka.

        Returns:
            The result of the wait, which is satisfied.

        Raises:
            WaitExpired: The group has not got so far in time; the message names the offsets.
            Unavailable: No source knows the topics in time. Its notes name the sources and their states.
            InvalidRequest: A name is not valid, or no topic was given.
        """
        from purgatory_client.errors import InvalidRequest, Unavailable  # noqa: PLC0415 - see the module
        from purgatory_client.sources.source_names import kafka_group  # noqa: PLC0415 - see the module

        __tracebackhide__ = True
        if not topics:
            raise InvalidRequest("topics", "is empty; name at least one topic")
        marks = [kafka_group(group, topic, label) for topic in topics]
        deadline = time.monotonic() + timeout
        while True:
            try:
                ends = self.client.ends(marks, timeout=max(deadline - time.monotonic(), LOOKUP_S_MIN))
                break
            except Unavailable as error:
                if time.monotonic() + RETRY_S >= deadline:
                    for source in self.client.status().sources:
                        error.add_note(f"source {source.name} is {source.state}: {source.reason}")
                    raise
            time.sleep(RETRY_S)
        remaining = max(0.0, deadline - time.monotonic())
        return self.client.wait_for(ends, timeout=remaining).raise_for_outcome()


@contextlib.contextmanager
def daemon_process(*arguments: str) -> Iterator[RunningDaemon]:
    """Run a daemon as a process on free loopback ports, until the end of the block.

    Args:
        arguments: Flags of `purgatory serve`.

    Raises:
        DaemonFailed: It did not start, or ended before the block did.
    """
    from purgatory_client import Client  # noqa: PLC0415 - see the module

    with tempfile.TemporaryDirectory(prefix="purgatory-") as name:
        ready_path, log_path = Path(name, "ready.json"), Path(name, "daemon.log")
        # -P: a folder `purgatory` in the current directory, such as tests/purgatory, is not the package.
        program = _ENDS_WITH_PARENT + _PROGRAM if sys.platform == "linux" else _PROGRAM
        command = [sys.executable, "-P", "-c", program, "serve", *_LISTEN, "--ready-file", str(ready_path)]
        with log_path.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - this program's own command
                [*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            _wait_ready(process, ready_path, log_path)
            ready = json.loads(ready_path.read_text("utf-8"))
            with Client(ready["grpc_address"]) as client:
                yield RunningDaemon(client, ready["http_address"])
            if process.poll():  # not 0: after Ctrl-C, of which it has heard too
                _check_running(process, log_path)
        finally:
            _stop(process)


@contextlib.contextmanager
def daemon_in_process(*arguments: str) -> Iterator[RunningDaemon]:
    """Run a daemon in this process on free loopback ports, until the end of the block.

    It starts in a tenth of the time that a process needs, its log is that of the test, and a debugger sees it. In
    return, tests that replace the clock or stop all threads affect it.

    Args:
        arguments: Flags of `purgatory serve`.

    Raises:
        StartupError: It cannot start with these flags.
        SettingsError: A flag is not valid.
    """
    from purgatory_client.blocking import Client, shared_loop  # noqa: PLC0415 - see the module

    from purgatory.daemon import Daemon  # noqa: PLC0415 - see the module
    from purgatory.extension import chosen  # noqa: PLC0415 - see the module
    from purgatory.extensions.installed import ALL, ALL_SETTINGS  # noqa: PLC0415 - see the module
    from purgatory.flags import read_command_line  # noqa: PLC0415 - see the module

    settings = read_command_line([*_LISTEN, *arguments], "purgatory", ALL_SETTINGS).settings

    async def start() -> Daemon:
        daemon = Daemon(settings, chosen(ALL, settings))
        await daemon.start()
        return daemon

    # On the clients' loop: gRPC wakes every loop of a process for every event.
    loop = shared_loop()
    daemon = loop.run(start())
    try:
        with Client(daemon.grpc_address) as client:
            yield RunningDaemon(client, daemon.http_address)
    finally:
        loop.run(daemon.stop())


def _wait_ready(process: subprocess.Popen[bytes], ready_path: Path, log_path: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not ready_path.exists():
        _check_running(process, log_path)
        if time.monotonic() > deadline:
            raise DaemonFailed(f"the daemon is not serving after {START_S_MAX:g} s; its log:\n{_text(log_path)}")
        time.sleep(POLL_S)


def _check_running(process: subprocess.Popen[bytes], log_path: Path) -> None:
    code = process.poll()
    if code is not None:
        raise DaemonFailed(f"the daemon ended with exit code {code}; its log:\n{_text(log_path)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _text(log_path: Path) -> str:
    lines = log_path.read_text("utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES_MAX:])
