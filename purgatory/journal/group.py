"""What goes into the journal in one transaction: everything that has happened up to one moment, as plain data.

A group is made on the event loop, between two engine calls, so all in it belongs to the same moment: marks, what has
ended, what waits. From then on only the journal's thread touches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.saved import SavedOperations

Refused = list[tuple[int, str, str, int, int]]
"""Refused registrations, each as (google.rpc.Code, field, message, operation id, kind or 0)."""


class Moment(NamedTuple):
    """One moment on all clocks, milliseconds. See `timeline`."""

    engine_ms: int
    wall_ms: int
    boot_ms: int
    boot_id: str


class SessionState(NamedTuple):
    """The numbers of a session. Sequence numbers are as the client sees them, less `sequence_shift`."""

    session: int
    session_id: str
    highest_operation_id: int
    last_sequence: int
    acknowledged_sequence: int
    sequence_shift: int


class SessionPart:
    """What has happened in one session."""

    def __init__(self, state: SessionState, first_sequence: int) -> None:
        self.state: Final = state
        self.first_sequence: Final = first_sequence
        """Of the first of the results."""
        self.results: Final[list[Completions | Refused]] = []
        """In order of their sequence numbers."""
        self.registered: SavedOperations | None = None
        """What has come and waits."""
        self.moved: SavedOperations | None = None
        """What waited before, and came a step further."""
        self.unheard_after = -1
        """Results above this number may be others than those that the client has; -1: none."""
        self.dropped = False


class Group:
    """One transaction."""

    def __init__(self, number: int, moment: Moment) -> None:
        self.number: Final = number
        self.moment: Final = moment
        self.sessions: Final[list[SessionPart]] = []
        self.partitions: Final[list[tuple[PartitionName, bytes]]] = []
        """Those that events have spoken of; without bytes: it is gone."""
        self.keys: Final[list[tuple[str, int]]] = []
        """Those that were signalled; 0: it is forgotten."""
        self.is_last = False
        """The daemon ends in good order."""


class Closed(NamedTuple):
    """Why nothing can be kept at present."""

    is_full: bool
    """There is no room; otherwise the disk fails, or may not be written."""
    reason: str


Tell = Callable[[Group | Closed], None]
"""Told of each group that is durable, and when the journal closes. Called in the journal's thread."""
