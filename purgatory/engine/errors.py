"""The engine's errors, in one tree.

    PurgatoryError
    ├── InvalidBatch      a batch that cannot be read as a whole; nothing of it was applied
    ├── PurgatoryClosed   a registration after shutdown began; the operation was not touched
    ├── PurgatoryFull     a registration over `pending_max`; the operation was not touched
    ├── OperationEnded    a registration of an operation that has ended: one operation, one registration
    └── ReentrantCall     a `try_complete` called back into the purgatory that is asking it

What is wrong with one item of a batch is no exception but a `Refusal` in the receipt: the rest of the batch is served.
Anything else that leaves the engine is a bug.
"""

from typing import Final

__all__ = ["InvalidBatch", "OperationEnded", "PurgatoryClosed", "PurgatoryError", "PurgatoryFull", "ReentrantCall"]


class PurgatoryError(Exception):
    """Base of all errors the engine raises on purpose."""


class InvalidBatch(PurgatoryError):
    """A batch whose columns cannot be read together. `field` names the column, the message says what disagrees."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field: Final = field
        self.message: Final = message


class PurgatoryClosed(PurgatoryError):
    """An operation was registered after shutdown began. It was not touched: the caller still owns it."""


class PurgatoryFull(PurgatoryError):
    """An operation was registered while `pending_max` others were pending. It may be registered again later."""


class OperationEnded(PurgatoryError):
    """An operation was registered that has ended: used before, or forced or cancelled by somebody. Not watched."""


class ReentrantCall(PurgatoryError):
    """A `try_complete` called the purgatory that is asking it. It must only look; `on_complete` may call back in."""
