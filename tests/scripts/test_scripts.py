"""Every script at every level that can express it: the output is as recorded."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.scripts.client_level import ClientLevel, UnaryLevel
from tests.scripts.language import all_scripts
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


@pytest.mark.parametrize("level", LEVELS)
def test_level_expresses_most_scripts(level: type[Level]) -> None:
    """A mistake in what a level cannot express would otherwise leave scripts out in silence."""
    assert len(names_of(level)) > len(names_of(GrpcLevel)) / 2 > len(SCRIPTS) / 4


@pytest.mark.parametrize("name", names_of(HostLevel))
def test_host(name: str) -> None:
    """A host that is called without a network."""
    with asyncio.Runner() as runner:
        assert HostLevel(runner).run(SCRIPTS[name]) == SCRIPTS[name].lines


@pytest.mark.parametrize("name", names_of(RestoredLevel))
def test_restored(name: str, tmp_path: Path) -> None:
    """A host with a journal that crashes after every line."""
    with asyncio.Runner() as runner:
        level = RestoredLevel(runner, tmp_path)
        try:
            assert level.run(SCRIPTS[name]) == SCRIPTS[name].lines
        finally:
            level.close()


@pytest.mark.parametrize(("level", "name"), [(level, name) for level in DAEMON_LEVELS for name in names_of(level)])
def test_daemon(level: type[GrpcLevel], name: str, daemon: SharedDaemon) -> None:
    """A daemon that all scripts share, over each of its transports."""
    prefix = f"{level.__name__}.{list(SCRIPTS).index(name)}."
    assert level(daemon, prefix).run(SCRIPTS[name]) == SCRIPTS[name].lines
