"""The engine's limits: all its state is bounded."""

from typing import Final

__all__ = ["SIGNAL_VALUE_BYTES_MAX", "EngineLimits"]

SIGNAL_VALUE_BYTES_MAX: Final = 4_096
"""Maximum length of the value of one signal. Fixed, so that clients can rely on it."""


class EngineLimits:
    """Upper bounds, each with its own refusal. Timeouts are in milliseconds."""

    def __init__(
        self,
        *,
        pending_operations_max: int = 10_000_000,
        pending_items_max: int = 20_000_000,
        partitions_max: int = 100_000,
        signal_keys_max: int = 100_000,
        signal_values_bytes_max: int = 64 * 1024 * 1024,
        items_per_operation_max: int = 2_000,
        timeout_ms_max: int = 2**31 - 1,
        timeout_ms_default: int = 30_000,
        topic_length_max: int = 249,
    ) -> None:
        for name, value in (
            ("pending_operations_max", pending_operations_max),
            ("pending_items_max", pending_items_max),
            ("partitions_max", partitions_max),
            ("signal_keys_max", signal_keys_max),
            ("signal_values_bytes_max", signal_values_bytes_max),
            ("items_per_operation_max", items_per_operation_max),
            ("timeout_ms_max", timeout_ms_max),
            ("timeout_ms_default", timeout_ms_default),
            ("topic_length_max", topic_length_max),
        ):
            if value < 1:
                raise ValueError(f"{name} must be 1 or greater, not {value}")
        if timeout_ms_default > timeout_ms_max:
            raise ValueError(f"timeout_ms_default {timeout_ms_default} is over timeout_ms_max {timeout_ms_max}")
        self.pending_operations_max: Final = pending_operations_max
        self.pending_items_max: Final = pending_items_max
        self.partitions_max: Final = partitions_max
        self.signal_keys_max: Final = signal_keys_max
        self.signal_values_bytes_max: Final = signal_values_bytes_max
        self.items_per_operation_max: Final = items_per_operation_max
        self.timeout_ms_max: Final = timeout_ms_max
        self.timeout_ms_default: Final = timeout_ms_default
        self.topic_length_max: Final = topic_length_max
