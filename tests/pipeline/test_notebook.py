"""The functions for notebooks: DataFrames in and out, errors, and the example notebook."""

import json
from pathlib import Path

import altair as alt
import pytest
from purgatory_pipeline.errors import ArchiveUnusable, PipelineError
from purgatory_pipeline.notebook import TABLES, read, replay, report
from pyspark.sql import SparkSession

from purgatory.extensions.archive import schema
from tests.pipeline.archive.histories import small_history
from tests.pipeline.conftest import ROOT
from tests.pipeline.notebooks import code_cells, run_cells

pytestmark = pytest.mark.slow  # asks Spark

EXAMPLE = ROOT / "examples" / "notebooks" / "report.ipynb"


def test_dataframes_in_and_out(spark: SparkSession, tmp_path: Path) -> None:
    """A filtered history gives the tables of a report, each with the columns of its description.

    Waits are counted by principal.
    """
    history = small_history(operations=10)
    history.register(11, 120, topic="payments")
    history.end(11, 130, waited_ms=10, topic="payments")
    for table in (schema.REGISTRATIONS, schema.OUTCOMES):
        for row in history.rows[table][:3]:
            row["principal"] = "ann"
    history.write(tmp_path)
    tables = read(spark, str(tmp_path))
    assert list(tables) == list(schema.TABLES)
    orders = {name: tables[name].where("topic = 'orders'") for name in ("registrations", "outcomes", "events")}
    made = report(spark, orders)
    assert {*made.tables, "intake"} == set(TABLES)
    for name, frame in made.tables.items():
        assert set(TABLES[name].column_names) <= set(frame.columns)
    assert [row.asDict()["topic"] for row in made.tables["topics"].collect()] == ["orders"]
    assert (made.totals["registered"], made.totals["satisfied"], made.totals["expired"]) == (10, 8, 2)
    groups = made.tables["groups"].groupBy("principal").agg({"ended": "sum"}).collect()
    assert dict(map(tuple, groups)) == {"ann": 3, "": 7}
    made.release()


def test_unusable_tables_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    small_history(operations=2).write(tmp_path)
    tables = read(spark, str(tmp_path))
    with pytest.raises(ArchiveUnusable, match=r"lacks events, outcomes\.waited_ms: pass the result of read\(\)"):
        report(spark, {"registrations": tables["registrations"], "outcomes": tables["outcomes"].drop("waited_ms")})
    with pytest.raises(ArchiveUnusable, match="there is no archive at"):
        report(spark, str(tmp_path / "nowhere"))
    with pytest.raises(PipelineError, match="--set colour=1"):
        replay(spark, str(tmp_path), ["colour=1"])


def test_every_cell_of_the_example_runs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda self: None)  # other tests use it too
    notebook = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    ran = list(run_cells(notebook, {"__name__": "__main__"}))
    assert len(ran) == len(code_cells(notebook)) > 5
    printed = "\n".join(text for _, text, _ in ran)
    first_straggler = printed.split("|replica_id|")[1].splitlines()[2]
    assert first_straggler.split("|")[1].strip() == "3"
    assert "all topics: " in printed
    assert printed.split("|verdict|count|")[1].splitlines()[2].startswith("|  equal|10000|")
    charts = [value for _, _, value in ran if isinstance(value, alt.TopLevelMixin)]
    assert [chart.to_dict()["height"] for chart in charts] == [240]
