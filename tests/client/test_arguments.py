"""Arguments from callers: partition names, keys, numbers and columns; which are refused, and how."""

import inspect
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from purgatory_client import AsyncClient, Client, batches, mark, signal, waits
from purgatory_client.argument_checks import int32, int64, int_column, milliseconds, whole_number
from purgatory_client.batches import WaitBatch, partition_columns
from purgatory_client.errors import InvalidRequest
from purgatory_client.partition_names import checked_key, partition_name
from purgatory_client.results import OperationKind
from purgatory_client.views import OperationOrder


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, None), (0, 0), (5, 5_000), (0.0001, 1), (0.0015, 2), (2**31 / 1_000 - 0.001, 2**31 - 1)],
)
def test_timeouts_are_rounded_up_to_milliseconds(seconds: float | None, expected: int | None) -> None:
    assert milliseconds(seconds) == expected


@pytest.mark.parametrize("seconds", [-0.001, 2**31 / 1_000, float("nan"), float("inf"), 1e300])
def test_impossible_timeouts_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        milliseconds(seconds)
    assert refused.value.field == "timeout_ms"


def test_numbers_that_do_not_fit_are_refused_with_field_and_value() -> None:
    with pytest.raises(InvalidRequest, match=r"offset: 9223372036854775808 does not fit in 64"):
        int64(2**63, "offset")
    with pytest.raises(InvalidRequest, match=r"epoch: -2147483649 does not fit in 32"):
        int32(-(2**31) - 1, "epoch")
    for value in (1.5, "1", None, True):
        with pytest.raises(InvalidRequest, match=f"offset: {value!r} is not an integer"):
            int64(value, "offset")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"offset\[1\]: -2 must be from -1"):
        int_column([3, -2], 2, "offset", 9, -1)


def test_a_number_too_long_for_python_to_format_is_refused_like_others() -> None:
    """Python converts no integer of more than 4,300 digits from or to text."""
    long = 10**5_000
    for refused in (
        lambda: int64(long, "offset"),
        lambda: int_column([long], 1, "offset", 9, -1),
        lambda: milliseconds(long),
        lambda: partition_name(("orders", long)),
    ):
        with pytest.raises(InvalidRequest, match="an integer of 16610 bits"):
            refused()
    with pytest.raises(InvalidRequest, match=r"orders-9{40}': must be from 0 to 2147483647"):
        partition_name("orders-" + "9" * 5_000)


def test_whole_numbers_are_ascii_digits_only() -> None:
    assert [whole_number(text) for text in ("0", "007", "0" * 5_000 + "42", "9" * 5_000)] == [0, 7, 42, 10**40 - 1]
    assert [whole_number(text) for text in ("", "1_0", "\u0663", "-1", "+1", " 1", "1.0")] == [None] * 7


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
    with pytest.raises(InvalidRequest) as refused:
        batch(**columns)
    assert re.fullmatch(field, refused.value.field), refused.value


def test_positions_and_items_of_a_batch() -> None:
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
    assert partition_name(name) == parsed


@pytest.mark.parametrize(
    "name", ["orders", "orders-", "-3", "orders-x", "orders--", "orders-3x", "", "orders-٣", "a-1.0"]
)
def test_what_is_no_name_is_refused_with_what_to_write(name: str) -> None:
    with pytest.raises(InvalidRequest, match="orders-3") as refused:
        partition_name(name)
    assert repr(name) in str(refused.value)
    assert refused.value.field == "topic_partition"


@pytest.mark.parametrize("name", ["orders-2147483648", ("orders", -1), ("orders", 2**31)])
def test_partition_numbers_that_do_not_fit_are_refused(name: str | tuple[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="2147483647"):
        partition_name(name)


def test_text_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not valid text"):
        partition_name("bad\ud800-1")
    with pytest.raises(InvalidRequest, match="not valid text"):
        checked_key("bad\ud800")


MARK: dict[str, int] = {"orders-3": 42}
Call = Callable[[Any], Awaitable[object]]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda client: client.wait([mark("orders-3", 1), signal("never")]), "composite.terms"),
        (lambda client: client.wait(signal("k"), unless="l"), "composite.unless"),
        (lambda client: client.produce({"orders-3": "42"}), "produce.partitions.required_offset"),
        (lambda client: client.produce({"orders-3": True}), "produce.partitions.required_offset"),
        (lambda client: client.produce(["orders-3"]), "produce.partitions"),
        (lambda client: client.produce({("orders", "3"): 42}), "topic_partition.partition"),
        (lambda client: client.produce({17: 42}), "topic_partition"),
        (lambda client: client.produce(MARK, timeout="5s"), "timeout_ms"),
        (lambda client: client.produce(MARK, timeout=timedelta(seconds=5)), "timeout_ms"),
        (lambda client: client.produce(MARK, timeout=True), "timeout_ms"),
        (lambda client: client.fetch(MARK, throttled="orders-3"), "throttled"),
        (lambda client: client.signal("job"), "signal.keys"),
        (lambda client: client.signal([17]), "key"),
        (lambda client: client.signal_many("job"), "keys"),
        (lambda client: client.produce_many("a-0", offsets=[1]), "partitions"),
        (lambda client: client.produce_many(["a-0"], offsets=["1"]), "offset[0]"),
        (lambda client: client.produce_many(["a-0"], offsets=[1, True], indexes=[0, 0]), "offset[1]"),
        (lambda client: client.produce_many(["a-0"], offsets=1), "offset"),
        (lambda client: client.processed("billing", {"orders-3": "42"}), "records.offset"),
        (lambda client: client.caught_up("billing", "orders"), "topics"),
        (lambda client: client.ends("kafka/orders"), "topics"),
        (lambda client: client.ends(["kafka/orders"], as_of="12:00"), "as_of"),
        (lambda client: client.wait_once(MARK), "wait"),
        (lambda client: client.submit(MARK), "wait"),
        (lambda client: client.submit_many(waits.produce(MARK)), "batch"),
        (lambda client: client.register("session", 1, waits.produce(MARK)), "batch"),
        (lambda client: client.cancel(17), "operation_ids"),
        (lambda client: client.cancel("17"), "operation_ids"),
        (lambda client: client.extend(17, 5), "operation_ids"),
        (lambda client: client.extend(["17"], 5), "operation_ids"),
        (lambda client: client.resend_dead_letters("id"), "webhook_ids"),
        (lambda client: anext(client.tail(outcomes=["EXPIRED"])), "outcomes"),
        (lambda client: anext(client.operations(kind="produce")), "kind"),
        (lambda client: client.advance_many("orders-3"), "events"),
        (lambda client: client.advance_many([MARK]), "events"),
        (lambda client: client.advance("orders-3", storage="of-line"), "storage"),
        (lambda client: client.advance("orders-3", removed="gone"), "removed"),
        (lambda client: client.advance("orders-3", high_watermark=1, replica_ids=[1]), "leadership"),
        (lambda client: client.advance("orders-3", in_sync_replicas="12"), "in_sync_replicas"),
        (lambda client: client.advance("orders-3", high_watermark="43"), "offset"),
        (lambda client: client.signal_key(17), "key"),
    ],
)
async def test_argument_of_another_kind_is_refused_by_name(call: Call, field: str) -> None:
    """A text where several are expected, a number as a text and the like: nothing is sent, and no letter is taken for a
    name.
    """
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest) as refused:
            await call(client)
    assert refused.value.field == field


def test_list_of_terms_is_refused_with_the_ways_to_join_them() -> None:
    """A list could mean all of its terms or any of them, and only the caller knows."""
    with pytest.raises(InvalidRequest, match=r"all_of\(\.\.\.\) or any_of\(\.\.\.\)"):
        waits.wait([signal("k"), signal("l")])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="host:port"):
        AsyncClient(7440)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda client: client.advance("orders-3", high_watermark=43, leader_epcoh=7),
            "advance() got an unexpected keyword argument 'leader_epcoh'. Did you mean 'leader_epoch'?",
        ),
        (lambda client: anext(client.operations(sesion_id="a")), "Did you mean 'session_id'?"),
        (lambda client: client.ranked_operations(OperationOrder.LEAST_REMAINING, keys="a"), "Did you mean 'key'?"),
    ],
)
async def test_unknown_keyword_is_a_type_error_with_the_closest(call: Call, message: str) -> None:
    """An event is not applied without its fence, and operations are not listed without their filter."""
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match=re.escape(message)):
            await call(client)


@pytest.mark.parametrize("client", [AsyncClient, Client])
@pytest.mark.parametrize("name", ["produce", "fetch", "delete_records", "signal"])
def test_methods_that_wait_have_the_arguments_of_their_functions(client: type, name: str) -> None:
    for method, function in ((name, getattr(waits, name)), (f"{name}_many", getattr(batches, name))):
        signature = inspect.signature(getattr(client, method))
        assert list(signature.parameters)[1:] == list(inspect.signature(function).parameters)
        described = getattr(client, method).__doc__
        assert all(f"    {argument}: " in described for argument in list(signature.parameters)[1:])
        assert described.count("Args:") == described.count("Returns:") == described.count("Raises:") == 1
