"""Turns the answers that a method writes into an iterator, because streams over HTTP pull their answers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Generic, TypeVar

Answer = TypeVar("Answer")


class End:
    """Marks the end, after the last answer."""


class WrittenAnswers(Generic[Answer]):
    """Holds one answer: `write` waits until the last one has been taken, so a client that does not read delays only its
    own call.
    """

    def __init__(self) -> None:
        self._queue: Final[asyncio.Queue[Answer | End]] = asyncio.Queue(1)
        self._error: Exception | None = None

    async def write(self, answer: Answer) -> None:
        await self._queue.put(answer)

    async def of(self, method: Callable[[], Awaitable[object]]) -> AsyncGenerator[Answer]:
        """Yield the answers of a method until it ends; then raise any error that it raised. Closing early cancels the
        method.
        """
        task = asyncio.create_task(self._run(method), name="answers over HTTP")
        try:
            while not isinstance(answer := await self._queue.get(), End):
                yield answer
            if self._error is not None:
                raise self._error
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._error = None  # it refers to this frame: a cycle

    async def _run(self, method: Callable[[], Awaitable[object]]) -> None:
        try:
            await method()
        except Exception as error:  # noqa: BLE001 - raised again in the iterator
            self._error = error
        # After an error too, or the iterator would wait for ever.
        await self._queue.put(End())
