"""The sources that the daemon runs itself: a child process for each, started again whenever it ends.

A child never takes the daemon down, and never outlives it: its standard input is a pipe that ends with the daemon,
however that ends. It is connected by a socket in a folder that only this user may enter, so that neither TLS nor the
addresses that are served matter, and shows a token that stands nowhere but in both processes' memory.
"""

import asyncio
import json
import logging
import os
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

LOGGER: Final = logging.getLogger(__name__)
PRINCIPAL: Final = "purgatory-source"
"""Whom the children are to a policy, which gives it roles as it does to anybody."""

BACKOFF_S_MIN: Final = 0.2
BACKOFF_S_MAX: Final = 5.0
REFUSED_BACKOFF_S: Final = 30.0
"""After a child that has said what is wrong with its settings or rights: only somebody can cure it."""
PROVEN_S: Final = 60.0
"""A child that ran for so long is started again at once."""
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
"""Variables that tell clients how to reach a daemon. A child has its own way."""


class SupervisedSource:
    """One source. `command` starts it; `on_restart` is told its name each time it was started again."""

    def __init__(self, uri: str, command: Sequence[str], token: str, on_restart: Callable[[str], None]) -> None:
        self.name = uri.partition("?")[0]
        """What daemons call it, once it has said so."""
        self.restarts = 0
        self.is_running = False
        self.ending = ""
        """How it ended last."""
        self.changed = time.monotonic()
        """When it was started, or ended."""
        self._command: Final = command
        self._token: Final = token
        self._on_restart: Final = on_restart
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Keeps it running until cancelled."""
        backoff_s = BACKOFF_S_MIN
        while True:
            started = time.monotonic()
            try:
                code = await self._run_once()
            except OSError as error:
                LOGGER.error("source %s cannot be started: %s", self.name, error)  # noqa: TRY400 - says it all
                code = None
            if time.monotonic() - started > PROVEN_S:
                backoff_s = BACKOFF_S_MIN
            pause_s = REFUSED_BACKOFF_S if code == EXIT_REFUSED else random.uniform(backoff_s / 2, backoff_s)  # noqa: S311 - no secret
            backoff_s = min(BACKOFF_S_MAX, backoff_s * 2)
            self.ending, self.changed = _ending(code), time.monotonic()
            LOGGER.warning("source %s ended (%s); it is started again in %.1f s", self.name, self.ending, pause_s)
            await asyncio.sleep(pause_s)
            self.restarts += 1
            self._on_restart(self.name)

    def terminate(self) -> None:
        """Asks it to end."""
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
            start_new_session=True,  # a terminal's Ctrl-C is for the daemon, which ends it in its turn
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
        """What it tells the daemon: its name."""
        async for line in _lines(stream):
            try:
                self.name = str(json.loads(line)["source"])[:249]
            except (ValueError, KeyError, TypeError):
                LOGGER.info("source %s: %r", self.name, line[:1_000])

    async def _log(self, stream: asyncio.StreamReader) -> None:
        """Its log becomes part of the daemon's."""
        async for line in _lines(stream):
            try:
                entry = json.loads(line)
                level = logging.getLevelNamesMapping()[str(entry["level"]).upper()]
                text = str(entry["message"])
                if "exception" in entry:
                    text = f"{text}\n{entry['exception']}"
            except (ValueError, KeyError, TypeError):  # what libraries and dying interpreters write
                level, text = logging.WARNING, line
            LOGGER.log(level, "source %s: %s", self.name, text)


class SupervisedSources:
    """All of them.

    Args:
        uris: One for each, without secrets.
        socket: Where the daemon listens for them, as a gRPC address.
        token: For the policy, if there is one.
        data_dir: Where they keep what they must; None: nowhere.
        log_level: What they log, too.
        on_restart: Told the name of a source that was started again.
    """

    def __init__(
        self,
        uris: Sequence[str],
        *,
        socket: str,
        token: str,
        data_dir: Path | None,
        log_level: str,
        on_restart: Callable[[str], None],
    ) -> None:
        self.sources: Final = [
            SupervisedSource(uri, _command(uri, socket, data_dir, log_level), token, on_restart) for uri in uris
        ]
        self._tasks: Final[list[asyncio.Task[None]]] = []

    def start(self) -> None:
        self._tasks.extend(asyncio.create_task(source.run(), name=source.name) for source in self.sources)

    def terminate(self) -> None:
        """Asks them to end, without waiting."""
        for source in self.sources:
            source.terminate()

    async def stop(self) -> None:
        """Ends them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _command(uri: str, socket: str, data_dir: Path | None, log_level: str) -> list[str]:
    scheme = urlsplit(uri).scheme.replace("postgresql", "postgres")
    # -P: nothing in the working folder is taken for a package.
    command = [sys.executable, "-P", "-m", "purgatory_sources", scheme, uri, "--supervised", "--to", socket]
    command += ["--log-format", "json", "--log-level", log_level]
    if data_dir is not None:
        command += ["--state-dir", str(data_dir / "sources" / _folder(uri, scheme))]
    return command


def _folder(uri: str, scheme: str) -> str:
    """The same for a source whose hosts or options have changed: its label is what its marks are called by."""
    options = parse_qs(urlsplit(uri).query)
    label = (options.get("label") or options.get("name") or [""])[0]
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{scheme}-{label}" if label else scheme)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than any of ours: what fits no line is dropped
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
