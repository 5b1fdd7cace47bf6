"""Random lives of a host with an archive, and their rows as a replay reads them."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.engine_rows.arrow_chunks import chunk_of
from purgatory_pipeline.engine_rows.row_chunk import TABLES, RowChunk
from purgatory_pipeline.replay.run_files import RunContext, find_runs

from purgatory.extensions.archive import schema
from tests.archive.archive_replay import read_table
from tests.histories.worlds.archive import Life

STEPS = 400


class RecordedLife(NamedTuple):
    """A run in an archive of its own: its context, and its rows by table."""

    facts: RunContext
    tables: dict[str, pa.Table]


def write_life(folder: Path, seed: int, *, roomy: bool = False) -> None:
    async def live() -> None:
        life = Life(folder, seed, roomy=roomy)
        await life.live(STEPS)
        await life.end()

    asyncio.run(live())


def record_life(folder: Path, seed: int, *, roomy: bool = False) -> RecordedLife:
    """Write the run of a random life to an empty folder, and read it back."""
    write_life(folder, seed, roomy=roomy)
    (run,) = find_runs(find_archive(str(folder)))
    return RecordedLife(run.facts, {table: read_table(folder, table) for table in schema.TABLES})


def chunks_of(life: RecordedLife, rng: random.Random, rows_max: int = 60) -> list[RowChunk]:
    """All rows in chunks of random sizes, as if from many files and row groups, by first call."""
    chunks = []
    for table in TABLES:
        rows, start = life.tables[table], 0
        while start < rows.num_rows:
            size = rng.randint(1, rows_max)
            chunks.append(chunk_of(table, rows.slice(start, size), Counter()))
            start += size
    return sorted((chunk for chunk in chunks if len(chunk)), key=lambda chunk: chunk.first_call)
