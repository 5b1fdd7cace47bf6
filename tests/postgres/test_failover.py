"""A failover of real servers: a promotion, the return of the old primary, and rebuilt replicas."""

import re
import signal
from pathlib import Path

from purgatory_client import Outcome

from tests.postgres.watched_servers import WatchedServers, satisfied, until

ROOT = Path(__file__).parent.parent.parent
NAMES = ("p", "r1", "r2", "any", "all", "quorum")


def test_a_failover(watched: WatchedServers) -> None:
    """One test, because each step needs the state left by the previous one.

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
    assert {name: watched.epoch(name) for name in NAMES} == {name: epoch + 1 for name, epoch in epochs.items()}
    assert watched.mark("p") == fork, "what was lost is not on the old primary's mark any more"
    assert not plain_wait.done()

    watched.r1.query("INSERT INTO written SELECT generate_series(1, 1000)")
    assert watched.r1.position() > lost
    assert not plain_wait.done(), "r2 has not followed: what is at that position it has not"
    watched.r2.follow(watched.r1)
    assert satisfied(plain_wait.result())
    assert watched.r2.query("SELECT count(*) FROM written") == watched.r1.query("SELECT count(*) FROM written")
    until(lambda: not watched.stale("r2"), "r2 follows")

    watched.p.start()
    until(lambda: "it is on timeline 1, which was left at" in watched.stale("p"), "the old primary is left behind")
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
        until(lambda: not replica.query("SELECT 1 FROM pg_stat_wal_receiver"), "it receives nothing")  # noqa: B023
    lost = watched.write()
    until(lambda: watched.mark("p") >= lost, "the source has seen it")
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
    until(lambda: watched.mark("r2") < end, "its mark went back")
    until(lambda: watched.mark("all") < end, "so did that of all")
    assert watched.epoch("r2") == epochs["r2"] + 1
    assert watched.epoch("p") == epochs["p"]
    watched.r1.start()
    assert satisfied(watched.wait("all", end))
