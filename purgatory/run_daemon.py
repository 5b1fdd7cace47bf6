"""Runs a daemon as a process: command line, signals, the ready file, exit codes.

The first SIGTERM or SIGINT shuts the daemon down in an orderly way. A second one exits at once; it waits only until
everything that was receipted by an async journal is on disk. A third one does not wait at all. Signals within a second
count as one. SIGHUP reloads files.
"""

import asyncio
import fcntl
import functools
import itertools
import json
import logging
import os
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, TypeVarTuple

import click
import uvloop

from purgatory import __version__
from purgatory.command_line import complain
from purgatory.daemon import Daemon
from purgatory.engine import COMPILED
from purgatory.extension import Extension, StartupError, chosen, settings_class
from purgatory.flags import CommandLine, config_lines, flag_command
from purgatory.journal.errors import JournalError
from purgatory.log import start_logging
from purgatory.service.access.tokens import AccessError
from purgatory.service.budget import garbage
from purgatory.service.budget.shares import budget_bytes
from purgatory.service.recovery import Takeover
from purgatory.service.rpc.grpc_options import largest_message_bytes, warn_of_few_files
from purgatory.service.setting_sources import SettingsError, Values, load_settings, unknown_variables
from purgatory.service.settings import Settings
from purgatory.service.transport.certificate_files import CannotUseCertificates

LOGGER: Final = logging.getLogger("purgatory.daemon")

GRPC_READER: Final = "_handle_events"
"""Name of gRPC's callback, which reads a byte and takes all completed operations (grpc.aio's completion queue)."""

WAKEUPS_COUNTED_EVERY: Final = 8
"""Iterations of the event loop after which unread wake-ups are counted."""

Ts = TypeVarTuple("Ts")


class DaemonLoop(uvloop.Loop):
    """An event loop whose gRPC reader leaves no wake-ups unread.

    gRPC's poller thread writes one byte to a socket pair for each completed operation, and the loop's reader takes all
    completed operations but reads one byte per loop iteration. After a burst, unread bytes fill the socket (278 of them
    on Linux). From then on, the poller thread blocks in each write until the loop reads a byte: one operation per
    iteration, for all connections, until the loop is idle again.
    """

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:  # noqa: ANN401 - asyncio's type
        """Watch a file for reading, as asyncio does."""
        target = callback.func if isinstance(callback, functools.partial) else callback
        if isinstance(fd, socket.socket) and getattr(target, "__name__", "") == GRPC_READER:
            super().add_reader(fd, read_all_but_one, fd, itertools.count(), callback, *args)
        else:
            super().add_reader(fd, callback, *args)


def read_all_but_one(
    wakeups: socket.socket,
    turns: Iterator[int],
    callback: Callable[..., Any],
    *args: Any,  # noqa: ANN401
) -> None:
    """Read the wake-ups except one, which `callback` reads itself: it fails if there is none.

    Only in some of the `turns`, because counting them is a system call. Those of a few iterations fit into the socket.
    """
    if not next(turns) % WAKEUPS_COUNTED_EVERY:
        (unread,) = struct.unpack("i", fcntl.ioctl(wakeups, termios.FIONREAD, bytes(4)))
        if unread > 1:
            wakeups.recv(unread - 1)
    callback(*args)


EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
SAME_SIGNAL_S: Final = 1.0
"""Further signals within this time count as the same one, seconds. Ctrl-C reaches all processes of a terminal, and the
one that started the daemon may then send it another signal.
"""


async def serve(settings: Settings, extensions: Sequence[type[Extension]]) -> int:
    """Run a daemon until SIGTERM, SIGINT or a call that ends it, and shut it down.

    Returns the exit code. Raises the errors of `Daemon` and `Daemon.start`.
    """
    loop = asyncio.get_running_loop()
    stopping = Stopping()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.on_signal, number)
    standing_by = asyncio.create_task(_stand_by(settings, extensions), name="stand by")
    await asyncio.wait((standing_by, stopping.asked), return_when=asyncio.FIRST_COMPLETED)
    if not standing_by.done():
        standing_by.cancel()
        await asyncio.gather(standing_by, return_exceptions=True)
        LOGGER.info("stopped")
        return 0
    takeover = standing_by.result()
    try:
        daemon = stopping.daemon = Daemon(settings, extensions, takeover, stopping.end)
        loop.add_signal_handler(signal.SIGHUP, daemon.reload)
        await daemon.start()
        garbage.tune()
    except JournalError as error:
        if takeover is not None:
            takeover.cannot_serve(error)
        raise
    _announce(daemon)
    reason = await stopping.asked
    LOGGER.info("%s: shutting down, %d operations pending", reason, daemon.pending)
    await daemon.stop()
    LOGGER.info("stopped")
    return stopping.exit_code


async def _stand_by(settings: Settings, extensions: Sequence[type[Extension]]) -> Takeover | None:
    """Return once this process may serve, with what an extension has taken over."""
    takeover = None
    for extension in extensions:
        takeover = await extension.stand_by(settings) or takeover
    return takeover


def daemon_command(extensions: Sequence[type[Extension]]) -> click.Command:
    """The command that runs the daemon with these extensions. Its flags are their settings."""
    known = settings_class(extensions)

    def run(flags: Values, print_config: bool) -> NoReturn:
        try:
            settings = load_settings(flags, known)
        except SettingsError as error:
            complain(error)
            sys.exit(EXIT_USAGE)
        if print_config:
            print("\n".join(config_lines(CommandLine(settings, flags))))
            sys.exit(0)
        sys.exit(_run(settings, extensions))

    return flag_command(known, run)


def _run(settings: Settings, extensions: Sequence[type[Extension]]) -> int:
    garbage.use_one_arena()
    start_logging(settings.log.format, settings.log.level)
    for explanation in unknown_variables(type(settings)):
        LOGGER.warning("%s (environment; see --help)", explanation)
    try:
        return uvloop.run(serve(settings, chosen(extensions, settings)), loop_factory=DaemonLoop)
    except (StartupError, CannotUseCertificates, JournalError, AccessError) as error:
        LOGGER.critical("%s", error)
        return EXIT_FAILED


def _announce(daemon: Daemon) -> None:
    """Log addresses and limits in one line, and write the ready file for programs."""
    engine = "compiled engine" if COMPILED else "UNCOMPILED engine (correct, but several times slower)"
    LOGGER.info(
        "purgatory %s, %s: gRPC on %s, HTTP on %s, %s; memory budget %d MiB, messages up to %d KiB",
        __version__,
        engine,
        daemon.grpc_address,
        daemon.http_address,
        _security(daemon.settings),
        budget_bytes(daemon.settings.limits.memory_bytes_max) >> 20,
        largest_message_bytes(daemon.settings) >> 10,
    )
    warn_of_few_files()
    path = daemon.settings.ready_file
    if path is not None:
        ready = {"pid": os.getpid(), "grpc_address": daemon.grpc_address, "http_address": daemon.http_address}
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_text(json.dumps(ready) + "\n", "utf-8")
        unfinished.replace(path)


def _security(settings: Settings) -> str:
    """Return the protection of connections, for the line in the log."""
    if settings.tls.certificate_file is None:
        return "WITHOUT TLS (--insecure)" if settings.insecure else "without TLS, on loopback"
    return "TLS with client certificates" if settings.tls.client_auth == "required" else "TLS"


class Stopping:
    """Counts the signals: the first one asks for a shutdown, the second for an exit, the third for an exit at once."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self.asked: Final[asyncio.Future[str]] = asyncio.get_running_loop().create_future()
        """The reason for the shutdown."""
        self.exit_code = 0
        self.daemon: Daemon | None = None
        self._signals = 0
        self._signalled_s = 0.0
        """When the last signal that counts was received."""
        self._exiting: asyncio.Task[None] | None = None

    def end(self, reason: str, code: int) -> None:
        """Ask for a shutdown, as the first signal does, but with this exit code. It does not count as a signal."""
        if not self.asked.done():
            self.exit_code = code
            self.asked.set_result(reason)

    def on_signal(self, number: signal.Signals) -> None:
        now_s = self._now_s()
        if self._signals and now_s - self._signalled_s < SAME_SIGNAL_S:
            return
        self._signals, self._signalled_s = self._signals + 1, now_s
        if self._signals == 1:
            self.end(number.name, 0)
        elif self._exiting is None and self.daemon is not None:
            LOGGER.warning("second signal (%s): exiting at once", number.name)
            self._exiting = asyncio.create_task(self.daemon.exit_at_once(128 + number), name="exit at once")
        else:
            os._exit(128 + number)
