"""The tests that every connector passes, for pytest (docs/connectors.md).

They run the connector's program, as the daemon does, and compare its mark with the system that it watches.
"""

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
        ends: The name by which `caught_up` asks for its end: "pg/main/all", "kafka/orders".
    """

    uri: str
    mark: str
    ends: str

    @abstractmethod
    def write(self) -> int:
        """Write something. Returns the position at which a wait for it may end."""

    @abstractmethod
    def position(self) -> int:
        """The mark's present position, asked of the system itself."""

    def stop(self) -> None:
        """Make the system unreachable, or let it hang, until `start`. What was written is still there then."""
        pytest.skip("needs `stop` and `start`")

    def start(self) -> None:
        """The end of `stop`."""
        raise NotImplementedError

    def begin_again(self) -> None:
        """Begin another history: make a topic anew, promote a replica that has lost writes."""
        pytest.skip("needs `begin_again`")


class Watched:
    """A system, a client of a daemon, and the connector between them."""

    def __init__(self, system: WatchedSystem, daemon: RunningDaemon, state_dir: Path) -> None:
        from purgatory.source_uri import SourceUri  # noqa: PLC0415 - see running_daemon

        self.system, self.mark, self.client = system, system.mark, daemon.client
        program = [sys.executable, "-P", "-m", "purgatory_connectors", SourceUri.parse(system.uri).kind, system.uri]
        self._command = [*program, "--to", daemon.address, "--state-dir", str(state_dir)]
        self.start()

    def start(self) -> None:
        """Start the connector's program."""
        self.process = subprocess.Popen(self._command)  # noqa: S603 - this program's own

    def wait(self, position: int, timeout: float = PATIENCE_S) -> bool:
        """Whether the mark reaches the position in time."""
        return self.client.produce({self.mark: position}, timeout=timeout).satisfied

    def until(self, fits: Callable[["Partition"], object]) -> "Partition":
        """Wait until the mark fits."""
        deadline = time.monotonic() + PATIENCE_S
        while not fits(mark := self.client.partition(self.mark)):
            assert time.monotonic() < deadline, mark
            time.sleep(POLL_S)
        return mark

    def until_seen(self) -> "Partition":
        """Write, wait for that, and return the mark, which is not ahead of the system."""
        position = self.system.write()
        assert self.wait(position)
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
            yield watched
            watched.process.terminate()
            try:
                assert watched.process.wait(STOP_S_MAX) == 0
            finally:
                watched.process.kill()

    def test_wait_ends_once_the_system_is_there(self, watched: Watched) -> None:
        """The mark is never ahead of the system."""
        assert len({watched.until_seen().leader_epoch for _ in range(20)}) == 1

    def test_ends_cover_everything_written_before_the_call(self, watched: Watched) -> None:
        """And are reached without another write."""
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
        assert not watched.wait(position, timeout=0.1)
        watched.start()
        assert watched.wait(position)
        assert watched.until_seen().leader_epoch == before.leader_epoch

    def test_unreachable_system_makes_the_mark_stale_and_ends_no_wait(self, watched: Watched) -> None:
        """The mark stays as it was, and goes on afterwards."""
        before = watched.until_seen()
        watched.system.stop()
        try:
            watched.until(lambda mark: mark.stale_reason)
            far = {watched.mark: before.high_watermark + FAR}
            failed = watched.client.produce(far, timeout=PATIENCE_S, fail_when_stale=0.1)
            assert [one.error_code for one in failed.partitions.values()] == [1001]
            stale = watched.client.partition(watched.mark)
            assert (stale.leader_epoch, stale.high_watermark) >= (before.leader_epoch, before.high_watermark)
        finally:
            watched.system.start()
        assert watched.until_seen().leader_epoch == before.leader_epoch

    def test_another_history_fails_waits_of_the_old_one(self, watched: Watched) -> None:
        """Later waits are those of the new one."""
        before = watched.until_seen()
        old, epoch = {watched.mark: before.high_watermark + FAR}, before.leader_epoch
        produce = watched.client.produce
        waiting = ThreadPoolExecutor().submit(produce, old, leader_epochs=epoch, timeout=PATIENCE_S)
        watched.until(lambda mark: mark.watched)
        watched.system.begin_again()
        codes = [one.error_code for one in waiting.result().partitions.values()]
        assert codes in ([74], [3])  # 3: the mark was gone meanwhile
        assert watched.until_seen().leader_epoch > epoch
