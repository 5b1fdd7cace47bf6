"""Spans of waits, as children of the caller's span. A span covers the time from registration to outcome.

Untraced waits cost one read of a context variable for each batch of registrations, and one check of a counter for each
batch of results. OpenTelemetry sends the spans from its own thread.
"""

import asyncio
import logging
import os
import time
from collections import defaultdict
from typing import Final, NamedTuple

import requests
from opentelemetry.context import Context as TraceContext
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from purgatory.engine.calls import Register
from purgatory.engine.codes import FAILED, KIND_NAMES, NONE, OUTCOME_NAMES, REQUEST_TIMED_OUT
from purgatory.engine.completions import Completions
from purgatory.extensions.tracing.call_trace import CALL_TRACE, TRACEPARENT, TRACESTATE
from purgatory.service.listeners.listener import Called, Completed, Listener
from purgatory.service.sessions.session import Session
from purgatory.threads import on_daemon_thread

LOGGER: Final = logging.getLogger(__name__)

PENDING_MAX: Final = 100_000
"""Maximum of traced pending waits; waits beyond it get no span."""
WAIT_BYTES: Final = 400
CLOSE_S: Final = 2.0

Whose = Session | str
"""A session, or the principal of unary waits."""


class TracedWait(NamedTuple):
    """A pending wait: the span of its caller, and its start (Unix time in nanoseconds)."""

    parent: TraceContext
    started_ns: int


class WaitSpans(Listener):
    """Listener that creates the spans. Their destination is set by OpenTelemetry's environment variables (OTEL_...)."""

    def __init__(self, version: str) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "purgatory")
        self._provider: Final = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name, SERVICE_VERSION: version}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(session=_session())))
        self._tracer: Final = self._provider.get_tracer("purgatory", version)
        self._propagator: Final = TraceContextTextMapPropagator()
        self._waits: Final[defaultdict[Whose, dict[int, TracedWait]]] = defaultdict(dict)
        self._count = 0

    def held_bytes(self) -> int:
        return self._count * WAIT_BYTES

    async def close(self) -> None:
        """Send the remaining spans within `CLOSE_S`; by default the library would wait for 30 s."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await on_daemon_thread(self._provider.shutdown)
        except TimeoutError:
            LOGGER.warning("the last spans were not delivered: the receiver did not answer within %g s", CLOSE_S)

    def called(self, event: Called) -> None:
        """Remember the traced waits. A batch that was sent again already has spans from the first time."""
        call, trace = event.call, CALL_TRACE.get()
        if trace is None or not isinstance(call, Register) or event.receipt.already_known or self._count >= PENDING_MAX:
            return
        parent = self._propagator.extract({TRACEPARENT: trace[0], TRACESTATE: trace[1]})
        wait = TracedWait(parent, time.time_ns())
        refused = {refusal.index for refusal in event.receipt.refusals}
        waits = self._waits[event.session or event.principal]
        before = len(waits)
        for place, operation_id in enumerate(call.batch.operation_ids[: PENDING_MAX - self._count]):
            if place not in refused:
                waits[operation_id] = wait
        self._count += len(waits) - before

    def completed(self, event: Completed) -> None:
        if not self._count:
            return
        session, completions = event.session, event.completions
        whose: Whose = session or event.principal
        waits = self._waits.get(whose)
        if not waits:
            return
        item = 0
        for place, operation_id in enumerate(completions.operation_ids):
            wait = waits.pop(operation_id, None)
            if wait is not None:
                self._count -= 1
                self._end(wait, session, completions, place, item)
            item += completions.item_counts[place]
        if not waits:
            del self._waits[whose]

    def discarded(self, event: Completed) -> None:
        """Drop the spans: the results are not delivered."""
        assert event.session is not None, "results of unary waits are never discarded"
        self._forget(event.session)

    def session_dropped(self, session: Session) -> None:
        self._forget(session)

    def _forget(self, session: Session) -> None:
        self._count -= len(self._waits.pop(session, ()))

    def _end(self, wait: TracedWait, session: Session | None, completions: Completions, place: int, item: int) -> None:
        kind, outcome = completions.kinds[place], completions.outcomes[place]
        attributes: dict[str, str | int] = {
            "purgatory.kind": KIND_NAMES[kind],
            "purgatory.outcome": OUTCOME_NAMES[outcome],
            "purgatory.waited_ms": completions.waited_ms[place],
            "purgatory.items": completions.item_counts[place],
        }
        if completions.item_counts[place]:
            name, partition = completions.item_partitions[item]
            attributes["purgatory.first"] = name if partition < 0 else f"{name}-{partition}"
        if session is not None:
            attributes["purgatory.session"] = session.session_id
            attributes["purgatory.operation_id"] = completions.operation_ids[place]
        span = self._tracer.start_span(
            f"wait {KIND_NAMES[kind]}",
            wait.parent,
            SpanKind.SERVER if session is None else SpanKind.CONSUMER,
            attributes,
            start_time=wait.started_ns,
        )
        if outcome == FAILED:
            found = completions.error_codes[item : item + completions.item_counts[place]]
            code = next((one for one in found if one not in (NONE, REQUEST_TIMED_OUT)), NONE)
            span.set_status(Status(StatusCode.ERROR, f"error code {code}"))
        span.end(wait.started_ns + completions.waited_ms[place] * 1_000_000)


def _session() -> requests.Session | None:
    """An HTTP session that does not read response bodies, which may be endless; None: a plugin supplies the session."""
    if any(name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ):
        return None
    session = requests.Session()
    session.stream = True
    return session
