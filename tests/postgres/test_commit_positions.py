"""Positions in change events: which of them a replica must have replayed before it has the row."""

import pytest
from purgatory_client import Outcome
from purgatory_client.errors import InvalidRequest
from purgatory_client.sources.log_positions import committed, lsn_of_offset, offset_of_lsn

from examples.local_postgres import LocalServer
from tests.kit.eventually import wait_until
from tests.postgres.watched_servers import WatchedServers, satisfied

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
