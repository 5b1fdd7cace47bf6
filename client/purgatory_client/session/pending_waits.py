"""The waits that have an operation id and no result yet, and the chunks in which they are sent.

They are stored in one dictionary in the order of ids, so those above the daemon's highest id are at its end. A
`WaitBatch` is one entry regardless of its size; an operation inside a batch is found by bisection over the first ids of
all batches.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final

from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.errors import OutboxError, OutboxReason, PurgatoryClientError, Unavailable
from purgatory_client.results import Outcome, Result, ResultColumns
from purgatory_client.waits import Wait
from purgatory_client.wire import sizes
from purgatory_client.wire.decode_results import ResultsArrived

Answer = Result | ResultColumns | PurgatoryClientError
Ended = tuple[Entry, Answer]
"""A wait and how it ended."""

OPERATION_ID_MAX = 2**61 - 1
"""The highest id that a daemon accepts. Counting up never reaches it."""


@dataclass(slots=True, eq=False)
class WaitChunk:
    """The content of one batch message: single waits of one kind, or some operations of one `WaitBatch`."""

    waits: list[Wait]
    batch: WaitBatch | None = None
    positions: Sequence[int] = ()
    size_bytes: int = 0
    """Size of its message in bytes. Set when it is encoded."""

    def halves(self) -> "tuple[WaitChunk, WaitChunk] | None":
        """Split the chunk in two. None: it contains a single operation."""
        middle = len(self.waits or self.positions) // 2
        if not middle:
            return None
        first = WaitChunk(self.waits[:middle], self.batch, self.positions[:middle])
        return first, WaitChunk(self.waits[middle:], self.batch, self.positions[middle:])

    @property
    def last_id(self) -> int:
        return self.waits[-1].operation_id if self.batch is None else self.batch.operation_id + self.positions[-1]

    def operation_ids(self) -> Iterable[int]:
        if self.batch is None:
            return (wait.operation_id for wait in self.waits)
        return self.batch.ids_of(self.positions)


def pending_ids(entry: Entry) -> Sequence[int]:
    """Ids of the operations of a wait or batch that have not ended."""
    return entry.ids_of(entry.pending_positions()) if isinstance(entry, WaitBatch) else [entry.operation_id]


class PendingWaits:
    """Waits by operation id. Ids increase; each is assigned once, and stays with its wait across reconnects."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._batch_ids: list[int] = []
        self._next_id = 1
        self.count = 0

    def start_after(self, operation_id: int) -> None:
        """Assign only ids above this one, because the daemon already knows it."""
        self._next_id = max(self._next_id, operation_id + 1)

    @property
    def is_used_up(self) -> bool:
        """Whether the daemon would refuse all remaining ids."""
        return self._next_id > OPERATION_ID_MAX

    def add(self, entry: Entry) -> None:
        """Assign ids to the wait, or to the operations of the batch, and add it."""
        entry.operation_id = self._next_id
        self._next_id += entry.count
        self._entries[entry.operation_id] = entry
        if isinstance(entry, WaitBatch):
            self._batch_ids.append(entry.operation_id)  # stays sorted, because ids only increase
        self.count += entry.remaining

    def __contains__(self, entry: Entry) -> bool:
        return self._entries.get(entry.operation_id) is entry

    def take(self, entry: Entry) -> bool:
        """Remove a wait, or a batch with all its pending operations. False: it is not (or no longer) here."""
        if entry not in self:
            return False
        self.count -= entry.remaining
        self._forget(entry)
        return True

    def end(self, arrived: ResultsArrived, skip: int, ended: list[Ended]) -> None:
        """End waits with results from position `skip` on. Results without a pending wait are ignored.

        Runs of consecutive ids are looked up once per run, not once per operation: the results of a batch consist of a
        few runs.
        """
        columns, starts, operation_ids = arrived.columns, arrived.starts, arrived.operation_ids
        entries = self._entries
        for start, end in arrived.runs(skip):
            place = start
            if columns.outcomes[place] == Outcome.REFUSED:
                error = columns.refusals.get(place) or Unavailable("refused; the receipt with the reason was lost")
                self.refuse([operation_ids[place]], error, ended)
                continue
            while place < end:
                entry = entries.get(operation_ids[place])
                if isinstance(entry, Wait):
                    del entries[entry.operation_id]
                    self.count -= 1
                    result = Result(columns, place, starts[place], entry.unless_count, entry.waited_before_ms)
                    ended.append((entry, result))
                    place += 1
                else:
                    place += self._end_of_batch(arrived, place, end, ended)

    def _end_of_batch(self, arrived: ResultsArrived, place: int, end: int, ended: list[Ended]) -> int:
        """Assign the batch that contains the operation at `place` its part of the run. Returns the number of results
        used.
        """
        operation_id = arrived.operation_ids[place]
        batch = self._find_batch(operation_id)
        if batch is None:
            return 1  # cancelled, or ended before: the next result of the run may belong to another entry
        count = min(end - place, batch.operation_id + batch.count - operation_id)
        self._some_ended(
            batch, batch.set_results(operation_id - batch.operation_id, arrived, place, place + count), ended
        )
        return count

    def check_names(self, arrived: ResultsArrived) -> None:
        """Raise OutboxError (COPIED) if a result has other partitions or keys than the wait with its id."""
        columns, starts = arrived.columns, arrived.starts
        for place, operation_id in enumerate(arrived.operation_ids):
            entry = self._entries.get(operation_id) or self._find_batch(operation_id)
            if entry is None or columns.outcomes[place] == Outcome.REFUSED:
                continue  # a refused operation has no items
            names = [columns.names[index] for index in columns.item_indexes[starts[place] : starts[place + 1]]]
            own = entry.names if isinstance(entry, Wait) else entry.names_of(operation_id - entry.operation_id)
            if names != own:
                raise OutboxError(
                    OutboxReason.COPIED,
                    f"the result of operation {operation_id} has other partitions or keys than the wait: another "
                    "program uses a copy of this outbox. Give each program an outbox of its own",
                )

    def refuse(self, operation_ids: Iterable[int], error: PurgatoryClientError, ended: list[Ended]) -> None:
        """End operations that the daemon refused; those that have already ended are ignored."""
        for operation_id in operation_ids:
            entry = self._entries.get(operation_id)
            if isinstance(entry, Wait):
                self.take(entry)
                ended.append((entry, error))
            elif (batch := self._find_batch(operation_id)) is not None:
                self._some_ended(batch, batch.set_refused(operation_id - batch.operation_id, error), ended)

    def extend(self, operation_ids: Iterable[int], timeout_ms: int, default_ms: int, now: float) -> None:
        """Record that the daemon lets operations wait for at least `timeout_ms` from `now` (monotonic seconds)."""
        for operation_id in operation_ids:
            entry = self._entries.get(operation_id) or self._find_batch(operation_id)
            if entry is None:
                continue
            since_submitted_ms = round((now - entry.submitted_at) * 1_000) + timeout_ms
            if isinstance(entry, Wait):
                before_ms = default_ms if entry.timeout_ms is None else entry.timeout_ms
                entry.timeout_ms = max(before_ms, since_submitted_ms)
            else:
                entry.extend(operation_id - entry.operation_id, since_submitted_ms, default_ms)

    def chunks_above(self, operation_id: int, chunk_max: int) -> list[WaitChunk]:
        """All pending waits with a higher id, as chunks in the order of ids."""
        above: list[Entry] = []
        # Entries are in the order of ids, so the search ends at the first known one instead of visiting a million.
        for entry in reversed(self._entries.values()):
            if entry.operation_id + entry.count - 1 <= operation_id:
                break
            above.append(entry)
        above.reverse()
        return cut_into_chunks(above, chunk_max, operation_id)

    def still_pending(self, chunk: WaitChunk) -> WaitChunk | None:
        """The chunk without the operations that have ended since it was planned; None: all of them have."""
        if chunk.batch is None:
            waits = [wait for wait in chunk.waits if wait in self]
            return WaitChunk(waits) if waits else None
        if chunk.batch not in self:
            return None
        if chunk.batch.remaining == chunk.batch.count:
            return chunk
        outcomes = chunk.batch.outcomes
        positions = [position for position in chunk.positions if outcomes[position] == Outcome.PENDING]
        return WaitChunk([], chunk.batch, positions) if positions else None

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def clear(self) -> None:
        self._entries.clear()
        self._batch_ids.clear()
        self.count = 0

    def _find_batch(self, operation_id: int) -> WaitBatch | None:
        """The batch that contains this operation. None: there is no such batch, or all of it has ended."""
        place = bisect_right(self._batch_ids, operation_id) - 1
        if place < 0:
            return None
        # Both are removed in `_forget`, so each id here has its entry.
        batch = self._entries[self._batch_ids[place]]
        assert isinstance(batch, WaitBatch), f"operation {batch.operation_id} is not a batch"
        return batch if operation_id < batch.operation_id + batch.count else None

    def _some_ended(self, batch: WaitBatch, count: int, ended: list[Ended]) -> None:
        """Record that `count` operations of a batch have ended. The batch ends with its last operation."""
        self.count -= count
        if count and not batch.remaining:
            # Before its answer is used: a batch that has ended must not be found again by a repeated result.
            self._forget(batch)
            ended.append((batch, batch.answer()))

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.operation_id]
        if isinstance(entry, WaitBatch):
            del self._batch_ids[bisect_right(self._batch_ids, entry.operation_id) - 1]


def batch_key(entry: Entry) -> object:
    """Waits with the same key can share a batch message; a `WaitBatch` never shares its messages."""
    if isinstance(entry, Wait):
        return entry.kind, entry.timeout_ms is None, entry.stale_timeout_ms is None
    return entry


def cut_into_chunks(entries: Iterable[Entry], chunk_max: int, known_id: int = 0) -> list[WaitChunk]:
    """Cut entries, in their order, into chunks that fit the daemon's limit and a message. Of each batch, only
    operations above `known_id` are included.
    """
    chunks: list[WaitChunk] = []
    for key, run in groupby(entries, key=batch_key):
        if isinstance(key, WaitBatch):
            chunks.extend(batch_chunks(key, chunk_max, max(0, known_id + 1 - key.operation_id)))
        else:
            waits = (entry for entry in run if isinstance(entry, Wait))
            while taken := take_waits(waits, chunk_max):
                chunks.append(WaitChunk(taken))
    return chunks


def take_waits(waits: Iterator[Wait], chunk_max: int) -> list[Wait]:
    taken: list[Wait] = []
    weight = 0
    for wait in islice(waits, chunk_max):
        taken.append(wait)
        weight += wait.weight
        # The wait that passes the limit stays in this chunk, because the iterator has given it away.
        if weight > sizes.BYTES_PER_CHUNK_MAX:
            break
    return taken


def batch_chunks(batch: WaitBatch, chunk_max: int, start: int) -> Iterator[WaitChunk]:
    """Cut the pending operations of a batch, from position `start` on, into chunks."""
    positions = batch.pending_positions(start)
    items_each = max(1, -(-batch.item_total // batch.count))
    step = max(1, min(chunk_max, sizes.ITEMS_PER_CHUNK_MAX // items_each))
    for first in range(0, len(positions), step):
        yield WaitChunk([], batch, positions[first : first + step])


def settle(wait: Entry, answer: Answer) -> None:
    """Set the result of a wait's future, unless its caller was cancelled. A second answer would be a bug, and
    raises.
    """
    future = wait.future
    if future is None or future.cancelled():
        return
    if isinstance(answer, PurgatoryClientError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


TURN: Final = 1.0
"""Seconds between two parts of a round."""
TURNS_PER_ROUND: Final = 10
VISITS_MIN: Final = 1_000
"""Minimum number of waits visited in a part."""
GRACE: Final = 10.0
"""Minimum number of seconds by which an answer may be late."""
GRACE_SHARE: Final = 0.1
"""Allowed lateness as a share of the timeout, if that is longer than `GRACE`."""


class OverdueWaits:
    """Finds waits that a connected daemon should have answered long ago. `waiting` returns all waits that have not
    ended.

    There is no timer per wait: pending waits are visited in rounds, a part of the round each second.
    """

    def __init__(self, waiting: Callable[[], Sequence[Entry]]) -> None:
        self._waiting: Final = waiting
        self._round: Sequence[Entry] = ()
        self._visited = 0
        self._suspects: set[Entry] = set()
        """Waits found overdue in this round. They are reported in the next one, as a received result may not have
        been read yet.
        """
        self._suspects_before: set[Entry] = set()

    def visit(self, due_at: Callable[[Entry], float], heard_at: float) -> list[Entry]:
        """Visit the next part of a round and return its overdue waits.

        A wait is overdue if it was due (according to `due_at`) before the daemon's last message (at `heard_at`) both
        now and in the previous round. A silent daemon is detected elsewhere, by the watchdog of the connection.
        """
        if self._visited >= len(self._round):
            self._round, self._visited = self._waiting(), 0
            # Two full rounds are compared, so a wait has at least the time of one round to have its result read.
            self._suspects_before, self._suspects = self._suspects, set()
        start = self._visited
        # Rounded up: otherwise the rest of a division would make an eleventh part.
        self._visited += max(VISITS_MIN, -(-len(self._round) // TURNS_PER_ROUND))
        overdue: list[Entry] = []
        for entry in self._round[start : self._visited]:
            if due_at(entry) < heard_at:
                self._suspects.add(entry)
                if entry in self._suspects_before:
                    overdue.append(entry)
        return overdue


def due_after(entry: Entry, timeout_default: float | None) -> float | None:
    """Seconds after which the answer to a wait, or the last answer to a batch, is overdue. None: unknown."""
    timeout_ms = entry.longest_timeout_ms if isinstance(entry, WaitBatch) else entry.timeout_ms
    timeout = timeout_default if timeout_ms is None else timeout_ms / 1_000
    return None if timeout is None else timeout + max(GRACE, timeout * GRACE_SHARE)


def timeout_end(entry: Entry) -> float:
    """When the timeout of a wait, or the longest of a batch, is over; without one, never."""
    timeout_ms = entry.longest_timeout_ms if isinstance(entry, WaitBatch) else entry.timeout_ms
    return math.inf if timeout_ms is None else entry.submitted_at + timeout_ms / 1_000
