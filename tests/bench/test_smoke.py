"""One small run of each benchmark suite, to detect a suite that hangs or fails."""

import threading

import pytest

from bench.__main__ import SUITES, measure
from bench.measure.result_rows import Row
from bench.peers.jvm import JvmMissing
from bench.scale import Scale

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
@pytest.mark.parametrize("suite", SUITES)
def test_each_suite_runs_to_its_end(monkeypatch: pytest.MonkeyPatch, suite: str) -> None:
    """Each suite completes and produces rows."""
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
