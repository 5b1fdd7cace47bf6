"""Every script at every level that can express it: the output is as recorded."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.scripts.client_level import ClientLevel, UnaryLevel
from tests.scripts.drawn import drawn
from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import Script, all_scripts
from tests.scripts.level import Level
from tests.scripts.message_levels import ColumnsLevel, GrpcLevel, HostLevel, HttpLevel, RestoredLevel, SharedDaemon

SCRIPTS: Final = all_scripts()
DAEMON_LEVELS: Final = (GrpcLevel, ColumnsLevel, HttpLevel, ClientLevel, UnaryLevel)
LEVELS: Final[tuple[type[Level], ...]] = (HostLevel, RestoredLevel, *DAEMON_LEVELS)


def names_of(level: type[Level]) -> list[str]:
    """The scripts that a level can express; `python -m tests.scripts --levels` prints the others."""
    return [name for name, script in SCRIPTS.items() if not level.unsupported(script)]


@pytest.fixture(scope="module")
def daemon() -> Iterator[SharedDaemon]:
    shared = SharedDaemon()
    yield shared
    shared.close()


def check_restored(script: Script, folder: Path) -> None:
    with asyncio.Runner() as runner:
        level = RestoredLevel(runner, folder)
        try:
            assert level.run(script) == script.lines
        finally:
            level.close()


@pytest.mark.parametrize("level", LEVELS)
def test_level_expresses_most_scripts(level: type[Level]) -> None:
    """A mistake in what a level cannot express would otherwise leave scripts out in silence."""
    assert len(names_of(level)) > len(SCRIPTS) / 2


@pytest.mark.parametrize("name", names_of(HostLevel))
def test_host(name: str) -> None:
    """A host that is called without a network."""
    with asyncio.Runner() as runner:
        assert HostLevel(runner).run(SCRIPTS[name]) == SCRIPTS[name].lines


@pytest.mark.parametrize("name", names_of(RestoredLevel))
def test_restored(name: str, tmp_path: Path) -> None:
    """A host with a journal that crashes after every line."""
    check_restored(SCRIPTS[name], tmp_path)


@pytest.mark.parametrize(("level", "name"), [(level, name) for level in DAEMON_LEVELS for name in names_of(level)])
def test_daemon(level: type[GrpcLevel], name: str, daemon: SharedDaemon) -> None:
    """A daemon that all scripts share, over each of its transports."""
    prefix = f"{level.__name__}.{list(SCRIPTS).index(name)}."
    assert level(daemon, prefix).run(SCRIPTS[name]) == SCRIPTS[name].lines


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
    check_restored(script._replace(lines=EngineLevel().run(script)), tmp_path)
