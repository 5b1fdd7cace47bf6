"""Writes a report: DIR/tables/NAME as Parquet, DIR/csv/NAME.csv, and the page DIR/report.html.

Spark writes the tables it computed, whatever their size. The CSV files and the page contain the first rows of each
table in its sort order.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pandas as pd
import pyarrow as pa
from pyarrow import dataset, parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory_pipeline.analytics.archive.location import Location, write_file
from purgatory_pipeline.analytics.report.report_tables import PAGE_ROWS_MAX, TABLES, ResultTable

WRITERS: Final = 4
"""Number of tables written concurrently: while Spark plans one, the others use the cores."""


Written = dict[str, tuple[pd.DataFrame, int]]
"""The first rows and the total number of rows, by table."""


def write_tables(computed: Mapping[str, DataFrame], known: Mapping[str, pa.Table], place: Location) -> Written:
    """Writes the tables that Spark computes and those already in memory."""
    with ThreadPoolExecutor(WRITERS) as pool:
        writing = {
            name: pool.submit(write_computed, computed[name], table, place)
            for name, table in TABLES.items()
            if name in computed
        }
        written = {name: write_known(rows, TABLES[name], place) for name, rows in known.items()}
        return written | {name: future.result() for name, future in writing.items()}


def write_computed(frame: DataFrame, table: ResultTable, place: Location) -> tuple[pd.DataFrame, int]:
    """Writes a table as sorted Parquet, and its first rows as CSV. Returns these rows and the total number of rows."""
    path = f"{place.root}/tables/{table.name}"
    order = [F.desc(name[1:]) if name.startswith("-") else F.asc(name) for name in table.order]
    rows = frame.select(*table.column_names).repartition(1).sortWithinPartitions(*order)
    rows.write.mode("overwrite").parquet(f"{place.spark_prefix}{path}")
    written = dataset.dataset(path, filesystem=place.filesystem, format="parquet")
    return _shown(written.head(PAGE_ROWS_MAX), table, place), written.count_rows()


def write_known(rows: pa.Table, table: ResultTable, place: Location) -> tuple[pd.DataFrame, int]:
    """Like `write_computed`, for a table in memory."""
    names, rising = [name.lstrip("-") for name in table.order], [not name.startswith("-") for name in table.order]
    order = rows.select(names).to_pandas().sort_values(names, ascending=rising, na_position="first").index
    written = rows.select(list(table.column_names)).take(pa.array(order))
    path = f"{place.root}/tables/{table.name}"
    place.filesystem.create_dir(path, recursive=True)
    place.filesystem.delete_dir_contents(path)
    parquet.write_table(written, f"{path}/part-0.parquet", filesystem=place.filesystem, write_page_checksum=True)
    return _shown(written.slice(0, PAGE_ROWS_MAX), table, place), written.num_rows


def _shown(rows: pa.Table, table: ResultTable, place: Location) -> pd.DataFrame:
    shown: pd.DataFrame = rows.to_pandas()
    zoned = shown.select_dtypes("datetimetz")
    shown = shown.assign(**{name: zoned[name].dt.tz_localize(None) for name in zoned})
    write_file(place, f"csv/{table.name}.csv", shown.to_csv(index=False).encode())
    return shown
