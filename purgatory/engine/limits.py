"""The engine's limits: all its state is bounded."""

from dataclasses import dataclass, fields
from typing import Final

SIGNAL_VALUE_BYTES_MAX: Final = 4_096
"""Maximum length of the value of one signal. Fixed, so that clients can rely on it."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Upper bounds, each with its own refusal. Timeouts are in milliseconds."""

    pending_operations_max: int = 10_000_000
    pending_items_max: int = 20_000_000
    partitions_max: int = 100_000
    signal_keys_max: int = 100_000
    signal_values_bytes_max: int = 64 * 1024 * 1024
    items_per_operation_max: int = 2_000
    timeout_ms_max: int = 2**31 - 1
    timeout_ms_default: int = 30_000
    topic_length_max: int = 249

    def __post_init__(self) -> None:
        for name in [one.name for one in fields(self)]:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or greater, not {getattr(self, name)}")
        if self.timeout_ms_default > self.timeout_ms_max:
            raise ValueError(
                f"timeout_ms_default {self.timeout_ms_default} is over timeout_ms_max {self.timeout_ms_max}"
            )
