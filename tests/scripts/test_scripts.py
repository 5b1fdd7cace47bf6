"""Every script at every level that can express it: the output is as recorded.

The race table of docs/semantics.md: two causes reach one operation at the same instant, in either order.

The first one decides, and the second has no effect. A host, and a unary call to it, must say what the engine and the
oracle say. Clocks are moved by hand, so that "the same instant" is exact. tests/histories checks the reports of
a real server, where the order is unknown.
"""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet

from purgatory.service.draining import drain
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.engine import plain
from tests.scripts import messages
from tests.scripts.client_level import ClientLevel, UnaryLevel
from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import WAITS, Line, Words, all_scripts
from tests.scripts.level import Level, counted
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
    """Otherwise, a mistake about what a level cannot express would silently leave scripts out."""
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


ITEMS: Final = dict.fromkeys(WAITS, "orders-3@5") | {"fetch": "orders-3@0 min_bytes=5", "await": "build@5"}
EVENTS: Final = dict.fromkeys(WAITS, "high-watermark orders-3 5") | {
    "await": "signal build 5",
    "delete-records": "log-start orders-3 5",
}
CAUSES: Final = {
    "event": ("", "1 satisfied"),
    "removal": ("remove orders-3", "1 failed"),
    "expiry": ("pass 0", "1 expired"),
    "cancel": ("cancel 1", "1 cancelled"),
    "operator": ("cancel-partition orders-3", "1 cancelled"),
    "disconnect": ("close a", "cancelled: 1"),
    "shutdown": ("shut-down 10", "1 shut down"),
}
"""The line of each cause (that of an event depends on the kind), and how it ends the wait if it comes first."""


def races(*causes: str, kinds: Iterable[str] = WAITS) -> Iterator[ParameterSet]:
    """The lines of each race, and how the wait ends."""
    for kind in kinds:
        before = ["append orders-3 10", *(["high-watermark orders-3 10"] if kind == "delete-records" else [])]
        before += [f"{kind} 1 {ITEMS[kind]} timeout=1000", "late 1000"]
        for first, second in permutations(causes, 2):
            # A partition has nothing to do with a signal, and a session that is gone has nothing to cancel.
            if (kind != "await" or "removal" not in {first, second}) and (first, second) != ("disconnect", "cancel"):
                lines = [CAUSES[cause][0] or EVENTS[kind] for cause in (first, second)]
                end = CAUSES[first][1]
                yield pytest.param([*before, *lines, "pass 10000"], end, id=f"{first}-then-{second}-{kind}")


TURNS: Final = 20
"""Turns of the loop after which a call on a host has done all that it can do at that time."""


class RacingHost(HostLevel):
    """A host whose clock moves before its reaper runs."""

    def do_late(self, part: Words) -> list[str]:
        self.clock.jump(int(part.words[1]))
        return []

    def do_shut_down(self, _: Words) -> list[str]:
        pending = self.host.engine.pending
        self._runner.run(drain(self.host, 0))
        return counted("shut down", pending - self.host.engine.pending)


class RacingCall(RacingHost):
    """The wait is a unary call, and closing the session is the end of the call."""

    _waiting: asyncio.Task[wire.WaitResponse] | None = None

    def register(self, session: str, operations: list[plain.Operation]) -> wire.Receipt:
        (row,) = messages.operation_rows(operations, self.names).operations
        self._waiting = self._runner.get_loop().create_task(self.called("Wait", wire.WaitRequest(operation=row)))
        self._turn()
        return wire.Receipt()

    def _turn(self) -> None:
        async def turns() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self._runner.run(turns())

    def close_session(self, session: str) -> int:
        pending = self.host.engine.pending
        if self._waiting is not None:
            self._waiting.cancel()
            self._turn()
            self._waiting = None
        return pending - self.host.engine.pending

    def ended(self) -> list[tuple[str, plain.Ended]]:
        self._turn()
        if self._waiting is None or not self._waiting.done():
            return []
        batch = wire.ResultBatch(rows=wire.ResultRows(results=[self._waiting.result().result]))
        self._waiting = None
        return [("a", row) for row in messages.ended_of(batch, self.names)]


def outputs(level: Level, lines: list[str]) -> list[list[str]]:
    return [level.play(Line(line, [])) for line in lines]


BY_SESSION: Final = list(races("event", "removal", "expiry", "cancel", "disconnect", "shutdown"))
BY_CALL: Final = list(races("event", "removal", "expiry", "operator", "disconnect", "shutdown", kinds=["produce"]))


def check(level: type[RacingHost], lines: list[str], end: str) -> None:
    expected = outputs(EngineLevel(), lines)
    assert end in "\n".join(expected[-3])
    with asyncio.Runner() as runner:
        assert outputs(level(runner), lines) == expected


@pytest.mark.parametrize(("lines", "end"), BY_SESSION)
def test_first_cause_decides(lines: list[str], end: str) -> None:
    """A session's wait ends once, with the outcome of the table, as on the engine."""
    check(RacingHost, lines, end)


@pytest.mark.parametrize(("lines", "end"), BY_CALL)
def test_first_cause_decides_a_unary_wait(lines: list[str], end: str) -> None:
    """A call of Wait is answered once, or has ended."""
    check(RacingCall, lines, end)
