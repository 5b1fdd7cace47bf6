"""Rules R0 to R4 one by one. test_simulation.py tests them together."""

from dataclasses import replace

import pytest

from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import LogLost
from purgatory.replicated_log.reign import Reign, ReignState

ORIGIN = Entry.origin().at(0, 0)
CLAIMED = ReignState(10, 4, 7, b"a", b"log", 9, b"a")
"""After the claim of epoch 4 at position 9, and a group."""


def claim(epoch: int, writer: bytes, position: int, after: ReignState = CLAIMED) -> Entry:
    """A claim that follows that of a state."""
    return Entry(
        Kind.CLAIM, epoch, writer, position=position, log_id=after.log_id, previous_position=after.claim_position,
        previous_writer=after.claim_writer,
    )  # fmt: skip


def group(epoch: int, writer: bytes, number: int, position: int) -> Entry:
    return Entry(Kind.GROUP, epoch, writer, number, position=position, log_id=CLAIMED.log_id)


def test_the_first_claim_of_an_epoch_leads() -> None:
    """A second claim with the same epoch is void, and does not change who leads."""
    reign = Reign(CLAIMED)
    assert reign.accept(claim(5, b"b", 11)) is not None
    assert reign.accept(claim(5, b"c", 12)) is None
    assert reign.accept(group(5, b"b", 8, 13)) is not None
    assert reign.state == ReignState(13, 5, 8, b"b", b"log", 11, b"b")
    assert reign.void_entries == 1


def test_a_deposed_leader_writes_in_vain() -> None:
    """Entries of an earlier epoch and copies are skipped; numbers continue over all reigns."""
    reign = Reign(CLAIMED)
    assert reign.accept(claim(5, b"b", 12)) is not None
    assert reign.accept(group(4, b"a", 8, 13)) is None
    assert reign.accept(group(5, b"b", 8, 14)) is not None
    assert reign.accept(group(5, b"b", 8, 15)) is None
    assert reign.accept(group(5, b"b", 9, 16)) is not None


def test_a_resignation_ends_a_reign() -> None:
    """After it no entry is valid until the next claim, whose writer may be the same."""
    reign = Reign(CLAIMED)
    resigned = reign.accept(Entry(Kind.RESIGNATION, 4, b"a", 8, position=11, log_id=b"log"))
    assert resigned is not None
    assert reign.state == ReignState(11, 4, 8, b"", b"log", 9, b"a")
    assert reign.accept(group(4, b"a", 9, 12)) is None
    assert reign.accept(claim(5, b"a", 13)) is not None


def test_log_begins_with_its_origin() -> None:
    """The first entry gives the log its id, and only the first one. The first claim follows it."""
    reign = Reign()
    assert reign.accept(ORIGIN) is ORIGIN
    assert reign.accept(Entry.origin().at(1, 0)) is None
    assert reign.state == ReignState(1, 0, 0, b"", ORIGIN.log_id, 0, ORIGIN.log_id)
    assert reign.accept(claim(1, b"a", 2, reign.state)) is not None


def test_entries_of_another_log_are_void() -> None:
    """A daemon that hung while its log was made again writes in vain, whatever the epoch of its entries."""
    reign, other = Reign(CLAIMED), replace(CLAIMED, log_id=b"other")
    assert reign.accept(claim(5, b"b", 11, other)) is None
    assert reign.accept(replace(group(9, b"a", 99, 12), log_id=b"other")) is None
    assert reign.state == replace(CLAIMED, position=12)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (group(4, b"a", 9, 11), "the log has lost entries: number 8 is missing, position 11 has 9"),
        (group(5, b"b", 8, 11), "the log has lost the claim of epoch 5: position 11 has epoch 5"),
        (claim(6, b"b", 11), "the log has lost the claim of epoch 5: position 11 has epoch 6"),
        (group(4, b"a", 8, 10), "the log has gone back: position 10 follows position 10"),
        (group(4, b"b", 8, 11), "position 11 of the log has another writer than the claim of epoch 4"),
        (group(4, b"b", 1, 11), "position 11 of the log has another writer than the claim of epoch 4"),
        (claim(5, b"b", 11, replace(CLAIMED, claim_position=8)), "a claim after the one at position 8, .*position 9"),
        (
            claim(5, b"b", 11, replace(CLAIMED, claim_writer=b"c")),
            "the log has another history than this daemon's file",
        ),
    ],
)
def test_a_reader_with_another_history_than_the_log_stops(entry: Entry, reason: str) -> None:
    """An entry that could only follow one that the reader has not seen raises LogLost."""
    with pytest.raises(LogLost, match=reason):
        Reign(CLAIMED).accept(entry)


@pytest.mark.parametrize("place", [CLAIMED, replace(CLAIMED, position=9, number=6)], ids=["group", "claim"])
def test_a_state_ends_with_one_entry_only(place: ReignState) -> None:
    """The entry at the position of a file shows whether the log has the same history."""
    last = claim(4, b"a", 9) if place.position == 9 else group(4, b"a", 7, 10)
    assert place.ends_with(last)
    for other in ({"log_id": b"other"}, {"writer": b"b"}, {"epoch": 3}, {"number": 6}, {"position": 8}):
        assert not place.ends_with(replace(last, **other))
