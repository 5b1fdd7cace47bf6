"""The words of an archive: its tables, and what kinds of calls and markers there are. Needs no Arrow."""

from __future__ import annotations

from typing import Final

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
"""Written by a later run, or by what kept this one when its daemon was killed: the run `run_id` has no end; its rows
after `call_number` (the last one kept) are lost."""
MARKER_NAMES: Final = (STARTED, ENDED, DROPPED, CRASHED)
