"""Arguments from callers: partition names, keys, numbers and columns; which are refused, and how."""

import inspect
from datetime import timedelta
from pathlib import Path

import purgatory_client
import pytest
from purgatory_client import AsyncClient, Client, argument_checks, batches, waits
from purgatory_client.batches import WaitBatch, partition_columns
from purgatory_client.errors import InvalidRequest
from purgatory_client.results import OperationKind
from purgatory_client.sources import log_positions, position_tokens, source_names
from purgatory_client.views import OperationOrder

from tests.kit.recorded import assert_recorded, assert_values_recorded, cases_of

ARGUMENTS = Path(__file__).with_name("arguments.txt")


def test_numbers_and_batches_are_read_or_refused_as_recorded() -> None:
    """As in arguments.txt."""

    def batch(**columns: list[int]) -> WaitBatch:
        given = {"indexes": None, "offsets": [1, 2, 3], "timeouts_ms": None, "item_counts": None, **columns}
        return partition_columns(OperationKind.PRODUCE, ["a-0", "b-0"], **given)

    assert_values_recorded(ARGUMENTS, {**vars(argument_checks), "batch": batch})


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
