"""The programs of a simulated day: clients that wait, and programs that push events."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from purgatory_client import AsyncClient, Event, OperationKind, Outcome, Result, ResultColumns, events
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.errors import ClientClosed, PurgatoryClientError, Unavailable
from purgatory_client.partition_names import partition_name
from purgatory_client.waits import Wait

from purgatory.engine.kinds.operation_columns import columns_of
from tests.engine import plain
from tests.engine.adapter import operation_batch
from tests.histories.judge import Judge, ReportedResult
from tests.kit.proxy import FaultyProxy
from tests.scripts.client_level import wait_of
from tests.scripts.messages import Names, ended_row, event_row

NO_PREFIX: Final = Names("")
Answer = plain.Ended | BaseException | None


def now_ms() -> float:
    """The clock of the daemon and of all callers, including fractions of a millisecond."""
    return time.monotonic_ns() / 1_000_000


class Request(NamedTuple):
    """Waits of one client: a single one in its session or by a unary call, or a batch of one kind as columns."""

    operations: tuple[plain.Operation, ...]
    path: str
    cancel_after_ms: int | None = None


@dataclass
class SimulatedCall:
    """One call of a client. `wait` is the client's record of it, if one was created."""

    name: str
    request: Request
    submitted_ms: float = field(default_factory=now_ms)
    session_id: str = ""
    wait: Entry | None = None
    ended_ms: float = -1.0
    is_closing: bool = False
    """Whether its client was closed while it waited."""
    is_cancelled: bool = False
    faults: int = 0
    """The number of faults of its proxy until it ended. A channel needs some time to recover from each."""

    @property
    def is_ended(self) -> bool:
        return self.ended_ms >= 0

    def operation_id(self, number: int) -> int:
        """The id of one of its operations, counted from 1; 0 if it has none."""
        first_id = self.wait.operation_id if isinstance(self.wait, Wait | WaitBatch) else 0
        return first_id + number - 1 if first_id else 0


CALL: Final[ContextVar[SimulatedCall]] = ContextVar("call")


class NotingClient(AsyncClient):
    """The real client, which also records the wait of each call, so that the operation ids are known."""

    async def _wait(self, entry: Entry) -> Result | ResultColumns:
        call = CALL.get()
        call.wait, call.session_id = entry, self.session_id
        return await super()._wait(entry)


class ClientActor:
    """A program that waits, over its own connection. Every operation and its result is reported to the judge."""

    def __init__(self, number: int, proxy: FaultyProxy, give_up_after: float | None, judge: Judge) -> None:
        self.number: Final = number
        self.calls: Final[list[SimulatedCall]] = []
        self.tasks: Final[list[asyncio.Task[None]]] = []
        self.failures: Final[list[tuple[SimulatedCall, plain.Operation, BaseException | None]]] = []
        self._proxy: Final = proxy
        self._give_up_after: Final = give_up_after
        self._judge: Final = judge
        self._clients: Final = itertools.count(1)
        self.client = self._new_client()

    def _new_client(self) -> NotingClient:
        name = f"actor-{self.number}-{next(self._clients)}"
        return NotingClient(self._proxy.address, name=name, give_up_after=self._give_up_after)

    async def replace(self) -> None:
        old, self.client = self.client, self._new_client()
        await self.close(old)

    async def close(self, client: NotingClient | None = None) -> None:
        """Close a client, by default the present one, which ends its calls."""
        for call in self.calls:
            call.is_closing |= not call.is_ended
        await (client or self.client).close()

    async def wait(self, request: Request) -> None:
        """Make the call, in a task of its own."""
        call = SimulatedCall(f"client {self.number}, call {len(self.calls) + 1}", request)
        self.calls.append(call)
        for number, operation in enumerate(request.operations, 1):
            asked = call, operation
            self._judge.registering(call.name, number, operation.timeout_ms, call.submitted_ms / 1_000, asked)
        task = asyncio.create_task(self._await(call, self.client))
        self.tasks.append(task)
        if request.cancel_after_ms is not None:
            self.tasks.append(asyncio.create_task(cancel(call, task, request.cancel_after_ms)))

    async def _await(self, call: SimulatedCall, client: NotingClient) -> None:
        CALL.set(call)
        operations = call.request.operations
        result: Result | ResultColumns | None = None
        error: BaseException | None = None
        try:
            if call.request.path == "columns":
                result = await client._wait(batch_of(operations))
            elif call.request.path == "unary":
                result = await client.wait_once(wait_of(operations[0]))
            else:
                result = await client._wait(wait_of(operations[0]))
        except (PurgatoryClientError, asyncio.CancelledError) as raised:
            error = raised
        call.ended_ms, call.faults = now_ms(), self._proxy.faults
        results = 0
        for number, answer in enumerate(answers_of(call, result, error), 1):
            if isinstance(answer, plain.Ended):
                results += 1
                reported = ReportedResult(number, answer.outcome, answer.waited_ms, answer)
                self._judge.reported(call.name, "", results, reported, call.ended_ms / 1_000)
            else:
                self._judge.refused(call.name, [number])
                self.failures.append((call, operations[number - 1], answer))


async def cancel(call: SimulatedCall, task: "asyncio.Task[None]", after_ms: int) -> None:
    await asyncio.sleep(after_ms / 1_000)
    if not task.done():
        call.is_cancelled = True
        task.cancel()


def answers_of(
    call: SimulatedCall, result: Result | ResultColumns | None, error: BaseException | None
) -> Iterator[Answer]:
    """For each operation of a call its result, or the error that its caller got instead."""
    refusals = result.refusals if isinstance(result, ResultColumns) else {}
    results = list(result) if isinstance(result, ResultColumns) else [result] * len(call.request.operations)
    for place, one in enumerate(results):
        if one is None or one.outcome == Outcome.REFUSED:
            yield refusals.get(place, error)
        else:
            yield ended_row(call.operation_id(place + 1), one)


def batch_of(operations: tuple[plain.Operation, ...]) -> WaitBatch:
    rows, kind = operation_batch(list(operations)), operations[0].kind
    batch = WaitBatch(
        OperationKind(kind),
        [*map(partition_name, rows.partitions), *rows.keys],
        indexes=rows.item_indexes,
        offsets=rows.offsets,
        timeouts_ms=rows.timeouts_ms,
        item_counts=rows.item_counts,
    )
    columns: dict[str, Any] = {one.wire_name: getattr(rows, one.batch_name) for one in columns_of(kind)}
    batch.set_columns({name: values for name, values in columns.items() if name != "offset"})
    return batch


class Pusher:
    """A program that pushes events, over its own connection."""

    def __init__(self, number: int, proxy: FaultyProxy) -> None:
        self.client: Final = AsyncClient(proxy.address, name=f"pusher-{number}")
        self.key: Final = f"tally {number}"
        """Signalled with the number of each push, to identify it."""
        self.acknowledged: Final[dict[int, bool]] = {}
        """Whether each push was answered, by its number."""

    async def push(self, number: int, pushed: tuple[plain.Event, ...]) -> None:
        self.acknowledged[number] = False
        try:
            await self.client.advance_many([*map(event_of, pushed), events.signalled(self.key, number)])
        except (Unavailable, ClientClosed):
            return  # it may have been applied or not
        self.acknowledged[number] = True


def event_of(event: plain.Event) -> Event:
    name = None if event.type == plain.KEY_SIGNALLED else partition_name(event.name)
    return Event(event.type, name, row=event_row(event, NO_PREFIX))
