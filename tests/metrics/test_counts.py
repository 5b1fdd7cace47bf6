"""Totals of completions, events, refusals and calls, and histograms. Nothing here starts a daemon."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.engine.batches import EventBatch, OperationBatch, Receipt, Refusal
from purgatory.engine.calls import Apply, Register
from purgatory.engine.codes import (
    CANCELLED,
    DELETE_RECORDS,
    EXPIRED,
    FENCED_LEADER_EPOCH,
    FETCH,
    HIGH_WATERMARK,
    LEADER_APPEND,
    PRODUCE,
    REQUEST_TIMED_OUT,
    SATISFIED,
)
from purgatory.engine.completions import Completions
from purgatory.service.histogram import Histogram
from purgatory.service.listeners.listener import Called, Completed
from purgatory.service.listeners.refusal_log import INTERVAL_MS, SUBJECTS_MAX, RefusalLog
from purgatory.service.metrics.metrics import Metrics
from purgatory.testing import ManualClock

End = tuple[int, int, int, int, list[int]]
"""Kind, outcome, time waited, lateness, and error codes of the items."""


def completions_of(*ends: End) -> Completions:
    completions = Completions(0)
    for operation_id, (kind, outcome, waited_ms, lateness_ms, error_codes) in enumerate(ends, 1):
        for error_code in error_codes:
            completions.add_item(("t", 0), error_code, 0, 0, 0, -1, -1.0)
        completions.add_operation(operation_id, kind, outcome, waited_ms, lateness_ms, len(error_codes))
    completions.finish()
    return completions


def events_receipt(next_index: int, unchanged: int = 0, refusals: list[Refusal] | None = None) -> Receipt:
    receipt = Receipt()
    receipt.next_index = next_index
    receipt.unchanged = unchanged
    receipt.refusals.extend(refusals or [])
    return receipt


END = st.tuples(
    st.sampled_from([PRODUCE, FETCH, DELETE_RECORDS]),
    st.sampled_from([SATISFIED, EXPIRED, CANCELLED]),
    st.sampled_from([0, 1, 70]),
    st.integers(0, 5),
    st.lists(st.sampled_from([0, REQUEST_TIMED_OUT]), max_size=3),
)


@given(st.lists(END, min_size=1, max_size=6), st.booleans())
def test_completions_are_counted_like_single_operations(ends: list[End], alike: bool) -> None:
    """Also where all are alike. Pending partitions are those of Kafka's meter: of produce and delete-records."""
    ends = ends[:1] * len(ends) if alike else ends
    metrics, single = Metrics(), Metrics()
    metrics.completed(Completed(None, "", completions_of(*ends)))
    expired_partitions = Counter({PRODUCE: 0, DELETE_RECORDS: 0})
    for kind, outcome, waited_ms, lateness_ms, error_codes in ends:
        single.waits[kind, outcome].observe(waited_ms)
        if outcome == EXPIRED:
            single.lateness[kind].observe(lateness_ms)
            if kind != FETCH:
                expired_partitions[kind] += error_codes.count(REQUEST_TIMED_OUT)
    for found, expected in ((metrics.waits, single.waits), (metrics.lateness, single.lateness)):
        assert {key: (one.cumulative(), one.sum_ms) for key, one in found.items()} == {
            key: (one.cumulative(), one.sum_ms) for key, one in expected.items()
        }
    assert metrics.expired_partitions == expired_partitions


def test_events_are_counted_slice_by_slice() -> None:
    metrics = Metrics()
    batch = EventBatch([HIGH_WATERMARK, HIGH_WATERMARK, LEADER_APPEND, 99])
    fenced = Refusal(1, 9, "leader_epoch", "older", FENCED_LEADER_EPOCH)
    metrics.called(Called(None, "", Apply(batch), events_receipt(2, 1, [fenced]), 0))
    unknown = Refusal(3, 3, "event", "unknown type 99")
    metrics.called(Called(None, "", Apply(batch, 2), events_receipt(4, 0, [unknown]), 0))
    assert {key: count for key, count in metrics.event_results.items() if count} == {
        ("high_watermark", "applied"): 1,
        ("high_watermark", "stale"): 1,
        ("leader_append", "applied"): 1,
        ("unknown", "refused"): 1,
    }
    assert metrics.unchanged_events == 1


def test_unknown_event_types_share_one_name() -> None:
    """A caller that sends a thousand unknown numbers creates one series, not a thousand."""
    metrics = Metrics()
    known = set(metrics.event_results)
    metrics.called(Called(None, "", Apply(EventBatch(list(range(100, 1_100)))), events_receipt(1_000), 0))
    assert set(metrics.event_results) == known
    assert metrics.event_results["unknown", "applied"] == 1_000


def test_refusals_are_counted_by_code_and_repeats_by_kind() -> None:
    metrics = Metrics()
    metrics.refused([Refusal(index, 8, "", "") for index in range(3)])
    metrics.refused([Refusal(0, 8, "", "")])
    receipt = Receipt()
    receipt.accepted, receipt.already_known = 10, 2
    metrics.called(Called(None, "", Register(PRODUCE, OperationBatch([1])), receipt, 0))
    assert metrics.rejected[8] == 4
    assert metrics.repeated[PRODUCE] == 2


def test_bounds_are_inclusive_and_cumulative() -> None:
    histogram = Histogram((0, 1, 10))
    for value_ms in (0, 1, 2, 10, 11):
        histogram.observe(value_ms)
    assert histogram.cumulative() == [("0.0", 1), ("0.001", 2), ("0.01", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.sum_seconds == pytest.approx(0.024)


def test_reached_limits_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """At once, then every ten seconds with the count since; other refusals are not logged."""
    clock = ManualClock()
    log = RefusalLog(clock)
    full = [Refusal(place, 8, f"produce.partitions[{place}]", "no room for partitions") for place in range(3)]
    log.refused([*full, Refusal(3, 3, "topic", "is bad")])
    log.refused(full)
    log.refused([Refusal(0, 8, "sessions", "no room for sessions")])
    log.tick()
    assert [record.args[:2] for record in caplog.records if isinstance(record.args, tuple)] == [
        (3, " (produce.partitions)"),
        (1, " (sessions)"),
    ]
    caplog.clear()
    clock.jump(INTERVAL_MS)
    log.tick()
    log.refused(full)
    assert caplog.messages == [
        "limit reached: 3 refused (produce.partitions) since this was last logged: no room for partitions"
    ]
    caplog.clear()
    log.refused([Refusal(0, 8, f"field_{place}", "x") for place in range(100)])
    assert len(caplog.records) <= SUBJECTS_MAX
