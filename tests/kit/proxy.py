"""A TCP proxy that imitates network faults: it drops, cuts inside a message, delays, swallows and half-closes."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Self

from purgatory_client.blocking import BackgroundLoop, shared_loop

from tests.kit.eventually import eventually

NOBODY = "127.0.0.1:1"

UP: Final = frozenset({"up"})
"""Traffic to the target."""
DOWN: Final = frozenset({"down"})
"""Traffic from the target."""
BOTH: Final = UP | DOWN


@dataclass(eq=False)
class _Pipe:
    """An accepted connection and the corresponding connection to the target."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter

    def abort(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


class FaultyProxy:
    """Listens on a free port of 127.0.0.1 and forwards bytes to `target`: the daemon's address, or a function that
    returns the present one.
    """

    def __init__(self, target: str | Callable[[], str]) -> None:
        self.target = target
        self.address = ""
        self.accepted = 0
        self.faults = 0
        self.passed_bytes = 0
        """The number of bytes from the target since the connections were last reset."""
        self.silent = False
        """Whether bytes are read and discarded while connections stay open."""
        self._refusing = False
        self._drops = 0
        self._passing = {way: asyncio.Event() for way in BOTH}
        self._bytes_left = -1
        self._pipes: set[_Pipe] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.hold(frozenset())

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        for listening in self._server.sockets:
            # First accept no more: asyncio never closes a connection that it accepts while its server closes.
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _turn in range(4):
            await asyncio.sleep(0)  # until `_serve` has begun for a connection that was accepted just now
        self._server.close()
        self.heal()
        while self._tasks:  # a connection that is being made adds more
            self.drop_all()
            await asyncio.wait(self._tasks)

    async def inflict(self, kind: str, amount: int) -> None:
        """Cause one fault and wait for its end. `amount`: bytes for "cut", otherwise milliseconds."""
        self.faults += 1
        if kind == "drop":
            self.drop_all()
        elif kind == "cut":
            self._bytes_left = amount
        elif kind == "hold":
            self.hold(BOTH)
            await asyncio.sleep(amount / 1_000)
            self.hold(frozenset())
        elif kind == "swallow":
            self.silent = True
            await asyncio.sleep(amount / 1_000)
            # The swallowed bytes are lost, so these connections are unusable.
            self.silent = False
            self.drop_all()
        elif kind == "refuse":
            self._refusing = True
            self.drop_all()
            await asyncio.sleep(amount / 1_000)
            self._refusing = False
        else:
            self._half_close(far=kind == "half_close_up")

    def hold(self, ways: AbstractSet[str]) -> None:
        """Delay all bytes in these directions, also of new connections, until the next call: as in a network that is
        cut, where TCP sends everything again once it is whole. With `drop_all` directly after that call the bytes are
        lost instead, as if the cut had outlived the connections.
        """
        for way, passing in self._passing.items():
            if way in ways:
                passing.clear()
            else:
                passing.set()

    def heal(self) -> None:
        """End all faults and forward the delayed bytes."""
        swallowed, self.silent = self.silent, False
        self._refusing = False
        self._bytes_left = -1
        self.hold(frozenset())
        if swallowed:
            self.drop_all()

    async def drop_after(self, count: int) -> None:
        """Reset all connections once this many bytes have arrived from the target since they were last reset."""
        await eventually(lambda: self.passed_bytes >= count, lambda: f"{self.passed_bytes} of {count} bytes")
        self.drop_all()

    def drop_all(self) -> int:
        """Reset all connections; returns their number."""
        self.passed_bytes = 0
        self._drops += 1
        pipes, self._pipes = self._pipes, set()
        for pipe in pipes:
            pipe.abort()
        return len(pipes)

    def _half_close(self, *, far: bool) -> None:
        for pipe in self._pipes:
            writer = pipe.far if far else pipe.near
            if not writer.transport.is_closing():
                # The peer may have reset it already.
                with contextlib.suppress(OSError):
                    writer.write_eof()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        connecting = asyncio.current_task()
        assert connecting is not None, "the server runs this as a task"
        self._track(connecting)
        drops = self._drops
        target = self.target if isinstance(self.target, str) else self.target()
        host, _, port = target.rpartition(":")
        try:
            if self._refusing:
                raise ConnectionRefusedError("this proxy is refusing")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        pipe = _Pipe(writer, far_writer)
        if self._drops != drops:  # all connections were reset while this one was made, perhaps to a former target
            pipe.abort()
            return
        self._pipes.add(pipe)
        for way, source, sink in (("up", reader, far_writer), ("down", far_reader, writer)):
            self._track(asyncio.create_task(self._pump(source, sink, pipe, self._passing[way])))

    def _track(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, pipe: _Pipe, passing: asyncio.Event
    ) -> None:
        try:
            while True:
                data = await source.read(65_536)
                await passing.wait()
                if not data:
                    break
                if self.silent:
                    continue
                if 0 <= self._bytes_left < len(data):
                    sink.write(data[: self._bytes_left])
                    self._bytes_left = -1
                    break
                if self._bytes_left >= 0:
                    self._bytes_left -= len(data)
                sink.write(data)
                if sink is pipe.near:
                    self.passed_bytes += len(data)
                await sink.drain()
        except (OSError, RuntimeError):
            pass  # dropped or half-closed, which is the purpose of this proxy
        finally:
            pipe.abort()
            self._pipes.discard(pipe)


@contextlib.contextmanager
def proxy_thread(target: str) -> Iterator[tuple[FaultyProxy, BackgroundLoop]]:
    """A proxy and the loop in which it runs, for tests that block."""
    proxy, loop = FaultyProxy(target), shared_loop()
    loop.run(proxy.__aenter__())
    try:
        yield proxy, loop
    finally:
        loop.run(proxy.__aexit__())
