"""Positions in PostgreSQL's log: "0/16B3748" as servers write them, 23803720 as offsets."""

import re
from typing import Final

from purgatory_client.base_errors import InvalidRequest

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def offset_of_lsn(text: str) -> int:
    """The offset of a log sequence number, equal to `pg_current_wal_insert_lsn() - '0/0'` on a server.

    Raises InvalidRequest unless the text is two hexadecimal numbers of up to eight digits, separated by a slash.
    """
    match = _LSN.fullmatch(text)
    if match is None:
        raise InvalidRequest("offset", f"{text!r} is not a log sequence number; write it as PostgreSQL does: 0/16B3748")
    return int(match[1], 16) << 32 | int(match[2], 16)


def lsn_of_offset(offset: int) -> str:
    """The log sequence number of an offset from 0 to 2**64 - 1, as PostgreSQL writes it."""
    assert 0 <= offset < 2**64, f"offset={offset}"
    return f"{offset >> 32:X}/{offset & 0xFFFFFFFF:X}"
