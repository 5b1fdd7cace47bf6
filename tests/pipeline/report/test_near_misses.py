"""Expired waits whose mark was reached later: the findings, and the effect of timeouts, compared with the truth."""

from pathlib import Path

import pytest
from purgatory_pipeline.notebook import read, replay, report
from purgatory_pipeline.report.near_misses import near_misses
from purgatory_pipeline.report.report_builder import ReportOptions
from pyspark.sql import SparkSession

from tests.pipeline.archive.histories import History

pytestmark = pytest.mark.slow  # asks Spark

EXPIRED = {"outcome": "expired", "error_code": 7}


def wait(history: History, operation_id: int, offset: int, **values: object) -> None:
    """A wait from 0 ms on that expires after 50 ms."""
    history.register(operation_id, 0, timeout_ms=50, offset=offset, **values)
    history.end(operation_id, 50, waited_ms=50, required_offset=offset, reached_offset=0, **EXPIRED | values)


def test_what_reached_an_expired_wait_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """By a pushed mark, by a later wait on the partition, on the last of several partitions, by the signals that were
    lacking; not after a change of leader, not if nothing came, and not if the mark may have passed before it was seen.
    """
    history = History()
    for number, offset in ((1, 10), (2, 26), (3, 30), (4, 99), (9, 20)):
        wait(history, number, offset)
    wait(history, 6, 2, kind="signal", topic="job", partition=-1)
    wait(history, 7, 1, kind="signal", topic="other-job", partition=-1)
    both = {"item_count": 2, "call_number": history.calls}
    wait(history, 5, 10, **both)
    wait(history, 5, 5, item=1, topic="payments", **both)
    history.event("high_watermark", 70, offset=12)
    history.event("key_signalled", 75, offset=1, flags=0, topic="job", partition=-1)
    history.register(8, 75, timeout_ms=500, offset=25)
    history.end(8, 90, waited_ms=15, required_offset=25, reached_offset=26)
    history.event("high_watermark", 95, offset=5, topic="payments")
    history.event("leadership", 96)
    history.event("key_signalled", 97, offset=2, flags=0, topic="job", partition=-1)
    history.event("high_watermark", 98, offset=40)
    history.write(tmp_path)
    tables = read(spark, str(tmp_path))
    rows = near_misses(tables["outcomes"], tables["events"]).select("topic", "fate", "waited_ms", "timeout_ms")
    assert sorted(map(tuple, rows.collect())) == [
        ("job", "reached", 97, 50),
        *[("orders", "expired", 50, 50)] * 3,
        *(("orders", "reached", waited_ms, 50) for waited_ms in (70, 90, 95)),
        ("other-job", "expired", 50, 50),
    ]


def test_timeouts_that_follow_the_need_are_judged_by_the_truth(spark: SparkSession, tmp_path: Path) -> None:
    """Half of the clients give up after 100 ms and need 1,000, the others after 5,000 and need 200: 300 ms would expire
    the first half, according to the table and to a replay.
    """
    history = History()
    steps: list[tuple[int, str, int]] = []
    for number in range(1, 41):
        begin_ms, is_hasty = 50 * number, number % 2 == 1
        steps += [(begin_ms, "register", number), (begin_ms + (1_000 if is_hasty else 200), "reach", number)]
        steps += [(begin_ms + 100, "expire", number)] if is_hasty else []
    for at_ms, step, number in sorted(steps):
        own: dict[str, object] = {"topic": "hasty" if number % 2 else "patient"}
        if step == "register":
            history.register(number, at_ms, timeout_ms=100 if number % 2 else 5_000, offset=number, **own)
        elif step == "expire":
            history.end(number, at_ms, waited_ms=100, required_offset=number, reached_offset=0, **own | EXPIRED)
        else:
            history.event("high_watermark", at_ms, offset=number, **own)
            if number % 2 == 0:
                own |= {"call_number": history.calls, "required_offset": number, "reached_offset": number}
                history.end(number, at_ms, waited_ms=200, **own)
    history.write(tmp_path)
    made = report(spark, str(tmp_path), ReportOptions(timeouts_ms=(300, 1_000)))
    known = {row["timeout_ms"]: row for row in made.known["timeouts"].to_pylist() if row["topic"] is None}
    shares = {ms: (known[ms]["expires"], known[ms]["estimated"]) for ms in (100, 300, 1_000)}
    assert shares == {100: (1.0, 0), 300: (pytest.approx(0.5), 0), 1_000: (0.0, 0)}
    (overall,) = [row for row in made.known["near_misses"].to_pylist() if row["topic"] is None]
    assert (overall["expired"], overall["reached"], overall["late_p50_ms"]) == (20, 20, 900)
    assert made.known["stragglers"].num_rows == made.known["slow_produces"].num_rows == 0
    (advised,) = [row for row in made.known["advice"].to_pylist() if row["topic"] is None]
    assert (advised["satisfied"], advised["expired"], advised["timeout_observed"]) == (20, 20, 1.0)
    made.release()
    rows = replay(spark, str(tmp_path), ["timeout_ms=300"]).where("policy = 'timeout_ms=300'")
    assert dict(map(tuple, rows.groupBy("replayed").count().collect())) == {"expired": 20, "satisfied": 20}
