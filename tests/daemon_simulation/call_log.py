"""The calls made by clients, and their results: one `SimulatedCall` each."""

import time
from dataclasses import dataclass, field

from purgatory_client import Result, ResultColumns
from purgatory_client.batches import Entry

from tests.daemon_simulation.plan import Batch, PlannedWait


def now_ms() -> float:
    """The clock of the daemon and of all callers, with its fractions."""
    return time.monotonic_ns() / 1_000_000


@dataclass
class SimulatedCall:
    """One call of a client, for one operation or a batch. `wait` is the client's own note of it, if it came to that."""

    client: int
    what: PlannedWait | Batch
    submitted_ms: float
    session_id: str = ""
    wait: Entry | None = None
    ended_ms: float = -1.0
    result: Result | ResultColumns | None = None
    error: BaseException | None = None
    closing: bool = False
    """True: its client was closed while it waited."""
    cancelled: bool = False
    """True: its caller cancelled it."""
    faults: int = 0
    """How many faults its proxy had until it ended: a channel gets over one only after a while."""

    def note(self, wait: Entry, session_id: str) -> None:
        self.wait, self.session_id = wait, session_id

    @property
    def ended(self) -> bool:
        """True: the caller has an answer."""
        return self.ended_ms >= 0


@dataclass
class CallLog:
    """Everything seen from outside, and complaints about that alone."""

    calls: list[SimulatedCall] = field(default_factory=list)
    acknowledged_pushes: dict[int, list[int]] = field(default_factory=dict)
    attempted_pushes: dict[int, list[int]] = field(default_factory=dict)
    drained: list[SimulatedCall] = field(default_factory=list)
    """Calls that the daemon knew of, over a living connection, when it was drained."""
    complaints: list[str] = field(default_factory=list)
