"""Shares of one principal in a policy; they replace or lower the defaults for all principals."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Most = Annotated[int, Field(ge=0)]


class OwnShares(BaseModel):
    """Shares of one principal; None means the default. A maximum never exceeds what is free of the limit."""

    # Strict: in a policy, true or "100" is a mistake and must not become a number.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    times_free: Annotated[int, Field(ge=0, le=1_000)] | None = None
    """Overrides `shares.times_free`."""
    calls_per_second_max: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Overrides `limits.calls_per_second_max`; 0 means unlimited."""
    sessions_max: Most | None = None
    unary_waits_max: Most | None = None
    pending_operations_max: Most | None = None
    pending_items_max: Most | None = None
    partitions_max: Most | None = None
    signal_keys_max: Most | None = None
    memory_bytes_max: Most | None = None


AS_FOR_ALL = OwnShares()
