"""How long a caller that found no room is told to wait before it tries again: what is known of when there will be some.

Whoever waits for operations to end is told when the next one expires. Events may make room earlier, at any time, so the
advice is never longer than `RETRY_AFTER_MS_MAX`. Where time makes no room there is no advice.
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
    """Knows when operations expire."""

    def __init__(self, engine: Engine, time: EngineTime) -> None:
        self._engine: Final = engine
        self._time: Final = time

    def next_expiry_ms(self) -> int:
        """In how long the next pending operation expires, to the precision of the timing wheel: never too late."""
        expires_ms = self._engine.next_expiration_ms()
        if expires_ms < 0:
            return RETRY_AFTER_MS
        return min(max(1, expires_ms - self._time.now_ms()), RETRY_AFTER_MS_MAX)

    def for_operation(self, account: Account, run: OperationRun) -> int | None:
        """For one operation that the engine had no room for. None: all that is missing is room for partitions, which
        only a partition that is removed makes.
        """
        engine, held, items = self._engine, account.holdings, len(run.batch.item_indexes)
        limits = engine.limits
        needs_end = (
            run.kind == codes.SIGNAL
            or engine.pending >= limits.pending_operations_max
            or engine.pending_items + items > limits.pending_items_max
            or held.operations >= held.operations_max
            or held.items + items > held.items_max
        )
        return self.next_expiry_ms() if needs_end else None
