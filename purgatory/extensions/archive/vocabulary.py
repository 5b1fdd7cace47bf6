"""Names and codes used in an archive: tables, kinds of call and marker, and the stamp of a call. Needs no Arrow."""

from typing import Final, NamedTuple

from purgatory.engine.calls import Call, Cancel, CancelAll, CancelName, Extend, FailStale, Pause, ShutDown

__all__ = [
    "ACCEPTED", "CALLS", "CALL_NAMES", "CRASHED", "DROPPED", "ENDED", "EVENTS", "MARKERS", "MARKER_NAMES",
    "MARKS", "NO_PARTITION", "OUTCOMES", "REGISTRATIONS", "STARTED", "TABLES",
]  # fmt: skip

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1

REGISTRATIONS: Final = "registrations"
OUTCOMES: Final = "outcomes"
EVENTS: Final = "events"
CALLS: Final = "calls"
MARKERS: Final = "markers"
TABLES: Final = (REGISTRATIONS, OUTCOMES, EVENTS, CALLS, MARKERS)

NO_PARTITION: Final = -1
"""`partition` of a signal; its `topic` is the key."""

ACCEPTED: Final = 0
"""`refusal_code` of an accepted row; any other value is a google.rpc.Code."""

CALL_NAMES: Final[dict[type[Call], str]] = {
    Cancel: "cancel",
    CancelAll: "cancel_all",
    CancelName: "cancel_name",
    ShutDown: "shut_down",
    FailStale: "fail_stale",
    Extend: "extend",
    Pause: "pause",
}
"""The calls of the table `calls`, and their names there: every change to an engine except registrations, events and the
clock. A `FailStale` has a row for each stale mark; the first row has the operation ids.
"""

# Kinds of marker in the table `markers`.
STARTED: Final = "started"
"""A run begins. `detail` is a JSON object: purgatory's version and the engine's settings (`archive.run_details`)."""
MARKS: Final = "marks"
"""Marks and keys with which a run of an existing journal begins (`archive.run_details`), in as many rows as needed."""
ENDED: Final = "ended"
"""A run was shut down; the archive contains all its rows except dropped ones."""
DROPPED: Final = "dropped"
"""The disk was too slow: `rows` rows of `table` between the calls `call_number` and `last_call_number` are lost."""
CRASHED: Final = "crashed"
"""Written by a later run, or by the run's own writer process after its daemon was killed: the run `run_id` did not end
normally. Its rows after `call_number` (the last call kept) are lost.
"""
MARKER_NAMES: Final = (STARTED, MARKS, ENDED, DROPPED, CRASHED)


class CannotArchive(Exception):
    """The archive cannot be written to. The message is one line that gives the location and the reason."""


class CallStamp(NamedTuple):
    """Engine call that rows belong to. `time_ms` is the engine's clock, `at_ms` the wall clock (UTC, since 1970)."""

    run_id: str
    call_number: int
    time_ms: int
    at_ms: int


class Registrant(NamedTuple):
    """The session that owns the operations."""

    session_number: int
    session_id: str
    principal: str = ""


NO_SESSION: Final = Registrant(0, "")
"""The registrant of unary waits."""
