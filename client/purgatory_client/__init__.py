"""Client of Purgatory, waits as a service: `AsyncClient` for asyncio, `Client` for programs without an event loop."""

from purgatory_client import errors, events, waits
from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.blocking import Client
from purgatory_client.default_timeouts import DefaultTimeouts
from purgatory_client.events import AdvanceReceipt, Event
from purgatory_client.outbox.ticket import Ticket
from purgatory_client.results import OperationKind, Outcome, PartitionResult, Result, ResultColumns
from purgatory_client.session.detached_sessions import ClosedSession, Collected, Registered
from purgatory_client.terms import all_of, any_of, at_least, mark, signal

__all__ = [
    "DEFAULT_ADDRESS", "AdvanceReceipt", "AsyncClient", "Client", "ClosedSession", "Collected", "DefaultTimeouts",
    "Event", "OperationKind", "Outcome", "PartitionResult", "Registered", "Result", "ResultColumns", "Ticket",
    "all_of", "any_of", "at_least", "errors", "events", "mark", "signal", "waits",
]  # fmt: skip
