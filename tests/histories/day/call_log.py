"""The calls made by clients, and their results: one `SimulatedCall` each."""

import time
from dataclasses import dataclass, field

from purgatory_client import Result, ResultColumns
from purgatory_client.batches import Entry

from tests.histories.day.plan import Batch, PlannedWait


def now_ms() -> float:
    """The clock of the daemon and of all callers, including fractions of a millisecond."""
    return time.monotonic_ns() / 1_000_000


@dataclass
class SimulatedCall:
    """One call of a client, for one operation or a batch. `wait` is the client's record of it, if one was created."""

    client: int
    what: PlannedWait | Batch
    submitted_ms: float
    session_id: str = ""
    wait: Entry | None = None
    ended_ms: float = -1.0
    result: Result | ResultColumns | None = None
    error: BaseException | None = None
    closing: bool = False
    """Whether its client was closed while it waited."""
    cancelled: bool = False
    """Whether its caller cancelled it."""
    faults: int = 0
    """The number of faults of its proxy until it ended. A channel needs some time to recover from each."""

    def note(self, wait: Entry, session_id: str) -> None:
        self.wait, self.session_id = wait, session_id

    @property
    def ended(self) -> bool:
        """Whether the caller has an answer."""
        return self.ended_ms >= 0


@dataclass
class CallLog:
    """Everything observed from outside, and complaints that follow from these observations alone."""

    calls: list[SimulatedCall] = field(default_factory=list)
    acknowledged_pushes: dict[int, list[int]] = field(default_factory=dict)
    attempted_pushes: dict[int, list[int]] = field(default_factory=dict)
    drained: list[SimulatedCall] = field(default_factory=list)
    """Calls known to the daemon, over a working connection, when it was drained."""
    complaints: list[str] = field(default_factory=list)
