"""Columns grow one at a time, so that no registration copies all of them."""

import tracemalloc

from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits

STEP = 200


def test_no_registration_makes_room_in_all_columns() -> None:
    """At any row, a small batch allocates less than 48 bytes per pending operation: a column of 16 bytes per row, twice
    as long as before. All columns together have 110 bytes per row.
    """
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    engine.register(owner, PRODUCE, OperationBatch([1], partitions=[("orders", 0)], offsets=[1_000]), 0)  # imports
    tracemalloc.start()
    try:
        for first in range(2, 12_000, STEP):
            batch = OperationBatch(
                list(range(first, first + STEP)), partitions=[("orders", 0)], offsets=[1_000], timeouts_ms=[60_000]
            )
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            engine.register(owner, PRODUCE, batch, 0)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 48 * first + 50_000, f"at {first} operations"
    finally:
        tracemalloc.stop()
    assert engine.pending == 12_001
