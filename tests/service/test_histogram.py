"""Histogram: bounds are inclusive, columns count as their values would one by one."""

import random

import pytest

from purgatory.service.listeners.histogram import Histogram


def test_bounds_are_inclusive_and_cumulative() -> None:
    """A value on a bound counts under it; the last row counts all."""
    histogram = Histogram((0, 1, 10))
    for value_ms in (0, 1, 2, 10, 11):
        histogram.observe(value_ms)
    assert histogram.cumulative() == [("0.0", 1), ("0.001", 2), ("0.01", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.sum_seconds == pytest.approx(0.024)


def test_column_equals_single_values() -> None:
    """observe_all of a column counts the same as observing each value."""
    seeded = random.Random(8131)
    values = [seeded.randrange(100) for _ in range(1_000)]
    column, single = Histogram((5, 50)), Histogram((5, 50))
    column.observe_all(values)
    for value in values:
        single.observe(value)
    assert column.cumulative() == single.cumulative()
    assert column.sum_ms == single.sum_ms


def test_nothing_observed() -> None:
    """All rows are there, at zero."""
    histogram = Histogram((1,))
    assert histogram.cumulative() == [("0.001", 0), ("+Inf", 0)]
    assert histogram.sum_seconds == 0
