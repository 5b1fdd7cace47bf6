"""Supervises the daemon's own connectors: one child process each, restarted whenever it ends.

A child cannot take the daemon down and never outlives it: its standard input is a pipe that closes when the daemon ends
for any reason. It connects over a socket in a folder that only this user may enter, so neither TLS nor the served
addresses matter, and it authenticates with a token that exists only in the memory of both processes.
"""

import asyncio
import json
import logging
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

from purgatory_client.session.backoff import Backoff

from purgatory.source_uri import SourceUri

LOGGER: Final = logging.getLogger(__name__)
PRINCIPAL: Final = "purgatory-source"
"""Principal of the children; the policy grants it roles like any other principal."""

REFUSED_BACKOFF_S: Final = 30.0
"""Pause after a child has rejected its settings or permissions: a restart alone will not help."""
PROVEN_S: Final = 60.0
"""The backoff is reset after a child has run for this many seconds."""
STOP_S: Final = 3.0
EXIT_REFUSED: Final = 2
LINE_BYTES_MAX: Final = 1 << 20

OF_CLIENTS: Final = (
    "PURGATORY_ADDRESS",
    "PURGATORY_TLS_CA",
    "PURGATORY_TLS_CERTIFICATE",
    "PURGATORY_TLS_KEY",
    "PURGATORY_TOKEN_FILE",
    "PURGATORY_STATE_DIR",
)
"""Environment variables for clients, which children must not inherit: they have their own connection to the daemon."""


class SupervisedSource:
    """One connector. It is started with `command`; `on_restart` is called with its name after each restart. `token`
    authenticates it if there is a policy.
    """

    def __init__(self, uri: str, command: Sequence[str], token: str, on_restart: Callable[[str], None]) -> None:
        self.name = uri.partition("?")[0]
        """Name reported by the child; until then, the URI without its options."""
        self.restarts = 0
        self.is_running = False
        self.ending = ""
        """How it ended last."""
        self.changed = time.monotonic()
        """When it last started or ended."""
        self._command: Final = command
        self._token: Final = token
        self._on_restart: Final = on_restart
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Keep the child running until cancelled."""
        backoff = Backoff(base=0.2, cap=5.0)
        while True:
            started = time.monotonic()
            try:
                code = await self._run_once()
            except OSError as error:
                LOGGER.error("source %s cannot be started: %s", self.name, error)  # noqa: TRY400 - the message is complete
                code = None
            if time.monotonic() - started > PROVEN_S:
                backoff.reset()
            pause_s = REFUSED_BACKOFF_S if code == EXIT_REFUSED else backoff.next_delay()
            self.ending, self.changed = _ending(code), time.monotonic()
            LOGGER.warning("source %s ended (%s); restarting it in %.1f s", self.name, self.ending, pause_s)
            await asyncio.sleep(pause_s)
            self.restarts += 1
            self._on_restart(self.name)

    def terminate(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def _run_once(self) -> int:
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in OF_CLIENTS},
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C in a terminal must reach the daemon only, which then ends the child
        )
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        self.is_running, self.changed = True, time.monotonic()
        try:
            process.stdin.write(json.dumps({"token": self._token}).encode() + b"\n")
            await asyncio.gather(self._heed(process.stdout), self._log(process.stderr), return_exceptions=True)
            return await process.wait()
        finally:
            self.is_running = False
            await _end(process)

    async def _heed(self, stream: asyncio.StreamReader) -> None:
        """Read the child's messages to the daemon: its name."""
        async for line in _lines(stream):
            try:
                self.name = str(json.loads(line)["source"])[:249]
            except (ValueError, KeyError, TypeError):
                LOGGER.info("source %s: %r", self.name, line[:1_000])

    async def _log(self, stream: asyncio.StreamReader) -> None:
        """Copy the child's log to the daemon's log."""
        async for line in _lines(stream):
            try:
                entry = json.loads(line)
                level = logging.getLevelNamesMapping()[str(entry["level"]).upper()]
                text = str(entry["message"])
                if "exception" in entry:
                    text = f"{text}\n{entry['exception']}"
            except (ValueError, KeyError, TypeError):  # output of libraries and crashing interpreters
                level, text = logging.WARNING, line
            LOGGER.log(level, "source %s: %s", self.name, text)


def command_of(uri: str, socket: str, data_dir: Path | None, log_level: str) -> list[str]:
    """The command that starts the connector of this address. Without `data_dir`, it keeps no state."""
    source = SourceUri.parse(uri)
    # -P: do not import packages from the working directory.
    command = [sys.executable, "-P", "-m", "purgatory_connectors", source.kind, uri, "--supervised", "--to", socket]
    command += ["--log-format", "json", "--log-level", log_level]
    if data_dir is not None:
        command += ["--state-dir", str(data_dir / "sources" / _folder(source))]
    return command


def _folder(source: SourceUri) -> str:
    """Name of the state folder. It does not change with hosts or options, except the label that names the marks."""
    label = source.options.get("label") or source.options.get("name")
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{source.kind}-{label}" if label else source.kind)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than any valid message: discard it
            continue
        if not line:
            return
        yield line.decode("utf-8", "replace").rstrip("\n")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _ending(code: int | None) -> str:
    if code is None:
        return "it could not be started"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
