"""Encoding of entries: fields, rows of a real journal's groups, parts, and what is void."""

import random
import sqlite3
from dataclasses import replace

import pytest

from purgatory.journal.group import Group, Moment
from purgatory.journal.sql_schema import COLUMNS, SURROGATE_KEYED, migrate, select
from purgatory.journal.statements import DELETE, ORDER, UPSERT, StatementBuilder, Statements
from purgatory.replicated_log.entry import FORMAT, TABLES, Entry, Kind, pack_rows, unpack_rows, unpacked
from purgatory.replicated_log.errors import LogRefused
from purgatory.replicated_log.reign import Reign, ReignState
from purgatory.v1 import fleet_log_pb2 as pb

GROUP = Entry(Kind.GROUP, 3, b"w" * 16, 9, 1_000, b"rows")


def test_entries_survive_encoding() -> None:
    """Every field is read back as it was, at the place where it was read."""
    claim = Entry(
        Kind.CLAIM, 2**40, bytes(range(16)), moment_ms=-1, address="a:7440", http_address="a:7441", log_id=b"l" * 16,
        previous_position=2**40, previous_writer=b"p" * 16,
    )  # fmt: skip
    for entry in (claim, GROUP, Entry(Kind.RESIGNATION, 1, b"", 2**62, more=True, tables=1), Entry.origin()):
        assert Entry.from_bytes(entry.to_bytes(), 5, 6) == entry.at(5, 6)


def test_a_copy_is_the_same_entry_elsewhere() -> None:
    """Copies differ in their place only; another group with the same number is no copy."""
    assert GROUP.at(1, 2).is_copy_of(GROUP)
    assert not Entry(Kind.GROUP, 3, b"w" * 16, 9, 1_000, b"other").is_copy_of(GROUP)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1_000])
def test_parts_are_joined_by_readers(size: int) -> None:
    """Parts have consecutive numbers and a limited size; a reader gets the group whole, with its last part."""
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


def test_parts_left_unfinished_are_discarded() -> None:
    """A claim after some parts of a group discards them, and only the state before them may be stored until then."""
    reign = Reign()
    parts = list(Entry(Kind.GROUP, 1, b"w", 1, content=b"abcdef").parts(2))
    for at, entry in enumerate([Entry(Kind.CLAIM, 1, b"w"), *parts[:2]]):
        reign.accept(entry.at(at, 0))
    assert (reign.state.position, reign.resting.position) == (2, 0)
    claim = Entry(Kind.CLAIM, 2, b"v", position=3, previous_position=0, previous_writer=b"w")
    assert reign.accept(claim) is not None
    group = reign.accept(Entry(Kind.GROUP, 2, b"v", 3, content=b"whole", position=4))
    assert group is not None
    assert group.content == b"whole"
    assert reign.resting == reign.state


def test_rows_of_a_group_survive() -> None:
    """What the journal's statement builder makes of a group is read back as the same statements."""
    group = Group(3, Moment(5, 6, 7, "boot"))
    group.keys.append(("key", 1, b"\0value", 2, "ann"))
    group.partitions.extend((("orders", number), b"x" * number) for number in range(9))
    group.dead_letters.extend([(1, b"letter"), (2, b"")])
    statements = StatementBuilder().statements(group)
    assert unpack_rows(pack_rows(statements)) == statements


def test_every_table_and_deletion_survives() -> None:
    """Rows of all tables, added and deleted, give the same file as the statements themselves."""
    chance = random.Random(7)
    texts = {"topic", "key", "session_id", "incarnation", "principal", "boot_id", "callback_url", "callback_token"}
    octets = {"content", "bits", "ranges", "value"}

    def value(column: str) -> int | str | bytes:
        if column in texts:
            return "é" * chance.randrange(4)
        return b"\0\xff" if column in octets else chance.randrange(-(2**63), 2**63)

    def values(table: str) -> tuple[int | str | bytes, ...]:
        columns = COLUMNS[table][table in SURROGATE_KEYED :]
        return *map(value, columns), chance.randrange(2**32)

    statements: Statements = {sql: [] for sql in ORDER}
    for table, sql in UPSERT.items():
        statements[sql] = [values(table)]
    packed = pack_rows(statements | {DELETE["keys"]: [("another",)], DELETE["partitions"]: [("t", 1)]})
    read = unpack_rows(packed)
    assert read[DELETE["keys"]] == [("another",)]
    assert read[DELETE["partitions"]] == [("t", 1)]
    contents = []
    for each in (statements, read):
        database = sqlite3.connect(":memory:", isolation_level=None)
        migrate(database, "memory")
        for sql in ORDER:
            database.executemany(sql, each[sql])
        contents.append([list(database.execute(select(table))) for table in COLUMNS])
        database.close()
    assert contents[0] == contents[1]
    assert all(contents[0])


def test_newer_versions_are_refused() -> None:
    """An entry in a newer format stops a reader; one with newer tables does so if it is valid."""
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
def test_record_that_is_no_entry_is_void(data: bytes) -> None:
    """Something else in the log is skipped by all readers."""
    entry, reign = Entry.from_bytes(data, 4, 0), Reign(ReignState(3, 1, 1, b"w", b"", 0, b"w"))
    assert entry.kind is Kind.UNREADABLE
    assert reign.accept(entry) is None
    assert reign.state == ReignState(4, 1, 1, b"w", b"", 0, b"w")


ROW = pb.TableRow(values=[pb.RowValue(number=1)])


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
def test_group_that_cannot_be_decoded_is_void(content: bytes) -> None:
    """A group with the right epoch, writer and number does not count if its rows cannot be read: the leader's own with
    this number counts.
    """
    reign = Reign(unpacked=unpacked)
    assert reign.accept(Entry(Kind.CLAIM, 1, b"w", position=0)) is not None
    assert reign.accept(Entry(Kind.GROUP, 1, b"w", 1, content=content, position=1)) is None
    rows = StatementBuilder().statements(Group(1, Moment(5, 6, 7, "boot")))
    counted = reign.accept(Entry(Kind.GROUP, 1, b"w", 1, content=pack_rows(rows), position=2))
    assert counted is not None
    assert counted.rows == rows
    assert reign.void_entries == 1


def test_group_whose_last_part_cannot_be_decoded_is_void() -> None:
    """Only that part is void: with the leader's own last part the group counts."""
    reign = Reign(unpacked=unpacked)
    rows = StatementBuilder().statements(Group(1, Moment(5, 6, 7, "boot")))
    content = pack_rows(rows)
    first, last = Entry(Kind.GROUP, 1, b"w", 1, content=content).parts(len(content) - 1)
    wrong = replace(last, content=b"\xff" * 9)
    entries = [Entry(Kind.CLAIM, 1, b"w"), first, wrong, last]
    judged = [reign.accept(entry.at(at, 0)) for at, entry in enumerate(entries)]
    assert [one is not None for one in judged] == [True, True, False, True]
    assert judged[3] is not None
    assert judged[3].rows == rows
