"""Positions in PostgreSQL's log: "0/16B3748" as servers write them, 23803720 as offsets."""

import re
from typing import Final

from purgatory_client.argument_checks import int64
from purgatory_client.errors import InvalidRequest

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def offset_of_lsn(text: str) -> int:
    """The offset of a log sequence number, equal to `pg_current_wal_insert_lsn() - '0/0'` on a server.

    Raises InvalidRequest unless the text is two hexadecimal numbers of up to eight digits, separated by a slash.
    """
    match = _LSN.fullmatch(text)
    if match is None:
        raise InvalidRequest("offset", f"{text!r} is not a log sequence number; write it as PostgreSQL does: 0/16B3748")
    return int(match[1], 16) << 32 | int(match[2], 16)


def committed(commit_lsn: str | int) -> int:
    """The offset that a replica's mark must reach until rows of a transaction can be read there, by its commit LSN.

    A change event contains the position at which the commit record *starts* (pgoutput: `Begin.final_lsn`,
    `Commit.commit_lsn`). A replica that has replayed up to there has not replayed the record itself; only a position
    strictly above it has. Positions after the commit (`Commit.end_lsn`, `pg_current_wal_insert_lsn()`) need no
    correction: pass them to `offset_of_lsn`. docs/lsn.md tells which is which.

    Args:
        commit_lsn: "0/16B3748", or the same as a number.

    Raises:
        InvalidRequest: The text is not a log sequence number, or the number is not from 0 to 2**63 - 2.
    """
    offset = offset_of_lsn(commit_lsn) if isinstance(commit_lsn, str) else int64(commit_lsn, "offset")
    if offset < 0:
        raise InvalidRequest("offset", f"{offset} is not a log sequence number; it must not be negative")
    return int64(offset + 1, "offset")


def lsn_of_offset(offset: int) -> str:
    """The log sequence number of an offset from 0 to 2**64 - 1, as PostgreSQL writes it."""
    assert 0 <= offset < 2**64, f"offset={offset}"
    return f"{offset >> 32:X}/{offset & 0xFFFFFFFF:X}"
