"""`PurgatoryDataSource`: what Spark calls for the format `purgatory`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_pipeline.streaming.datasource.daemon_options import SESSION, DaemonOptions
from purgatory_pipeline.streaming.datasource.daemon_writer import DaemonWriter
from purgatory_pipeline.streaming.datasource.pending_reader import PENDING_ROWS, PendingReader
from purgatory_pipeline.streaming.datasource.result_reader import ResultReader
from purgatory_pipeline.streaming.datasource.result_rows import RESULT_ROWS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PurgatoryDataSource(DataSource):
    """Register it with `spark.dataSource.register(PurgatoryDataSource)`.

    - `spark.readStream.format("purgatory").option("session", NAMES)`: results (`RESULT_ROWS`), exactly once.
    - `frame.writeStream.format("purgatory")`: events and registrations, with the archive's columns.
    - `spark.read.format("purgatory")`: pending operations (`PENDING_ROWS`).

    The options are those of `DaemonOptions`.
    """

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "purgatory"

    def schema(self) -> StructType:
        """The columns of results if sessions are named, else those of pending operations."""
        return from_arrow_schema(RESULT_ROWS if self.options.get(SESSION) else PENDING_ROWS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The operations that are pending now."""
        del schema
        return PendingReader(DaemonOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The results of the sessions."""
        del schema
        return ResultReader(DaemonOptions.of(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        """Sends events, or registers operations."""
        del overwrite
        return DaemonWriter(DaemonOptions.of(self.options), schema)
