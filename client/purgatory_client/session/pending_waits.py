"""The waits that have an operation id and no result yet, and the chunks in which they are sent.

Single waits are in one dictionary; a `WaitColumns` is one entry however many operations it has. Both are in the order
of their ids, so what is above the daemon's highest id is a tail of each.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from purgatory_client.errors import PurgatoryClientError, Unavailable
from purgatory_client.many import WaitColumns
from purgatory_client.results import Outcome, Result, ResultColumns
from purgatory_client.waits import Wait
from purgatory_client.wire.decode_results import ResultsArrived

Answer = Result | ResultColumns | PurgatoryClientError
Ended = tuple[Wait | WaitColumns, Answer]
"""A wait and how it ended."""

OPERATIONS_PER_CHUNK_MAX = 10_000
ITEMS_PER_CHUNK_MAX = 50_000
BYTES_PER_CHUNK_MAX = 2_000_000


@dataclass(slots=True, eq=False)
class WaitChunk:
    """What is sent as one batch: single waits of one kind, or some operations of one `WaitColumns`."""

    waits: list[Wait]
    batch: WaitColumns | None = None
    positions: Sequence[int] = ()

    @property
    def last_id(self) -> int:
        return self.waits[-1].operation_id if self.batch is None else self.batch.first_id + self.positions[-1]

    def operation_ids(self) -> Iterable[int]:
        if self.batch is None:
            return (wait.operation_id for wait in self.waits)
        return self.batch.ids_of(self.positions)


class PendingWaits:
    """Waits by operation id. Ids rise; each is given once, and stays with its wait over reconnects."""

    def __init__(self) -> None:
        self._singles: dict[int, Wait] = {}
        self._batches: list[WaitColumns] = []
        self._batch_ids: list[int] = []
        self._next_id = 1
        self.count = 0

    def start_after(self, operation_id: int) -> None:
        """Give only ids above this one, as the daemon knows it already."""
        self._next_id = max(self._next_id, operation_id + 1)

    def restore(self, entry: Wait | WaitColumns) -> None:
        """Add what has its ids from an earlier client. To be called in the order of ids."""
        self.start_after((entry.first_id if isinstance(entry, WaitColumns) else entry.operation_id) - 1)
        if isinstance(entry, WaitColumns):
            self.add_batch(entry)
        else:
            self.add(entry)

    def add(self, wait: Wait) -> None:
        """Give the wait its id and add it."""
        wait.operation_id = self._next_id
        self._next_id += 1
        self._singles[wait.operation_id] = wait
        self.count += 1

    def add_batch(self, batch: WaitColumns) -> None:
        """Give the batch's operations their ids and add it."""
        batch.first_id = self._next_id
        self._next_id += batch.count
        self._batches.append(batch)
        self._batch_ids.append(batch.first_id)
        self.count += batch.remaining

    def __contains__(self, wait: Wait) -> bool:
        return self._singles.get(wait.operation_id) is wait

    def take_single(self, operation_id: int) -> Wait | None:
        """Remove and return the single wait with this id; None: there is none."""
        wait = self._singles.pop(operation_id, None)
        if wait is not None:
            self.count -= 1
        return wait

    def end(self, arrived: ResultsArrived, skip: int, ended: list[Ended]) -> None:
        """End waits by results from place `skip` on. Results that nobody waits for any more are ignored.

        Runs of consecutive ids are looked up once a run, not once an operation: a batch is answered in few of them.
        """
        columns, starts, operation_ids = arrived.columns, arrived.starts, arrived.operation_ids
        take_single = self.take_single
        for start, end in arrived.runs(skip):
            place = start
            if columns.outcomes[place] == Outcome.REFUSED:
                error = columns.refusals.get(place) or Unavailable("refused; the receipt that said why was lost")
                self.refuse(operation_ids[place], error, ended)
                continue
            while place < end:
                if (wait := take_single(operation_ids[place])) is not None:
                    ended.append((wait, Result(columns, place, starts[place])))
                    place += 1
                else:
                    place += self._end_of_batch(arrived, place, end, ended)

    def _end_of_batch(self, arrived: ResultsArrived, place: int, end: int, ended: list[Ended]) -> int:
        """Give the batch with the operation at `place` its part of the run; returns how many results that took."""
        operation_id = arrived.operation_ids[place]
        batch = self._find_batch(operation_id)
        if batch is None:
            return 1
        count = min(end - place, batch.first_id + batch.count - operation_id)
        ended_now = batch.set_results(operation_id - batch.first_id, arrived, place, place + count)
        if self._some_ended(batch, ended_now):
            ended.append((batch, batch.answer()))
        return count

    def refuse(self, operation_id: int, error: PurgatoryClientError, ended: list[Ended]) -> None:
        """End an operation that the daemon has refused; ignored when it has ended."""
        if (wait := self.take_single(operation_id)) is not None:
            ended.append((wait, error))
        elif (batch := self._find_batch(operation_id)) is not None:
            ended_now = batch.set_refused(operation_id - batch.first_id, error)
            if self._some_ended(batch, ended_now):
                ended.append((batch, batch.answer()))

    def take_batch(self, batch: WaitColumns) -> bool:
        """Remove a batch with all that is pending in it. False: it is not here (any more)."""
        if self._find_batch(batch.first_id) is not batch:
            return False
        self.count -= batch.remaining
        self._forget(batch)
        return True

    def chunks_above(self, operation_id: int, chunk_max: int) -> list[WaitChunk]:
        """Everything pending with a higher id, as chunks in the order of ids."""
        above: list[tuple[int, Wait | WaitColumns]] = []
        for wait in reversed(self._singles.values()):
            if wait.operation_id <= operation_id:
                break
            above.append((wait.operation_id, wait))
        for batch in reversed(self._batches):
            if batch.first_id + batch.count - 1 <= operation_id:
                break
            above.append((batch.first_id, batch))
        above.sort(key=lambda entry: entry[0])
        chunks: list[WaitChunk] = []
        for key, run in groupby((entry for _, entry in above), key=run_key):
            if key is None:
                for entry in run:
                    assert isinstance(entry, WaitColumns), "a run without a key is of batches"
                    chunks.extend(batch_chunks(entry, chunk_max, max(0, operation_id + 1 - entry.first_id)))
            else:
                chunks.extend(wait_chunks([entry for entry in run if isinstance(entry, Wait)], chunk_max))
        return chunks

    def entries(self) -> list[Wait | WaitColumns]:
        return [*self._singles.values(), *self._batches]

    def clear(self) -> None:
        self._singles.clear()
        self._batches.clear()
        self._batch_ids.clear()
        self.count = 0

    def _find_batch(self, operation_id: int) -> WaitColumns | None:
        """The batch with this operation; None: there is none, or all of it has ended."""
        place = bisect_right(self._batch_ids, operation_id) - 1
        if place < 0:
            return None
        batch = self._batches[place]
        return batch if operation_id < batch.first_id + batch.count else None

    def _some_ended(self, batch: WaitColumns, count: int) -> bool:
        """Note that `count` operations of a batch have ended. True: these were the last, and the batch is done."""
        self.count -= count
        if not count or batch.remaining:
            return False
        self._forget(batch)
        return True

    def _forget(self, batch: WaitColumns) -> None:
        place = bisect_right(self._batch_ids, batch.first_id) - 1
        assert self._batches[place] is batch, f"batch with first id {batch.first_id} is not pending"
        del self._batches[place], self._batch_ids[place]


def run_key(entry: Wait | WaitColumns) -> tuple[int, bool] | None:
    """Waits with the same key can share a batch; None: a batch of its own."""
    return (entry.kind, entry.timeout_ms is None) if isinstance(entry, Wait) else None


def wait_chunks(waits: list[Wait], chunk_max: int) -> Iterator[WaitChunk]:
    """Cut waits with the same key into chunks that fit the daemon's limit and a message."""
    rest = iter(waits)
    while taken := take_waits(rest, chunk_max):
        yield WaitChunk(taken)


def take_waits(waits: Iterator[Wait], chunk_max: int) -> list[Wait]:
    taken: list[Wait] = []
    weight = 0
    for wait in islice(waits, chunk_max):
        taken.append(wait)
        weight += wait.weight
        if weight > BYTES_PER_CHUNK_MAX:
            break
    return taken


def batch_chunks(batch: WaitColumns, chunk_max: int, start: int = 0) -> Iterator[WaitChunk]:
    """Cut what is pending of a batch from position `start` on into chunks."""
    positions = batch.pending_positions(start)
    items_each = max(1, -(-batch.item_total // batch.count))
    step = max(1, min(chunk_max, ITEMS_PER_CHUNK_MAX // items_each))
    for first in range(0, len(positions), step):
        yield WaitChunk([], batch, positions[first : first + step])


def settle(wait: Wait | WaitColumns, answer: Answer) -> None:
    """Give a wait's future its answer, unless its caller has gone. A second answer would be a bug, and raises."""
    future: asyncio.Future[Answer] | None = wait.future  # type: ignore[assignment]
    if future is None or future.cancelled():
        return
    if isinstance(answer, PurgatoryClientError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
