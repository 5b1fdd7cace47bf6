"""Engine calls as the archive names them: stamps, registrants, and the rows that come one by one. Needs no Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

__all__ = ["INT32_MAX", "INT64_MAX", "NO_SESSION", "CallStamp", "Registrant", "Row", "call_values", "marker_values"]

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1

Row = dict[str, Any]
"""Of calls or markers, without its stamp."""


class CallStamp(NamedTuple):
    """Which engine call rows belong to. `time_ms` is the engine's clock, `at_ms` wall-clock time since 1970 in UTC."""

    run_id: str
    call_number: int
    time_ms: int
    at_ms: int


class Registrant(NamedTuple):
    """Whose operations rows are about."""

    session_number: int
    session_id: str
    principal: str = ""


NO_SESSION: Final = Registrant(0, "")
"""The registrant of unary waits."""


def call_values(
    call: str,
    *,
    session_number: int | None = None,
    operation_ids: Sequence[int] | None = None,
    topic: str | None = None,
    partition: int | None = None,
    ended: int,
) -> Row:
    """The columns of one of `words.CALL_NAMES` that are its own.

    For CANCEL_KEY the topic is the key and the partition NO_PARTITION.
    """
    return {
        "call": call,
        "session_number": session_number,
        "operation_ids": None if operation_ids is None else [min(value, INT64_MAX) for value in operation_ids],
        "topic": topic,
        "partition": partition,
        "ended": ended,
    }


def marker_values(
    marker: str,
    *,
    table: str | None = None,
    rows: int | None = None,
    last_call_number: int | None = None,
    detail: str | None = None,
) -> Row:
    """The columns of one of `words.MARKER_NAMES` that are its own."""
    return {"marker": marker, "table": table, "rows": rows, "last_call_number": last_call_number, "detail": detail}
