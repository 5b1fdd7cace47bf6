"""A flipped bit in a file of the archive is an error or changes no value, for every reader."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.archive.footer import ArchiveFile, open_parquet, read_footer
from purgatory_pipeline.location import open_location
from pyspark.sql import SparkSession

from purgatory.extensions.archive import layout, schema
from purgatory.extensions.archive.files import ArchiveWriter
from purgatory.extensions.archive.table_columns import TABLE_COLUMNS
from tests.pipeline.archive.histories import small_history, table_of

FLIPS = 300


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file of outcomes, written by the daemon's archive writer."""
    rows = table_of(schema.OUTCOMES, small_history(operations=2_000).rows[schema.OUTCOMES])
    columns = [
        column.fill_null(pa.scalar(7).cast(column.type)) if column.null_count and not one.has_nulls else column
        for one, column in zip(TABLE_COLUMNS[schema.OUTCOMES], rows.columns, strict=True)
    ]
    place = open_location(str(tmp_path / "archive"))
    writer = ArchiveWriter(place.filesystem, place.root, "run-a")
    for batch in pa.table(columns, schema=rows.schema).combine_chunks().to_batches():
        writer.write(schema.OUTCOMES, batch)
    writer.roll()
    (path,) = (tmp_path / "archive").rglob("*.parquet")
    return path


def read(path: Path) -> tuple[ArchiveFile, pa.Table]:
    """Read a file like intake, report and replay. Raises OSError or ArrowException if the file cannot be used."""
    place = open_location(str(path.parents[3]))
    judged = read_footer(place, str(path), schema.OUTCOMES)
    if not isinstance(judged, ArchiveFile):
        raise OSError(judged.detail)
    return judged, open_parquet(place.read(str(path)), ["topic"]).read()


def test_a_flipped_bit_is_an_error_or_changes_nothing(written: Path) -> None:
    whole = written.read_bytes()
    judged, rows = read(written)
    rng = random.Random(5)
    errors = 0
    for place in [*rng.choices(range(len(whole)), k=FLIPS), *range(len(whole) - 8, len(whole))]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        written.write_bytes(flipped)
        try:
            found, found_rows = read(written)
        except (OSError, ValueError, pa.ArrowException):
            errors += 1
        else:
            assert found == judged, f"byte {place}"
            assert found_rows.equals(rows), f"byte {place}"
    assert errors > 0.99 * FLIPS


def test_files_of_other_programs_are_read_without_checksums(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    assert open_parquet(other.read_bytes()).read().num_rows == 1
    assert layout.CHECKSUMS_KEY not in (pq.read_metadata(other).metadata or {})


@pytest.mark.slow  # asks Spark
def test_spark_verifies_pages_in_any_session(spark: SparkSession, written: Path) -> None:
    archive = find_archive(str(written.parents[3]))
    assert archive.read(spark, schema.OUTCOMES).count() == 2_000
    whole = bytearray(written.read_bytes())
    chunk = pq.read_metadata(written).row_group(0).column(schema.SCHEMAS[schema.OUTCOMES].names.index("waited_ms"))
    whole[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    written.write_bytes(whole)
    with pytest.raises(Exception, match="CRC checksum verification failed"):
        archive.read(spark, schema.OUTCOMES).agg({"waited_ms": "sum"}).collect()
