"""The connectors extension: connectors as child processes of the daemon."""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import grpc
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic_settings import NoDecode

from purgatory.extension import Core, Extension, StartupError, own_settings
from purgatory.extensions.connectors.supervised_sources import PRINCIPAL, SupervisedSource, command_of
from purgatory.service.rpc.grpc_options import server_options
from purgatory.service.settings import setting
from purgatory.service.sources.source_table import STATE_NAMES
from purgatory.source_uri import SourceUri, SourceUriInvalid


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
    """The setting, as the daemon's settings have it."""

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
