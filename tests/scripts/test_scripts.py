"""Every script at every level that can express it: the output is as recorded."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.scripts.language import all_scripts
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


def check(level: MessageLevel, name: str) -> None:
    script = SCRIPTS[name]
    if reason := level.unsupported(script):
        pytest.skip(reason)
    assert level.run(script) == script.lines


@pytest.mark.parametrize("name", SCRIPTS)
def test_host(name: str) -> None:
    """A host that is called without a network."""
    with asyncio.Runner() as runner:
        check(HostLevel(runner), name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_restored(name: str, tmp_path: Path) -> None:
    """A host with a journal that crashes after every line."""
    with asyncio.Runner() as runner:
        level = RestoredLevel(runner, tmp_path)
        try:
            check(level, name)
        finally:
            level.close()


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("level", [GrpcLevel, ColumnsLevel, HttpLevel])
def test_daemon(level: type[GrpcLevel], name: str, daemon: SharedDaemon) -> None:
    """A daemon that all scripts share, over each of its transports."""
    prefix = f"{level.__name__}.{list(SCRIPTS).index(name)}."
    check(level(daemon, prefix), name)
