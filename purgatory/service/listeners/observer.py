"""Who watches the host: the protocol that the metrics implement. Calls are batch-wise, never one for each operation.

An observer must not raise, block, or change anything. The host knows nothing of Prometheus; the metrics know nothing of
sessions and streams.
"""

from __future__ import annotations

from typing import Protocol

from purgatory.engine.batches import EventBatch, EventsReceipt
from purgatory.engine.completions import Completions


class Observer(Protocol):
    """What the host tells of its work. `code` is a google.rpc.Code; durations are milliseconds."""

    def registered(self, kind: int, accepted: int, already_known: int, refused: int) -> None:
        """A batch of one kind went through the engine."""

    def refused(self, code: int, count: int) -> None:
        """Registrations or events were refused with this code, by the engine or before it."""

    def completed(self, completions: Completions) -> None:
        """Operations of one owner have ended. Those of a session that was dropped are not reported here."""

    def events(self, batch: EventBatch, receipt: EventsReceipt, start: int) -> None:
        """A slice of a batch of events was applied: those from `start` to `receipt.next_index`."""

    def loop_lag_ms(self, ms: float) -> None:
        """How late the event loop woke the reaper this time."""

    def reaper_failed(self) -> None:
        """A turn of the reaper raised; it was logged and the reaper goes on."""

    def session_opened(self) -> None:
        """A session was made."""

    def session_closed(self) -> None:
        """A session was dropped: its time to live is over, or the daemon ends."""

    def stream_connected(self) -> None:
        """A result stream was attached to a session."""

    def stream_disconnected(self) -> None:
        """A result stream ended."""


class SilentObserver:
    """An `Observer` for embedding and tests: hears everything, says nothing."""

    def registered(self, kind: int, accepted: int, already_known: int, refused: int) -> None:
        """Nothing to do."""

    def refused(self, code: int, count: int) -> None:
        """Nothing to do."""

    def completed(self, completions: Completions) -> None:
        """Nothing to do."""

    def events(self, batch: EventBatch, receipt: EventsReceipt, start: int) -> None:
        """Nothing to do."""

    def loop_lag_ms(self, ms: float) -> None:
        """Nothing to do."""

    def reaper_failed(self) -> None:
        """Nothing to do."""

    def session_opened(self) -> None:
        """Nothing to do."""

    def session_closed(self) -> None:
        """Nothing to do."""

    def stream_connected(self) -> None:
        """Nothing to do."""

    def stream_disconnected(self) -> None:
        """Nothing to do."""
