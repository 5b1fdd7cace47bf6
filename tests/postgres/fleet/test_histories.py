"""A daemon whose folder belongs to another history than its log: it is refused before it writes anything."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from examples.local_postgres import LocalPostgres
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import DATABASE, Directory
from purgatory.replicated_log.entry import Entry, Kind, pack_rows
from purgatory.replicated_log.errors import LogLost
from purgatory.replicated_log.leadership import LeaderStore
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.snapshots import store_and_trim
from purgatory.replicated_log.standby import Standby
from purgatory.v1 import fleet_log_pb2 as pb
from tests.fleet.audit import rows_of_file
from tests.journal.kit import statements_of
from tests.kit.commands import fleet_command
from tests.kit.eventually import PATIENCE_S
from tests.kit.fleet import Member
from tests.postgres.conftest import new_log

pytestmark = pytest.mark.slow

REMEDY = "stop all daemons, empty their folders, and start them"


class Fleet(NamedTuple):
    """A log, and the folders of its daemons."""

    url: str
    schema: str
    servers: LocalPostgres

    def query(self, sql: str) -> list[tuple[int, ...]]:
        return self.servers.servers["p"].query(f"SET search_path = {self.schema}; {sql}")

    def entries(self) -> int:
        with contextlib.closing(open_log(self.url)) as log:
            return log.end()

    def lose(self, newest: int) -> None:
        """The log is restored from a backup that lacks its newest entries."""
        self.query(f"DELETE FROM purgatory_log WHERE position >= {self.entries() - newest}")


@pytest.fixture
def fleet(log_servers: LocalPostgres) -> Fleet:
    return new_fleet(log_servers)


def new_fleet(servers: LocalPostgres) -> Fleet:
    url = new_log(servers)
    assert fleet_command(["init", url]) == 0
    return Fleet(url, url.rpartition("%3D")[2], servers)


@contextlib.contextmanager
def leading(folder: Path, url: str) -> Iterator[LeaderStore]:
    """Lead with the file in a folder, and resign."""
    with contextlib.closing(open_log(url)) as log:
        leadership = Standby(folder, log, 0.1, "", "").lead()
        directory = Directory(folder)
        store = LeaderStore(directory, CrashPoints(), leadership)
        try:
            yield store
        finally:
            store.close()
            directory.release()


def reign(folder: Path, fleet: Fleet, *, groups: int = 3, snapshots: int = 0) -> Path:
    """Lead, append groups, store snapshots, resign."""
    with leading(folder, fleet.url) as store, contextlib.closing(open_log(fleet.url)) as log:
        for number in range(1, groups + 1):
            store.commit(statements_of(number))
        for number in range(snapshots):
            store.commit(statements_of(groups + number + 1))
            store_and_trim(folder / DATABASE, log)
    return folder


def check_refused(folder: Path, fleet: Fleet, why: str) -> None:
    """A daemon with this folder is refused whenever it is started, and writes nothing."""
    for _ in range(2):
        before = fleet.entries()
        with contextlib.closing(open_log(fleet.url)) as log, pytest.raises(LogLost, match=why) as refused:
            Standby(folder, log, 0.1, "", "").lead()
        assert REMEDY in str(refused.value)
        assert fleet.entries() == before
    assert fleet_command(["verify", fleet.url]) == 0


@pytest.mark.parametrize(
    ("groups", "snapshots", "why"),
    [(1, 0, "the log has gone back"), (3, 0, "another entry"), (9, 0, "another entry"), (9, 2, "the last snapshot")],
    ids=["shorter", "as long", "longer", "trimmed"],
)
def test_folder_of_another_fleet_is_refused(
    fleet: Fleet, tmp_path: Path, groups: int, snapshots: int, why: str
) -> None:
    """Whether this log is shorter or longer than the folder, or no longer has entries of its time."""
    foreign = reign(tmp_path / "foreign", new_fleet(fleet.servers))
    own = reign(tmp_path / "own", fleet, groups=groups, snapshots=snapshots)
    check_refused(foreign, fleet, why)
    reign(own, fleet)


def test_daemon_with_more_than_a_restored_log_stays_out(fleet: Fleet, tmp_path: Path) -> None:
    """When the log has become longer again, and when it has been trimmed, the daemon is still refused; with an empty
    folder it goes on with what the log has.
    """
    ahead = reign(tmp_path / "ahead", fleet, groups=5)
    fleet.lose(4)
    check_refused(ahead, fleet, "the log has gone back: it ends at position 4, before position 7")
    other = reign(tmp_path / "other", fleet, groups=1)
    check_refused(ahead, fleet, "position 6 of the log has another entry")
    reign(other, fleet, groups=9)
    check_refused(ahead, fleet, "position 6 of the log has another entry")
    reign(other, fleet, snapshots=2)
    check_refused(ahead, fleet, "the last snapshot does not contain")
    shutil.rmtree(ahead)
    reign(ahead, fleet)


def test_daemon_that_lost_only_part_of_a_reign_stays_out(fleet: Fleet, tmp_path: Path) -> None:
    ahead = reign(tmp_path / "ahead", fleet, groups=5)
    fleet.lose(4)
    reign(tmp_path / "other", fleet, groups=9, snapshots=2)
    check_refused(ahead, fleet, "the last snapshot does not contain")


def test_daemon_behind_a_trimmed_log_starts_from_the_snapshot(fleet: Fleet, tmp_path: Path) -> None:
    behind = reign(tmp_path / "behind", fleet)
    other = tmp_path / "other"
    for _ in range(2):
        reign(other, fleet, snapshots=2)
    reign(behind, fleet)


def test_snapshots_without_their_log_are_reported(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reign(tmp_path / "a", fleet, snapshots=1)
    fleet.query("DELETE FROM purgatory_log")
    capsys.readouterr()
    assert fleet_command(["init", fleet.url]) == 2
    assert fleet_command(["verify", fleet.url]) == 1
    shown = capsys.readouterr()
    for text in (shown.err, shown.out):
        assert "the log ends at position 1, and its last snapshot at position 5" in text


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("DELETE FROM purgatory_log WHERE position < 2", "the log begins at position 2, after position 0"),
        ("UPDATE purgatory_log SET content = 'x' WHERE position = 0", "does not begin with the entry that"),
        ("UPDATE purgatory_log SET content = 'x' WHERE position = 1", "has lost the claim of epoch 1"),
        ("UPDATE purgatory_log SET content = 'x' WHERE position = 3", "has lost entries: number 2 is missing"),
    ],
    ids=["trimmed", "no origin", "no claim", "no group"],
)
def test_verify_reports_a_log_without_its_beginning(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, why: str
) -> None:
    reign(tmp_path / "a", fleet)
    fleet.query(damage)
    capsys.readouterr()
    assert fleet_command(["verify", fleet.url]) == 1
    assert why in capsys.readouterr().out


def test_what_cannot_be_decoded_is_skipped_by_all(fleet: Fleet, tmp_path: Path) -> None:
    """Rows of garbage, and groups with the right epoch, writer and number that lack a field, stop neither the leader
    nor a standby, which end up with the same rows.
    """
    first = statements_of(1)
    lacking = pb.LogRows.FromString(pack_rows(first))
    lacking.tables[-1].put[0].values[0].Clear()
    with leading(tmp_path / "a", fleet.url) as store, contextlib.closing(open_log(fleet.url)) as log:
        store.commit(first)
        now = store._leadership.reign.state
        group = Entry(Kind.GROUP, now.epoch, now.writer, now.number + 1, log_id=now.log_id)
        for content in (b"", b"\xff", lacking.SerializeToString()):
            log.begin(replace(group, content=content), log.end())
            log.finish(10)
        for garbage in (b"", b"garbage", pb.LogEntry(format=1, epoch=now.epoch).SerializeToString()):
            fleet.query(
                f"INSERT INTO purgatory_log SELECT 0, max(position) + 1, now(), '\\x{garbage.hex()}' FROM purgatory_log"
            )
        store.commit(statements_of(2))
        rows = rows_of_file(tmp_path / "a")
    with leading(tmp_path / "b", fleet.url):
        pass
    assert rows_of_file(tmp_path / "b")[1] == rows[1]
    assert fleet_command(["verify", fleet.url]) == 0


def test_daemons_of_two_fleets(log_servers: LocalPostgres, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A daemon that is started with the folder of another fleet ends at each start and says why; `status` shows daemons
    that follow different logs.
    """
    fleets = [new_fleet(log_servers), new_fleet(log_servers)]
    members = [Member(f"m{number}", tmp_path, fleet.url) for number, fleet in enumerate(fleets)]
    try:
        for member in members:
            member.until("/leaderz")
        assert fleet_command(["status", members[0].http_address]) == 0
        assert fleet_command(["status", *(member.http_address for member in members)]) == 1
        assert "follow different logs" in capfd.readouterr().out
        members[1].end()
        members.append(Member("m1", tmp_path, fleets[0].url))
        for _ in range(2):
            members[2].start_if_ended()
            assert members[2].process.wait(PATIENCE_S) == 1
            assert REMEDY in members[2].log.splitlines()[-1]
        assert members[2].log.count("leading") == 1, "before, with its own log"
        assert members[0].answers("/leaderz")
    finally:
        for member in members:
            member.end()
