"""The operation that programs subclass: the engine's, which coroutines may also await, whichever thread ends it."""

from __future__ import annotations

import asyncio
from abc import ABCMeta
from collections.abc import Generator
from typing import Any

from purgatory.engine.generic.operation import GenericOperation


class OperationType(ABCMeta):
    """The class of operation classes: refuses one that is an asyncio future too, in words and in both builds.

    Compiled, Python itself would refuse it, by "multiple bases have instance lay-out conflict". Of ABCMeta, so that
    operations may have abstract base classes.
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
    """One waiting request: subclass it, and give each subclass its `try_complete` and `on_complete`.

    `await operation` returns its outcome once its effects have run, on any event loop and from any number of tasks.
    Cancelling such a task leaves the operation pending; call `EmbeddedPurgatory.cancel` if nobody else wants it.

    Args:
        timeout_ms: milliseconds from registration to expiry; 0 or less: at once; None: it never expires. Never early.

    Raises:
        TypeError: `timeout_ms` is no whole number.

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
        # A loop that was closed meanwhile has no task left that could be waiting for this.
        if not loop.is_closed():
            loop.call_soon_threadsafe(answer)

    operation.purgatory_listen(wake_loop)
    try:
        await answered
    finally:
        operation.purgatory_forget(wake_loop)
    return operation.outcome
