"""`Client`, the blocking client, for programs without an event loop. It may be shared between threads.

Each method runs the method of `AsyncClient` on a background event loop and waits for it: same arguments, results and
errors.

All blocking clients of a process share that loop, because gRPC's asyncio layer wakes every loop of a process for every
event, and one loop per client would slow all of them down. The loop runs in a daemon thread, which does not keep the
program running; clients that are still open at the end are closed first.
"""

import asyncio
import atexit
import functools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from purgatory_client.aio import AsyncClient
from purgatory_client.errors import ClientClosed

P = ParamSpec("P")
T = TypeVar("T")


class BackgroundLoop:
    """An event loop in its own thread. Made by `shared_loop`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="purgatory client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. An interrupt (Ctrl-C) cancels it there."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking client cannot be used from its own event loop; use AsyncClient there")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_lock = threading.Lock()
_shared: list[BackgroundLoop] = []


def shared_loop() -> BackgroundLoop:
    """The loop of this process, started on first use. A forked child starts its own: threads do not survive a fork."""
    with _lock:
        if not _shared or _shared[-1].pid != os.getpid():
            _shared.append(BackgroundLoop())
        return _shared[-1]


def _made_like(
    constructor: Callable[Concatenate[AsyncClient, P], None],
) -> "Callable[[Callable[..., None]], Callable[Concatenate[Client, P], None]]":
    """Give a constructor the signature of another one."""
    return functools.wraps(constructor)


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[Client, P], T]":
    @functools.wraps(method)
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> "Callable[Concatenate[Client, P], Iterator[T]]":
    @functools.wraps(method)
    def iterate(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self._client, *args, **kwargs)
        while (item := self._run(_next(items))) is not _END:
            yield item

    return iterate


class Client:
    """A blocking client of one daemon. Arguments and errors are those of `AsyncClient`.

    Use it in `with`, or `close` it; clients that are open when the interpreter ends are closed then. It does not
    survive a fork: in the child its calls raise ClientClosed (docs/client.md, "Closing").
    """

    @_made_like(AsyncClient.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - those of AsyncClient
        self._pid = os.getpid()
        self._loop: BackgroundLoop = shared_loop()
        self._client = AsyncClient(*args, **kwargs)
        _open_clients.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self, *, finish: bool = False) -> None:
        """Leave the daemon; see `AsyncClient.close`."""
        _open_clients.discard(self)
        self._run(self._client.close(finish=finish))

    @property
    def address(self) -> str:
        """The daemon's address."""
        return self._client.address

    @property
    def session_id(self) -> str:
        """The session's id as the daemon lists it."""
        return self._client.session_id

    @property
    def pending(self) -> int:
        """How many operations are pending in this client."""
        return self._client.pending

    produce = _blocking(AsyncClient.produce)
    processed = _blocking(AsyncClient.processed)
    fetch = _blocking(AsyncClient.fetch)
    delete_records = _blocking(AsyncClient.delete_records)
    signal = _blocking(AsyncClient.signal)
    wait = _blocking(AsyncClient.wait)
    caught_up = _blocking(AsyncClient.caught_up)
    ends = _blocking(AsyncClient.ends)
    token = _blocking(AsyncClient.token)
    with_epochs = _blocking(AsyncClient.with_epochs)
    wait_for = _blocking(AsyncClient.wait_for)
    reached_on = _blocking(AsyncClient.reached_on)
    wait_once = _blocking(AsyncClient.wait_once)
    produce_many = _blocking(AsyncClient.produce_many)
    fetch_many = _blocking(AsyncClient.fetch_many)
    delete_records_many = _blocking(AsyncClient.delete_records_many)
    signal_many = _blocking(AsyncClient.signal_many)
    wait_many = _blocking(AsyncClient.wait_many)
    submit = _blocking(AsyncClient.submit)
    submit_many = _blocking(AsyncClient.submit_many)
    recovered = _blocking(AsyncClient.recovered)
    result = _blocking(AsyncClient.result)
    result_many = _blocking(AsyncClient.result_many)
    confirm = _blocking(AsyncClient.confirm)
    register = _blocking(AsyncClient.register)
    results = _iterating(AsyncClient.results)
    close_session = _blocking(AsyncClient.close_session)
    advance = _blocking(AsyncClient.advance)
    advance_many = _blocking(AsyncClient.advance_many)
    signal_key = _blocking(AsyncClient.signal_key)
    cancel = _blocking(AsyncClient.cancel)
    extend = _blocking(AsyncClient.extend)
    operation = _blocking(AsyncClient.operation)
    operations = _iterating(AsyncClient.operations)
    ranked_operations = _blocking(AsyncClient.ranked_operations)
    partition = _blocking(AsyncClient.partition)
    dead_letters = _iterating(AsyncClient.dead_letters)
    resend_dead_letters = _blocking(AsyncClient.resend_dead_letters)
    delete_dead_letters = _blocking(AsyncClient.delete_dead_letters)
    hand_over = _blocking(AsyncClient.hand_over)
    partitions = _iterating(AsyncClient.partitions)
    status = _blocking(AsyncClient.status)
    hot_names = _blocking(AsyncClient.hot_names)
    tail = _iterating(AsyncClient.tail)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._pid:
            coroutine.close()
            raise ClientClosed("this client was created before a fork, in another process")
        return self._loop.run(coroutine)


_END: Any = object()


async def _next(items: AsyncIterator[T]) -> T:
    """The next item, or `_END`: StopAsyncIteration cannot travel through a future."""
    return await anext(items, _END)


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _close_open_clients() -> None:
    """Close clients at the end of the interpreter, while threads still run."""
    for client in list(_open_clients):
        if client._pid == os.getpid():  # noqa: SLF001
            client.close()


atexit.register(_close_open_clients)
