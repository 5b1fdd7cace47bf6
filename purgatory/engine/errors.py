"""The engine's errors, in one tree.

    PurgatoryError
    ├── InvalidBatch      a batch whose columns do not fit together; nothing of it was applied
    ├── PurgatoryClosed   a registration after shutdown began; the operation was not touched
    ├── PurgatoryFull     a registration over `pending_max`; the operation was not touched
    ├── OperationEnded    a registration of an operation that has ended: one operation, one registration
    └── ReentrantCall     a `try_complete` called its own purgatory

An invalid item of a batch is not an exception but a `Refusal` in the receipt: the rest of the batch is processed.
Any other exception from the engine is a bug.
"""

from typing import Final


class PurgatoryError(Exception):
    """Base class of the errors that the engine raises on purpose."""


class InvalidBatch(PurgatoryError):
    """The columns of a batch do not fit together. `field` names the column; the message says how they disagree."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field: Final = field
        self.message: Final = message


class PurgatoryClosed(PurgatoryError):
    """An operation was registered after shutdown began. It was not touched: the caller still owns it."""


class PurgatoryFull(PurgatoryError):
    """An operation was registered while `pending_max` others were pending. It may be registered again later."""


class OperationEnded(PurgatoryError):
    """The registered operation has already ended: it was used before, or was forced or cancelled. It is not watched."""


class ReentrantCall(PurgatoryError):
    """A `try_complete` called the purgatory that is evaluating it. Only `on_complete` may call the purgatory."""
