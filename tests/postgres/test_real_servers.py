"""A source with a real primary and two replicas: lag, restarts, staleness, other servers, and at the end a failover."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from purgatory_client import Outcome
from purgatory_client.errors import InvalidRequest, Unavailable
from purgatory_client.sources.log_positions import committed, lsn_of_offset, offset_of_lsn
from purgatory_connectors.postgres.postgres_settings import PostgresSettings
from purgatory_connectors.postgres.postgres_source import ServerReader
from purgatory_connectors.publisher.polled_source import Unreadable

from examples.local_postgres import ROLE, LocalPostgres, LocalServer
from purgatory.source_uri import SourceUri
from purgatory.testing import ConnectorContract, WatchedSystem
from tests.kit.eventually import wait_until
from tests.postgres.watched_servers import WatchedServers, satisfied

ROOT = Path(__file__).parent.parent.parent
NAMES = ("p", "r1", "r2", "any", "all", "quorum")


def test_waits_reach_behind_the_header_of_a_page(watched: WatchedServers) -> None:
    """After a segment switch the log ends after a page header that no server replays; waits for that end complete."""
    watched.write()
    watched.p.query("SELECT pg_switch_wal()")
    end = watched.p.position()
    assert end > watched.r1.position() or end % 8192 == 40
    assert satisfied(watched.wait("all", end))
    assert satisfied(watched.wait("p", end))


def test_ends_with_uncommitted_writes_are_reached_without_a_commit(watched: WatchedServers) -> None:
    with psycopg.connect(watched.p.conninfo("postgres")) as open_transaction:
        open_transaction.execute("INSERT INTO written SELECT generate_series(1, 10)")
        end = watched.p.position()
        ends = watched.client.ends(["pg/main/all", "pg/main/any"])
        assert min(ends.offsets.values()) >= end
        assert satisfied(watched.client.wait_for(ends, timeout=20))
        open_transaction.rollback()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_waits_continue_after_a_replica_was_down(watched: WatchedServers, how: signal.Signals) -> None:
    """Meanwhile it and `all` are stale, and expired waits report it; `any` continues."""
    watched.r2.stop(how)
    try:
        end = watched.write()
        assert satisfied(watched.wait("any", end))
        later = watched.wait_later("all", end)
        wait_until(lambda: watched.stale("all"), "all are stale")
        assert watched.stale("all") == f"r2: {watched.stale('r2')}"
        assert watched.stale("any") == ""
        assert watched.wait("all", end, timeout=0.1).outcome is Outcome.EXPIRED
    finally:
        watched.r2.start()
    assert satisfied(later.result())
    watched.assert_all_have(end, watched.r1, watched.r2)
    wait_until(lambda: not watched.stale("all"), "all are seen again")


def test_ends_are_unavailable_while_the_primary_restarts(watched: WatchedServers) -> None:
    """Only its own mark is stale."""
    epoch = watched.epoch("p")
    watched.p.stop(signal.SIGKILL)
    wait_until(lambda: watched.stale("p"), "the primary is stale")
    assert watched.stale("all") == ""
    with pytest.raises(Unavailable, match="no primary is available"):
        watched.client.ends(["pg/main/all"], timeout=5)
    watched.p.start()
    wait_until(lambda: not watched.stale("p"), "the primary is seen")
    assert satisfied(watched.client.wait_for(watched.client.ends(["pg/main/all"]), timeout=20))
    assert watched.epoch("p") == epoch


def test_another_system_at_the_same_address(watched: WatchedServers) -> None:
    """A server of another system changes no mark and is stale with the reason; the original server then continues."""
    watched.r2.stop()
    port = watched.r2.port
    before = watched.mark("r2")
    with LocalPostgres() as others:
        other = others.primary("other", port=port)
        other.query("CREATE TABLE written AS SELECT generate_series(1, 100000)")
        assert other.position() > before
        wait_until(lambda: "another system answers" in watched.stale("r2"), "it is refused")
        assert watched.wait("r2", before + 1, timeout=0.5).outcome is Outcome.EXPIRED
        assert watched.mark("r2") == before
        assert watched.stale("any") == ""
    watched.r2.start()
    assert satisfied(watched.wait("all", watched.write()))


@contextmanager
def slot(watched: WatchedServers, name: str) -> Iterator[None]:
    """A replication slot, which has a mark until the end of the block."""
    watched.p.query(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')")
    try:
        wait_until(lambda: watched.mark(f"slot:{name}") > 0, "the slot has a mark")
        yield
    finally:
        watched.p.query(f"SELECT pg_drop_replication_slot('{name}')")
    wait_until(lambda: watched.mark(f"slot:{name}") == -1, "the mark is gone")


def test_slot_has_a_mark_at_its_confirmed_position_until_it_is_dropped(watched: WatchedServers) -> None:
    with slot(watched, "feed"):
        end = watched.write()
        later = watched.wait_later("slot:feed", end)
        assert not later.done()
        watched.p.query(f"SELECT pg_replication_slot_advance('feed', '0/0'::pg_lsn + {end})")
        assert satisfied(later.result())
    with slot(watched, "feed"):
        pass  # another slot of that name has a mark again


def checkpointed_status(watched: WatchedServers, slot: str) -> object:
    watched.p.query("CHECKPOINT")
    return watched.p.query(f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{slot}'")[0][0]


def test_slot_whose_log_was_removed_is_stale_with_the_reason(watched: WatchedServers) -> None:
    with slot(watched, "idle"):
        try:
            for setting, size in (("max_slot_wal_keep_size", "4MB"), ("wal_keep_size", "0")):
                watched.p.query(f"ALTER SYSTEM SET {setting} = '{size}'")
            watched.p.query("SELECT pg_reload_conf()")
            for _ in range(8):  # segments of 1 MB
                end = watched.write()
                watched.p.query("SELECT pg_switch_wal()")
                assert satisfied(watched.wait("all", end)), "the replicas' own slots must not lag"
            wait_until(lambda: checkpointed_status(watched, "idle") == "lost", "a checkpoint with the new settings")
            result = watched.client.produce({"pg/main/slot:idle": end}, timeout=60, fail_when_stale=0.2)
            assert (result.outcome, result.partitions["pg/main/slot:idle"].error_code) == (Outcome.FAILED, 1001)
            assert "invalidated (wal_removed)" in str(result.partitions["pg/main/slot:idle"].stale_reason)
        finally:
            for setting in ("max_slot_wal_keep_size", "wal_keep_size"):
                watched.p.query(f"ALTER SYSTEM RESET {setting}")
            watched.p.query("SELECT pg_reload_conf()")


def test_replicas_that_only_the_primary_knows(postgres: LocalPostgres, tmp_path: Path) -> None:
    """Given only the primary's address, replicas are found by cluster_name, and can be waited for. Idle servers are
    polled every hour here, so each result shows that a wait makes its servers polled.
    """
    with WatchedServers(postgres, tmp_path, listed=("p",), options="&idle_poll_ms=3600000") as watched:
        watched.until_seen()
        end = watched.write()
        assert satisfied(watched.wait("all", end))
        watched.assert_all_have(end, watched.r1, watched.r2)
        watched.r2.stop()
        later = watched.wait_later("all", watched.write())
        wait_until(lambda: "not connected" in watched.stale("all"), "the replica is missed")
        assert satisfied(watched.wait("any", watched.write()))
        watched.r2.start()
        assert satisfied(later.result())


async def test_login_with_a_missing_role_is_refused_with_the_reason(postgres: LocalPostgres) -> None:
    uri = SourceUri.parse(f"postgres://{postgres.servers['p'].address}/postgres?servers=p&user=nobody")
    reader = ServerReader(PostgresSettings.of_uri(uri).servers[0], timeout_s=60)
    with pytest.raises(Unreadable, match='role "nobody" does not exist') as refused:
        await reader.read()
    assert refused.value.is_refused


class Replicas(WatchedSystem):
    """The mark of all replicas. The failover is the last test of this file."""

    mark = ends = "pg/contract/all"

    def __init__(self, postgres: LocalPostgres) -> None:
        self._primary, *self._replicas = (postgres.servers[name] for name in ("p", "r1", "r2"))
        hosts = ",".join(one.address for one in (self._primary, *self._replicas))
        self.uri = f"postgres://{hosts}/postgres?name=contract&servers=p,r1,r2&user={ROLE}"

    def write(self) -> int:
        self._primary.query("INSERT INTO written VALUES (1)")
        return self._primary.position()

    def position(self) -> int:
        """Includes the header of a page, which no server replays."""
        return min(one.position() for one in self._replicas) + 40

    def stop(self) -> None:
        self._replicas[0].signal_all(signal.SIGSTOP)

    def start(self) -> None:
        self._replicas[0].signal_all(signal.SIGCONT)


@pytest.fixture(scope="module")
def system(postgres: LocalPostgres) -> Replicas:
    return Replicas(postgres)


class TestContract(ConnectorContract): ...


# Positions in change events: which of them a replica must have replayed before it has the row.

ROW = 777_001
CHANGES = (
    "SELECT data FROM pg_logical_slot_get_binary_changes("
    "'cdc', NULL, NULL, 'proto_version', '1', 'publication_names', 'cdc')"
)


def test_committed_is_the_offset_after_the_position() -> None:
    assert committed("0/16B3748") == committed(offset_of_lsn("0/16B3748")) == 0x16B3749
    assert committed("1/0") == 2**32 + 1


@pytest.mark.parametrize("wrong", ["16B3748", "0/", "", -1, 2**63 - 1, 2**63, "FFFFFFFF/FFFFFFFF"])
def test_other_texts_and_numbers_are_no_commit_position(wrong: str | int) -> None:
    with pytest.raises(InvalidRequest):
        committed(wrong)


def set_delay(server: LocalServer, delay: str) -> None:
    server.query(f"ALTER SYSTEM SET recovery_min_apply_delay = '{delay}'")
    server.query("SELECT pg_reload_conf()")


def changed_at(primary: LocalServer) -> tuple[int, int, int]:
    """Insert a row, and return what its change event says: `Begin.final_lsn`, `Commit.commit_lsn`, `Commit.end_lsn`."""
    primary.query(f"INSERT INTO written VALUES ({ROW})")
    begin, commit = [data for (data,) in primary.query(CHANGES) if data[:1] in {b"B", b"C"}]
    return int.from_bytes(begin[1:9]), int.from_bytes(commit[2:10]), int.from_bytes(commit[10:18])


def test_a_replica_at_the_commit_position_has_no_row(watched: WatchedServers) -> None:
    """A replica that has replayed exactly up to the LSN of the change event does not have its row. A wait for the LSN
    is answered then, too early; a wait for `committed(lsn)` is answered when the row can be read.
    """
    p, r1 = watched.p, watched.r1

    def has_row() -> bool:
        return r1.query(f"SELECT 1 FROM written WHERE at = {ROW}") != []

    p.query("CREATE PUBLICATION cdc FOR TABLE written")
    p.query("SELECT pg_create_logical_replication_slot('cdc', 'pgoutput')")
    try:
        p.query("SELECT pg_switch_wal()")  # so that no header of a page separates the next records
        assert satisfied(watched.wait("r1", p.position()))
        set_delay(r1, "1h")  # a replica delays only commit records
        final_lsn, commit_lsn, end_lsn = changed_at(p)
        assert final_lsn == commit_lsn < committed(commit_lsn) <= end_lsn
        wait_until(lambda: r1.position() >= commit_lsn, f"the replica is at {lsn_of_offset(commit_lsn)}")
        assert satisfied(watched.wait("r1", commit_lsn))
        assert r1.position() == commit_lsn
        assert not has_row()
        waiting = watched.wait_later("r1", committed(commit_lsn))
        assert watched.wait("r1", committed(commit_lsn), timeout=0.2).outcome is Outcome.EXPIRED
        set_delay(r1, "0")
        assert satisfied(waiting.result())
        assert has_row()
    finally:
        set_delay(r1, "0")
        p.query("SELECT pg_drop_replication_slot('cdc')")
        p.query("DROP PUBLICATION cdc")


# The last ones, as they change the servers.


def test_a_failover(watched: WatchedServers) -> None:
    """One test, and the last one, because each step needs the state left by the previous one.

    The promotion loses what r1 had not received: all marks begin a new lineage, waits that name the old one end with
    74, and others continue. A replica that has not followed and the returned old primary are stale, and their extra log
    answers nothing. After a rebuild the old primary counts as a replica.
    """
    watched.p.query(what_lets_histories_be_read())
    watched.wait("all", watched.write())
    epochs = {name: watched.epoch(name) for name in NAMES}
    lost = lose_something(watched)
    assert watched.mark("p") >= lost
    of_old_lineage = watched.client.with_epochs({"pg/main/r2": lost + 1_000_000})
    old_waits = watched.later(lambda: watched.client.wait_for(of_old_lineage, timeout=60))
    plain_wait = watched.wait_later("r2", lost)

    fork = watched.r1.position()
    watched.r1.promote()
    result = old_waits.result()
    assert result.outcome is Outcome.FAILED
    assert [one.error_code for one in result.partitions.values()] == [74]
    # The mark of r2 may be renewed, which ends that wait, before others are.
    renewed = {name: epoch + 1 for name, epoch in epochs.items()}
    wait_until(lambda: {name: watched.epoch(name) for name in NAMES} == renewed, "all marks begin a new lineage")
    wait_until(lambda: watched.mark("p") == fork, "what was lost is not on the old primary's mark any more")
    assert not plain_wait.done()

    watched.r1.query("INSERT INTO written SELECT generate_series(1, 1000)")
    assert watched.r1.position() > lost
    assert not plain_wait.done(), "r2 has not followed: what is at that position it has not"
    watched.r2.follow(watched.r1)
    assert satisfied(plain_wait.result())
    assert watched.r2.query("SELECT count(*) FROM written") == watched.r1.query("SELECT count(*) FROM written")
    wait_until(lambda: not watched.stale("r2"), "r2 follows")

    watched.p.start()
    wait_until(lambda: "it is on timeline 1, which was left at" in watched.stale("p"), "the old primary is left behind")
    assert watched.mark("p") < lost
    assert satisfied(watched.wait("any", watched.write(watched.r1)))
    watched.p.stop()

    rebuilt = watched.postgres.replica("p", watched.r1)
    end = watched.write(watched.r1)
    assert satisfied(watched.wait("all", end))
    watched.assert_all_have(end, rebuilt, watched.r2)
    assert satisfied(watched.wait("p", end))
    assert {name: watched.epoch(name) for name in NAMES} == {name: epoch + 1 for name, epoch in epochs.items()}
    rebuilt_from_older_backup(watched)


def what_lets_histories_be_read() -> str:
    """The SQL that docs/sources.md recommends, so that it is tested."""
    [statements] = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "sources.md").read_text("utf-8"), re.DOTALL)
    return str(statements)


def lose_something(watched: WatchedServers) -> int:
    """Commit rows that no replica receives, crash the primary, and return the end of its log."""
    for replica in (watched.r1, watched.r2):
        replica.follow(None)
        wait_until(lambda: not replica.query("SELECT 1 FROM pg_stat_wal_receiver"), "it receives nothing")  # noqa: B023
    lost = watched.write()
    wait_until(lambda: watched.mark("p") >= lost, "the source has seen it")
    watched.p.stop(signal.SIGKILL)
    assert watched.r1.position() < lost, "not lost"
    return lost


def rebuilt_from_older_backup(watched: WatchedServers) -> None:
    """A replica restored from an older backup moves back: its mark and `all` follow, and continue from there."""
    watched.r2.stop()
    watched.r2.save_copy()
    watched.r2.start()
    end = watched.write(watched.r1)
    assert satisfied(watched.wait("all", end))
    epochs = {name: watched.epoch(name) for name in NAMES}
    watched.r2.stop()
    watched.r2.restore_copy()
    watched.r1.stop()  # keep it from catching up at once
    watched.r2.start()
    wait_until(lambda: watched.mark("r2") < end, "its mark went back")
    wait_until(lambda: watched.mark("all") < end, "so did that of all")
    assert watched.epoch("r2") == epochs["r2"] + 1
    assert watched.epoch("p") == epochs["p"]
    watched.r1.start()
    assert satisfied(watched.wait("all", end))
