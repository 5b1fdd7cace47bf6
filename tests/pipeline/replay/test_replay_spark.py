"""A replay on Spark: whole runs and divided ones, many policies, and the command with all it writes."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.cli import main
from purgatory_pipeline.notebook import replay
from purgatory_pipeline.replay.policy import parse_policies, parse_policy
from purgatory_pipeline.replay.replay_account import ReplayAccount
from purgatory_pipeline.replay.replay_task import IDLE_EVENTS, grouped_runs, large_runs, replay_sums
from purgatory_pipeline.replay.run_files import find_runs
from pyspark.sql import SparkSession

from purgatory.extensions.archive import schema
from tests.archive.archive_kit import read_table
from tests.pipeline.replay.test_replayed_lives import write_life

POLICIES = parse_policies(parse_policy(["timeout_ms=*2"], ["2=+5ms"]), ["min_bytes=1,1000"])


def ended_in(root: Path) -> Counter[str]:
    return Counter(row["outcome"] for row in read_table(root, schema.OUTCOMES).to_pylist() if row["item"] == 0)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[str]]:
    """Three runs of random lives, and how their operations ended."""
    root = tmp_path_factory.mktemp("lives")
    for seed in (3, 14, 26):
        write_life(root, seed)
    return root, ended_in(root)


def sorted_sums(sums: pd.DataFrame) -> list[tuple[object, ...]]:
    return sorted(sums.itertuples(index=False, name=None), key=str)


def test_whole_and_divided_runs_give_the_same_sums(spark: SparkSession, tmp_path: Path) -> None:
    write_life(tmp_path, 26)
    found = find_archive(str(tmp_path))
    runs = find_runs(found)
    assert large_runs(runs, 2, 0) == runs, "the second replay divides the run"
    whole = replay_sums(spark, found, POLICIES, divided_from=10**9)
    divided = replay_sums(spark, found, POLICIES, divided_from=0)
    account = ReplayAccount(divided, [run.facts for run in runs], POLICIES)
    assert account.equal == account.compared == ended_in(tmp_path).total()
    assert account.is_balanced
    assert sorted_sums(divided[divided["name"] != IDLE_EVENTS]) == sorted_sums(whole)


def test_a_row_for_each_operation(spark: SparkSession, archive: tuple[Path, Counter[str]]) -> None:
    root, ended = archive
    frame = replay(spark, str(root), ["timeout_ms=1"])
    counted = {row["recorded"]: row["count"] for row in frame.groupBy("recorded").count().collect()}
    assert counted == {outcome: 2 * count for outcome, count in ended.items()}
    assert frame.where("replayed = 'expired' and replayed_waited_ms = 1").count() > 0
    assert {row[0] for row in frame.select("policy").distinct().collect()} == {"unchanged", "timeout_ms=1"}


def test_the_command_writes_tables_that_add_up(
    spark: SparkSession, archive: tuple[Path, Counter[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of outcomes has every operation once for each policy; the table of changes has only real changes."""
    root, ended = archive
    out = tmp_path / "out"
    code = main(["replay", str(root), "--out", str(out), "--sweep", "timeout_ms=5,50", "--results"])
    printed = capsys.readouterr().out
    assert code == 0
    assert f"unchanged policy: 100 % of {ended.total():,} outcomes equal" in printed
    assert f"outcomes: {ended.total():,} in = {ended.total():,} of replayed operations" in printed
    tables = {f"{name}.{kind}" for name in ("outcomes", "waits", "changes") for kind in ("csv", "parquet")}
    assert {path.name for path in out.iterdir()} == tables | {"results", "replay.html"}
    assert pq.read_table(out / "results").num_rows == 4 * ended.total()
    assert "timeout_ms=50" in (out / "replay.html").read_text(encoding="utf-8")
    outcomes, waits, changes = (pd.read_parquet(out / f"{name}.parquet") for name in ("outcomes", "waits", "changes"))
    overall = outcomes[outcomes["topic"].isna()]
    assert set(overall.groupby("policy")["operations"].sum()) == {ended.total()}
    assert list(dict.fromkeys(overall["policy"])) == ["", "timeout_ms=5", "timeout_ms=50"]
    assert outcomes[outcomes["topic"].notna()]["operations"].sum() == overall["operations"].sum()
    assert (changes["unchanged"] != changes["replayed"]).all()
    assert (waits["wait_p50_ms"] <= waits["wait_p99_ms"]).all()


def test_runs_are_divided_only_where_cores_would_idle(archive: tuple[Path, Counter[str]]) -> None:
    runs = find_runs(find_archive(str(archive[0])))
    assert large_runs(runs, 1, 0) == []
    assert large_runs([runs[0]], 4, 0) == [runs[0]]
    assert large_runs([runs[0]] * 40, 4, 0) == []
    assert large_runs([runs[0]], 4, runs[0].rows + 1) == []
    heaps = grouped_runs([*runs, *runs], 1)
    assert sorted(run.facts.run_id for heap in heaps for run in heap) == sorted([run.facts.run_id for run in runs] * 2)
