"""The connectors extension: connectors as child processes of the daemon, restarted whenever they end.

A child cannot take the daemon down and never outlives it: its standard input is a pipe that closes when the daemon ends
for any reason. It connects over a socket in a folder that only this user may enter, so neither TLS nor the served
addresses matter, and it authenticates with a token that exists only in the memory of both processes.
"""

import asyncio
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import grpc
from purgatory_client.session.backoff import Backoff
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic_settings import NoDecode

from purgatory.extension import Core, Extension, StartupError, own_settings
from purgatory.service.rpc.grpc_options import server_options
from purgatory.service.settings import setting
from purgatory.service.sources.source_table import STATE_NAMES
from purgatory.source_uri import OTHER, SourceUri, SourceUriInvalid

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
    kind = source.scheme if source.kind == OTHER else source.kind
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{kind}-{label}" if label else kind)


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


def _source_uris(given: object) -> object:
    """Normalize all forms: a line with several URIs, a list, or tables with one URI each."""
    if isinstance(given, str):
        return given.split()
    if isinstance(given, list | tuple):
        return [one.get("uri", one) if isinstance(one, dict) else one for one in given]
    return given


def _checked_sources(uris: tuple[str, ...]) -> tuple[str, ...]:
    for number, uri in enumerate(uris, 1):
        try:
            SourceUri.parse(uri)
        except SourceUriInvalid as error:
            raise ValueError(f"number {number}: {error}") from None
    return uris


class WithSources(BaseModel):
    source: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_source_uris), AfterValidator(_checked_sources)] = (
        setting(
            (),
            "Also run this source of marks: kafka://HOST:PORT, postgres://HOST:PORT, redis://HOST:PORT, "
            "poll+http://HOST:PORT/PATH or poll+sql://HOST:PORT/DATABASE (docs/sources.md). "
            "May be repeated; in the file a table [[source]] with `uri` for each, in the environment separated by "
            "spaces.",
            is_secret=True,  # refused for the very password that it contains
        )
    )


class ConnectorsExtension(Extension):
    """Runs a child process for each `--source`. The children connect to a separate gRPC server."""

    name = "connectors"
    settings = WithSources
    needed_for = "source"

    def __init__(self, core: Core) -> None:
        self._core = core
        self._folder: Path | None = None
        self._sources: list[SupervisedSource] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None
        self._uris = own_settings(core.settings, WithSources).source
        if self._uris:  # connections of children have no maximum age
            self._server = grpc.aio.server(options=server_options(core.settings, ages=False))

    def servers(self) -> Sequence[grpc.aio.Server]:
        return [] if self._server is None else [self._server]

    async def open(self) -> None:
        if self._server is None:
            return
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="purgatory-"))  # accessible to this user only
            socket_address = f"unix:{self._folder / 'sources'}"
            self._server.add_insecure_port(socket_address)
        except (OSError, RuntimeError) as error:
            raise StartupError(f"cannot listen for connectors (source): {error}") from None
        settings, links = self._core.settings, self._core.host.source_links
        token = self._core.access.make_token(PRINCIPAL)
        for uri in self._uris:
            command = command_of(uri, socket_address, settings.journal.dir, settings.log.level)
            self._sources.append(SupervisedSource(uri, command, token, links.count_restart))
        links.supervised, links.supervised_as = self._sources, PRINCIPAL

    def serving(self) -> None:
        self._tasks = [asyncio.create_task(source.run(), name=source.name) for source in self._sources]

    def readiness(self) -> Sequence[str]:
        """The state of each connector, in the order of the settings."""
        now_ms = self._core.host.listening.now_ms()
        states = {source.name: STATE_NAMES[source.state_at(now_ms)] for source in self._core.host.sources}
        shown = [states.get(one.name, "loading") if one.is_running else "not running" for one in self._sources]
        return [f"source {number}: {state}" for number, state in enumerate(shown, 1)]

    def terminate(self) -> None:
        for source in self._sources:
            source.terminate()

    async def close(self, _grace_s: float) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
