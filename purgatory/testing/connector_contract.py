"""The tests that every connector passes, for pytest (docs/connectors.md).

They run the connector's program, as the daemon does, and compare its mark with the system that it watches.
"""

import contextlib
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from purgatory.testing.running_daemon import POLL_S, STOP_S_MAX, RunningDaemon, daemon_in_process

if TYPE_CHECKING:
    from purgatory_client.views import Partition

PATIENCE_S: Final = 60.0
FAR: Final = 1_000_000_000
"""More than a test writes."""


class WatchedSystem(ABC):
    """What the tests need of the system that a connector watches. Without `stop` or `begin_again`, a test is skipped.

    Attributes:
        uri: The source's address. Give it short intervals.
        mark: A mark whose position `write` moves: "pg/main/all", "kafka/orders-0".
        ends: The name by which `caught_up` asks for its end: "kafka/orders". Empty: the connector knows no ends.
        knows_options: Whether it refuses options that it does not know.
    """

    uri: str
    mark: str
    ends: str
    knows_options = True

    @abstractmethod
    def write(self) -> int:
        """Write something. Returns the position at which a wait for it may end."""

    @abstractmethod
    def position(self) -> int:
        """The mark's present position, asked of the system itself."""

    def stop(self) -> None:
        """Make the system unreachable, or let it hang, until `start`."""
        raise NotImplementedError

    def start(self) -> None:
        """The end of `stop`. What was written is still there."""
        raise NotImplementedError

    def begin_again(self) -> None:
        """Begin another history: make a topic anew, promote a replica that has lost writes."""
        raise NotImplementedError


class Watched:
    """A system, a client of a daemon, and the connector between them."""

    def __init__(self, system: WatchedSystem, daemon: RunningDaemon, folder: Path) -> None:
        from purgatory.source_uri import SourceUri  # noqa: PLC0415 - see running_daemon

        self.system: Final = system
        self.client: Final = daemon.client
        program = [sys.executable, "-P", "-m", "purgatory_connectors", SourceUri.parse(system.uri).kind]
        self.command: Final = [*program, system.uri, "--to", daemon.address]
        self._state: Final = ["--state-dir", str(folder / "state")]
        self._log_path: Final = folder / "connector.log"
        self.start()

    def start(self) -> None:
        """Start the connector's program."""
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen([*self.command, *self._state], stderr=log)  # noqa: S603 - this program's own

    def until(self, fits: Callable[["Partition"], object]) -> "Partition":
        """Wait until the mark is published and fits. Raises AssertionError, with the connector's log."""
        from purgatory_client.errors import NotFound  # noqa: PLC0415 - see running_daemon

        mark, deadline = None, time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(NotFound):
                mark = self.client.partition(self.system.mark)
                if fits(mark):
                    return mark
            time.sleep(POLL_S)
        raise AssertionError(f"{self.system.mark} is {mark}; the connector's log:\n{self._log_path.read_text('utf-8')}")

    def until_seen(self) -> "Partition":
        """Write, wait for that, and return the mark, which is not ahead of the system."""
        position = self.system.write()
        assert self.client.produce({self.system.mark: position}, timeout=PATIENCE_S).satisfied
        mark = self.until(lambda mark: not mark.stale_reason)
        assert position <= mark.high_watermark <= self.system.position()
        return mark


class ConnectorContract:
    """Derive a class `Test...`. Its module has a fixture `system`, of scope module, that yields a `WatchedSystem`."""

    @pytest.fixture(scope="class")
    @classmethod
    def watched(cls, system: WatchedSystem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
        """The system, watched by the connector. At the end, SIGTERM ends its program."""
        with daemon_in_process() as daemon:
            watched = Watched(system, daemon, tmp_path_factory.mktemp("connector"))
            try:
                yield watched
                watched.process.terminate()
                assert watched.process.wait(STOP_S_MAX) == 0
            finally:
                watched.process.kill()
                watched.process.wait()

    def test_wait_ends_once_the_system_is_there(self, watched: Watched) -> None:
        """The mark is never ahead of the system."""
        epochs = {watched.until_seen().leader_epoch for _ in range(20)}
        assert len(epochs) == 1

    def test_ends_cover_everything_written_before_the_call(self, watched: Watched) -> None:
        """And are reached without another write."""
        if not watched.system.ends:
            pytest.skip("this connector knows no ends")
        watched.until_seen()
        for _ in range(5):
            position = watched.system.write()
            ends = watched.client.ends([watched.system.ends])
            assert max(ends.offsets.values()) >= position
            assert watched.client.wait_for(ends, timeout=PATIENCE_S).satisfied

    def test_killed_connector_goes_on_where_it_was(self, watched: Watched) -> None:
        """Its marks are stale until then, and of the same lineage afterwards."""
        before = watched.until_seen()
        watched.process.kill()
        watched.process.wait()
        watched.until(lambda mark: mark.stale_reason)
        position = watched.system.write()
        assert not watched.client.produce({watched.system.mark: position}, timeout=0.1).satisfied
        watched.start()
        assert watched.client.produce({watched.system.mark: position}, timeout=PATIENCE_S).satisfied
        assert watched.until_seen().leader_epoch == before.leader_epoch

    def test_unreachable_system_makes_the_mark_stale_and_ends_no_wait(self, watched: Watched) -> None:
        """The mark stays as it was, and goes on afterwards."""
        _skip_without(watched.system, "stop")
        before = watched.until_seen()
        watched.system.stop()
        try:
            watched.until(lambda mark: mark.stale_reason)
            far = {watched.system.mark: before.high_watermark + FAR}
            failed = watched.client.produce(far, timeout=PATIENCE_S, fail_when_stale=0.1)
            assert [one.error_code for one in failed.partitions.values()] == [1001]
            stale = watched.client.partition(watched.system.mark)
            assert (stale.leader_epoch, stale.high_watermark) >= (before.leader_epoch, before.high_watermark)
        finally:
            watched.system.start()
        assert watched.until_seen().leader_epoch == before.leader_epoch

    def test_another_history_fails_waits_of_the_old_one(self, watched: Watched) -> None:
        """Later waits are those of the new one."""
        _skip_without(watched.system, "begin_again")
        before = watched.until_seen()
        old, epoch = {watched.system.mark: before.high_watermark + FAR}, before.leader_epoch
        with ThreadPoolExecutor() as thread:
            waiting = thread.submit(watched.client.produce, old, leader_epochs=epoch, timeout=PATIENCE_S)
            watched.until(lambda mark: mark.watched)
            watched.system.begin_again()
            codes = [one.error_code for one in waiting.result().partitions.values()]
        assert codes in ([74], [3])  # 3: the mark was gone meanwhile
        assert watched.until_seen().leader_epoch > epoch

    def test_unknown_option_is_refused_by_its_name(self, watched: Watched) -> None:
        """In one line, with the exit code 2: the daemon then waits longer before it starts the connector again."""
        if not watched.system.knows_options:
            pytest.skip("this connector passes options on")
        command = [*watched.command, "--option", "no_such_option=1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # noqa: S603
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert "no_such_option" in done.stderr


def _skip_without(system: WatchedSystem, method: str) -> None:
    if getattr(type(system), method) is getattr(WatchedSystem, method):
        pytest.skip(f"{type(system).__name__} has no method `{method}`")
