"""Stale timeouts of waits, and stale marks in results, across restarts."""

from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.journal.row_codec import pack_results, unpack_results
from purgatory.service.sessions.outbox import slices_of
from purgatory.service.sessions.packed import packed

STALE = {0: (5_000, "broker 2 is down"), 2: (7_000, "not authorised"), 3: (1, "broker 2 is down")}


def test_stale_marks_are_kept_with_results() -> None:
    """Results keep their stale marks in a row of the journal, and when they are concatenated with others."""
    engine = Engine(EngineLimits(), 0)
    names = [("orders", place) for place in range(4)]
    ids = [1, 2, 3, 4]
    batch = OperationBatch(ids, partitions=names, item_indexes=[0, 1, 2, 3], offsets=[5], timeouts_ms=[0])
    engine.register(engine.add_owner(), PRODUCE, batch, 0)
    [completions] = engine.take_completions()
    [without] = unpack_results(pack_results([completions])[0], 0)
    assert not isinstance(without, list)
    assert without.stale_marks == {}
    completions.stale_marks = STALE
    content, count = pack_results([completions])
    [again] = unpack_results(content, 0)
    assert count == 4
    assert not isinstance(again, list)
    assert again.stale_marks == STALE
    [whole] = slices_of(again)
    first, rest = whole.split(1)
    assert packed([rest, first]).stale_marks == {1: STALE[2], 2: STALE[3], 3: STALE[0]}
    assert whole.held_bytes() > slices_of(without)[0].held_bytes()
