"""Arguments from callers: partition names, keys, numbers and columns; which are refused, and how."""

import inspect
from datetime import timedelta
from pathlib import Path

import purgatory_client
import pytest
from purgatory_client import AsyncClient, Client, batches, waits
from purgatory_client.argument_checks import int32, int_column, milliseconds, whole_number
from purgatory_client.batches import WaitBatch, partition_columns
from purgatory_client.errors import InvalidRequest
from purgatory_client.results import OperationKind
from purgatory_client.sources import log_positions, position_tokens, source_names
from purgatory_client.views import OperationOrder

from tests.kit.recorded import assert_recorded, cases_of


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, None), (0, 0), (5, 5_000), (0.0001, 1), (0.0015, 2), (2**31 / 1_000 - 0.001, 2**31 - 1)],
)
def test_timeouts_are_rounded_up_to_milliseconds(seconds: float | None, expected: int | None) -> None:
    assert milliseconds(seconds) == expected


def test_numbers_that_do_not_fit_are_refused_with_field_and_value() -> None:
    with pytest.raises(InvalidRequest, match=r"epoch: -2147483649 does not fit in 32"):
        int32(-(2**31) - 1, "epoch")
    with pytest.raises(InvalidRequest, match=r"offset\[1\]: -2 must be from -1"):
        int_column([3, -2], 2, "offset", 9, -1)


def test_whole_numbers_are_ascii_digits_only() -> None:
    assert [whole_number(text) for text in ("0", "007", "0" * 5_000 + "42", "9" * 5_000)] == [0, 7, 42, 10**40 - 1]
    assert [whole_number(text) for text in ("", "1_0", "\u0663", "-1", "+1", " 1", "1.0")] == [None] * 7


def batch(**columns: list[int]) -> WaitBatch:
    given = {"indexes": None, "offsets": [1, 2, 3], "timeouts_ms": None, "item_counts": None, **columns}
    return partition_columns(OperationKind.PRODUCE, ["a-0", "b-0"], **given)


def test_positions_and_items_of_a_batch() -> None:
    several = batch(item_counts=[2, 1], indexes=[0, 1, 1])
    assert (several.count, several.item_total, several.starts) == (2, 3, [0, 2, 3])
    assert several.items_of(range(2)) == range(3)
    assert several.items_of([1]) == [2]
    single = batch()
    assert single.items_of([0, 2]) == [0, 2]
    assert single.pending_positions(1) == range(1, 3)


CALLS = Path(__file__).with_name("calls.txt")


async def test_argument_of_another_kind_is_refused_by_name() -> None:
    """As in calls.txt, before anything is sent: a text where several are expected, an unknown keyword and the like."""
    found = []
    names = {**vars(purgatory_client), **vars(log_positions), **vars(position_tokens), **vars(source_names)}
    names |= {"timedelta": timedelta, "OperationOrder": OperationOrder}
    async with AsyncClient("127.0.0.1:1") as names["client"]:
        for case in cases_of(CALLS):
            with pytest.raises((InvalidRequest, TypeError)) as refused:
                await eval(case, names)
            found.append(f"{type(refused.value).__name__}: {refused.value}")
    assert_recorded(CALLS, found)


@pytest.mark.parametrize("client", [AsyncClient, Client])
@pytest.mark.parametrize("name", ["produce", "fetch", "delete_records", "signal"])
def test_methods_that_wait_have_the_arguments_of_their_functions(client: type, name: str) -> None:
    for method, function in ((name, getattr(waits, name)), (f"{name}_many", getattr(batches, name))):
        signature = inspect.signature(getattr(client, method))
        assert list(signature.parameters)[1:] == list(inspect.signature(function).parameters)
        described = getattr(client, method).__doc__
        assert all(f"    {argument}: " in described for argument in list(signature.parameters)[1:])
        assert described.count("Args:") == described.count("Returns:") == described.count("Raises:") == 1
