"""What the page keeps between pictures: samples of the last hour, and counts of the wheel's large buckets."""

import time

import pytest

from purgatory.engine.ranking import WheelRing
from purgatory.extensions.page import daemon_views, last_hour
from purgatory.extensions.page.daemon_views import COUNTED_AT_ONCE, BucketCounts
from purgatory.extensions.page.last_hour import SAMPLES_MAX, LastHour
from purgatory.service.metrics.metrics import Metrics
from tests.kit.served_host import serving
from tests.scripts.engine_level import EngineLevel


async def test_samples_become_rates_and_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to the wall clock; percentiles cover the interval between two samples only."""
    async with serving() as served:
        metrics = Metrics()
        hour = LastHour(served.host, metrics)
        assert hour.picture() == {}
        hour.sample(1_000.0)
        metrics.waits[1, 1].observe(3, 90)
        metrics.waits[1, 1].observe(9_999_999, 10)
        metrics.lateness[1].observe(0, 7)
        metrics.event_results["high_watermark", "applied"] += 500
        hour.sample(1_010.0)
        monkeypatch.setattr(last_hour, "wall_ms", lambda: 5_000_000)
        hour.sample(1_020.0)
        picture = hour.picture()
        assert picture["at"][1] - picture["at"][0] == pytest.approx(10)
        assert picture["at"][1] == pytest.approx(5_000 - time.monotonic() + 1_020, abs=60)
        assert picture["events"] == [50.0, 0.0]
        assert (picture["wait_p50"], picture["wait_p95"]) == ([5, None], [1_800_000, None])
        assert picture["late_p99"] == [0, None]
        assert {len(column) for name, column in picture.items() if name != "bounds"} == {2}
        assert hour.picture() is picture


async def test_samples_are_an_hour_at_most() -> None:
    async with serving() as served:
        hour = LastHour(served.host, Metrics())
        for number in range(SAMPLES_MAX + 50):
            hour.sample(float(number))
        at = hour.picture()["at"]
        assert (len(at), at[-1] - at[0]) == (SAMPLES_MAX - 1, pytest.approx(SAMPLES_MAX - 2))


def held(rings: list[WheelRing]) -> int:
    return sum(sum(ring.counts) for ring in rings)


def test_large_buckets_are_counted_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time for it, a large bucket has a lower bound until a later picture."""
    level = EngineLevel.played(f"produce 1..{3 * COUNTED_AT_ONCE} orders-0@5 timeout=9000")
    buckets = BucketCounts(level.engine)
    monkeypatch.setattr(daemon_views, "COUNT_S", -1.0)
    rings = buckets.count()
    assert held(rings) == COUNTED_AT_ONCE
    assert [buckets.is_cut(ring, place) for ring in rings for place in range(20)].count(True) == 1
    monkeypatch.setattr(daemon_views, "COUNT_S", 60.0)
    rings = buckets.count()
    assert held(rings) == 3 * COUNTED_AT_ONCE
    assert not any(buckets.is_cut(ring, place) for ring in rings for place in range(20))
    level.pass_time(10_000)
    assert held(buckets.count()) == 0
