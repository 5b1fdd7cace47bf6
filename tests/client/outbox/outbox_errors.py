"""Expects an error of the outbox with a reason."""

import pytest
from purgatory_client.errors import OutboxError, OutboxReason


def outbox_error(reason: OutboxReason, match: str | None = None) -> pytest.RaisesExc[OutboxError]:
    """A context in which `OutboxError` must be raised, with this reason."""
    return pytest.raises(OutboxError, match=match, check=lambda error: error.reason is reason)
