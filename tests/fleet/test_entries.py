"""Entries: their encoding and parts, void entries, and entries that stop a reader."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from purgatory.replicated_log.entry import FORMAT, TABLES, Entry, Kind, pack_rows, unpacked
from purgatory.replicated_log.errors import LogRefused
from purgatory.replicated_log.reign import Reign, ReignState
from purgatory.v1 import fleet_log_pb2 as pb
from tests.journal.kit import statements_of
from tests.kit.recorded import assert_values_recorded

ORIGIN = Entry.origin().at(0, 0)
CLAIMED = ReignState(10, 4, 7, b"a", b"log", 9, b"a")
"""State after the claim of epoch 4 at position 9, and a group."""


def claim(epoch: int, writer: bytes, position: int, after: ReignState = CLAIMED) -> Entry:
    """A claim that follows that of a state."""
    return Entry(
        Kind.CLAIM, epoch, writer, position=position, log_id=after.log_id, previous_position=after.claim_position,
        previous_writer=after.claim_writer,
    )  # fmt: skip


def group(epoch: int, writer: bytes, number: int, position: int) -> Entry:
    return Entry(Kind.GROUP, epoch, writer, number, position=position, log_id=CLAIMED.log_id)


def test_log_begins_with_its_origin() -> None:
    """The first entry gives the log its id, and only the first one. The first claim follows it."""
    reign = Reign()
    assert reign.accept(ORIGIN) is ORIGIN
    assert reign.accept(Entry.origin().at(1, 0)) is None
    assert reign.state == ReignState(1, 0, 0, b"", ORIGIN.log_id, 0, ORIGIN.log_id)
    assert reign.accept(claim(1, b"a", 2, reign.state)) is not None


def test_entries_of_another_log_are_void() -> None:
    """Writes of a daemon that hung while its log was recreated have no effect, whatever their epoch."""
    reign, other = Reign(CLAIMED), CLAIMED._replace(log_id=b"other")
    assert reign.accept(claim(5, b"b", 11, other)) is None
    assert reign.accept(replace(group(9, b"a", 99, 12), log_id=b"other")) is None
    assert reign.state == CLAIMED._replace(position=12)


HISTORIES = Path(__file__).with_name("other_histories.txt")


def test_a_reader_with_another_history_than_the_log_stops() -> None:
    """As in other_histories.txt."""
    names = {"accept": lambda entry: Reign(CLAIMED).accept(entry), "group": group, "claim": claim, "CLAIMED": CLAIMED}
    assert_values_recorded(HISTORIES, names)


@pytest.mark.parametrize("place", [CLAIMED, CLAIMED._replace(position=9, number=6)], ids=["group", "claim"])
def test_state_ends_with_the_entry_at_its_position_only(place: ReignState) -> None:
    last = claim(4, b"a", 9) if place.position == 9 else group(4, b"a", 7, 10)
    assert place.ends_with(last)
    for other in ({"log_id": b"other"}, {"writer": b"b"}, {"epoch": 3}, {"number": 6}, {"position": 8}):
        assert not place.ends_with(replace(last, **other))


GROUP = Entry(Kind.GROUP, 3, b"w" * 16, 9, 1_000, b"rows")


def test_every_field_of_an_entry_survives_encoding() -> None:
    claim = Entry(
        Kind.CLAIM, 2**40, bytes(range(16)), moment_ms=-1, address="a:7440", http_address="a:7441", log_id=b"l" * 16,
        previous_position=2**40, previous_writer=b"p" * 16,
    )  # fmt: skip
    for entry in (claim, GROUP, Entry(Kind.RESIGNATION, 1, b"", 2**62, more=True, tables=1), Entry.origin()):
        assert Entry.from_bytes(entry.to_bytes(), 5, 6) == entry.at(5, 6)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1_000])
def test_parts_of_a_group_are_numbered_limited_and_joined_by_readers(size: int) -> None:
    content = random.Random(size).randbytes(size)
    whole = Entry(Kind.GROUP, 1, b"w", 1, 7, content)
    parts = list(whole.parts(100))
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert max(len(part.content) for part in parts) <= 100
    reign = Reign()
    judged = [reign.accept(entry.at(at, 0)) for at, entry in enumerate([Entry(Kind.CLAIM, 1, b"w"), *parts])]
    last = judged[-1]
    assert last is not None
    assert last.content == content
    assert reign.resting == reign.state


def test_entry_in_a_newer_format_stops_a_reader_and_one_with_newer_tables_if_it_is_valid() -> None:
    newer = pb.LogEntry(format=FORMAT + 1, kind=pb.LOG_ENTRY_KIND_GROUP).SerializeToString()
    with pytest.raises(LogRefused, match=f"position 4 of the log has format {FORMAT + 1}.*upgrade"):
        Entry.from_bytes(newer, 4, 0)
    reign = Reign()
    reign.accept(Entry(Kind.CLAIM, 1, b"w", position=0))
    assert reign.accept(Entry(Kind.GROUP, 0, b"v", 1, tables=TABLES + 1, position=1)) is None
    with pytest.raises(LogRefused, match=f"position 2 of the log has version {TABLES + 1} of the journal's tables"):
        reign.accept(Entry(Kind.GROUP, 1, b"w", 1, tables=TABLES + 1, position=2))


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff", b"", pb.LogEntry(format=1, kind=99).SerializeToString(), pb.LogEntry(kind=1).SerializeToString()],
)
def test_record_that_is_no_entry_is_skipped_by_readers(data: bytes) -> None:
    entry, reign = Entry.from_bytes(data, 4, 0), Reign(ReignState(3, 1, 1, b"w", b"", 0, b"w"))
    assert entry.kind is Kind.UNREADABLE
    assert reign.accept(entry) is None
    assert reign.state == ReignState(4, 1, 1, b"w", b"", 0, b"w")


ROW = pb.TableRow(values=[pb.RowValue(number=1)])


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"",
        pb.LogRows(tables=[pb.TableRows(table="x", put=[ROW])]).SerializeToString(),
        pb.LogRows(tables=[pb.TableRows(table="moment", put=[ROW])]).SerializeToString(),
        pb.LogRows(tables=[pb.TableRows(table="moment", put=[{"values": [{}] * 7}])]).SerializeToString(),
    ],
    ids=["no rows", "empty", "unknown table", "too few values", "no values"],
)
def test_group_that_cannot_be_decoded_is_void(content: bytes, parts: int) -> None:
    """A group with the right epoch, writer and number does not count if its rows cannot be read: the leader's own with
    this number counts. Of a group in parts, only the last one is void.
    """
    reign, rows = Reign(unpacked=unpacked), statements_of(1)
    whole, _ = pack_rows(rows)
    *first, last = Entry(Kind.GROUP, 1, b"w", 1, content=whole).parts(len(whole) - parts + 1)
    entries = [Entry(Kind.CLAIM, 1, b"w"), *first, replace(last, content=content), last]
    judged = [reign.accept(entry.at(at, 0)) for at, entry in enumerate(entries)]
    assert [one is not None for one in judged] == [*[True] * parts, False, True]
    assert judged[-1] is not None
    assert judged[-1].rows == rows
    assert reign.void_entries == 1
