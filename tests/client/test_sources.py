"""Sources: names of marks (kafka/GROUP/TOPIC-P, pg/NAME/SERVER), log positions, and tokens to wait for."""

import base64
import random
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_client import partition_names, waits
from purgatory_client.errors import InvalidRequest
from purgatory_client.sources import log_positions, source_names
from purgatory_client.sources.log_positions import lsn_of_offset, offset_of_lsn
from purgatory_client.sources.position_tokens import Positions
from purgatory_client.sources.source_names import escaped_group, unescaped_group

from tests.kit.recorded import assert_values_recorded

NAMES = st.tuples(st.sampled_from(["orders", "kafka/a%2Fb/orders", "kafka/größe/x", "pg"]), st.integers(0, 2**31 - 1))
OFFSETS = st.dictionaries(NAMES | st.just("pg/main/all"), st.integers(0, 2**63 - 1), min_size=1, max_size=5)


@given(OFFSETS, st.integers(0, 2**31 - 1))
def test_a_token_can_be_read_back(offsets: dict[tuple[str, int] | str, int], epoch: int) -> None:
    """A token contains all offsets and the known epochs, and needs no quoting in a header or a shell."""
    epochs = {name: epoch for place, name in enumerate(offsets) if place % 2}
    before = Positions(offsets, epochs)
    token = before.token
    assert all(one.isascii() and (one.isalnum() or one in "-_.") for one in token)
    after = Positions.of_token(token)
    assert after.offsets == before.offsets
    assert after.leader_epochs == before.leader_epochs


def compressed(content: bytes) -> str:
    return "at2." + base64.urlsafe_b64encode(zlib.compress(content, wbits=-15)).decode().rstrip("=")


SOURCES = Path(__file__).with_name("sources.txt")


def test_names_positions_and_refused_tokens_are_as_recorded() -> None:
    """As in sources.txt."""
    names = {**vars(source_names), **vars(log_positions), **vars(partition_names), "Positions": Positions}
    names |= {"waits": waits, "token": Positions.of_token, "why_no_token": why_no_token, "compressed": compressed}
    assert_values_recorded(SOURCES, names)


def why_no_token(text: str) -> str:
    """Without messages of libraries and compressed bytes, which depend on the versions of the libraries."""
    with pytest.raises(InvalidRequest) as refused:
        Positions.of_token(text)
    return re.sub(r"'at2[^']*'", "'at2...'", "".join(str(refused.value).partition("is not a position token")[:2]))


MARKS = ["a-0", "east/a-0", "pg/main/r1"]
SMALL = st.dictionaries(st.sampled_from(MARKS), st.tuples(st.integers(0, 3), st.sampled_from([None, 0, 1])))
STATES = st.fixed_dictionaries({name: st.tuples(st.integers(0, 3), st.integers(0, 1)) for name in MARKS})


def positions(small: dict[str, tuple[int, int | None]]) -> Positions:
    epochs = {name: epoch for name, (_, epoch) in small.items() if epoch is not None}
    return Positions({name: offset for name, (offset, _) in small.items()}, epochs)


def is_open(one: Positions, state: dict[str, tuple[int, int]]) -> bool:
    """Whether a wait for the positions would wait: a history that has ended is not waited for."""
    for name, offset in one.offsets.items():
        reached, epoch = state[name]
        wanted = one.leader_epochs.get(name, epoch)
        if wanted > epoch or (wanted == epoch and reached < offset):
            return True
    return False


def is_reached(one: Positions, state: dict[str, tuple[int, int]]) -> bool:
    """Whether a wait for the positions would be satisfied: each offset is reached in the history that it belongs to."""
    return all(
        state[name][0] >= offset and one.leader_epochs.get(name) in {None, state[name][1]}
        for name, offset in one.offsets.items()
    )


@given(SMALL, SMALL, SMALL)
def test_positions_are_partially_ordered(first: dict, second: dict, third: dict) -> None:
    """The order is reflexive, antisymmetric and transitive, and the empty positions are its lowest element."""
    a, b, c = map(positions, (first, second, third))
    assert a <= positions(first)
    assert Positions({}) <= a
    assert (a <= b <= a) == (a == b)
    assert not (a <= b <= c) or a <= c
    assert (a < b) == (b > a) == (a <= b and a != b)
    assert a != b or hash(a) == hash(b)


@given(SMALL, SMALL, STATES)
def test_the_order_is_that_of_waiting(first: dict, second: dict, state: dict) -> None:
    """If a <= b, a is reached in any state of the marks in which b is."""
    a, b = positions(first), positions(second)
    assert not a <= b or not is_reached(b, state) or is_reached(a, state)


@given(SMALL, SMALL, STATES)
def test_a_merge_waits_for_both(first: dict, second: dict, state: dict) -> None:
    """Nothing of either is left to wait for when the merge is reached; if no histories differ, it waits for nothing
    else.
    """
    a, b = positions(first), positions(second)
    merged = a.merge(b)
    assert merged == b.merge(a) == merged.merge(a) == merged.merge(b)
    assert a.merge(a) == a.merge(Positions({})) == a
    assert not is_reached(merged, state) or not (is_open(a, state) or is_open(b, state))
    if all(a.leader_epochs[name] == b.leader_epochs[name] for name in a.leader_epochs.keys() & b.leader_epochs.keys()):
        assert a <= merged
        assert b <= merged


@given(SMALL, SMALL, SMALL)
def test_a_merge_is_the_lowest_that_includes_both(first: dict, second: dict, third: dict) -> None:
    """Any position that includes both also includes their merge."""
    a, b, c = map(positions, (first, second, third))
    assert not (a <= c and b <= c) or a.merge(b) <= c


def test_one_token_for_several_clusters() -> None:
    kafka, east = Positions({"kafka/billing/orders-3": 43}), Positions({"east/billing/orders-3": 7})
    both = Positions.of_token(kafka.merge(east).merge(Positions({"pg/main/r1": 9})).token)
    assert both.select(lambda name: name.startswith("east/")) == east
    assert kafka < both
    assert both.offsets == {"kafka/billing/orders-3": 43, "east/billing/orders-3": 7, "pg/main/r1": 9}


def test_a_token_of_many_partitions_fits_a_header() -> None:
    offsets = {f"kafka/billing/orders-{i}": 1_000_000 + i * 7_919 for i in range(64)}
    token = Positions(offsets, dict.fromkeys(offsets, 3)).token
    assert token.startswith("at2.")
    assert len(token) < 1_000
    assert Positions.of_token(token).offsets == offsets
    assert Positions.of_token("at1.ChAKCgoGb3JkZXJzEAMQKhgF").offsets == {"orders-3": 42}


def test_a_large_token_can_be_read_back() -> None:
    offsets = {f"kafka/billing/orders-{i}": 0 for i in range(20_000)}
    token = Positions(offsets).token
    assert Positions.of_token(token).offsets == offsets
    with pytest.raises(InvalidRequest, match="20000 positions"):
        Positions.of_token(token, positions_max=2_000)


def test_a_token_of_many_empty_positions_is_refused_before_it_is_parsed() -> None:
    """A reader that limits the positions does not build millions of them, however the token is padded: they took 1 GiB
    for a token of 900 KB once.
    """
    padding = b"\x7a\xd0\x86\x03" + random.Random(1).randbytes(50_000)  # a field that readers do not know
    token = compressed(b"\x0a\x00" * 1_500_000 + padding)
    with pytest.raises(InvalidRequest, match="1500000 positions"):
        Positions.of_token(token, positions_max=10_000)
    with pytest.raises(InvalidRequest, match="too long"):
        Positions.of_token(token, positions_max=2_000)


# Names and log positions.

GROUPS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(GROUPS)
def test_an_escaped_group_can_be_read_back(group: str) -> None:
    escaped = escaped_group(group)
    assert "/" not in escaped
    assert unescaped_group(escaped) == group


@given(st.integers(0, 2**64 - 1))
def test_an_offset_can_be_read_back(offset: int) -> None:
    assert offset_of_lsn(lsn_of_offset(offset)) == offset
