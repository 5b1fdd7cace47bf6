"""The operation that programs subclass: a generic operation that coroutines can also await, from any thread's loop."""

from __future__ import annotations

import asyncio
from abc import ABCMeta
from collections.abc import Generator
from typing import Any

from purgatory.engine.generic.operation import GenericOperation


class OperationType(ABCMeta):
    """Metaclass of operations: rejects subclasses that are also asyncio futures, with the same error in both builds.

    In the compiled build, Python itself would raise "multiple bases have instance lay-out conflict". It derives from
    ABCMeta so that operations may have abstract base classes.
    """

    def __new__(  # noqa: D102 - see the class
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **keywords: object
    ) -> OperationType:
        if any(issubclass(base, asyncio.Future) for base in bases):
            raise TypeError(
                f"class {name}: an operation can't be an asyncio.Future as well, which only its loop's own thread may "
                "complete; await the operation itself, or hold the future as an attribute"
            )
        return super().__new__(cls, name, bases, namespace, **keywords)


class DelayedOperation(GenericOperation, metaclass=OperationType):
    """One waiting request: subclass it and define `try_complete` and `on_complete`.

    `await operation` returns its outcome once its effects have run, on any event loop and from any number of tasks.
    Cancelling such a task leaves the operation pending; call `EmbeddedPurgatory.cancel` if no other task needs it.

    Args:
        timeout_ms: Milliseconds from registration to expiry, never less. 0 or less: immediately; None: it never
            expires.

    Raises:
        TypeError: `timeout_ms` is not an integer.
    """

    def __await__(self) -> Generator[Any, None, int]:
        return _outcome(self).__await__()


async def _outcome(operation: GenericOperation) -> int:
    loop = asyncio.get_running_loop()
    answered = loop.create_future()

    def answer() -> None:
        if not answered.done():
            answered.set_result(None)

    def wake_loop() -> None:
        # If the loop has been closed, no task is left that could be waiting for this.
        if not loop.is_closed():
            loop.call_soon_threadsafe(answer)

    operation.purgatory_listen(wake_loop)
    try:
        await answered
    finally:
        operation.purgatory_forget(wake_loop)
    return operation.outcome
