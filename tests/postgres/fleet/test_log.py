"""The fleet's log in a real PostgreSQL: entries, positions, snapshots, trimming, outages, and other histories."""

import contextlib
import logging
import signal
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from examples.local_postgres import LocalPostgres
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import DATABASE, Directory
from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import CutOff, LogLost, LogRefused
from purgatory.replicated_log.leadership import LeaderStore
from purgatory.replicated_log.log_writer import LogWriter
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.postgres_log import PostgresLog
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.replicated_log import Place
from purgatory.replicated_log.snapshots import store_and_trim
from purgatory.replicated_log.standby import Standby
from tests.fleet.log_contract import PATIENT_S, LogContract, OpenShard, catch_up
from tests.journal.kit import statements_of
from tests.kit.fleet import Member
from tests.kit.programs import fleet_command
from tests.postgres.conftest import new_log


def ignore(entry: Entry) -> None: ...


def append(log: PostgresLog, entry: Entry, position: int) -> Place | None:
    log.begin(entry, position)
    return log.finish(10)


def group(number: int, content: bytes = b"") -> Entry:
    return Entry(Kind.GROUP, 1, b"w" * 16, number, 1_000, content)


@pytest.fixture
def url(log_servers: LocalPostgres) -> str:
    """The address of a log that does not exist yet."""
    return new_log(log_servers)


@pytest.fixture
def log(url: str) -> Iterator[PostgresLog]:
    log = PostgresLog(url)
    log.create(1)
    yield log
    log.close()


@pytest.fixture
def open_shard(url: str) -> OpenShard:
    with closing(PostgresLog(url)) as log:
        log.create(2)
    return lambda shard: PostgresLog(url, shard)


class TestPostgresLog(LogContract): ...


def test_number_of_shards_is_that_of_the_log(log: PostgresLog, url: str) -> None:
    log._query(b"DELETE FROM purgatory_log")
    log.create(2)
    log.check(2)
    for shards in (1, 3):
        with pytest.raises(LogRefused, match=f"purgatory_log: shards=2, must be {shards}, the number of shards"):
            log.check(shards)
    with closing(PostgresLog(url, 2)) as third, pytest.raises(LogRefused, match="so there is no shard 2"):
        third.check(None)


def test_a_position_is_taken_once(log: PostgresLog) -> None:
    """The second entry at a position is not appended; one after a gap shows that the log has gone back."""
    assert append(log, group(1), 1) is not None
    assert append(log, group(2), 1) is None
    assert log.end() == 2
    with pytest.raises(LogLost, match="position 4 is not in it"):
        append(log, group(2), 5)
    with pytest.raises(LogLost, match="it ends at position 2, before position 7"):
        log.read(7, 0)


def test_missing_or_empty_table_is_refused_with_the_command_that_begins_a_log(url: str) -> None:
    with closing(PostgresLog(url)) as log:
        with pytest.raises(LogRefused, match="purgatory fleet init"):
            log.check(1)
        log.create(1)
        log._query(b"DELETE FROM purgatory_log")
        with pytest.raises(LogRefused, match=r"table purgatory_log: is empty\. `purgatory fleet init`"):
            log.check(1)


@pytest.fixture
def role(log_servers: LocalPostgres, log: PostgresLog, url: str) -> Iterator[str]:
    """A role that has the documented rights on the tables of the log."""
    server, name = log_servers.servers["p"], f"daemon_{uuid.uuid4().hex[:8]}"
    schema = url.rpartition("%3D")[2]
    server.query(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {name}")
    server.query(f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}")
    yield name
    server.query(f"DROP OWNED BY {name}")


def test_a_daemon_needs_the_documented_permissions_only(role: str, url: str) -> None:
    with closing(PostgresLog(url.replace("postgres@", f"{role}@"))) as daemon:
        daemon.create(1)
        daemon.check(1)
        for at in range(1, 3):
            assert append(daemon, group(at), at) is not None
        for position in (0, 1):
            daemon.put_snapshot(position, [b"content"])
        snapshot = daemon.last_snapshot()
        assert snapshot is not None
        assert (snapshot.position, b"".join(snapshot.read())) == (1, b"content")
        daemon.trim(2)
        assert [entry.number for entry in daemon.read(2, 0)] == [2]


@pytest.mark.parametrize("table", ["purgatory_log", "purgatory_snapshots"])
@pytest.mark.parametrize("right", ["SELECT", "INSERT", "DELETE"])
def test_missing_right_is_named(log_servers: LocalPostgres, role: str, url: str, table: str, right: str) -> None:
    """A daemon whose role lacks a right is refused with the GRANT that it needs; `verify` needs SELECT."""
    log_servers.servers["p"].query(f"REVOKE {right} ON {url.rpartition('%3D')[2]}.{table} FROM {role}")
    with closing(PostgresLog(url.replace("postgres@", f"{role}@"))) as daemon:
        with pytest.raises(LogRefused, match=f"{table}: role {role} lacks rights on it: GRANT {right} ON {table} TO"):
            daemon.check(1)
        if right != "SELECT":
            daemon.check(None)


def test_schema_that_a_role_may_not_create_in_is_named(log_servers: LocalPostgres, role: str, url: str) -> None:
    other = new_log(log_servers)
    name = other.rpartition("%3D")[2]
    log_servers.servers["p"].query(f"GRANT USAGE ON SCHEMA {name} TO {role}")
    with (
        closing(PostgresLog(other.replace("postgres@", f"{role}@"))) as elsewhere,
        pytest.raises(LogRefused, match=f"schema {name}.* The role needs CREATE on the schema"),
    ):
        elsewhere.create(1)


def test_a_database_without_synchronous_replicas_is_reported(
    log: PostgresLog, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "purgatory.replicated_log"):
        log.check(1)
    assert "synchronous_commit=on and synchronous_standby_names=''" in caplog.text


def test_unfinished_and_damaged_snapshots(log: PostgresLog) -> None:
    """A snapshot that is not complete is not found, a damaged one is refused, and trimming keeps the last entry."""
    for at in range(1, 5):
        append(log, group(at), at)
    log.put_snapshot(3, [b"content"])
    log._query(b"INSERT INTO purgatory_snapshots SELECT 0, 'unfinished', 0, 2, 4, 0, 'x'")
    newest = log.last_snapshot()
    assert newest is not None
    assert newest.position == 3
    log._query(b"UPDATE purgatory_snapshots SET content = 'y' WHERE position = 3")
    with pytest.raises(LogRefused, match="chunk 0 of the snapshot is damaged"):
        list(newest.read())
    log.trim(99)
    assert [entry.position for entry in log.read(4, 0)] == [4]
    assert log.last_snapshot() is None


def test_many_entries_are_trimmed_in_steps(log: PostgresLog) -> None:
    log._query(b"INSERT INTO purgatory_log SELECT 0, n, now(), '' FROM generate_series(1, 2500) AS n")
    log.trim(2_400)
    assert log._query(b"SELECT count(*), min(position) FROM purgatory_log") == [(101, 2_400)]


def test_an_unanswered_append_is_cut_off_and_may_count(log: PostgresLog, log_servers: LocalPostgres) -> None:
    """While the server hangs, an append ends after its deadline; the writer is then closed."""
    writer = LogWriter(log, Reign(), ignore, cut_off_s=5)
    catch_up(writer, log)
    writer.claim(0)
    server = log_servers.servers["p"]
    server.signal_all(signal.SIGSTOP)
    try:
        pending = writer.begin(Kind.GROUP, 0, b"late")
        with pytest.raises(CutOff, match="no answer for 5 s"):
            pending.finish()
    finally:
        server.signal_all(signal.SIGCONT)
    with pytest.raises(CutOff, match="restart this daemon"):
        writer.append(Kind.GROUP, 0, b"another")
    reader = Reign()
    next_one = LogWriter(log, reader, ignore, PATIENT_S)
    catch_up(next_one, log)
    assert reader.state.number in {0, 1}
    next_one.claim(0)
    assert next_one.append(Kind.GROUP, 0, b"next").epoch == 2


# A daemon whose folder belongs to another history than its log is refused before it writes anything.


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


def test_status_reports_daemons_that_follow_different_logs(
    fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    urls = (fleet.url, new_fleet(fleet.servers).url)
    members = [Member(f"m{number}", tmp_path, url) for number, url in enumerate(urls)]
    try:
        for member in members:
            member.until("/leaderz")
        assert fleet_command(["status", members[0].http_address]) == 0
        assert fleet_command(["status", *(member.http_address for member in members)]) == 1
        assert "follow different logs" in capfd.readouterr().out
    finally:
        for member in members:
            member.end()
