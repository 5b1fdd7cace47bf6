"""Names of an archive's tables, calls and markers, and the stamp of a call. Needs no Arrow."""

from typing import Final, NamedTuple

__all__ = [
    "ACCEPTED", "CALLS", "CALL_NAMES", "CANCEL", "CANCEL_KEY", "CANCEL_PARTITION", "CANCEL_SESSION", "CRASHED",
    "DROPPED", "ENDED", "EVENTS", "FAIL_STALE", "MARKERS", "MARKER_NAMES", "NO_PARTITION", "OUTCOMES", "REGISTRATIONS",
    "SHUT_DOWN", "STARTED", "TABLES",
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
"""`refusal_code` of an accepted row; other values are a google.rpc.Code."""

# Values of `call`: everything that changes an engine besides registrations, events and the clock.
CANCEL: Final = "cancel"
CANCEL_SESSION: Final = "cancel_session"
CANCEL_PARTITION: Final = "cancel_partition"
CANCEL_KEY: Final = "cancel_key"
SHUT_DOWN: Final = "shut_down"
FAIL_STALE: Final = "fail_stale"
"""Operations that failed because their marks were stale: a row for each of these marks, with all ids in the first."""
CALL_NAMES: Final = (CANCEL, CANCEL_SESSION, CANCEL_PARTITION, CANCEL_KEY, SHUT_DOWN, FAIL_STALE)

# Values of `marker`.
STARTED: Final = "started"
"""A run starts; `detail` is a JSON object with the version and the engine's settings (`archive.run_details`)."""
ENDED: Final = "ended"
"""A run was shut down; everything that was not dropped is stored."""
DROPPED: Final = "dropped"
"""The disk was too slow: `rows` rows of `table` between the calls `call_number` and `last_call_number` are lost."""
CRASHED: Final = "crashed"
"""The run `run_id` did not end properly; its rows after `call_number` (the last one stored) are lost. Written by a
later run, or by the run's own writer process if the daemon was killed."""
MARKER_NAMES: Final = (STARTED, ENDED, DROPPED, CRASHED)


class CannotArchive(Exception):
    """The archive cannot be written to. The message is one line with the place and the reason."""


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
