"""The purgatory inside a threaded program, with no daemon. Import everything from this package.

`EmbeddedPurgatory` has one lock and one thread, the reaper, which expires due operations. `try_complete` runs under the
lock, so it is never concurrent with anything. The effects of an ended operation, `on_complete` and `on_expiration`, run
outside the lock, on the thread whose call ended the operation (the reaper, if the timer did). So while one thread is
inside an `on_complete`, another thread's check returns immediately, and effects may call the purgatory. Effects caused
by effects are queued behind them on the same thread, without recursion.

Do not hold a lock that a `try_complete` takes while calling `check_and_complete`, because that can deadlock: change
your state, release the lock, then check. docs/embedded.md has a worked example.
"""

from purgatory.clock import Clock, SystemClock
from purgatory.embedded.threaded import DelayedOperation, EmbeddedPurgatory
from purgatory.engine.codes import CANCELLED, EXPIRED, OUTCOME_NAMES, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import OperationEnded, PurgatoryClosed, PurgatoryError, PurgatoryFull, ReentrantCall
from purgatory.engine.generic.operation import OnError
from purgatory.threads import UsedAfterFork

__all__ = [
    "CANCELLED",
    "EXPIRED",
    "OUTCOME_NAMES",
    "PENDING",
    "SATISFIED",
    "SHUTTING_DOWN",
    "Clock",
    "DelayedOperation",
    "EmbeddedPurgatory",
    "OnError",
    "OperationEnded",
    "PurgatoryClosed",
    "PurgatoryError",
    "PurgatoryFull",
    "ReentrantCall",
    "SystemClock",
    "UsedAfterFork",
]
