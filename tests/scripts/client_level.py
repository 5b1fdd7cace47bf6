"""Levels of the Python client: it makes the waits, in a session or by unary calls, and its results are printed."""

import asyncio
import re
from typing import Final

from purgatory_client import AsyncClient, Result, at_least, mark, signal, waits

from purgatory.v1 import purgatory_service_pb2 as wire
from tests.engine import plain
from tests.kit.eventually import eventually
from tests.scripts.language import WAITS, Line, Script, numbers_of
from tests.scripts.message_levels import GrpcLevel, SharedDaemon
from tests.scripts.messages import ended_row


class ClientLevel(GrpcLevel):
    """A client for each session of the script."""

    is_unary = False

    def __init__(self, daemon: SharedDaemon, prefix: str) -> None:
        super().__init__(daemon, prefix)
        self._runner: Final = asyncio.Runner()
        self._clients: Final[dict[str, AsyncClient]] = {}
        self._waits: dict[tuple[str, int], asyncio.Task[Result]] = {}
        self._ends = 0
        """Number of operations that the line has to end."""

    @classmethod
    def unsupported(cls, script: Script) -> str:
        verbs = {line.verb for line in script.lines} & {
            "call",
            "wait",
            "why",
            "cancel",
            "cancel-all",
            "extend",
            "close",
        }
        if verbs:
            return f"a client has its own session and ids: {', '.join(sorted(verbs))}"
        registered = [line for line in script.lines if line.verb in WAITS]
        if any("refused" in text or "known" in text for line in registered for text in line.output):
            return "a client raises what is refused"
        if any("," in word and "=" in word for line in registered for word in line.text.split()):
            return "a client has no fields of single items"
        return super().unsupported(script)

    def run(self, script: Script) -> list[Line]:
        try:
            return super().run(script)
        finally:
            self._runner.close()

    def play(self, line: Line) -> list[str]:
        ended = [re.match(r"(?:\w:)?(\d+(?:\.\.\d+)?) ", text) for text in line.output]
        self._ends = sum(len(numbers_of(one[1])) for one in ended if one)
        return super().play(line)

    def register(self, session: str, operations: list[plain.Operation]) -> wire.Receipt:
        before = self._registered()
        for one in self.names.operations(operations):
            self._waits[session, one.operation_id] = self._runner.get_loop().create_task(self._wait(session, one))
        count = before + len(operations)
        self._runner.run(eventually(lambda: self._registered() == count, "everything is registered"))
        return wire.Receipt()

    def _registered(self) -> int:
        return sum(kind.registered for kind in self._daemon.stub.GetStatus(wire.GetStatusRequest()).kinds)

    async def _wait(self, session: str, operation: plain.Operation) -> Result:
        if session not in self._clients:
            self._clients[session] = AsyncClient(self._daemon.address)
        client, wait = self._clients[session], wait_of(operation)
        found = await (client.wait_once(wait) if self.is_unary else client._wait(wait))
        assert isinstance(found, Result)
        return found

    def ended(self) -> list[tuple[str, plain.Ended]]:
        def done() -> list[tuple[str, int]]:
            return [key for key, task in self._waits.items() if task.done()]

        self._runner.run(eventually(lambda: len(done()) >= self._ends, "the results are here"))
        found = [(key, self._waits.pop(key).result()) for key in done()]
        return [(session, ended_row(number, result, self.names.prefix)) for (session, number), result in found]

    def _close_sessions(self) -> None:
        async def close() -> None:
            for client in self._clients.values():
                await client.close()
            await asyncio.gather(*self._waits.values(), return_exceptions=True)

        self._runner.run(close())


class UnaryLevel(ClientLevel):
    """Unary calls: a wait of its own for each operation."""

    is_unary = True

    @classmethod
    def unsupported(cls, script: Script) -> str:
        if any(re.search(r"\.\.\d{3}", line.text) for line in script.lines):
            return "a connection has at most 100 calls"
        return super().unsupported(script)


def wait_of(given: plain.Operation) -> waits.Wait:
    offsets = {item.name: item.offset for item in given.items}
    first, timeout = given.items[0], given.timeout_ms / 1_000
    epoch = None if first.epoch < 0 else first.epoch
    if given.kind == plain.PRODUCE:
        return waits.produce(offsets, timeout=timeout, leader_epochs=epoch, local_error_codes=first.local_error)
    if given.kind == plain.FETCH:
        return waits.fetch(
            offsets, timeout=timeout, min_bytes=given.min_bytes, follower_reads=given.follower_reads,
            isolation="read_committed" if given.isolation == plain.READ_COMMITTED else "read_uncommitted",
            replica_id=None if given.replica_id < 0 else given.replica_id, current_leader_epochs=epoch,
            partition_max_bytes=first.max_bytes, last_fetched_epochs=None if first.last_epoch < 0 else first.last_epoch,
            throttled=[item.name for item in given.items if item.throttled],
        )  # fmt: skip
    if given.kind == plain.DELETE_RECORDS:
        return waits.delete_records(offsets, timeout=timeout)
    if given.kind == plain.SIGNAL:
        heartbeat = None if given.heartbeat_timeout_ms < 0 else given.heartbeat_timeout_ms / 1_000
        counts = {name[0]: count for name, count in offsets.items()}
        return waits.signal(
            counts, timeout=timeout, any=given.any_key, from_now=given.from_now, heartbeat_timeout=heartbeat
        )
    terms = [
        signal(item.name[0], item.offset) if item.name[1] < 0 else mark(item.name, item.offset) for item in given.items
    ]
    count = len(terms) - given.unless_count
    condition = at_least(given.required_terms or count, *terms[:count])
    return waits.wait(condition, unless=terms[count:], timeout=timeout)
