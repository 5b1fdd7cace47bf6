"""Positions as tokens: text that another program can wait for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_client.errors import InvalidRequest
from purgatory_client.sources.position_tokens import Positions

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


def test_a_wait_for_positions_checks_their_epochs() -> None:
    """A wait checks the epochs that are known, and no others."""
    wait = Positions({"a-0": 5, "a-1": 6}, {"a-1": 3}).wait(timeout=2)
    assert (wait.names, wait.offsets, wait.timeout_ms) == ([("a", 0), ("a", 1)], [5, 6], 2_000)
    assert wait.item_columns == {"leader_epoch": [-1, 3]}


@pytest.mark.parametrize(
    "token",
    [
        "",
        "at2.CgA",
        "at1.!!",
        "at1." + "__8",
        "at1." + "A" * 1_000_001,
    ],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    """A token of another form, with invalid characters, without a message, or too long is refused."""
    with pytest.raises(InvalidRequest):
        Positions.of_token(token)


def test_positions_are_checked_at_once() -> None:
    """Positions are checked when they are created, not only when they are used."""
    with pytest.raises(InvalidRequest, match="a-1"):
        Positions({"a-0": 1}, {"a-1": 0})
    with pytest.raises(InvalidRequest):
        Positions({"a-0": 2**63})
    with pytest.raises(InvalidRequest):
        Positions({}, {"a-1": 0})


def test_positions_may_be_empty() -> None:
    """Empty topics have no end positions: the token represents that, and no wait can be made from it."""
    empty = Positions.of_token(Positions({}).token)
    assert (empty.token, empty.offsets) == ("at1.", {})
    with pytest.raises(InvalidRequest, match="at least one"):
        empty.wait()
