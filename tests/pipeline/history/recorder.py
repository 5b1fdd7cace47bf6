"""Plays calls on a real engine in virtual time and writes them to an archive with the daemon's own code."""

import math
import random
from typing import Final

from purgatory import __version__
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, Cancel, PassTime, Register, ShutDown
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive import records, schema
from purgatory.extensions.archive.files import ArchiveWriter, open_archive
from purgatory.extensions.archive.rows import make_rows, records_by_table
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.vocabulary import NO_SESSION, CallStamp, Registrant
from tests.pipeline.history.plan import RunPlan

LIMITS: Final = EngineLimits()
LATENESS_MS: Final = [*range(1, 5), *[0] * 76]
"""A turn of the reaper in twenty is late."""
RECORDS_PER_WRITE: Final = 4_096
ENDED_PER_CALL: Final = 2_000
"""The same as the daemon's reaper."""


class Recorder:
    """One run of an engine. Calls must be made in order of time; `rng` draws how late the reaper is."""

    def __init__(self, run: RunPlan, out: str, registrants: list[Registrant], rng: random.Random) -> None:
        self._run: Final = run
        self._registrants: Final = registrants
        self._random: Final = rng
        self._lateness = 0
        self._engine: Final = Engine(LIMITS, 0)
        self._owners: Final = [self._engine.add_owner() for _ in registrants]
        self._call_number = 0
        self._now_ms = 0
        self._names: Final[records.Names] = {}
        self._records: Final[list[records.Record]] = []
        # Files are moved to their places together at the end of the run: it is there as a whole, or not at all.
        self._writer: Final = ArchiveWriter(*open_archive(out), run.run_id, roll_s=math.inf, roll_bytes=2**40)
        details = RunDetails(version=__version__, expired_per_slice=ENDED_PER_CALL, host="generated", pid=0)
        self._mark(0, marker=schema.STARTED, detail=details.to_json())

    def register(self, registrant: int, kind: int, batch: OperationBatch, now_ms: int) -> None:
        """Registers operations of a registrant, given by index; none may be refused."""
        self._expire(now_ms)
        receipt = self._engine.perform(self._owners[registrant], Register(kind, batch), now_ms)
        assert not receipt.refusals, f"refused: {receipt.refusals[0].field} {receipt.refusals[0].message}"
        stamp, whose = self._stamp(now_ms), self._registrants[registrant]
        default_ms = LIMITS.timeout_ms_default
        self._take(stamp, records.registration_records(self._names, stamp, whose, kind, batch, receipt, default_ms))

    def apply(self, batch: EventBatch, now_ms: int) -> None:
        self._expire(now_ms)
        start = 0
        while start < len(batch.types):
            receipt = self._engine.perform(None, Apply(batch, start), now_ms, 1_000_000_000)
            stamp = self._stamp(now_ms)
            self._take(stamp, records.event_records(self._names, stamp, NO_SESSION, batch, start, receipt))
            start = receipt.next_index

    def cancel(self, registrant: int, operation_id: int, now_ms: int) -> None:
        """Cancels an operation, whether or not it is still pending."""
        self._expire(now_ms)
        ended = self._engine.perform(self._owners[registrant], Cancel([operation_id]), now_ms).ended
        number = self._registrants[registrant].session_number
        self._note(
            now_ms, call=schema.CALL_NAMES[Cancel], session_number=number, operation_ids=[operation_id], ended=ended
        )

    def shut_down(self, now_ms: int) -> None:
        """Ends the operations that are still pending and writes the files of the run."""
        self._expire(now_ms)
        while ended := self._engine.perform(None, ShutDown(ENDED_PER_CALL), now_ms).ended:
            self._note(now_ms, call=schema.CALL_NAMES[ShutDown], ended=ended)
        self._write()
        self._mark(now_ms, marker=schema.ENDED)
        self._writer.roll()

    def _expire(self, until_ms: int) -> None:
        """Advances the clock as the daemon's reaper does, turn by turn."""
        engine = self._engine
        while (next_ms := engine.next_expiration_ms()) >= 0:
            due_ms = max(next_ms + self._lateness, self._now_ms)
            if due_ms > until_ms:
                break
            self._now_ms = due_ms
            if engine.perform(None, PassTime(ENDED_PER_CALL), due_ms).ended:
                self._take(self._stamp(due_ms), [])
            if not 0 <= engine.next_expiration_ms() <= due_ms:
                self._lateness = self._random.choice(LATENESS_MS)
        self._now_ms = until_ms

    def _stamp(self, now_ms: int) -> CallStamp:
        self._call_number += 1
        return CallStamp(self._run.run_id, self._call_number, now_ms, self._run.start_ms + now_ms)

    def _note(self, now_ms: int, **values: object) -> None:
        self._take(stamp := self._stamp(now_ms), [records.row_record(schema.CALLS, stamp, **values)])

    def _take(self, stamp: CallStamp, added: list[records.Record]) -> None:
        """Keeps the records of a call and those of the operations it ended."""
        self._records.extend(added)
        for completions in self._engine.take_completions():
            whose = self._registrants[completions.owner_id]
            self._records.extend(records.completion_records(self._names, stamp, whose, completions))
        if len(self._records) >= RECORDS_PER_WRITE:
            self._write()

    def _write(self) -> None:
        for table, some in records_by_table(self._records).items():
            self._writer.write(table, make_rows(table, some, list(self._names)))
        self._records.clear()
        self._names.clear()

    def _mark(self, now_ms: int, **values: object) -> None:
        stamp = CallStamp(self._run.run_id, self._call_number, now_ms, self._run.start_ms + now_ms)
        self._writer.write(
            schema.MARKERS, make_rows(schema.MARKERS, [records.row_record(schema.MARKERS, stamp, **values)])
        )
