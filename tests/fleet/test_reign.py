"""Rules R1 to R4 one by one. test_simulation.py tests them together."""

import pytest

from purgatory.fleet.entry import Entry, Kind
from purgatory.fleet.errors import LogLost
from purgatory.fleet.reign import Reign, ReignState


def claim(epoch: int, writer: bytes, position: int) -> Entry:
    return Entry(Kind.CLAIM, epoch, writer, position=position)


def group(epoch: int, writer: bytes, number: int, position: int) -> Entry:
    return Entry(Kind.GROUP, epoch, writer, number, position=position)


def test_the_first_claim_of_an_epoch_leads() -> None:
    """A second claim with the same epoch is void, and so is what its writer appends."""
    reign = Reign()
    assert reign.accept(claim(1, b"a", 0)) is not None
    assert reign.accept(claim(1, b"b", 1)) is None
    assert reign.accept(group(1, b"b", 1, 2)) is None
    assert reign.accept(group(1, b"a", 1, 3)) is not None
    assert reign.state == ReignState(3, 1, 1, b"a")
    assert reign.void_entries == 2


def test_a_deposed_leader_writes_in_vain() -> None:
    """Entries of an earlier epoch and copies are skipped; numbers continue over all reigns."""
    reign = Reign(ReignState(10, 4, 7, b"a"))
    assert reign.accept(claim(5, b"b", 12)) is not None
    assert reign.accept(group(4, b"a", 8, 13)) is None
    assert reign.accept(group(5, b"b", 8, 14)) is not None
    assert reign.accept(group(5, b"b", 8, 15)) is None
    assert reign.accept(group(5, b"b", 9, 16)) is not None


def test_a_resignation_ends_a_reign() -> None:
    """After it no entry is valid until the next claim, whose writer may be the same."""
    reign = Reign(ReignState(0, 1, 1, b"a"))
    resigned = reign.accept(Entry(Kind.RESIGNATION, 1, b"a", 2, position=1))
    assert resigned is not None
    assert reign.state == ReignState(1, 1, 2, b"")
    assert reign.accept(group(1, b"a", 3, 2)) is None
    assert reign.accept(claim(2, b"a", 3)) is not None


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (group(2, b"a", 9, 6), "the log has lost entries: number 8 is missing, position 6 has 9"),
        (group(3, b"b", 8, 6), "the log has lost the claim of epoch 3: position 6 has epoch 3"),
        (claim(4, b"b", 6), "the log has lost the claim of epoch 3: position 6 has epoch 4"),
        (group(2, b"a", 8, 5), "the log has gone back: position 5 follows position 5"),
    ],
)
def test_a_log_that_lost_entries_stops_its_readers(entry: Entry, reason: str) -> None:
    """An entry that could only follow one that the reader has not seen raises LogLost."""
    with pytest.raises(LogLost, match=reason):
        Reign(ReignState(5, 2, 7, b"a")).accept(entry)
