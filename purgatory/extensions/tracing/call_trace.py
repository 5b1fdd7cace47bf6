"""The trace that a call belongs to, read from its metadata (W3C trace context). Needs no OpenTelemetry."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from purgatory.service.access.account import Account
from purgatory.service.rpc.call import Context, Identify

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
LENGTH_MAX: Final = 1_000
"""Maximum length of either header; a longer one is ignored."""

Trace = tuple[str, str]
"""`traceparent` and `tracestate` as received."""

CALL_TRACE: Final[ContextVar[Trace | None]] = ContextVar("CALL_TRACE", default=None)
"""Trace of the call being served. None: the caller is not traced, or does not record this trace."""


def traced(identify: Identify) -> Identify:
    """Wrap `identify` so that `CALL_TRACE` is set while the call is served."""

    def for_method(method: str) -> Callable[[Context], Account]:
        account_of = identify(method)

        def account_of_traced(context: Context) -> Account:
            CALL_TRACE.set(trace_of(context))
            return account_of(context)

        return account_of_traced

    return for_method


def trace_of(context: Context) -> Trace | None:
    """The trace of a call; None if the caller does not record it."""
    found = {
        key: value
        for key, value in context.invocation_metadata() or ()
        if key in (TRACEPARENT, TRACESTATE) and isinstance(value, str) and len(value) <= LENGTH_MAX
    }
    parent = found.get(TRACEPARENT, "")
    # In version 00, the last field contains the flags. The lowest bit means that the caller records the trace.
    flags = parent.rpartition("-")[2]
    if len(flags) != 2 or flags[1] not in "13579bdf":
        return None
    return parent, found.get(TRACESTATE, "")
