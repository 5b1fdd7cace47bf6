"""The actors of a simulated day: clients that wait, advancers that push events, an operator that cancels."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

import grpc
from purgatory_client import AsyncClient, Event, OperationKind, Result, ResultColumns, events
from purgatory_client.batches import Entry
from purgatory_client.errors import ClientClosed, NotFound, PurgatoryClientError, Unavailable

from purgatory.engine import codes
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.histories.day.call_log import CallLog, SimulatedCall, now_ms
from tests.histories.day.plan import Batch, Close, EventPlan, OperatorCancel, Passer, Plan, PlannedWait, Push, Step
from tests.kit.proxy import FaultyProxy
from tests.scripts.client_level import wait_of

CALL: Final[ContextVar[SimulatedCall]] = ContextVar("call")


class NotingClient(AsyncClient):
    """The real client, which also records the wait of each call, so that the checker knows the operation ids."""

    async def _wait(self, entry: Entry) -> Result | ResultColumns:
        CALL.get().note(entry, self.session_id)
        return await super()._wait(entry)


class Day:
    """The clock of a simulated day, in milliseconds since its start."""

    def __init__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()

    async def until(self, at_ms: int) -> None:
        await asyncio.sleep(max(0.0, self._began_s + at_ms / 1_000 - asyncio.get_running_loop().time()))


class ClientActor:
    """A program that waits, over its own connection."""

    def __init__(self, number: int, plan: Plan, proxy: FaultyProxy, ledger: CallLog) -> None:
        self.number: Final = number
        self.proxy: Final = proxy
        self.calls: Final[list[asyncio.Task[None]]] = []
        self.clients: Final[list[NotingClient]] = []
        self._plan = plan
        self._ledger = ledger
        self._new_client()

    @property
    def client(self) -> NotingClient:
        return self.clients[-1]

    def _new_client(self) -> None:
        name = f"actor-{self.number}-{len(self.clients)}"
        client = NotingClient(self.proxy.address, name=name, give_up_after=self._plan.give_up_after)
        self.clients.append(client)

    async def live(self, day: Day, steps: list[Step]) -> None:
        """Make all calls of the day, each in its own task."""
        for step in steps:
            await day.until(step.at_ms)
            if isinstance(step.what, Close):
                await self.close()
                self._new_client()
            else:
                self._call(step.what)

    async def close(self) -> None:
        """Close the current client, which ends its calls."""
        client = self.client
        for call in self._ledger.calls:
            if call.client == self.number and not call.ended:
                call.closing = True
        await client.close()

    def _call(self, what: PlannedWait | Batch) -> None:
        call = SimulatedCall(self.number, what, now_ms())
        self._ledger.calls.append(call)
        make = self._make(what)
        inner = asyncio.create_task(self._await(call, make))
        self.calls.append(inner)
        if what.cancel_after_ms is not None:
            self.calls.append(asyncio.create_task(self._cancel(inner, call, what.cancel_after_ms)))

    @staticmethod
    async def _cancel(task: asyncio.Task[None], call: SimulatedCall, after_ms: int) -> None:
        await asyncio.sleep(after_ms / 1_000)
        if not task.done():
            call.cancelled = True
            task.cancel()

    async def _await(self, call: SimulatedCall, make: Callable[[], Awaitable[Result | ResultColumns]]) -> None:
        CALL.set(call)
        try:
            call.result = await make()
        except (PurgatoryClientError, asyncio.CancelledError) as error:
            call.error = error
        call.ended_ms = now_ms()
        call.faults = self.proxy.faults

    def _make(self, what: PlannedWait | Batch) -> Callable[[], Awaitable[Result | ResultColumns]]:
        client = self.client
        if isinstance(what, Batch):
            return lambda: _many(client, what)
        if what.once:
            return lambda: client.wait_once(wait_of(what.operation()))
        return lambda: client._wait(wait_of(what.operation()))


def _many(client: AsyncClient, batch: Batch) -> Awaitable[ResultColumns]:
    """The call for many operations of one kind, as columns."""
    all_of = batch.operations
    kind = OperationKind(all_of[0].kind)
    items = [item for operation in all_of for item in operation.items]
    timeouts_ms = [1 if operation.timeout_ms is None else operation.timeout_ms for operation in all_of]
    counts = [len(operation.items) for operation in all_of]
    offsets = [offset for _, offset in items]
    if kind == OperationKind.SIGNAL:
        keys = list(dict.fromkeys(str(key) for key, _ in items))
        indexes = [keys.index(str(key)) for key, _ in items]
        return client.signal_many(
            keys,
            indexes=indexes,
            counts=offsets,
            timeouts_ms=timeouts_ms,
            item_counts=counts,
            any=[one.any_key for one in all_of],
            from_now=[one.from_now for one in all_of],
        )
    names = list(dict.fromkeys(name for name, _ in items if not isinstance(name, str)))
    if kind == OperationKind.COMPOSITE:
        keys = list(dict.fromkeys(name for name, _ in items if isinstance(name, str)))
        return client.wait_many(
            names,
            keys,
            indexes=[
                len(names) + keys.index(name) if isinstance(name, str) else names.index(name) for name, _ in items
            ],
            offsets=offsets,
            timeouts_ms=timeouts_ms,
            item_counts=counts,
            required_terms=[one.required_terms for one in all_of],
            unless_counts=[one.unless_count for one in all_of],
        )
    indexes = [names.index(name) for name, _ in items if not isinstance(name, str)]
    wait: Callable[..., Awaitable[ResultColumns]] = client.delete_records_many
    if kind == OperationKind.PRODUCE:
        codes = [one.local_error_code for one in all_of for _ in one.items]
        wait = functools.partial(client.produce_many, local_error_codes=codes)
    elif kind == OperationKind.FETCH:
        replica_ids = [one.replica_id for one in all_of]
        wait = functools.partial(
            client.fetch_many, min_bytes=[one.min_bytes for one in all_of], replica_ids=replica_ids
        )
    return wait(names, indexes=indexes, offsets=offsets, timeouts_ms=timeouts_ms, item_counts=counts)


class Advancer:
    """A program that pushes events, over its own connection."""

    def __init__(self, number: int, proxy: FaultyProxy, ledger: CallLog) -> None:
        self._number = number
        self._ledger = ledger
        self.client: Final = AsyncClient(proxy.address, name=f"advancer-{number}")
        ledger.attempted_pushes[number] = []
        ledger.acknowledged_pushes[number] = []

    async def live(self, day: Day, pushes: list[Push]) -> None:
        """Make all pushes of the day, without waiting for the previous ones."""
        tasks = []
        for push in pushes:
            await day.until(push.at_ms)
            tasks.append(asyncio.create_task(self._push(push)))
        await asyncio.gather(*tasks)

    async def _push(self, push: Push) -> None:
        batch = [event_of(event) for event in push.events]
        batch.append(events.signalled(tally_key(self._number), push.number))
        self._ledger.attempted_pushes[self._number].append(push.number)
        try:
            await self.client.advance_many(batch)
        except (Unavailable, ClientClosed):
            return  # it may have been applied or not
        self._ledger.acknowledged_pushes[self._number].append(push.number)


def tally_key(advancer: int) -> str:
    """The key with which an advancer signals the numbers of its pushes."""
    return f"tally-{advancer}"


def event_of(event: EventPlan) -> Event:
    name, kind = event.name, event.type
    if isinstance(name, str):
        return events.signalled(name, event.offset)
    if kind == codes.LEADERSHIP:
        return events.leadership(name, is_leader=event.flag, leader_epoch=event.epoch)
    if kind == codes.PARTITION_REMOVED:
        return events.removed(name, moved=event.flag)
    if kind in {codes.STORAGE_FAILED, codes.STORAGE_ONLINE}:
        return events.storage_failed(name) if kind == codes.STORAGE_FAILED else events.storage_online(name)
    make = {
        codes.HIGH_WATERMARK: events.high_watermark,
        codes.LEADER_APPEND: events.log_end_offset,
        codes.LOG_START_OFFSET: events.log_start_offset,
    }[kind]
    return make(name, event.offset)


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
                elif isinstance(cancel.target, str):
                    await client.cancel(key=cancel.target)
                else:
                    await client.cancel(partition=cancel.target)
            except (NotFound, Unavailable):
                continue  # the session has not been opened yet, or the daemon is down


GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""The daemon is not there, or it stopped after it had accepted the call, which gRPC's server then cancels."""
CUT_OFF: Final = "Internal error from Core"
"""gRPC's client says this if the connection breaks while the call begins. No daemon does."""


async def pass_by(day: Day, passers: list[Passer], address: Callable[[], str], ledger: CallLog) -> None:
    """Open one session after another and leave each at once. Only a daemon that is shutting down may refuse to open
    one.
    """
    for passer in passers:
        await day.until(passer.at_ms)
        async with grpc.aio.insecure_channel(address()) as channel:
            stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
            opening = wire.SessionRequest(open=wire.OpenSession(session_id=passer.session_id))
            try:
                await anext(aiter(stub.Session(iter([opening]))), None)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE and error.details() != CUT_OFF:
                    ledger.complaints.append(f"no session for {passer}: {error.code().name}: {error.details()}")
