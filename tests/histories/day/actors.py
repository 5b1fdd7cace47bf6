"""The actors of a simulated day: clients that wait, advancers that push events, an operator that cancels."""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from purgatory_client import AsyncClient, Event, OperationKind, Result, ResultColumns, events
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.errors import ClientClosed, NotFound, PurgatoryClientError, Unavailable
from purgatory_client.partition_names import partition_name

from purgatory.engine.kinds.operation_columns import columns_of
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.engine import plain
from tests.engine.adapter import operation_batch
from tests.histories.day.plan import Close, OperatorCancel, Plan, Push, Request, Step
from tests.kit.proxy import FaultyProxy
from tests.scripts.client_level import wait_of
from tests.scripts.messages import Names, event_row

NO_PREFIX: Final = Names("")


def now_ms() -> float:
    """The clock of the daemon and of all callers, including fractions of a millisecond."""
    return time.monotonic_ns() / 1_000_000


@dataclass
class SimulatedCall:
    """One call of a client. `wait` is the client's record of it, if one was created."""

    client: int
    request: Request
    submitted_ms: float
    session_id: str = ""
    wait: Entry | None = None
    ended_ms: float = -1.0
    result: Result | ResultColumns | None = None
    error: BaseException | None = None
    closing: bool = False
    """Whether its client was closed while it waited."""
    cancelled: bool = False
    """Whether its caller cancelled it."""
    faults: int = 0
    """The number of faults of its proxy until it ended. A channel needs some time to recover from each."""

    @property
    def ended(self) -> bool:
        """Whether the caller has an answer."""
        return self.ended_ms >= 0


@dataclass
class CallLog:
    """Everything observed from outside, and complaints that follow from these observations alone."""

    calls: list[SimulatedCall] = field(default_factory=list)
    pushes: dict[str, dict[int, bool]] = field(default_factory=dict)
    """For each advancer's key: the numbers of its pushes, and whether they were acknowledged."""
    drained: list[SimulatedCall] = field(default_factory=list)
    """Calls known to the daemon, over a working connection, when it was drained."""
    complaints: list[str] = field(default_factory=list)


CALL: Final[ContextVar[SimulatedCall]] = ContextVar("call")


class NotingClient(AsyncClient):
    """The real client, which also records the wait of each call, so that the checker knows the operation ids."""

    async def _wait(self, entry: Entry) -> Result | ResultColumns:
        call = CALL.get()
        call.wait, call.session_id = entry, self.session_id
        return await super()._wait(entry)


class Day:
    """The clock of a simulated day, in milliseconds since its start."""

    def __init__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()

    async def until(self, at_ms: int) -> None:
        await asyncio.sleep(max(0.0, self._began_s + at_ms / 1_000 - asyncio.get_running_loop().time()))


class ClientActor:
    """A program that waits, over its own connection."""

    def __init__(self, number: int, plan: Plan, proxy: FaultyProxy, log: CallLog) -> None:
        self.number: Final = number
        self.proxy: Final = proxy
        self.calls: Final[list[asyncio.Task[None]]] = []
        self._plan = plan
        self._log = log
        self._clients = 0
        self.client = self._new_client()

    def _new_client(self) -> NotingClient:
        self._clients += 1
        name = f"actor-{self.number}-{self._clients}"
        return NotingClient(self.proxy.address, name=name, give_up_after=self._plan.give_up_after)

    async def live(self, day: Day, steps: list[Step]) -> None:
        """Make all calls of the day, each in its own task."""
        for step in steps:
            await day.until(step.at_ms)
            if isinstance(step.what, Close):
                await self.close()
                self.client = self._new_client()
            else:
                self._call(step.what)

    async def close(self) -> None:
        """Close the current client, which ends its calls."""
        for call in self._log.calls:
            if call.client == self.number and not call.ended:
                call.closing = True
        await self.client.close()

    def _call(self, request: Request) -> None:
        call = SimulatedCall(self.number, request, now_ms())
        self._log.calls.append(call)
        inner = asyncio.create_task(self._await(call, self.client))
        self.calls.append(inner)
        if request.cancel_after_ms is not None:
            self.calls.append(asyncio.create_task(self._cancel(inner, call, request.cancel_after_ms)))

    @staticmethod
    async def _cancel(task: asyncio.Task[None], call: SimulatedCall, after_ms: int) -> None:
        await asyncio.sleep(after_ms / 1_000)
        if not task.done():
            call.cancelled = True
            task.cancel()

    async def _await(self, call: SimulatedCall, client: NotingClient) -> None:
        CALL.set(call)
        try:
            if call.request.path == "columns":
                call.result = await client._wait(batch_of(call.request.operations))
            elif call.request.path == "unary":
                call.result = await client.wait_once(wait_of(call.request.operations[0]))
            else:
                call.result = await client._wait(wait_of(call.request.operations[0]))
        except (PurgatoryClientError, asyncio.CancelledError) as error:
            call.error = error
        call.ended_ms = now_ms()
        call.faults = self.proxy.faults


def batch_of(operations: tuple[plain.Operation, ...]) -> WaitBatch:
    """The client's batch of operations of one kind."""
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


class Advancer:
    """A program that pushes events, over its own connection."""

    def __init__(self, number: int, proxy: FaultyProxy, log: CallLog) -> None:
        self.client: Final = AsyncClient(proxy.address, name=f"advancer-{number}")
        self._key: Final = f"tally {number}"
        """Signalled with the numbers of its pushes."""
        self._acknowledged: Final = log.pushes.setdefault(self._key, {})

    async def live(self, day: Day, pushes: list[Push]) -> None:
        """Make all pushes of the day, without waiting for the previous ones."""
        tasks = []
        for push in pushes:
            await day.until(push.at_ms)
            tasks.append(asyncio.create_task(self._push(push)))
        await asyncio.gather(*tasks)

    async def _push(self, push: Push) -> None:
        self._acknowledged[push.number] = False
        try:
            await self.client.advance_many([*map(event_of, push.events), events.signalled(self._key, push.number)])
        except (Unavailable, ClientClosed):
            return  # it may have been applied or not
        self._acknowledged[push.number] = True


def event_of(event: plain.Event) -> Event:
    """The client's form of an event, as a row."""
    name = None if event.type == plain.KEY_SIGNALLED else partition_name(event.name)
    return Event(event.type, name, row=event_row(event, NO_PREFIX))


async def operate(
    day: Day, cancels: list[OperatorCancel], actors: list[ClientActor], address: Callable[[], str]
) -> None:
    """An operator with a reliable connection cancels operations."""
    for cancel in cancels:
        await day.until(cancel.at_ms)
        async with AsyncClient(address()) as client:
            try:
                if isinstance(cancel.target, int):
                    await client.cancel(session_id=actors[cancel.target].client.session_id)
                elif cancel.target[1] < 0:
                    await client.cancel(key=cancel.target[0])
                else:
                    await client.cancel(partition=cancel.target)
            except (NotFound, Unavailable):
                continue  # the session has not been opened yet, or the daemon is down


GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""The daemon is not there, or it stopped after it had accepted the call, which gRPC's server then cancels."""
CUT_OFF: Final = "Internal error from Core"
"""gRPC's client says this if the connection breaks while the call begins. No daemon does."""


async def pass_by(day: Day, times: list[int], address: Callable[[], str], log: CallLog) -> None:
    """Open one session after another and leave each at once. Only a daemon that is shutting down may refuse to open
    one.
    """
    for at_ms in times:
        await day.until(at_ms)
        async with grpc.aio.insecure_channel(address()) as channel:
            stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
            opening = wire.SessionRequest(open=wire.OpenSession(session_id=f"passer-{at_ms}"))
            try:
                await anext(aiter(stub.Session(iter([opening]))), None)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE and error.details() != CUT_OFF:
                    log.complaints.append(f"no session for {opening}: {error.code().name}: {error.details()}")
