"""Authorization of the rows of a batch: refuses each operation or event whose topic or key its caller may not use.

Each distinct name of a batch is checked once. A row with a forbidden name is made invalid for the engine, which then
refuses it in order with the other rows, uses up its id and notifies all listeners; `replace_reasons` restores
the reason afterwards. The archive records the original batch, with the names of refused operations.
"""

from collections.abc import Sequence
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, Refusal
from purgatory.engine.calls import Register
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADVANCE, PERMISSION_DENIED, TOPIC_AUTHORIZATION_FAILED, WAIT, Role
from purgatory.service.errors import quoted, role_missing

NO_PLACE: Final = -1
"""An invalid item index: the engine refuses the operation."""
NO_TYPE: Final = 0
"""An invalid event type: the engine refuses the event."""

OPERATION_COLUMNS: Final = (
    "partitions", "keys", "timeouts_ms", "item_counts", *(column.batch_name for column in COLUMNS_BY_NAME.values())
)  # fmt: skip

Reasons = dict[int, Refusal]
"""The refusal of each unauthorized row, by row."""
NO_REASONS: Final[Reasons] = {}
"""Never changed."""


def permitted(account: Account, call: Register) -> tuple[Register, Reasons]:
    """Return the call for the engine, in which unauthorized operations are invalid, and their refusals."""
    if WAIT in account.grants.everywhere:
        return call, NO_REASONS
    batch, reasons = filter_operations(account, call.kind, call.batch)
    return (Register(call.kind, batch, call.known_up_to), reasons) if reasons else (call, reasons)


def filter_operations(account: Account, kind: int, batch: OperationBatch) -> tuple[OperationBatch, Reasons]:
    """Return the batch for the engine, in which unauthorized operations are invalid, and their refusals.

    Not needed for accounts with the role everywhere.
    """
    topics = [] if kind == codes.SIGNAL else [topic for topic, _ in batch.partitions]
    forbidden = forbidden_places(account, WAIT, topics, is_key=False)
    if kind in (codes.SIGNAL, codes.COMPOSITE):
        of_keys = forbidden_places(account, WAIT, batch.keys, is_key=True)
        forbidden |= {len(topics) + place: said for place, said in of_keys.items()}
    if not forbidden:
        return batch, {}
    rows, places, counts = len(batch.operation_ids), batch.item_indexes, batch.item_counts
    if len(places) <= 1:  # one index for all items
        place = places[0] if places else 0
        if place not in forbidden:
            return batch, {}
        said = forbidden[place]
        # An operation without items names nothing forbidden. The engine has a refusal of its own for it.
        reasons = {row: _refusal(row, said) for row in range(rows) if len(counts) != rows or counts[row]}
        return _with_places(batch, [NO_PLACE]), reasons
    if len(counts) not in (0, 1, rows):
        return batch, {}  # the engine refuses it as a whole
    # A copy: the archive records the batch as the caller sent it.
    readable = list(places)
    reasons = {}
    item = 0
    for row in range(rows):
        count = counts[0] if len(counts) == 1 else counts[row] if counts else 1
        said = next((forbidden[place] for place in places[item : item + count] if place in forbidden), "")
        if said:
            reasons[row] = _refusal(row, said)
            readable[item] = NO_PLACE  # one invalid item is enough for the engine to refuse the operation
        item += count
    return _with_places(batch, readable), reasons


def _with_places(batch: OperationBatch, item_indexes: list[int]) -> OperationBatch:
    others = {name: getattr(batch, name) for name in OPERATION_COLUMNS}
    return OperationBatch(batch.operation_ids, item_indexes=item_indexes, **others)


def filter_events(account: Account, batch: EventBatch) -> Reasons:
    """Make unauthorized events invalid, in place, and return their refusals. Events without a type are left to the
    engine.
    """
    topics = forbidden_places(account, ADVANCE, [topic for topic, _ in batch.partitions], is_key=False)
    keys = forbidden_places(account, ADVANCE, batch.keys, is_key=True)
    if not topics and not keys:
        return {}
    reasons: Reasons = {}
    types, places = batch.types, batch.item_indexes
    if len(places) not in (0, 1, len(types)):
        return {}  # the engine refuses the batch as a whole
    for row, event_type in enumerate(types):
        place = places[0] if len(places) == 1 else places[row] if places else 0
        is_key = event_type == codes.KEY_SIGNALLED
        said = (keys if is_key else topics).get(place, "")
        # The type is what the engine refuses, so the reason must not replace the one for an event that never had a
        # type.
        if said and event_type != NO_TYPE:
            error_code = codes.NONE if is_key else TOPIC_AUTHORIZATION_FAILED
            reasons[row] = _refusal(row, said, error_code)
            types[row] = NO_TYPE
    return reasons


def replace_reasons(refusals: list[Refusal], reasons: Reasons) -> None:
    """Replace the engine's refusal of each unauthorized row by the reason in `reasons`."""
    for place, refusal in enumerate(refusals) if reasons else ():
        refusals[place] = reasons.get(refusal.index, refusal)


def forbidden_places(account: Account, role: Role, names: Sequence[str], *, is_key: bool) -> dict[int, str]:
    """Return the indexes of names on which the account does not have the role, each with a message."""
    allowed = account.grants.on_keys(role) if is_key else account.grants.on_topics(role)
    if allowed.has_all:
        return {}
    what = "key" if is_key else "topic"
    return {
        place: role_missing(role, f"{what} {quoted(name)}") for place, name in enumerate(names) if name not in allowed
    }


def _refusal(row: int, said: str, error_code: int = codes.NONE) -> Refusal:
    return Refusal(row, PERMISSION_DENIED, "", said, error_code)
