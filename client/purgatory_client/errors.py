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
        ├── WaitExpired
        ├── WaitCancelled
        └── WaitShutDown

A wait that expires, fails or is cancelled is an outcome, not an error: only `raise_for_outcome()` raises it.
"""

# ruff: noqa: PLC0414 - exported by these aliases

from purgatory_client.base_errors import ClientClosed as ClientClosed
from purgatory_client.base_errors import DaemonError as DaemonError
from purgatory_client.base_errors import InvalidRequest as InvalidRequest
from purgatory_client.base_errors import LimitExceeded as LimitExceeded
from purgatory_client.base_errors import NoAnswer as NoAnswer
from purgatory_client.base_errors import NotFound as NotFound
from purgatory_client.base_errors import OperationIdInUse as OperationIdInUse
from purgatory_client.base_errors import OutboxError as OutboxError
from purgatory_client.base_errors import OutboxReason as OutboxReason
from purgatory_client.base_errors import PermissionDenied as PermissionDenied
from purgatory_client.base_errors import ProtocolError as ProtocolError
from purgatory_client.base_errors import PurgatoryClientError as PurgatoryClientError
from purgatory_client.base_errors import SessionClosed as SessionClosed
from purgatory_client.base_errors import SessionTakenOver as SessionTakenOver
from purgatory_client.base_errors import Unauthenticated as Unauthenticated
from purgatory_client.base_errors import Unavailable as Unavailable
from purgatory_client.base_errors import WrongEventLoop as WrongEventLoop
from purgatory_client.events import EventRefused as EventRefused
from purgatory_client.events import StaleEpoch as StaleEpoch
from purgatory_client.results import UnlessReached as UnlessReached
from purgatory_client.results import WaitCancelled as WaitCancelled
from purgatory_client.results import WaitError as WaitError
from purgatory_client.results import WaitExpired as WaitExpired
from purgatory_client.results import WaitFailed as WaitFailed
from purgatory_client.results import WaitShutDown as WaitShutDown
from purgatory_client.results import WaitStale as WaitStale
