"""The trace that a call belongs to, as its caller says in metadata (W3C trace context). Needs no OpenTelemetry."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from purgatory.service.access.account import Account
from purgatory.service.rpc.call import Context, Identify

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
LENGTH_MAX: Final = 1_000
"""Of either; what is longer is no trace context."""

Trace = tuple[str, str]
"""`traceparent` and `tracestate` as they came."""

CALL_TRACE: Final[ContextVar[Trace | None]] = ContextVar("CALL_TRACE", default=None)
"""Of the call that is being served. None: its caller is not traced, or chose not to record this trace."""


def traced(identify: Identify) -> Identify:
    """The same, and `CALL_TRACE` is set for what the call does."""

    def for_method(method: str) -> Callable[[Context], Account]:
        account_of = identify(method)

        def account_of_traced(context: Context) -> Account:
            CALL_TRACE.set(trace_of(context))
            return account_of(context)

        return account_of_traced

    return for_method


def trace_of(context: Context) -> Trace | None:
    """The recorded trace of a call."""
    found = {
        key: value
        for key, value in context.invocation_metadata() or ()
        if key in (TRACEPARENT, TRACESTATE) and isinstance(value, str) and len(value) <= LENGTH_MAX
    }
    parent = found.get(TRACEPARENT, "")
    # The last field of version 00 holds the flags; the lowest bit says that the caller records the trace.
    flags = parent.rpartition("-")[2]
    if len(flags) != 2 or flags[1] not in "13579bdf":
        return None
    return parent, found.get(TRACESTATE, "")
