"""Plays calls on a real engine in virtual time, and writes them to an archive with the daemon's own listener."""

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from purgatory import __version__
from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName, Receipt
from purgatory.engine.calls import Apply, Call, Cancel, PassTime, Register, ShutDown
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.archive_listener import ArchiveListener, ArchiveSettings
from purgatory.extensions.archive.files import ArchiveWriter, open_archive
from purgatory.extensions.archive.records import Record, row_record
from purgatory.extensions.archive.rows import make_rows, records_by_table
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.vocabulary import CallStamp, Registrant
from purgatory.extensions.archive.writer_link import WriterLink
from purgatory.service.listeners.listener import Called, Completed
from tests.pipeline.history.plan import RunPlan

LIMITS: Final = EngineLimits()
LATENESS_MS: Final = [*range(1, 5), *[0] * 76]
"""A turn of the reaper in twenty is late."""
ENDED_PER_CALL: Final = 2_000
"""The same as the daemon's reaper."""


class FileLink:
    """In place of the link to a writer process: writes what it is sent to the files of a run."""

    rows_waiting = 0
    is_up = True

    def __init__(self, run_id: str, out: str) -> None:
        self.run_id: Final = run_id
        # Files are moved to their places together at the end of the run: it is there as a whole, or not at all.
        self.writer: Final = ArchiveWriter(*open_archive(out), run_id, roll_s=math.inf, roll_bytes=2**40)

    def send(self, names: Sequence[PartitionName], records: Sequence[Record]) -> None:
        for table, some in records_by_table(records).items():
            self.writer.write(table, make_rows(table, some, names))


class PatientListener(ArchiveListener):
    """Sends rows when there are many, since no loop runs."""

    def _send_soon(self) -> None:
        pass


class Recorder:
    """One run of an engine. Calls must be made in order of time; `rng` draws how late the reaper is."""

    def __init__(self, run: RunPlan, out: str, registrants: list[Registrant], rng: random.Random) -> None:
        self._random: Final = rng
        self._lateness = 0
        self._engine: Final = Engine(LIMITS, 0)
        self._owners: Final = [self._engine.add_owner() for _ in registrants]
        self._sessions: Final[list[Any]] = [
            SimpleNamespace(number=number, session_id=name, account=SimpleNamespace(principal=principal))
            for number, name, principal in registrants
        ]
        self._now_ms = 0
        self._link: Final = FileLink(run.run_id, out)
        link = cast("WriterLink", self._link)
        self._listener: Final = PatientListener(
            link, ArchiveSettings(), LIMITS.timeout_ms_default, lambda: run.start_ms + self._now_ms
        )
        details = RunDetails(version=__version__, expired_per_slice=ENDED_PER_CALL, host="generated", pid=0)
        stamp = CallStamp(run.run_id, 0, 0, run.start_ms)
        self._link.send((), [row_record(schema.MARKERS, stamp, marker=schema.STARTED, detail=details.to_json())])

    def register(self, registrant: int, kind: int, batch: OperationBatch, now_ms: int) -> None:
        """Registers operations of a registrant, given by index; none may be refused."""
        self._expire(now_ms)
        receipt = self._perform(Register(kind, batch), registrant)
        assert not receipt.refusals, f"refused: {receipt.refusals[0].field} {receipt.refusals[0].message}"

    def apply(self, batch: EventBatch, now_ms: int) -> None:
        self._expire(now_ms)
        start = 0
        while start < len(batch.types):
            start = self._perform(Apply(batch, start)).next_index

    def cancel(self, registrant: int, operation_id: int, now_ms: int) -> None:
        """Cancels an operation, whether or not it is still pending."""
        self._expire(now_ms)
        self._perform(Cancel([operation_id]), registrant)

    def shut_down(self, now_ms: int) -> None:
        """Ends the operations that are still pending and writes the files of the run."""
        self._expire(now_ms)
        while self._perform(ShutDown(ENDED_PER_CALL)).ended:
            pass
        self._listener.mark(schema.ENDED, now_ms)
        self._link.writer.roll()

    def _expire(self, until_ms: int) -> None:
        """Advances the clock as the daemon's reaper does, turn by turn."""
        while (next_ms := self._engine.next_expiration_ms()) >= 0:
            due_ms = max(next_ms + self._lateness, self._now_ms)
            if due_ms > until_ms:
                break
            self._now_ms = due_ms
            self._perform(PassTime(ENDED_PER_CALL))
            if not 0 <= self._engine.next_expiration_ms() <= due_ms:
                self._lateness = self._random.choice(LATENESS_MS)
        self._now_ms = until_ms

    def _perform(self, call: Call, registrant: int | None = None) -> Receipt:
        owner = None if registrant is None else self._owners[registrant]
        session = None if registrant is None else self._sessions[registrant]
        receipt = self._engine.perform(owner, call, self._now_ms, 1_000_000_000)
        self._listener.called(Called(session, "", call, receipt, self._now_ms))
        for completions in self._engine.take_completions():
            self._listener.completed(Completed(self._sessions[completions.owner_id], "", completions))
        self._listener.call_finished()
        return receipt
