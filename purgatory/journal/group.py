"""What goes into the journal in one transaction: everything that has happened up to one moment, as plain data.

A group is sealed on the event loop, between two engine calls, so all of it belongs to the same moment: marks, what has
ended, what waits. From then on only the journal's thread touches it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.saved_operations import SavedOperations

RefusedRows = list[tuple[int, str, str, int, int]]
"""Refused registrations, each as (google.rpc.Code, field, message, operation id, kind or 0)."""


class Moment(NamedTuple):
    """One moment on all clocks, milliseconds. See `continued_time`."""

    engine_ms: int
    wall_ms: int
    boot_ms: int
    boot_id: str


class SessionState(NamedTuple):
    """A row of the table `sessions`. Sequence numbers are those that the client sees, minus `sequence_shift`."""

    session: int
    session_id: str
    highest_operation_id: int
    last_sequence: int
    acknowledged_sequence: int
    sequence_shift: int
    uncertain_after: int = -1
    """Not resumed since a crash: results above this number may differ from those that the client has. -1: resumed."""
    incarnation: str = ""
    principal: str = ""
    """The owner; empty on a daemon without access control."""
    callback_url: str = ""
    """Destination of the results (webhooks); empty: none."""
    callback_token: str = ""


class SessionChanges:
    """What has happened in one session since the last group."""

    def __init__(self, state: SessionState, first_sequence: int) -> None:
        self.state: Final = state
        self.first_sequence: Final = first_sequence
        """Of the first of the results."""
        self.results: Final[list[Completions | RefusedRows]] = []
        """In order of their sequence numbers."""
        self.registered: SavedOperations | None = None
        """New operations that wait."""
        self.progressed: SavedOperations | None = None
        """Operations that waited before and still do, but for fewer partitions."""
        self.refused_ids = b""
        """Packed ranges of ids whose batches were refused as a whole."""
        self.dropped = False


class Group:
    """One transaction."""

    def __init__(self, number: int, moment: Moment) -> None:
        self.number: Final = number
        self.moment: Final = moment
        self.sessions: Final[list[SessionChanges]] = []
        self.partitions: Final[list[tuple[PartitionName, bytes]]] = []
        """Partitions that events have named; without bytes: removed."""
        self.keys: Final[list[tuple[str, int]]] = []
        """Keys that were signalled, and their counts; 0: forgotten."""
        self.dead_letters: Final[list[tuple[int, bytes]]] = []
        """Results that were not delivered, by number; without bytes: gone."""
        self.is_last = False
        """The daemon ends cleanly with this group."""


class WriteFailure(NamedTuple):
    """Why the journal cannot be written at present."""

    is_full: bool
    """No space is left; otherwise the disk fails or is read-only."""
    reason: str


Report = Callable[[Group | WriteFailure], None]
"""Called in the journal's thread for each group that is durable, and each time that writing fails."""
