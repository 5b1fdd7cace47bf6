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
    ├── OutboxError
    │   ├── OutboxCopied
    │   ├── OutboxInUse
    │   ├── OutboxDamaged
    │   ├── OutboxTooNew
    │   └── OutboxUnwritable
    ├── DaemonError
    │   └── ProtocolError
    └── WaitError              only from `raise_for_outcome()`
        ├── WaitFailed
        │   └── WaitStale
        ├── WaitExpired
        ├── WaitCancelled
        └── WaitShutDown

A wait that expires, fails or is cancelled is an outcome, not an error: only `raise_for_outcome()` raises it.
"""

from purgatory_client.base_errors import (
    ClientClosed,
    DaemonError,
    InvalidRequest,
    LimitExceeded,
    NoAnswer,
    NotFound,
    OperationIdInUse,
    OutboxCopied,
    OutboxDamaged,
    OutboxError,
    OutboxInUse,
    OutboxTooNew,
    OutboxUnwritable,
    PermissionDenied,
    ProtocolError,
    PurgatoryClientError,
    SessionClosed,
    SessionTakenOver,
    Unauthenticated,
    Unavailable,
)
from purgatory_client.events import EventRefused, StaleEpoch
from purgatory_client.results import WaitCancelled, WaitError, WaitExpired, WaitFailed, WaitShutDown, WaitStale

__all__ = [
    "ClientClosed",
    "DaemonError",
    "EventRefused",
    "InvalidRequest",
    "LimitExceeded",
    "NoAnswer",
    "NotFound",
    "OperationIdInUse",
    "OutboxCopied",
    "OutboxDamaged",
    "OutboxError",
    "OutboxInUse",
    "OutboxTooNew",
    "OutboxUnwritable",
    "PermissionDenied",
    "ProtocolError",
    "PurgatoryClientError",
    "SessionClosed",
    "SessionTakenOver",
    "StaleEpoch",
    "Unauthenticated",
    "Unavailable",
    "WaitCancelled",
    "WaitError",
    "WaitExpired",
    "WaitFailed",
    "WaitShutDown",
    "WaitStale",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # tracebacks name the module that users import from
