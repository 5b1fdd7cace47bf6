"""What a batch costs a shard, beside a few and beside many pending operations: processor time, and what is saved.

What waits is drawn at random (partition, offset, time, timeout), as regular numbers would be saved as next to nothing.

python -m tests.pipeline.stream.shard_cost --pending 300000 1000000
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa
from purgatory_pipeline.engine_rows.integers import Integers
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard.shard import Shard

from purgatory.engine.codes import HIGH_WATERMARK, PRODUCE

START_MS = 1_700_000_000_000
BATCH = 50_000
BATCH_MS = 1_000
PARTITIONS = 1_000
FAR = 1 << 40
T = TypeVar("T")


def produces(rng: np.random.Generator, first_id: int, count: int, at_ms: int, offsets: Integers) -> pa.Table:
    """Operations of one item each, over all partitions."""
    ids = np.arange(first_id, first_id + count)
    return pa.table(
        {
            "at_ms": np.sort(at_ms + rng.integers(0, BATCH_MS // 2, count)),
            "kind": pa.repeat(pa.scalar(PRODUCE, pa.int8()), count),
            "caller": pa.repeat("", count),
            "operation_id": ids,
            "timeout_ms": rng.integers(1_000_000, 3_600_000, count),
            "item": np.zeros(count, np.int32),
            "item_count": np.ones(count, np.int32),
            "topic": pa.repeat("orders", count),
            "partition": rng.integers(0, PARTITIONS, count).astype(np.int32),
            "offset": offsets,
        }
    )


def marks(at_ms: int, offset: int) -> pa.Table:
    """The high watermark of each partition."""
    return pa.table(
        {
            "at_ms": np.full(PARTITIONS, at_ms),
            "type": pa.repeat(pa.scalar(HIGH_WATERMARK, pa.int8()), PARTITIONS),
            "topic": pa.repeat("orders", PARTITIONS),
            "partition": np.arange(PARTITIONS, dtype=np.int32),
            "offset": np.full(PARTITIONS, offset),
        }
    )


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call gives, and the seconds of processor time it took."""
    began = time.process_time()
    return call(), time.process_time() - began


def filled(shard: Shard, pending: int, rng: np.random.Generator) -> tuple[int, int]:
    """Fills a shard with operations for which nothing comes. Returns the next id, and the time."""
    next_id, at_ms = 1, START_MS
    while next_id <= pending:
        count = min(BATCH, pending + 1 - next_id)
        shard.play(produces(rng, next_id, count, at_ms, FAR + rng.integers(0, 1_000_000, count)))
        next_id += count
        at_ms += BATCH_MS
    return next_id, at_ms


def measured(pending: int, batches: int) -> list[float]:
    """Seconds to play, save and load a batch, the least of some, beside so many operations that wait on."""
    shard, rng = Shard(), np.random.default_rng(1)
    next_id, at_ms = filled(shard, pending, rng)
    costs = []
    for batch in range(1, batches + 1):
        at_ms += BATCH_MS
        arriving = produces(rng, next_id, BATCH, at_ms, np.full(BATCH, batch))
        rows = pa.concat_tables([arriving, marks(at_ms + BATCH_MS // 2, batch)], promote_options="default")
        next_id += BATCH
        played, playing = timed(lambda shard=shard, rows=rows: shard.play(rows))  # type: ignore[misc]
        assert played.outcomes.num_rows == BATCH, f"{played.outcomes.num_rows} of {BATCH} have ended"
        octets, saving = timed(lambda shard=shard: shard_bytes.to_bytes(shard))  # type: ignore[misc]
        shard, loading = timed(lambda octets=octets: shard_bytes.from_bytes(octets, 0))  # type: ignore[misc]
        assert shard.pending == pending, f"{shard.pending} of {pending} wait on"
        costs.append((playing, saving, loading))
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    least = [min(column) for column in zip(*costs, strict=True)]
    print(
        f"{pending:,} pending: a batch of {BATCH:,} played in {least[0]:.2f} s ({least[0] / BATCH * 1e6:.1f} us each),"
        f" saved in {least[1]:.2f} s, loaded in {least[2]:.2f} s; {len(octets) / 1e6:.1f} MB,"
        f" {len(octets) / max(pending, 1):.1f} B each; process {memory_gb:.1f} GB"
    )
    return least


def main() -> None:
    """Measures, and compares the last with the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", type=int, nargs="+", default=[300_000, 1_000_000])
    parser.add_argument("--batches", type=int, default=5)
    options = parser.parse_args()
    found = [measured(pending, options.batches) for pending in options.pending]
    played, whole = found[-1][0] / found[0][0], sum(found[-1]) / sum(found[0])
    print(f"the last beside the first: played {played:.2f} x, played, saved and loaded {whole:.2f} x")


if __name__ == "__main__":
    main()
