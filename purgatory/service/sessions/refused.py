"""Refused registrations: which of them get a result, and their results in the columns of completions.

A refused registration gets a result like any other, so that a caller that reads only results misses nothing. Each id
has one result: a refusal that is repeated, or of an id that occurs earlier in the same batch, gets none.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from purgatory.engine import codes
from purgatory.engine.batches import Receipt, Refusal
from purgatory.engine.completions import RESULT_COLUMNS
from purgatory.service.sessions.refused_ids import RefusedIds
from purgatory.service.translate.operations import OperationRun
from purgatory.service.translate.result_slices import ArrayCompletions


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
