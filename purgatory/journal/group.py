"""The contents of one transaction of the journal: all changes up to one moment, as plain data.

A group is sealed on the event loop between two engine calls, so marks, results and pending operations in it belong to
the same moment. After that, only the journal's thread accesses it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.engine.snapshot.snapshots import SavedKey

RefusedRows = list[tuple[int, str, str, int, int]]
"""Refused registrations: (google.rpc.Code, field, message, operation id, kind or 0)."""


class Moment(NamedTuple):
    """A moment on all clocks, milliseconds. See `continued_time`."""

    # In the order of the columns of the table `moment`: `statements` writes the tuple as a row.
    engine_ms: int
    wall_ms: int
    boot_ms: int
    boot_id: str


class SessionState(NamedTuple):
    """A row of the table `sessions`. Sequence numbers are those that the client sees, minus `sequence_shift`."""

    # In the order of the columns of the table: `statements` writes the tuple as a row, and `recovery` reads it back.
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
    """The changes of one session since the last group."""

    def __init__(self, state: SessionState, first_sequence: int) -> None:
        self.state: Final = state
        self.first_sequence: Final = first_sequence
        """Sequence number of the first result."""
        self.results: Final[list[Completions | RefusedRows]] = []
        """Results, in order of their sequence numbers."""
        self.registered: SavedOperations | None = None
        """New pending operations."""
        self.progressed: SavedOperations | None = None
        """Operations that were pending before and now wait for fewer partitions."""
        self.refused_ids = b""
        """Packed ranges of ids in batches that were refused as a whole."""
        self.dropped = False


class Group:
    """One transaction."""

    def __init__(self, number: int, moment: Moment) -> None:
        self.number: Final = number
        self.moment: Final = moment
        self.sessions: Final[list[SessionChanges]] = []
        self.partitions: Final[list[tuple[PartitionName, bytes]]] = []
        """Partitions named by events; empty bytes: removed."""
        self.keys: Final[list[SavedKey]] = []
        """Signalled keys; with a count of 0: forgotten."""
        self.dead_letters: Final[list[tuple[int, bytes]]] = []
        """Undelivered results, by number; empty bytes: removed."""
        self.is_last = False
        """Whether this is the last group of a clean shutdown."""


class WriteFailure(NamedTuple):
    """The reason why the journal cannot be written."""

    is_full: bool
    """Whether no space is left; otherwise the disk fails or is read-only."""
    reason: str


Report = Callable[[Group | WriteFailure], None]
"""Called in the journal's thread with each durable group and each failed write."""
