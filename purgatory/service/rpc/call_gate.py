"""Limits on calls, checked when a call arrives, before its request is read."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.rpc import code_pb2
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from purgatory.service.access.account import Account
from purgatory.service.budget.shares import CALL_BYTES, Shares
from purgatory.service.errors import RETRY_AFTER_MS, RpcError, resource_exhausted
from purgatory.service.fair_queue import EVENTS, INSPECTIONS, REGISTRATIONS, WORK_NAMES, CallerQueue, FairQueue
from purgatory.service.histogram import counters
from purgatory.service.listeners.listener import Listener
from purgatory.service.rpc.call import Call, Context, IncompleteRequests, check_account
from purgatory.service.rpc.grpc_options import calls_per_connection_max
from purgatory.service.settings import LimitsSettings
from purgatory.service.transport.flood_watch import REFUSED, FloodWatch

LOGGER: Final = logging.getLogger(__name__)

CODE_NAMES: Final = {number: name for name, number in code_pb2.Code.items()}

EXPECTED_CODES: Final = (
    code_pb2.OK,
    code_pb2.CANCELLED,
    code_pb2.UNKNOWN,
    code_pb2.INVALID_ARGUMENT,
    code_pb2.DEADLINE_EXCEEDED,
    code_pb2.NOT_FOUND,
    code_pb2.PERMISSION_DENIED,
    code_pb2.RESOURCE_EXHAUSTED,
    code_pb2.UNAVAILABLE,
    code_pb2.UNAUTHENTICATED,
)
"""Exported for each method from the start, so that their rate can be queried."""


class MethodCounts:
    """Counts of one method, taken where its calls are served: once per call, and once per message."""

    __slots__ = ("ended", "received_bytes", "sent_bytes")

    def __init__(self, codes: Iterable[int] = EXPECTED_CODES) -> None:
        self.ended: Final = dict.fromkeys(codes, 0)
        """By google.rpc.Code."""
        self.received_bytes = 0
        self.sent_bytes = 0

    def add_ended(self, code: int) -> None:
        # Another code gets its series with its first call, which is therefore missing from rates.
        self.ended[code] = self.ended.get(code, 0) + 1


class CallCounts(Collector):
    """Counts of all methods that are served, each from the moment that it is registered."""

    def __init__(self) -> None:
        self._by_method: Final[dict[str, MethodCounts]] = {}

    def of(self, method: MethodDescriptor) -> MethodCounts:
        """Return the counts of a method, by its name; for a standard service, with its name ("Health/Check")."""
        service = method.containing_service
        is_ours = service.full_name.startswith("purgatory.")
        return self._by_method.setdefault(method.name if is_ours else f"{service.name}/{method.name}", MethodCounts())

    def of_unknown(self) -> MethodCounts:
        """Return the counts of methods that do not exist, as one: their names are the caller's."""
        return self._by_method.setdefault("unknown", MethodCounts((code_pb2.UNIMPLEMENTED,)))

    def collect(self) -> Iterator[Metric]:
        methods = list(self._by_method.items())
        ended = [
            ((method, CODE_NAMES.get(code, "UNKNOWN")), count)
            for method, counts in methods
            for code, count in counts.ended.items()
        ]
        yield counters("purgatory_calls_ended", "Calls ended, by method and status.", ["method", "code"], ended)
        received = [(method, counts.received_bytes) for method, counts in methods]
        yield counters("purgatory_received_bytes", "Bytes read over gRPC.", ["method"], received)
        sent = [(method, counts.sent_bytes) for method, counts in methods]
        yield counters("purgatory_sent_bytes", "Bytes sent over gRPC.", ["method"], sent)


PAUSE_S: Final = 0.001
"""Minimum time between two refusals."""
FLOOD: Final = 1_000
"""This many such calls in `LOG_INTERVAL_S` are logged, once."""
LOG_INTERVAL_S: Final = 10.0


class Strangers:
    """Delays calls without a valid credential, or of no method, before they are refused; at most `waiting_max` at a
    time, because they hold memory.

    Anyone can make them, thousands on one connection. Refused at once, each would make room for the next, and all other
    calls would wait in gRPC's one queue behind those that keep arriving. At a limited rate they occupy the streams of
    their own connection, of which there are `CALLS_PER_CONNECTION_MAX`.
    """

    def __init__(
        self, queue: FairQueue, floods: FloodWatch, waiting_max: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._queue: Final = queue
        self._floods: Final = floods
        self._waiting_max: Final = waiting_max
        self._now_s: Final = now_s
        self._as_caller: Final = queue.join("no valid credential, or no method")
        """All of them take turns as one caller."""
        self._next: Final = asyncio.Queue[None]()
        """Holds an item when the next call may be refused."""
        self._next.put_nowait(None)
        self.waiting: Final = Counter[str]()
        """Those that wait, by connection,"""
        self._waiting_count = 0
        """and in total."""
        self._seen: Final = Counter[str]()
        """Those since `_since_s`, by connection,"""
        self._seen_count = 0
        """and in total."""
        self._since_s = now_s()

    async def turn(self, peer: str) -> None:
        """Wait until a call from this peer may be refused.

        If too many wait already, the connection with the most of them is closed, and this one is refused now.
        """
        self._see(peer)
        if self._waiting_count >= self._waiting_max:
            most, calls = self.waiting.most_common(1)[0]
            self._floods.close(
                most, REFUSED, f"{calls} of its calls wait to be refused: no valid credential, or no method"
            )
            return
        self.waiting[peer] += 1
        self._waiting_count += 1
        try:
            await self._next.get()
            asyncio.get_running_loop().call_later(PAUSE_S, self._next.put_nowait, None)
            await self._queue.turn(self._as_caller, INSPECTIONS)
        finally:
            self._waiting_count -= 1
            self.waiting[peer] -= 1
            if not self.waiting[peer]:
                del self.waiting[peer]

    def _see(self, peer: str) -> None:
        now_s = self._now_s()
        if now_s - self._since_s >= LOG_INTERVAL_S:
            self._since_s, self._seen_count = now_s, 0
            self._seen.clear()
        self._seen[peer] += 1
        self._seen_count += 1
        if self._seen_count == FLOOD:
            most, calls = self._seen.most_common(1)[0]
            LOGGER.warning(
                "%d calls without a valid credential or to unknown methods within %.1f s, over %d connections; %d of "
                "them from %s: they are refused slowly",
                FLOOD, now_s - self._since_s, len(self._seen), calls, most,
            )  # fmt: skip


BURST_S: Final = 1.0
"""A caller may be ahead of `limits.calls_per_second` by the calls of this much time, seconds."""
CALLS_MAX: Final = 200_000
"""Calls in flight of all callers: streams, unary calls and refused calls."""
CALLS_PER_CALLER_MAX: Final = 11_000
"""Calls in flight of one caller: a principal or, without a policy, a gRPC connection or an HTTP client's address."""
CALLS_QUEUED_PER_CALLER_MAX: Final = 20_000
"""Calls of one caller that may wait for their turn."""
EVENTS_SHARE: Final = 16
"""One in 16 calls in flight is reserved for events: the waiting calls may need an event to end."""
# With half of the budget, a flood of `Wait` at 512 MB left too little for others: 3 of 3,925 honest waits were refused,
# and their p99 was 1,869 ms instead of 314.
CALLS_SHARE: Final = 4
"""Calls in flight may use a quarter of the memory budget."""
QUEUED_WHEN_FILLING_MAX: Final = 100
"""Calls of one caller that may wait for their turn while much of the memory is taken and not counted."""
STRANGERS_SHARE: Final = 8
"""Calls that wait to be refused (`Strangers`) may take an eighth of the memory budget."""
STRANGERS_MAX: Final = 1_000
"""The same without a budget."""
OWN_REASONS: Final = (code_pb2.RESOURCE_EXHAUSTED, code_pb2.UNAVAILABLE, code_pb2.DEADLINE_EXCEEDED)
"""Codes of calls that are refused for the daemon's reasons, and not for what they contain."""
QUIET_S: Final = 0.05
"""Shutdown waits until no unary call has ended for this long, seconds."""


class CallGate:
    """Counts calls in flight, per caller and in total, and refuses calls above a limit."""

    def __init__(
        self,
        queue: FairQueue,
        limits: LimitsSettings,
        listeners: Listener | None = None,
        now_s: Callable[[], float] = time.monotonic,
        next_expiry_ms: Callable[[], int] = lambda: RETRY_AFTER_MS,
        shares: Shares | None = None,
        on_events_refused: Callable[[Account], None] = lambda _account: None,
    ) -> None:
        """`next_expiry_ms`: time until the next operation expires, which may end a call. `shares`: the memory budget
        and the shares of callers; None: not taken into account. `on_events_refused`: see `note_end`.
        """
        self.queue: Final = queue
        self._limits: Final = limits
        self._shares: Final = shares
        by_memory = CALLS_MAX if shares is None else shares.budget.bytes_max // CALLS_SHARE // CALL_BYTES
        self._calls_max: Final = min(CALLS_MAX, by_memory)
        of_events = (self._calls_max, CALLS_PER_CALLER_MAX, calls_per_connection_max(limits))
        of_others = tuple(limit - limit // EVENTS_SHARE for limit in of_events)
        self._available: Final = [of_events if work == EVENTS else of_others for work in range(len(WORK_NAMES))]
        """Limits of calls in flight by kind of work: in total, of a caller, and of a connection."""
        self._listeners: Final = listeners or Listener()
        self._now_s: Final = now_s
        self._next_expiry_ms: Final = next_expiry_ms
        self._on_events_refused: Final = on_events_refused
        self.incomplete_requests = IncompleteRequests()
        self.floods: Final = FloodWatch()
        self._by_connection: Final = Counter[str]()
        """Calls in flight, by gRPC connection."""
        strangers_max = STRANGERS_MAX if shares is None else shares.budget.bytes_max // STRANGERS_SHARE // CALL_BYTES
        self.strangers: Final = Strangers(queue, self.floods, strangers_max)
        self.counts: Final = CallCounts()
        self._event_calls = 0
        self._unary_calls = 0
        self._unary_calls_ended = 0

    def enter(
        self, context: Context, account: Account, work: int, *, is_unary: bool, connection: str = ""
    ) -> CallerQueue:
        """Count a call that has arrived. `connection`: the peer, for gRPC.

        Call `leave` with the same arguments when it has ended. Raises `RpcError` if a limit refuses it.
        """
        try:
            return self._enter(context, account, work, is_unary=is_unary, connection=connection)
        except RpcError as refused:
            self.note_end(account, work, refused.code, is_unary=is_unary)
            raise

    def _enter(self, context: Context, account: Account, work: int, *, is_unary: bool, connection: str) -> CallerQueue:
        # Its caller has given up. Serving it would register an operation whose result has no reader.
        if context.time_remaining() == 0:
            raise self._refused("deadline", _deadline_passed())
        queue, calls_max = self.queue, self._available[work][0]
        if queue.calls >= calls_max:
            message = f"{queue.calls} calls are in flight; allowed: {calls_max}"
            raise self._exhausted("calls", message, queue.next_turn_ms() or self._next_expiry_ms())
        # Without a policy all callers are one account, but each connection takes turns of its own.
        caller = queue.enter(account.principal or context.peer())
        try:
            self._check_share(caller, account, work, self._by_connection[connection] if connection else 0)
        except RpcError:
            queue.leave(caller)
            raise
        self._by_connection[connection] += 1
        self._unary_calls += is_unary
        self._count_event_call(caller, work, 1)
        return caller

    def leave(self, caller: CallerQueue, work: int = REGISTRATIONS, *, is_unary: bool, connection: str = "") -> None:
        self.queue.leave(caller)
        self._count_event_call(caller, work, -1)
        self._by_connection[connection] -= 1
        if not self._by_connection[connection]:
            del self._by_connection[connection]
        self._unary_calls -= is_unary
        self._unary_calls_ended += is_unary

    def note_end(self, account: Account, work: int, code: int, *, is_unary: bool) -> None:
        """Report events that the daemon did not accept for reasons of its own: whoever sent them is not silent."""
        # A stream ends with CANCELLED whenever its caller leaves.
        if work == EVENTS and (code in OWN_REASONS or (is_unary and code == code_pb2.CANCELLED)):
            self._on_events_refused(account)

    async def call_turn(self, context: Context, caller: CallerQueue, work: int) -> None:
        """Acquire the first turn of a call. Raises `RpcError` if its deadline passes while it waits."""
        await self.queue.turn(caller, work, is_call=True)
        if context.time_remaining() == 0:
            raise self._refused("deadline", _deadline_passed())

    async def wait_quiet(self, timeout_s: float) -> None:
        """Wait until no unary call has ended for `QUIET_S`, at most `timeout_s` seconds.

        A stopping gRPC server gives all calls the same grace period: unary calls whose answer is being sent, and
        streams that would never end by themselves (a health watch, an idle stream of events). Only the former need it.
        Calls that have arrived but not started would be cut off instead of being answered with UNAVAILABLE.
        """
        try:
            async with asyncio.timeout(timeout_s):
                ended = -1
                # Both conditions: a call may end, and the next one of the same client begin, between two looks.
                while self._unary_calls or ended != self._unary_calls_ended:
                    ended = self._unary_calls_ended
                    await asyncio.sleep(QUIET_S)
        except TimeoutError:
            return

    # Inside.

    def _count_event_call(self, caller: CallerQueue, work: int, more: int) -> None:
        if work == EVENTS:
            caller.event_calls += more
            self._event_calls += more

    def _has_its_share(self, caller: CallerQueue, account: Account, work: int) -> bool:
        """Return whether a caller, whose next call is counted already, had all of its share before."""
        shares, total, calls_max = self._shares, self._calls_max, self._available[work][0]
        # Each caller has a share, although without a policy all connections are of one account.
        if shares is None or not shares.has_all(account, calls_max, self.queue.calls - 1, caller.calls - 1):
            return False
        # For the same reason as the reserve: its waiting calls may need its own events.
        return work != EVENTS or shares.has_all(account, total // EVENTS_SHARE, self._event_calls, caller.event_calls)

    def _check_share(self, caller: CallerQueue, account: Account, work: int, on_connection: int) -> None:
        _, calls_max, on_connection_max = self._available[work]
        has_its_share = self._has_its_share(caller, account, work)
        # This call is counted already, by `enter`; hence the 1 less in the message.
        if caller.calls > calls_max or has_its_share:
            allowed = "its current share" if has_its_share else calls_max
            message = f"{caller.calls - 1} calls of one caller are in flight; allowed: {allowed}"
            raise self._exhausted("calls_per_caller", message, self._next_end_ms(caller))
        if on_connection >= on_connection_max:
            message = f"{on_connection} calls are in flight on one connection; allowed: {on_connection_max}"
            raise self._exhausted("calls_per_connection", message, self._next_end_ms(caller))
        queued_max = CALLS_QUEUED_PER_CALLER_MAX
        # Calls that wait for their turn hold messages, which nothing counts. Once these fill the memory, those of the
        # caller that has many of them must stop before everyone's registrations are refused.
        if self._shares is not None and self._shares.budget.uncounted_bytes:
            queued_max = min(queued_max, QUEUED_WHEN_FILLING_MAX)
        if caller.waiting >= queued_max:
            message = f"{caller.waiting} calls of this caller wait for their turn; allowed: {queued_max}"
            raise self._exhausted("calls_queued_per_caller", message, self.queue.expected_wait_ms(caller))
        own = account.own_shares.calls_per_second_max
        rate = self._limits.calls_per_second_max if own is None else own
        if rate:
            # Last: a call that another limit refuses must not use up the rate.
            self._check_rate(account, rate)

    def _check_rate(self, account: Account, calls_per_second: int) -> None:
        """The generic cell rate algorithm: each call advances the account's due time, which may be `BURST_S` ahead."""
        now_s, interval_s = self._now_s(), 1.0 / calls_per_second
        due_s = max(account.calls_due_s, now_s) + interval_s
        ahead_s = due_s - now_s - max(BURST_S, interval_s)
        if ahead_s > 0:
            message = f"more than {calls_per_second} calls a second by one principal"
            raise self._exhausted("calls_per_second", message, round(ahead_s * 1_000) + 1)
        account.calls_due_s = due_s

    def _next_end_ms(self, caller: CallerQueue) -> int:
        """Estimate when a call of this caller ends: after its turn, or when an operation expires."""
        return self.queue.next_turn_ms(caller) or self._next_expiry_ms()

    def _exhausted(self, limit: str, message: str, retry_after_ms: int) -> RpcError:
        return self._refused(limit, resource_exhausted(limit, message, retry_after_ms))

    def _refused(self, reason: str, refused: RpcError) -> RpcError:
        # Refused at once. To answer refusals only in spare time, so that they keep the streams of their caller
        # occupied, was tried: those that wait hold memory, and under a flood of `Advance` 412 of 3,947 honest waits
        # were refused.
        self._listeners.call_refused(reason)
        return refused


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """How the calls of one method are admitted."""

    account_of: Callable[[Context], Account]
    """Raises `RpcError` if the caller is not authenticated or must not make this call."""
    work: int
    counts: MethodCounts
    is_unary: bool


class Admission:
    """A call that was admitted. It keeps its place until `leave`.

    As a context manager it counts how its block ends. A call that is repeated has several blocks.
    """

    __slots__ = ("_connection", "_gate", "_rules", "call", "caller", "code", "turn")

    def __init__(self, gate: CallGate, rules: AdmissionRules, context: Context, connection: str = "") -> None:
        """Raises `RpcError` if the caller is unknown, or if a limit refuses the call."""
        try:
            # Before the gate, whose limits are per account. A caller without a credential takes no place.
            account = rules.account_of(context)
            caller = gate.enter(context, account, rules.work, is_unary=rules.is_unary, connection=connection)
        except RpcError as refused:
            rules.counts.add_ended(refused.code)
            raise
        self._gate: Final = gate
        self._rules: Final = rules
        self._connection: Final = connection
        self.caller: Final = caller
        recheck = partial(check_account, rules.account_of, context, account)
        self.call: Final = Call(context, account, partial(gate.queue.turn, caller, rules.work), recheck)
        self.turn: Final = partial(gate.call_turn, context, caller, rules.work)
        """The first turn of the call; see `CallGate.call_turn`."""
        self.code = code_pb2.OK
        """The status of a block that ends without an exception."""

    def __enter__(self) -> Call:
        return self.call

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        code = self.code
        if isinstance(error, RpcError):
            code = error.code
        elif error is not None:
            # gRPC's status for an unexpected exception is UNKNOWN.
            code = code_pb2.CANCELLED if isinstance(error, asyncio.CancelledError) else code_pb2.UNKNOWN
        rules = self._rules
        rules.counts.add_ended(code)
        self._gate.note_end(self.call.account, rules.work, code, is_unary=rules.is_unary)

    def leave(self) -> None:
        """Give the place back. Call once."""
        rules = self._rules
        self._gate.leave(self.caller, rules.work, is_unary=rules.is_unary, connection=self._connection)


def _deadline_passed() -> RpcError:
    return RpcError(code_pb2.DEADLINE_EXCEEDED, "the deadline passed before this call was served")
