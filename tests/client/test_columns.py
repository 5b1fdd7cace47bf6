"""Columns and the numbers in them."""

from __future__ import annotations

import re

import pytest
from purgatory_client.errors import InvalidRequest
from purgatory_client.many import WaitColumns, partition_columns
from purgatory_client.number_checks import int32, int64, int_column, milliseconds, squeeze, take
from purgatory_client.results import OperationKind


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, None), (0, 0), (5, 5_000), (0.0001, 1), (0.0015, 2), (2**31 / 1_000 - 0.001, 2**31 - 1)],
)
def test_timeouts_round_up(seconds: float | None, expected: int | None) -> None:
    """A timeout never gets shorter on its way; none stays none."""
    assert milliseconds(seconds) == expected


@pytest.mark.parametrize("seconds", [-0.001, 2**31 / 1_000, float("nan"), float("inf"), 1e300])
def test_impossible_timeouts_are_refused(seconds: float) -> None:
    """What is no timeout is refused with its field."""
    with pytest.raises(InvalidRequest) as refused:
        milliseconds(seconds)
    assert refused.value.field == "timeout_ms"


def test_numbers_that_do_not_fit_are_refused_with_field_and_value() -> None:
    """A number that does not fit the wire is refused before it joins a batch."""
    with pytest.raises(InvalidRequest, match=r"offset: 9223372036854775808 does not fit"):
        int64(2**63, "offset")
    with pytest.raises(InvalidRequest, match=r"epoch: -2147483649 does not fit"):
        int32(-(2**31) - 1, "epoch")
    with pytest.raises(TypeError):
        int64(1.5, "offset")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"offset\[1\]: -2 must be from -1"):
        int_column([3, -2], 2, "offset", 9, -1)


def test_take_and_squeeze() -> None:
    """Columns of one value or none stand for all; equal values become one."""
    assert take([7], [0, 5]) == [7]
    assert take([], range(3)) == []
    assert take([1, 2, 3, 4], range(1, 3)) == [2, 3]
    assert take([1, 2, 3, 4], [0, 3]) == [1, 4]
    assert squeeze([4, 4, 4]) == [4]
    assert squeeze([4, 5]) == [4, 5]


def batch(**columns: list[int]) -> WaitColumns:
    given = {"indexes": None, "offsets": [1, 2, 3], "timeouts_ms": None, "item_counts": None, **columns}
    return partition_columns(OperationKind.PRODUCE, ["a-0", "b-0"], **given)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"indexes": [0, 1]}, "item_index"),
        ({"indexes": [0, 1, 2]}, r"item_index\[2\]"),
        ({"indexes": [0, -1, 0]}, r"item_index\[1\]"),
        ({"timeouts_ms": [1, 2]}, "timeout_ms"),
        ({"item_counts": [1, 1]}, "offset"),
        ({"item_counts": [3, 0]}, r"item_count\[1\]"),
        ({"offsets": []}, "partitions"),
    ],
)
def test_columns_that_disagree_are_refused(columns: dict[str, list[int]], field: str) -> None:
    """A batch whose columns do not fit together is refused as a whole, naming the column."""
    with pytest.raises(InvalidRequest) as refused:
        batch(**columns)
    assert re.fullmatch(field, refused.value.field), refused.value


def test_positions_and_items_of_a_batch() -> None:
    """Operations with several items keep their items together, in slices and in picks."""
    several = batch(item_counts=[2, 1], indexes=[0, 1, 1])
    assert (several.count, several.item_total, several.starts) == (2, 3, [0, 2, 3])
    assert several.items_of(range(2)) == range(3)
    assert several.items_of([1]) == [2]
    single = batch()
    assert single.items_of([0, 2]) == [0, 2]
    assert single.pending_positions(1) == range(1, 3)
