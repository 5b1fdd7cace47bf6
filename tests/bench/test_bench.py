"""The regression check, the ratios and the table in docs/performance.md, and one small run of each benchmark suite."""

import re
import threading
from pathlib import Path

import pytest

from bench.__main__ import SUITES, measure
from bench.compare import NOT_COMPARED, compared, shown
from bench.measure.instructions import UNIT
from bench.measure.result_rows import Row, read_rows
from bench.peers.jvm import JvmMissing
from bench.render.page import with_table
from bench.scale import Scale
from bench.timer_table import table
from tests.kit.recorded import assert_values_recorded

COUNTED = Row("instructions/x", "engine", None, 1_000.0, UNIT, None, 1, 1_000.0, 1_000.0, "valgrind, cc 12")
RATIO = Row("guard/x", "engine", "self", 5e6, "ops/s", 2.0, 5, 1.8, 2.2, "here")
BYTES = Row("guard/memory", "engine", None, 100.0, "B", None, 1, 100.0, 100.0, "here")


def test_a_change_over_15_percent_counts() -> None:
    """As in changes.txt."""

    def said(row: Row, **values: object) -> str:
        [verdict] = compared([row], [Row(**(vars(row) | values))])
        return verdict.said

    alone = Row(**(vars(RATIO) | {"peer": None, "ratio": None}))
    names = {"said": said, "COUNTED": COUNTED, "RATIO": RATIO, "BYTES": BYTES, "ALONE": alone}
    assert_values_recorded(Path(__file__).with_name("changes.txt"), names)


def test_what_is_missing_or_new_is_named() -> None:
    verdicts = compared([COUNTED], [BYTES])
    assert [(verdict.name, verdict.said) for verdict in verdicts] == [
        ("instructions/x", NOT_COMPARED),
        ("guard/memory", "new"),
    ]
    assert "not measured here" in shown(verdicts)


ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
LATEST = ROOT / "bench" / "results" / "latest.json"


def test_the_page_shows_the_committed_results() -> None:
    text = PAGE.read_text("utf-8")
    assert text == with_table(text, read_rows(LATEST))
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert [name for name in pictures if not (PAGE.parent / name).exists()] == []


SMOKE = Scale(
    runs=1,
    seconds=0.02,
    register_complete=(10,),
    hot_pending=1,
    total_pending=2_000,
    herd=1_000,
    delay_ms=300,
    timers=500,
    fetches=50,
    memory=2_000,
    in_flight=100,
    probes=10,
    expire_rate=500,
    slow_peers=False,
)
HANGS_S = 180.0


def no_jvm(_peer: str) -> None:
    raise JvmMissing("JVM peers are not part of the smoke run")


@pytest.mark.slow  # starts daemons and peers
@pytest.mark.parametrize("suite", ["engine/", "timer/", "service/latency", "journal/columns", "archive/columns"])
def test_a_suite_runs_to_its_end(monkeypatch: pytest.MonkeyPatch, suite: str) -> None:
    monkeypatch.setattr("bench.measure.lab.jvm_worker", no_jvm)
    monkeypatch.setattr("bench.__main__.SUITES", {suite: SUITES[suite]})
    measured: list[tuple[list[Row], list[str]]] = []
    thread = threading.Thread(target=lambda: measured.append(measure(SMOKE, "")), daemon=True)
    thread.start()
    thread.join(HANGS_S)
    assert measured, f"the suite {suite} hangs, or raised"
    ((rows, skipped),) = measured
    assert rows
    assert [line for line in skipped if " failed: " in line] == []


def test_the_timer_table_has_a_line_for_each_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.timer_table.shutil.which", lambda _tool, **_path: None)
    measured, skipped = table(["wheel", "go"], [200], 100)
    assert re.fullmatch(r"\| wheel \| 200 \|( [\d,]+ / [\d,]+ / [\d,]+ \|){3} \d+ \| [\d.]+ \|", measured)
    assert skipped == "go is skipped: go is not installed"
