"""Rows of a batch that need no individual check take a fast path, which must have the effect of the full one."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.codes import HIGH_WATERMARK, OFFSET_MAX, PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.limits import EngineLimits

TIMEOUT_MS_MAX = 60_000
NAMES = [("orders", 0), ("orders", 1), ("payments", 0), ("orders", 1), ("unknown", 7)]
"""A dictionary in which one name is repeated, and one names a partition that no event has named."""

Row = tuple[list[tuple[int, int, int]], int]


def rows(places: list[int], offsets: list[int], epochs: list[int], timeouts_ms: list[int]) -> SearchStrategy[list[Row]]:
    """Up to six operations of up to four items, most with one."""
    item = st.tuples(st.sampled_from(places), st.sampled_from(offsets), st.sampled_from(epochs))
    items = st.one_of(st.lists(item, min_size=1, max_size=1), st.lists(item, max_size=4))
    return st.lists(st.tuples(items, st.sampled_from(timeouts_ms)), min_size=1, max_size=6)


# One value out of range sends the whole batch through the full path, so such values are drawn separately.
ALLOWED = (
    [0, 1, 2, 3, 4],
    [*range(7), OFFSET_MAX - 1],
    [-1, -1, -1, 0, 3, 2**31 - 1],
    [100, 100, 1, 0, TIMEOUT_MS_MAX],
)
BEYOND = ([-1, len(NAMES)], [-1, OFFSET_MAX], [-2, 2**31], [-1, TIMEOUT_MS_MAX + 1])
ROWS = st.one_of(
    rows(*ALLOWED),
    rows(*ALLOWED),
    *(
        rows(*(values + (beyond if i == column else []) for i, values in enumerate(ALLOWED)))
        for column, beyond in enumerate(BEYOND)
    ),
)
ID = st.one_of(st.integers(8, 25), st.integers(8, 25), st.just(OPERATION_ID_MAX))
IDS = st.one_of(
    st.lists(ID, min_size=6, unique=True).map(sorted),
    st.lists(st.one_of(ID, st.just(OPERATION_ID_MAX + 1)), min_size=6),
)


def registered_and_ended(ids: list[int], rows: list[Row], local_error_codes: list[int]) -> list[object]:
    """All visible results of a batch, registered while some marks are known, until a mark ends more of it."""
    limits = EngineLimits(items_per_operation_max=3, timeout_ms_max=TIMEOUT_MS_MAX, pending_operations_max=4)
    engine = Engine(limits, 0)
    owner = engine.add_owner()
    known = EventBatch([HIGH_WATERMARK] * 3, partitions=NAMES, item_indexes=[0, 1, 2], offsets=[3, 0, 6])
    engine.apply(known, 0)
    engine.register(owner, PRODUCE, OperationBatch([10], partitions=NAMES, offsets=[5]), 0)
    items = [item for row, _ in rows for item in row]
    batch = OperationBatch(
        ids[: len(rows)],
        partitions=NAMES,
        timeouts_ms=[timeout_ms for _, timeout_ms in rows],
        item_counts=[len(row) for row, _ in rows],
        item_indexes=[place for place, _, _ in items],
        offsets=[offset for _, offset, _ in items],
        leader_epochs=[epoch for _, _, epoch in items],
        local_error_codes=local_error_codes,
    )
    receipt = engine.register(owner, PRODUCE, batch, 1)
    seen: list[object] = [
        (receipt.accepted, receipt.already_known, receipt.highest_operation_id),
        [(refusal.index, refusal.code, refusal.field, refusal.message) for refusal in receipt.refusals],
        engine.partition_names(),
    ]
    engine.apply(EventBatch([HIGH_WATERMARK], partitions=[NAMES[1]], offsets=[4]), 2)
    engine.advance_clock(200, 100)
    for ended in engine.take_completions():
        seen += [list(ended.operation_ids), list(ended.outcomes), list(ended.item_counts), ended.item_partitions]
        seen += [list(ended.error_codes), list(ended.required_offsets), list(ended.reached_offsets)]
    return [*seen, engine.pending, engine.partition_names()]


@settings(max_examples=150)
@given(IDS, ROWS)
def test_the_short_way_does_what_the_full_one_does(ids: list[int], rows: list[Row]) -> None:
    """Waiting, reached, partly reached, refused or known: the result equals that with explicit "no error" codes, which
    send every row through the full path.
    """
    assert registered_and_ended(ids, rows, []) == registered_and_ended(ids, rows, [0])


def test_an_operation_with_an_error_of_its_own_does_not_wait() -> None:
    """An operation with only a local error ends immediately; its neighbours wait."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    batch = OperationBatch([1, 2, 3], partitions=NAMES[:1], offsets=[1], local_error_codes=[0, 20, 0])
    assert engine.register(owner, PRODUCE, batch, 0).accepted == 3
    [completions] = engine.take_completions()
    assert (list(completions.operation_ids), list(completions.error_codes), engine.pending) == ([2], [20], 2)


def test_a_batch_without_names_is_refused_row_by_row() -> None:
    """Each operation without a name to wait on is refused."""
    engine = Engine(EngineLimits(), 0)
    receipt = engine.register(engine.add_owner(), PRODUCE, OperationBatch([1, 2], offsets=[7]), 0)
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(0, "item_index"), (1, "item_index")]


def test_a_place_stands_for_the_name_that_is_there_now() -> None:
    """Batches with the same or an equal dictionary find the same partitions; a changed name finds another partition."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    names = [("orders", 0), ("orders", 1)]
    for first in (1, 3):
        engine.register(owner, PRODUCE, OperationBatch([first, first + 1], partitions=names, item_indexes=[0, 1]), 0)
    names.reverse()
    engine.register(owner, PRODUCE, OperationBatch([5, 6], partitions=names, item_indexes=[0, 1]), 0)
    alike = [(topic, partition) for topic, partition in names]
    engine.register(owner, PRODUCE, OperationBatch([7, 8], partitions=alike, item_indexes=[0, 1]), 0)
    assert engine.cancel_partition(("orders", 0), 0) == 4
    [completions] = engine.take_completions()
    assert list(completions.operation_ids) == [1, 3, 6, 8]
