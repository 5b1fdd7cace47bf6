"""Every error this package raises.

    PurgatoryClientError
    ├── Unavailable
    ├── InvalidRequest
    ├── LimitExceeded
    ├── NotFound
    ├── PermissionDenied
    │   └── Unauthenticated
    ├── EventRefused
    │   └── StaleEpoch
    ├── SessionTakenOver
    ├── SessionClosed
    ├── NoAnswer
    ├── OperationIdInUse
    ├── ClientClosed
    ├── WrongEventLoop
    ├── OutboxError            `.reason` is an OutboxReason
    ├── DaemonError
    │   └── ProtocolError
    └── WaitError              only from `raise_for_outcome()`
        ├── WaitFailed
        │   ├── WaitStale
        │   └── UnlessReached
        └── WaitExpired

A wait that expires, fails or is cancelled is an outcome, not an error: only `raise_for_outcome()` raises it.
"""

from enum import StrEnum
from typing import Any, Final


class PurgatoryClientError(Exception):
    """Base of all errors of this package."""


class Unavailable(PurgatoryClientError):
    """No connection to the daemon, or it cannot serve the call now. Trying again later may help.

    Attributes:
        is_answer: Whether the daemon itself sent this answer, so that it can be reached.
        address: The daemon's address, if a unary call failed. With shards it may differ from the client's.
    """

    is_answer = False
    address = ""


class InvalidRequest(PurgatoryClientError):
    """The request is invalid.

    Attributes:
        field: The invalid part, as a path in the row form of the wire ("produce.partitions[0].required_offset"), or
            empty.
        message: Why it is invalid.
        is_answer: Whether the daemon refused it. If not, nothing was sent.
    """

    is_answer = False

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field: Final = field
        self.message: Final = message


class LimitExceeded(PurgatoryClientError):
    """A limit of the daemon or of this client was reached; nothing was registered."""


class NotFound(PurgatoryClientError):
    """No such pending operation or partition."""


class PermissionDenied(PurgatoryClientError):
    """Not allowed. The message names the missing role and the resource."""


class Unauthenticated(PermissionDenied):
    """The daemon requires a token or a certificate, and received none or rejected it."""


class EventRefused(PurgatoryClientError):
    """An event was refused and changed nothing; the other events of the call were applied.

    Attributes:
        receipt: An `AdvanceReceipt`: the refused events with their reasons, and the effect of the others.
    """

    def __init__(self, message: str, receipt: Any) -> None:  # noqa: ANN401 - the module of its type imports this one
        super().__init__(message)
        self.receipt: Final = receipt


class StaleEpoch(EventRefused):
    """The event's leader epoch is older than the partition's (74)."""


class SessionTakenOver(PurgatoryClientError):
    """Another client opened the same session; this one does not reconnect."""


class SessionClosed(PurgatoryClientError):
    """The session was closed by another caller, which cancelled its waits. The next wait opens a new session."""


class NoAnswer(PurgatoryClientError):
    """The daemon is connected but did not answer a wait long after its timeout. The wait may have been registered."""


class OperationIdInUse(PurgatoryClientError):
    """Another client registered this operation's id in the same session first; the operation was not registered."""


class ClientClosed(PurgatoryClientError):
    """The client was closed before or during the call."""


class WrongEventLoop(PurgatoryClientError):
    """The client was used in an event loop before, and cannot move to this one: see `AsyncClient`."""


class OutboxReason(StrEnum):
    """Why an outbox cannot be used."""

    MISSING = "missing"
    """The client has no outbox."""
    IN_USE = "in use"
    """Another client has the file open."""
    COPIED = "copied"
    """The file is an older copy, or another program uses a copy of it. Nothing was acknowledged."""
    DAMAGED = "damaged"
    """The file is corrupt. It was not changed."""
    TOO_NEW = "too new"
    """A newer version of this package wrote the file."""
    UNWRITABLE = "unwritable"
    """The file cannot be created or written: disk full or broken, or no permission. Nothing was registered."""
    FAILED = "failed"
    """Writing failed for a reason that this package does not know."""


class OutboxError(PurgatoryClientError):
    """The outbox file cannot be used, or the client has none. `reason` is an `OutboxReason`."""

    def __init__(self, reason: OutboxReason, message: str) -> None:
        super().__init__(message)
        self.reason: Final = reason


class DaemonError(PurgatoryClientError):
    """The daemon failed in a way that is not the caller's fault."""


class ProtocolError(DaemonError):
    """The daemon sent a message that this client cannot interpret."""


class WaitError(PurgatoryClientError):
    """A wait did not end satisfied. Raised itself if it was cancelled at the daemon, or the daemon shut down.

    Attributes:
        result: The whole `Result`; its `outcome` says how the wait ended.
    """

    def __init__(self, message: str, result: Any) -> None:  # noqa: ANN401 - the module of its type imports this one
        super().__init__(message)
        self.result: Final = result


class WaitFailed(WaitError):
    """The condition can no longer be met; the partitions' error codes give the reason."""


class WaitStale(WaitFailed):
    """One of the marks was stale for longer than the wait accepts (`fail_when_stale`)."""


class UnlessReached(WaitFailed):
    """A term of the failure arm of a composite wait became true (`unless`)."""


class WaitExpired(WaitError):
    """The wait timed out."""
