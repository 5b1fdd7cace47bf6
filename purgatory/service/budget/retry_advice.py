"""Retry delays for callers that found no room, derived from when there will be some.

If room depends on operations ending, the delay is the time until the next one expires. Events may make room earlier, at
any time, so the delay is at most `RETRY_AFTER_MS_MAX`. If time alone makes no room, there is no advice.
"""

from typing import Final

from purgatory.engine import codes
from purgatory.engine.engine import Engine
from purgatory.service.access.account import Account
from purgatory.service.engine_time import EngineTime
from purgatory.service.errors import RETRY_AFTER_MS
from purgatory.service.translate.operations import OperationRun

RETRY_AFTER_MS_MAX: Final = 60_000


class RetryAdvice:
    """Computes retry delays from the expiry times of operations."""

    def __init__(self, engine: Engine, time: EngineTime) -> None:
        self._engine: Final = engine
        self._time: Final = time

    def next_expiry_ms(self) -> int:
        """Return the time until the next pending operation expires, rounded up to the precision of the timing wheel."""
        expires_ms = self._engine.next_expiration_ms()
        if expires_ms < 0:
            return RETRY_AFTER_MS
        return min(max(1, expires_ms - self._time.now_ms()), RETRY_AFTER_MS_MAX)

    def for_operation(self, account: Account, run: OperationRun) -> int | None:
        """Return the delay for an operation that the engine had no room for. None: only room for partitions is missing,
        and that needs a partition to be removed.
        """
        engine, held, items = self._engine, account.usage, len(run.batch.item_indexes)
        limits = engine.limits
        needs_end = (
            run.kind == codes.SIGNAL
            or engine.pending >= limits.pending_operations_max
            or engine.pending_items + items > limits.pending_items_max
            or held.operations >= held.operations_max
            or held.items + items > held.items_max
        )
        return self.next_expiry_ms() if needs_end else None
