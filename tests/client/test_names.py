"""Names of partitions: what is understood, what is refused, and with which words."""

from __future__ import annotations

import pytest
from purgatory_client.errors import InvalidRequest
from purgatory_client.partition_names import checked_key, partition_name


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
    """The partition number is what follows the last dash; a pair stays as it is."""
    assert partition_name(name) == parsed


@pytest.mark.parametrize(
    "name", ["orders", "orders-", "-3", "orders-x", "orders--", "orders-3x", "", "orders-٣", "a-1.0"]
)
def test_what_is_no_name_is_refused_with_what_to_write(name: str) -> None:
    """Anything else is refused; the message shows the name and an example."""
    with pytest.raises(InvalidRequest, match="orders-3") as refused:
        partition_name(name)
    assert repr(name) in str(refused.value)
    assert refused.value.field == "topic_partition"


@pytest.mark.parametrize("name", ["orders-2147483648", ("orders", -1), ("orders", 2**31)])
def test_partition_numbers_that_do_not_fit_are_refused(name: str | tuple[str, int]) -> None:
    """A partition number has to fit 31 bits."""
    with pytest.raises(InvalidRequest, match="2147483647"):
        partition_name(name)


def test_text_that_cannot_be_sent_is_refused() -> None:
    """A lone surrogate is no UTF-8; it is refused here, before it spoils a batch."""
    with pytest.raises(InvalidRequest, match="not valid text"):
        partition_name("bad\ud800-1")
    with pytest.raises(InvalidRequest, match="not valid text"):
        checked_key("bad\ud800")
