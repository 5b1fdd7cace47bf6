"""Roster: which of some rising ids are left, against a plain set."""

import random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.snapshot.roster import Roster


def test_bits_cross_off_the_first_ids() -> None:
    """The lowest bit of the first byte is the first id's; bits that are not given cross nothing off."""
    roster = Roster(vec[i64]([10, 11, 15, 20, 21, 22, 23, 24, 40]), b"\x06")
    assert (roster.first, roster.last, roster.left) == (10, 40, 7)
    assert roster.remaining() == [10, 20, 21, 22, 23, 24, 40]
    assert roster.gone() == b"\x06\x00"
    assert Roster(vec[i64]([10, 11]), b"\xff").remaining() == []
    with pytest.raises(AssertionError, match="a roster of nobody"):
        Roster(vec[i64](), b"")


def test_strike_stops_at_an_id_outside() -> None:
    """It crosses off what lies within, known or not, and says where it stopped."""
    roster = Roster(vec[i64]([10, 20, 30]), b"")
    assert roster.strike(vec[i64]([5, 20]), 0) == 0
    assert roster.strike(vec[i64]([5, 20, 25, 30, 31, 10]), 1) == 4
    assert roster.remaining() == [10]
    assert roster.strike(vec[i64]([10, 10]), 0) == 2
    assert (roster.left, roster.remaining()) == (0, [])


@pytest.mark.parametrize("seed", range(20))
def test_roster_against_a_set(seed: int) -> None:
    """Ids struck in any order, some twice, some unknown: what is left is what a set says, also after bytes and back."""
    rng = random.Random(seed)
    ids = sorted(rng.sample(range(1, 300), rng.randint(1, 60)))
    roster, left = Roster(vec[i64](ids), b""), set(ids)
    for _ in range(20):
        struck = [rng.randint(ids[0], ids[-1]) for _ in range(rng.randint(0, 5))]
        assert roster.strike(vec[i64](struck), 0) == len(struck)
        left -= set(struck)
        assert roster.left == len(left)
        assert roster.remaining() == sorted(left)
    again = Roster(vec[i64](ids), roster.gone())
    assert (again.left, again.remaining(), again.gone()) == (len(left), sorted(left), roster.gone())
