"""The vocabulary of an archive: tables, kinds of call and marker, what identifies a call. Needs no Arrow."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "ACCEPTED",
    "CALLS",
    "CALL_NAMES",
    "CANCEL",
    "CANCEL_KEY",
    "CANCEL_PARTITION",
    "CANCEL_SESSION",
    "CRASHED",
    "DROPPED",
    "ENDED",
    "EVENTS",
    "MARKERS",
    "MARKER_NAMES",
    "NO_PARTITION",
    "OUTCOMES",
    "REGISTRATIONS",
    "SHUT_DOWN",
    "STARTED",
    "TABLES",
]

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1

REGISTRATIONS: Final = "registrations"
OUTCOMES: Final = "outcomes"
EVENTS: Final = "events"
CALLS: Final = "calls"
MARKERS: Final = "markers"
TABLES: Final = (REGISTRATIONS, OUTCOMES, EVENTS, CALLS, MARKERS)

NO_PARTITION: Final = -1
"""`partition` of a signal: `topic` is then the key."""

ACCEPTED: Final = 0
"""`refusal_code` of what was not refused; otherwise a google.rpc.Code."""

# Kinds of call, in `calls`: everything that changes an engine besides registrations, events and the clock.
CANCEL: Final = "cancel"
CANCEL_SESSION: Final = "cancel_session"
CANCEL_PARTITION: Final = "cancel_partition"
CANCEL_KEY: Final = "cancel_key"
SHUT_DOWN: Final = "shut_down"
CALL_NAMES: Final = (CANCEL, CANCEL_SESSION, CANCEL_PARTITION, CANCEL_KEY, SHUT_DOWN)

# Kinds of marker, in `markers`.
STARTED: Final = "started"
"""A run begins; `detail` is a JSON object: purgatory's version and the engine's settings (`archive.run_details`)."""
ENDED: Final = "ended"
"""A run was shut down; everything that was not dropped is there."""
DROPPED: Final = "dropped"
"""The disk could not follow: `rows` rows of `table` between the calls `call_number` and `last_call_number` are lost."""
CRASHED: Final = "crashed"
"""Written by a later run, or by the run's own writer process when its daemon was killed: the run `run_id` has no end;
its rows after `call_number` (the last one kept) are lost."""
MARKER_NAMES: Final = (STARTED, ENDED, DROPPED, CRASHED)

Row = dict[str, Any]
"""A row of `calls` or `markers`, without the columns of its stamp."""


class CannotArchive(Exception):
    """The archive cannot be written to. The message is one line that names the place and the reason."""


class CallStamp(NamedTuple):
    """The engine call that rows belong to. `time_ms` is the engine's clock, `at_ms` wall-clock time (1970, UTC)."""

    run_id: str
    call_number: int
    time_ms: int
    at_ms: int


class Registrant(NamedTuple):
    """The session that operations belong to."""

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
    """A row of `calls`. For CANCEL_KEY the topic is the key and the partition NO_PARTITION."""
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
    """A row of `markers`."""
    return {"marker": marker, "table": table, "rows": rows, "last_call_number": last_call_number, "detail": detail}
