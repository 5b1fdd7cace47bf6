"""Limits that make no sense are refused by their name."""

from typing import Any

import pytest

from purgatory.engine.limits import EngineLimits

LIMITS = (
    "pending_operations_max",
    "partitions_max",
    "signal_keys_max",
    "items_per_operation_max",
    "timeout_ms_max",
    "timeout_ms_default",
    "topic_length_max",
)


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_at_least_one(name: str) -> None:
    """One is taken and kept, zero is refused."""
    one: dict[str, Any] = {name: 1}
    if name == "timeout_ms_max":
        one["timeout_ms_default"] = 1
    assert getattr(EngineLimits(**one), name) == 1
    zero: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=rf"^{name} must be 1 or greater, not 0$"):
        EngineLimits(**zero)


def test_the_default_timeout_is_within_the_limit() -> None:
    """It is 30 s where nothing else is given; it may be the greatest timeout, and not more."""
    assert EngineLimits().timeout_ms_default == 30_000
    assert EngineLimits(timeout_ms_max=5, timeout_ms_default=5).timeout_ms_default == 5
    with pytest.raises(ValueError, match=r"^timeout_ms_default 6 is over timeout_ms_max 5$"):
        EngineLimits(timeout_ms_max=5, timeout_ms_default=6)
