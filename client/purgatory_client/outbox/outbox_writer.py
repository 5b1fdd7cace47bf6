"""Writes records to an outbox file in its own thread, off the event loop. Records that arrive during a commit are
written with the next one, so that all of them share one sync of the disk.

Methods are called on the event loop, and so is `done`: once per commit, in the order of writing, with its error if it
failed. Only failed confirmations are tried again, with the next commit: their callers got the error, but a used result
should not be recovered. A registration or result that failed was refused, and must not appear later.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

from purgatory_client.errors import OutboxError, OutboxReason, PurgatoryClientError
from purgatory_client.outbox.outbox_file import ConfirmationRecord, OutboxFile, Record

Done = Callable[[Sequence[Record], PurgatoryClientError | None], None]


class OutboxWriter:
    """The writer of one file. Call `start` before the first write."""

    def __init__(self, file: OutboxFile, done: Done) -> None:
        self.file: Final = file
        self._done: Final = done
        self._queue: Final[queue.SimpleQueue[Record | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; `done` will be called on the running loop. Does nothing if it is already started."""
        if self._thread is None:
            arguments = (asyncio.get_running_loop(),)
            self._thread = threading.Thread(target=self._run, args=arguments, name="purgatory outbox", daemon=True)
            self._thread.start()

    def write(self, item: Record) -> None:
        """Write a record with the next commit."""
        self._queue.put(item)

    async def close(self) -> None:
        """Write the remaining records and release the file. Does nothing if it is already closed."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            self._thread = None
        self.file.close()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        retried: list[Record] = []
        closing = False
        while not closing:
            items = [*retried, *self._gathered()]
            if items[-1] is None:
                closing = True
            written = [item for item in items if item is not None]
            error = self._commit(written) if written else None
            retried = [item for item in written if isinstance(item, ConfirmationRecord)] if error is not None else []
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._done, written, error)

    def _gathered(self) -> list[Record | None]:
        """Wait for records, and return all that are queued; a final None means that the writer is being closed."""
        items = [self._queue.get()]
        while items[-1] is not None:
            try:
                items.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return items

    def _commit(self, items: Sequence[Record]) -> PurgatoryClientError | None:
        try:
            self.file.commit(items)
        except PurgatoryClientError as error:
            return error
        except Exception as error:  # noqa: BLE001 - callers that wait for this commit must hear of it
            return OutboxError(OutboxReason.FAILED, f"writing to {self.file.path} failed: {error!r}")
        return None
