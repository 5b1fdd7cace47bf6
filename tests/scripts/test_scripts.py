"""Every script at every level that can express it: the output is as recorded."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.scripts.client_level import ClientLevel, UnaryLevel
from tests.scripts.drawn import drawn
from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import Script, all_scripts
from tests.scripts.message_levels import (
    ColumnsLevel,
    GrpcLevel,
    HostLevel,
    HttpLevel,
    MessageLevel,
    RestoredLevel,
    SharedDaemon,
)

SCRIPTS: Final = all_scripts()
Start = Callable[[str], MessageLevel]


@pytest.fixture(scope="module")
def daemon() -> Iterator[SharedDaemon]:
    shared = SharedDaemon()
    yield shared
    shared.close()


def check(level: MessageLevel, script: Script) -> None:
    if reason := level.unsupported(script):
        pytest.skip(reason)
    assert level.run(script) == script.lines


@pytest.mark.parametrize("name", SCRIPTS)
def test_host(name: str) -> None:
    """A host that is called without a network."""
    with asyncio.Runner() as runner:
        check(HostLevel(runner), SCRIPTS[name])


@pytest.mark.parametrize("name", SCRIPTS)
def test_restored(name: str, tmp_path: Path) -> None:
    """A host with a journal that crashes after every line."""
    with asyncio.Runner() as runner:
        level = RestoredLevel(runner, tmp_path)
        try:
            check(level, SCRIPTS[name])
        finally:
            level.close()


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("level", [GrpcLevel, ColumnsLevel, HttpLevel, ClientLevel, UnaryLevel])
def test_daemon(level: type[GrpcLevel], name: str, daemon: SharedDaemon) -> None:
    """A daemon that all scripts share, over each of its transports."""
    prefix = f"{level.__name__}.{list(SCRIPTS).index(name)}."
    check(level(daemon, prefix), SCRIPTS[name])


@pytest.mark.slow  # operations with thousands of items, on the oracle too
@pytest.mark.parametrize("seed", range(1, 4))
def test_drawn(seed: int, daemon: SharedDaemon) -> None:
    """Random scripts with sizes around the internal ones end as on the engine, over each transport."""
    script = drawn(seed)
    script = script._replace(lines=EngineLevel().run(script))
    for level in (GrpcLevel, ColumnsLevel, HttpLevel):
        assert level(daemon, f"{level.__name__}.drawn.{seed}.").run(script) == script.lines


@pytest.mark.slow  # a crash after every line
@pytest.mark.parametrize("seed", range(1, 4))
def test_drawn_restored(seed: int, tmp_path: Path) -> None:
    """Random scripts end as on the engine although the host crashes after every line. No partition is removed: a term
    that was true before has lost its log start once it is restored.
    """
    script = drawn(seed)
    script = script._replace(lines=[line for line in script.lines if line.verb != "remove"])
    with asyncio.Runner() as runner:
        level = RestoredLevel(runner, tmp_path)
        try:
            check(level, script._replace(lines=EngineLevel().run(script)))
        finally:
            level.close()
