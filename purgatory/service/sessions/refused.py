"""Refused registrations: which of them get a result, their results in the columns of completions, and the ids of
batches that were refused as a whole.

A refused registration gets a result like any other, so that a caller that reads only results misses nothing. Each id
has one result: a refusal that is repeated, or of an id that occurs earlier in the same batch, gets none.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch, Receipt, Refusal
from purgatory.engine.codes import INVALID_ARGUMENT
from purgatory.engine.completions import RESULT_COLUMNS
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.service.translate.operations import OperationRun
from purgatory.service.translate.result_slices import ArrayCompletions

RANGE: Final = struct.Struct("<QQ")

MESSAGE: Final = (
    "was in a batch that was refused as a whole, and a later one has been accepted since: register it with a new id"
)
FULL: Final = Refusal(
    0,
    INVALID_ARGUMENT,
    "",
    f"the session has more than {sizes.REFUSED_ID_RANGES_MAX} separate ranges of ids in refused batches: close it and "
    "open another",
)


class RefusedIds:
    """Ids of a session whose batch was refused as a whole and that have not been accepted since, as disjoint ranges.

    Falsy if there are none, as in most sessions. Ids rise within a session, so every id up to the highest known one
    counts as registered before. Without this list the ids of a refused batch would, too, once a later batch was
    accepted, although they were never registered.
    """

    def __init__(self, packed: bytes = b"") -> None:
        """`packed` is the result of `to_bytes`."""
        self._firsts: Final[list[int]] = []
        self._lasts: Final[list[int]] = []
        for first, last in RANGE.iter_unpack(packed):
            self._firsts.append(first)
            self._lasts.append(last)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, operation_id: int) -> bool:
        # Ranges are disjoint and ascending, so only the first one that ends at or above the id can contain it.
        place = bisect_left(self._lasts, operation_id)
        return place < len(self._firsts) and self._firsts[place] <= operation_id

    @property
    def is_full(self) -> bool:
        """Whether some ids could not be recorded. The session must then accept nothing more."""
        return len(self._firsts) > sizes.REFUSED_ID_RANGES_MAX

    def to_bytes(self) -> bytes:
        return b"".join(RANGE.pack(*one) for one in zip(self._firsts, self._lasts, strict=True))

    def add(self, operation_ids: Collection[int], highest: int) -> None:
        """Add the ids of a refused batch. Ids up to `highest` are known and are skipped."""
        for first, last in _ranges(operation_ids):
            # Ids that are not recorded do no harm: the gate accepts nothing more for a full session, so none of them is
            # ever taken for known.
            if self.is_full:
                return
            if last > highest:
                self._add(max(first, highest + 1), last)

    def add_all_above(self, highest: int) -> None:
        """Add all ids that are not known, for a batch whose ids cannot be read."""
        self._add(highest + 1, OPERATION_ID_MAX)

    def discard(self, operation_ids: Collection[int]) -> None:
        """Remove ids that were accepted or have a result."""
        for first, last in _ranges(operation_ids):
            if self.is_full or not self._firsts:
                return
            self._discard(first, last)

    def correct(self, receipt: Receipt, batch: OperationBatch, known: int) -> None:
        """Refuse, in the engine's receipt, the operations that it took for known because their ids are not above
        `known`.
        """
        refused: dict[int, int] = {}
        for place, operation_id in enumerate(batch.operation_ids):
            if 0 < operation_id <= known and operation_id in self:
                # Once for each id: the engine has counted a second row with the same id as a repetition of the first,
                # which it is.
                refused.setdefault(operation_id, place)
        receipt.already_known -= len(refused)
        receipt.refusals.extend(Refusal(place, INVALID_ARGUMENT, "operation_id", MESSAGE) for place in refused.values())
        receipt.refusals.sort(key=lambda refusal: refusal.index)

    def _add(self, first: int, last: int) -> None:
        # One further on both sides, so that ranges which touch become one: consecutive ids never use up the ranges.
        start, stop = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)
        if start < stop:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[stop - 1])
        self._firsts[start:stop], self._lasts[start:stop] = [first], [last]

    def _discard(self, first: int, last: int) -> None:
        start, stop = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if start >= stop:
            return
        # Removing from the middle of a range makes two of it, so this may fill up the session.
        left = [(self._firsts[start], first - 1)] if self._firsts[start] < first else []
        right = [(last + 1, self._lasts[stop - 1])] if self._lasts[stop - 1] > last else []
        self._firsts[start:stop] = [one for one, _ in left + right]
        self._lasts[start:stop] = [one for _, one in left + right]


def _ranges(operation_ids: Collection[int]) -> Iterator[tuple[int, int]]:
    """The valid ids as ascending ranges of consecutive ids."""
    first = last = 0
    for operation_id in sorted(operation_ids):
        if not 0 < operation_id <= OPERATION_ID_MAX:
            continue
        if first and operation_id <= last + 1:
            last = operation_id
            continue
        if first:
            yield first, last
        first = last = operation_id
    if first:
        yield first, last


class RefusedOperation(NamedTuple):
    """One refused registration. `refusal.index` is its index in the caller's batch; `kind` is 0 if unknown."""

    refusal: Refusal
    operation_id: int
    kind: int


def refused_completions(refused: Sequence[RefusedOperation]) -> ArrayCompletions:
    """Results of operations that the engine has never accepted. Their ids can be any number that the wire carries."""
    found = ArrayCompletions()
    for column in RESULT_COLUMNS:
        getattr(found, column.attribute).extend([0] * len(refused))
    for place, (_, operation_id, kind) in enumerate(refused):
        # Without items (`item_counts` stays 0): their names may be what was refused.
        found.operation_ids[place], found.kinds[place], found.outcomes[place] = operation_id, kind, codes.REFUSED
    return found


def located(run: OperationRun, refusal: Refusal) -> Refusal:
    """The engine's refusal with the index in the caller's batch instead of the index in the run."""
    return Refusal(run.index_of(refusal.index), refusal.code, refusal.field, refusal.message)


def refuse_all(run: OperationRun, reason: Refusal) -> list[RefusedOperation]:
    """Refuse every operation of a run for the same reason."""
    return [
        RefusedOperation(
            Refusal(run.index_of(place), reason.code, reason.field, reason.message), operation_id, run.kind
        )
        for place, operation_id in enumerate(run.batch.operation_ids)
    ]


def engine_receipt(run: OperationRun, reason: Refusal, known: int, refused_ids: RefusedIds) -> Receipt:
    """The receipt of a run that is refused before it reaches the engine.

    Ids up to `known` have been registered before, except `refused_ids`.
    """
    receipt = Receipt()
    for place, operation_id in enumerate(run.batch.operation_ids):
        if 0 < operation_id <= known and operation_id not in refused_ids:
            receipt.already_known += 1
        else:
            receipt.refusals.append(Refusal(place, reason.code, reason.field, reason.message))
    return receipt


def first_of_each_id(refused: Iterable[RefusedOperation], runs: Sequence[OperationRun]) -> list[RefusedOperation]:
    """Omit refusals whose id occurs earlier in the same batch, refused or not: that operation has the id's result."""
    refused = list(refused)
    # Reversed, because the last assignment of a key wins and the first refusal is wanted.
    first_index = {operation_id: refusal.index for refusal, operation_id, _ in reversed(refused)}
    for run in runs:
        for place, operation_id in enumerate(run.batch.operation_ids):
            index = run.index_of(place)
            if index < first_index.get(operation_id, -1):
                first_index[operation_id] = index
    return [entry for entry in refused if first_index[entry.operation_id] == entry.refusal.index]
