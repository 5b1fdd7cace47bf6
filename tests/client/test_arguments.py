"""Arguments from callers: partition names, keys, numbers and columns; which are refused, and how."""

import inspect
import re

import pytest
from purgatory_client import AsyncClient, Client, batches, waits
from purgatory_client.batches import WaitBatch, partition_columns
from purgatory_client.errors import InvalidRequest
from purgatory_client.number_checks import int32, int64, int_column, milliseconds, squeeze, take
from purgatory_client.partition_names import checked_key, partition_name
from purgatory_client.results import OperationKind


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, None), (0, 0), (5, 5_000), (0.0001, 1), (0.0015, 2), (2**31 / 1_000 - 0.001, 2**31 - 1)],
)
def test_timeouts_round_up(seconds: float | None, expected: int | None) -> None:
    """A timeout never becomes shorter by conversion; None stays None."""
    assert milliseconds(seconds) == expected


@pytest.mark.parametrize("seconds", [-0.001, 2**31 / 1_000, float("nan"), float("inf"), 1e300])
def test_impossible_timeouts_are_refused(seconds: float) -> None:
    """An invalid timeout is refused with the name of its field."""
    with pytest.raises(InvalidRequest) as refused:
        milliseconds(seconds)
    assert refused.value.field == "timeout_ms"


def test_numbers_that_do_not_fit_are_refused_with_field_and_value() -> None:
    """A number that does not fit the wire is refused before it joins a batch."""
    with pytest.raises(InvalidRequest, match=r"offset: 9223372036854775808 does not fit in 64"):
        int64(2**63, "offset")
    with pytest.raises(InvalidRequest, match=r"epoch: -2147483649 does not fit in 32"):
        int32(-(2**31) - 1, "epoch")
    with pytest.raises(TypeError):
        int64(1.5, "offset")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"offset\[1\]: -2 must be from -1"):
        int_column([3, -2], 2, "offset", 9, -1)


def test_take_and_squeeze() -> None:
    """A column of one value or none applies to all entries; equal values become one."""
    assert take([7], [0, 5]) == [7]
    assert take([], range(3)) == []
    assert take([1, 2, 3, 4], range(1, 3)) == [2, 3]
    assert take([1, 2, 3, 4], [0, 3]) == [1, 4]
    assert squeeze([4, 4, 4]) == [4]
    assert squeeze([4, 5]) == [4, 5]


def batch(**columns: list[int]) -> WaitBatch:
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
    """A batch whose columns disagree is refused as a whole, and the error names the column."""
    with pytest.raises(InvalidRequest) as refused:
        batch(**columns)
    assert re.fullmatch(field, refused.value.field), refused.value


def test_positions_and_items_of_a_batch() -> None:
    """Operations with several items keep their items together, in slices and in selections."""
    several = batch(item_counts=[2, 1], indexes=[0, 1, 1])
    assert (several.count, several.item_total, several.starts) == (2, 3, [0, 2, 3])
    assert several.items_of(range(2)) == range(3)
    assert several.items_of([1]) == [2]
    single = batch()
    assert single.items_of([0, 2]) == [0, 2]
    assert single.pending_positions(1) == range(1, 3)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("orders-3", ("orders", 3)),
        ("read-model-0", ("read-model", 0)),
        ("a--7", ("a-", 7)),
        ("orders-007", ("orders", 7)),
        ("orders-2147483647", ("orders", 2**31 - 1)),
        (("orders", 3), ("orders", 3)),
        (("with-9", 3), ("with-9", 3)),
    ],
)
def test_names_are_split_at_the_last_dash(name: str | tuple[str, int], parsed: tuple[str, int]) -> None:
    """The partition number follows the last dash; a pair is not changed."""
    assert partition_name(name) == parsed


@pytest.mark.parametrize(
    "name", ["orders", "orders-", "-3", "orders-x", "orders--", "orders-3x", "", "orders-٣", "a-1.0"]
)
def test_what_is_no_name_is_refused_with_what_to_write(name: str) -> None:
    """An invalid name is refused; the message shows the name and an example."""
    with pytest.raises(InvalidRequest, match="orders-3") as refused:
        partition_name(name)
    assert repr(name) in str(refused.value)
    assert refused.value.field == "topic_partition"


@pytest.mark.parametrize("name", ["orders-2147483648", ("orders", -1), ("orders", 2**31)])
def test_partition_numbers_that_do_not_fit_are_refused(name: str | tuple[str, int]) -> None:
    """A partition number must fit in 31 bits."""
    with pytest.raises(InvalidRequest, match="2147483647"):
        partition_name(name)


def test_text_that_cannot_be_sent_is_refused() -> None:
    """A lone surrogate cannot be encoded as UTF-8; it is refused before it would fail a whole batch."""
    with pytest.raises(InvalidRequest, match="not valid text"):
        partition_name("bad\ud800-1")
    with pytest.raises(InvalidRequest, match="not valid text"):
        checked_key("bad\ud800")


@pytest.mark.parametrize("client", [AsyncClient, Client])
@pytest.mark.parametrize("name", ["produce", "fetch", "delete_records", "signal"])
def test_methods_that_wait_have_the_arguments_of_their_functions(client: type, name: str) -> None:
    """The methods have the parameters of their functions, and document arguments, results and errors."""
    for method, function in ((name, getattr(waits, name)), (f"{name}_many", getattr(batches, name))):
        signature = inspect.signature(getattr(client, method))
        assert list(signature.parameters)[1:] == list(inspect.signature(function).parameters)
        described = getattr(client, method).__doc__
        assert all(f"    {argument}: " in described for argument in list(signature.parameters)[1:])
        assert described.count("Args:") == described.count("Returns:") == described.count("Raises:") == 1
