"""The numbers that bound the service: sessions, batches, outboxes and stream timing. Nothing here is unbounded."""

from __future__ import annotations

from typing import Final


class HostLimits:
    """Limits of the host: counts, and durations in milliseconds. Those of the engine are `EngineLimits`."""

    def __init__(
        self,
        *,
        sessions_max: int = 10_000,
        unacknowledged_results_max: int = 1_000_000,
        operations_per_batch_max: int = 100_000,
        events_per_batch_max: int = 100_000,
        heartbeat_interval_ms: int = 10_000,
        session_ttl_ms: int = 600_000,
    ) -> None:
        assert sessions_max > 0, f"sessions_max={sessions_max}"
        assert unacknowledged_results_max > 0, f"unacknowledged_results_max={unacknowledged_results_max}"
        assert operations_per_batch_max > 0, f"operations_per_batch_max={operations_per_batch_max}"
        assert events_per_batch_max > 0, f"events_per_batch_max={events_per_batch_max}"
        assert heartbeat_interval_ms > 0, f"heartbeat_interval_ms={heartbeat_interval_ms}"
        assert session_ttl_ms >= 0, f"session_ttl_ms={session_ttl_ms}"
        self.sessions_max: Final = sessions_max
        self.unacknowledged_results_max: Final = unacknowledged_results_max
        self.operations_per_batch_max: Final = operations_per_batch_max
        self.events_per_batch_max: Final = events_per_batch_max
        self.heartbeat_interval_ms: Final = heartbeat_interval_ms
        self.session_ttl_ms: Final = session_ttl_ms
