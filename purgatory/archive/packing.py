"""Engine calls on their way to the archive, packed: many calls in one chunk of plain data. Needs no Arrow.

To pack one costs the event loop a nanosecond or two for each value; what rows and files cost is paid elsewhere.
What is a column of numbers is a piece of the block (`purgatory.engine.snapshot.packed_columns`); names, sessions and
what is no number stand beside it, once for all pieces that point at them.
"""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any, Final, NamedTuple

from purgatory.archive import words
from purgatory.archive.calls import CallStamp, Registrant, Row
from purgatory.archive.sifting import Sifted
from purgatory.archive.words import ACCEPTED
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.codes import EVENT_NAMES
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.packed_columns import NO_EXTRA, ColumnWriter, packed_paces

__all__ = ["FETCH_COLUMNS", "SETS", "Chunk", "Packer"]

FETCH_COLUMNS: Final = (
    "available_bytes", "high_watermark", "last_stable_offset", "diverging_epoch", "diverging_end_offset",
)  # fmt: skip
"""Fields of `FetchedPartition`."""
SETS: Final = ("replicas", "in_sync", "proposed", "leader_id", "min_in_sync_replicas")
"""Fields of `ReplicaSets`."""

NUMBER_OF: Final = {table: number for number, table in enumerate(words.TABLES)}


class Chunk(NamedTuple):
    """Some calls of one run, one after the other."""

    run_id: str
    numbers: Any
    """A buffer of 64-bit numbers: the pieces. Pickled apart, so that it is not copied."""
    names: list[PartitionName]
    registrants: list[Registrant]
    extras: list[Any]
    """Of outcomes: packed paces, and what each row of a fetch would read, as tuples; of events: the replica sets of
    each row, as tuples or None; of calls and markers: the row."""


class Packer:
    """Packs what calls add to tables: `begin_call`, add what there is, `take` it now and then, and then `clear`."""

    def __init__(self) -> None:
        self.rows: Final = dict.fromkeys(words.TABLES, 0)
        """Packed and not cleared, by table."""
        self._writer: Final = ColumnWriter()
        self._run_id = ""
        self._registrants: Final[dict[Registrant, int]] = {}
        self._extras: Final[list[Any]] = []

    @property
    def numbers(self) -> int:
        """How many 64-bit numbers have been written."""
        return self._writer.length

    def begin_call(self, stamp: CallStamp) -> None:
        """What is added from now on belongs to this call."""
        run_id, call_number, time_ms, at_ms = stamp
        if run_id != self._run_id:
            assert not self.numbers, f"calls of {run_id} and {self._run_id} in one chunk"
            self._run_id = run_id
        self._writer.begin_call(call_number, time_ms, at_ms)

    def add_batch(
        self,
        registrant: Registrant,
        kind: int,
        batch: OperationBatch,
        receipt: RegisterReceipt,
        timeout_ms_default: int,
    ) -> int:
        """What was registered and what was refused, a row for each item; nothing of what was known already.

        Returns the rows, as the others do. What raises OverflowError (or ValueError) for a number of more than 64 bits
        has added nothing.
        """
        whose, writer = self._place_of(registrant), self._writer
        if not receipt.refusals and not receipt.already_known:
            rows = writer.add_operations(whose, kind, batch, [], timeout_ms_default, bare=False)
        else:
            rows, before = 0, writer.length
            try:
                for part, codes, bare in Sifted(kind, batch, receipt).parts():
                    rows += writer.add_operations(whose, kind, part, codes, timeout_ms_default, bare=bare)
            except BaseException:
                writer.length = before
                raise
        self.rows[words.REGISTRATIONS] += rows
        return rows

    def add_completions(self, registrant: Registrant, completions: Completions) -> int:
        """What a call ended of one registrant's, a row for each item."""
        paces, fetched = packed_paces(completions), completions.fetched
        extra = NO_EXTRA
        if paces or fetched:
            extra = self._keep((paces, [tuple(getattr(part, name) for name in FETCH_COLUMNS) for part in fetched]))
        rows = self._writer.add_completions(self._place_of(registrant), completions, extra)
        self.rows[words.OUTCOMES] += rows
        return rows

    def add_slice(self, batch: EventBatch, start: int, receipt: EventsReceipt) -> int:
        """The events from `start` to `receipt.next_index`, a row each, and what they did."""
        stop = receipt.next_index
        types, codes = batch.types[start:stop], [ACCEPTED]
        if receipt.refusals:
            code_of = {refusal.index: refusal.code for refusal in receipt.refusals}
            codes = [code_of.get(row, ACCEPTED) for row in range(start, stop)]
            types = [event_type if event_type in EVENT_NAMES else 0 for event_type in types]
        extra = NO_EXTRA
        if batch.replica_sets:
            sets = batch.replica_sets[start:stop]
            extra = self._keep([given and tuple(getattr(given, name) for name in SETS) for given in sets])
        rows = self._writer.add_events(types, codes, batch, start, receipt, extra)
        self.rows[words.EVENTS] += rows
        return rows

    def add_row(self, table: str, row: Row) -> int:
        """A row of calls or markers."""
        self._writer.add_row(NUMBER_OF[table], self._keep(row))
        self.rows[table] += 1
        return 1

    def cut(self, numbers: int, rows: dict[str, int]) -> None:
        """Forgets what was added after `numbers` and `rows` said this."""
        self._writer.length = numbers
        self.rows.update(rows)

    def take(self) -> Chunk:
        """All that was added. Its numbers are valid until something is added again."""
        writer = self._writer
        numbers = PickleBuffer(writer.written())
        return Chunk(self._run_id, numbers, list(writer.names), list(self._registrants), list(self._extras))

    def clear(self) -> None:
        """Begins anew."""
        self._writer.clear()
        self._registrants.clear()
        self._extras.clear()
        for table in self.rows:
            self.rows[table] = 0

    def _place_of(self, registrant: Registrant) -> int:
        return self._registrants.setdefault(registrant, len(self._registrants))

    def _keep(self, extra: Any) -> int:  # noqa: ANN401 - plain data
        self._extras.append(extra)
        return len(self._extras) - 1
