"""Names and positions used by sources: kafka/GROUP/TOPIC-P, pg/NAME/SERVER, 0/16B3748."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_client import waits
from purgatory_client.errors import InvalidRequest
from purgatory_client.partition_names import format_partition, partition_name
from purgatory_client.sources.log_positions import lsn_of_offset, offset_of_lsn
from purgatory_client.sources.source_names import escaped_group, kafka_group, kafka_stable, kafka_topic, unescaped_group

from purgatory.cli.parsing import UsageError, partition_offsets

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def test_names_of_topics_and_groups() -> None:
    assert kafka_topic("orders") == "kafka/orders"
    assert kafka_group("billing", "orders") == "kafka/billing/orders"
    assert kafka_group("billing", "orders", "east") == "east/billing/orders"
    assert kafka_stable("orders", "east") == "east/stable:orders"
    assert partition_offsets([f"{kafka_stable('orders')}-3@43"]) == {"kafka/stable:orders-3": 43}


def test_a_record_is_processed_at_the_next_offset() -> None:
    records: dict[waits.Name, int] = {"orders-3": 42, ("read-model", 0): 7}
    wait = waits.processed("billing", records, timeout=1.5, label="east")
    assert wait.names == [("east/billing/orders", 3), ("east/billing/read-model", 0)]
    assert (wait.offsets, wait.timeout_ms) == ([43, 8], 1_500)


def test_a_slash_in_a_group_is_escaped() -> None:
    assert kafka_group("a/b %\n", "orders") == "kafka/a%2Fb %25%0A/orders"


@given(NAMES)
def test_an_escaped_group_can_be_read_back(group: str) -> None:
    escaped = escaped_group(group)
    assert "/" not in escaped
    assert unescaped_group(escaped) == group


@pytest.mark.parametrize(("label", "topic"), [("", "orders"), ("a/b", "orders"), ("kafka", ""), ("kafka", "a/b")])
def test_what_cannot_be_part_of_a_name_is_refused(label: str, topic: str) -> None:
    with pytest.raises(InvalidRequest):
        kafka_topic(topic, label)
    with pytest.raises(InvalidRequest):
        kafka_group("billing", topic, label)


def test_a_group_needs_an_id() -> None:
    with pytest.raises(InvalidRequest, match="group"):
        kafka_group("", "orders")


@pytest.mark.parametrize("name", ["pg/main/all", "pg/main/replica-1", "pg/main/10.0.0.7:5432"])
def test_names_of_servers_have_no_partition(name: str) -> None:
    assert partition_name(name) == (name, 0)
    assert format_partition(name, 0) == name


@pytest.mark.parametrize(
    ("text", "offset"), [("0/16B3748", 0x16B3748), ("1/0", 2**32), ("ffffffff/FFFFFFFF", 2**64 - 1)]
)
def test_log_sequence_numbers_are_offsets(text: str, offset: int) -> None:
    assert offset_of_lsn(text) == offset
    assert lsn_of_offset(offset) == text.upper()


@given(st.integers(0, 2**64 - 1))
def test_an_offset_can_be_read_back(offset: int) -> None:
    assert offset_of_lsn(lsn_of_offset(offset)) == offset


@pytest.mark.parametrize("text", ["", "16B3748", "0/", "/0", "0/123456789", "0/g", "-1/0", "0/1 "])
def test_what_is_no_log_sequence_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="0/16B3748"):
        offset_of_lsn(text)


def test_the_command_line_takes_log_sequence_numbers() -> None:
    assert partition_offsets(["pg/main/all@0/16B3748", "kafka/billing/orders-3@43"]) == {
        "pg/main/all": 0x16B3748, "kafka/billing/orders-3": 43,
    }  # fmt: skip
    with pytest.raises(UsageError, match="log sequence number"):
        partition_offsets(["pg/main/all@0/x"])
    with pytest.raises(UsageError, match="orders-3@42"):
        partition_offsets(["pg/main/all@x"])
