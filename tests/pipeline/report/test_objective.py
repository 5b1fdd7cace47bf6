"""`advise`: the smallest timeouts that meet an objective on each day, confirmed by a replay, on a generated history."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.cli import main
from purgatory_pipeline.notebook import report
from purgatory_pipeline.replay.policy import parse_policy
from purgatory_pipeline.replay.replay_task import replay_rows
from purgatory_pipeline.report.objective import GROUP, advise_timeouts
from purgatory_pipeline.report.report_builder import ReportOptions
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.pipeline.history.make import make_history
from bench.pipeline.history.plan import Plan
from tests.pipeline.archive.histories import History

pytestmark = pytest.mark.slow  # asks Spark


def test_advised_timeouts_are_the_smallest_that_meet_the_objective(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written timeouts met it in the replay; one millisecond less would not, according to a separate replay."""
    archive, out = tmp_path / "archive", tmp_path / "out"
    make_history(Plan(1_500), archive)
    assert main(["advise", str(archive), "--slo", "95%", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "unchanged policy: 0 operations did not end as recorded" in printed
    advised = pd.read_csv(out / "timeouts.csv")
    met = advised[advised["is_met"]]
    assert advised["is_met"].tolist() == advised["advised_ms"].notna().tolist()
    assert 2 < len(met) < len(advised)
    assert (met["advised_expired_share"] <= 0.05).all()
    assert (met["days"] == met["days_met"]).all()
    written = tomllib.loads((out / "timeouts.toml").read_text("utf-8"))["timeout"]
    assert [row["timeout_ms"] for row in written] == met["advised_ms"].tolist()
    (orders_ms,) = [row["timeout_ms"] for row in written if (row["kind"], row["topic"]) == ("produce", "orders")]
    assert re.search(rf"produce +orders +brokers .* {orders_ms} ", printed)
    rows = replay_rows(spark, find_archive(str(archive)), [parse_policy([f"produce:timeout_ms={orders_ms - 1}"])])
    shorter = rows.where("kind = 'produce' and topic = 'orders'")
    assert shorter.where("replayed = 'expired'").count() > 0.05 * shorter.count()
    assert len((out / "advise.html").read_text("utf-8")) > 100_000
    assert main(["report", str(archive), "--slo", "95%", "--out", str(out)]) == 0
    budget = pd.read_parquet(out / "tables" / "budget").query("day.isna()")
    both = advised.fillna({"topic": ""}).merge(budget, on=GROUP, suffixes=("", "_reported"))
    assert both["operations"].tolist() == both["operations_reported"].tolist() == advised["operations"].tolist()
    assert both["burnt"].tolist() == pytest.approx((advised["expired_share"] / 0.05).tolist())


def test_error_budget_counts_expired_operations_by_the_day_of_their_end(spark: SparkSession, tmp_path: Path) -> None:
    """Failed, cancelled and immediate ones have not expired; the keys of signals are one topic."""
    history, days_ms = History(), {"Saturday": 0, "Sunday": 12 * 3_600_000}
    ends = [("Saturday", "orders", 500, outcome) for outcome in ("expired", "failed", "cancelled", *["satisfied"] * 7)]
    ends += [("Saturday", "orders", 0, "expired"), ("Saturday", "orders", 0, "satisfied")]
    ends += [("Sunday", "orders", 500, outcome) for outcome in ("expired", *["satisfied"] * 3)]
    ends += [("Sunday", f"key-{number}", 500, "expired" if number else "satisfied") for number in range(4)]
    for number, (day, topic, timeout_ms, outcome) in enumerate(ends):
        own = {"kind": "produce" if topic == "orders" else "signal", "topic": topic}
        history.register(number, days_ms[day], timeout_ms=timeout_ms, **own)
        history.end(number, days_ms[day] + timeout_ms, waited_ms=timeout_ms, outcome=outcome, **own)
    history.write(tmp_path)
    made = report(spark, str(tmp_path), ReportOptions(objective=0.9))
    rows = {(row[1], f"{row[3]:%A}" if row[3] else ""): row[4:] for row in made.computed["budget"].collect()}
    made.release()
    assert {key: (*counts, round(burnt, 4)) for key, (*counts, burnt) in rows.items()} == {
        ("", "Sunday"): (4, 3, 7.5), ("", ""): (4, 3, 7.5), ("orders", "Saturday"): (10, 1, 1.0),
        ("orders", "Sunday"): (4, 1, 2.5), ("orders", ""): (14, 2, 1.4286),
    }  # fmt: skip


def test_timeouts_advised_for_three_days_meet_the_objective_on_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """The advice is the largest of the needs of three days, so most topics meet it on a fourth."""
    make_history(Plan(8_000, runs=4, seed=5, hours=96), tmp_path)
    found = find_archive(str(tmp_path))
    last = max(file.run_id for file in found.used)
    past = replace(found, used=tuple(file for file in found.used if file.run_id != last))
    later = replace(found, used=tuple(file for file in found.used if file.run_id == last))
    advised, different = advise_timeouts(spark, past, 0.95)
    produces = advised[advised["kind"] == "produce"]
    assert (different, set(produces["days"]), set(produces["days_met"])) == (0, {3}, {3})
    settings = [f"{topic}:timeout_ms={ms}" for topic, ms in zip(produces["topic"], produces["advised_ms"], strict=True)]
    rows = replay_rows(spark, later, [parse_policy(settings)]).where("kind = 'produce'")
    shares = rows.groupBy("topic").agg(F.avg((F.col("replayed") == "expired").cast("double"))).collect()
    assert len(shares) == len(produces) == 5
    assert sum(share <= 0.05 for _, share in shares) >= 4
