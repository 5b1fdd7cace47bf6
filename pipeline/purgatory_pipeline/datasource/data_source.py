"""`PurgatoryDataSource`: what Spark calls for the format `purgatory`."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from purgatory_pipeline.datasource.daemon_options import SESSION, DaemonOptions
from purgatory_pipeline.datasource.daemon_writer import DaemonWriter
from purgatory_pipeline.datasource.pending_reader import PENDING_ROWS, FilteringReader, PendingReader
from purgatory_pipeline.datasource.result_reader import RESULT_ROWS, ResultReader
from purgatory_pipeline.errors import PipelineError


class PurgatoryDataSource(DataSource):
    """Register it with `spark.dataSource.register(PurgatoryDataSource)`.

    - `spark.readStream.format("purgatory").option("session", NAMES)`: results (`RESULT_ROWS`), exactly once.
    - `frame.writeStream.format("purgatory")`, `frame.write.format("purgatory").mode("append")`: events and
      registrations, with the archive's columns.
    - `spark.read.format("purgatory")`: pending operations (`PENDING_ROWS`), of a daemon, or of a stream (`checkpoint`).

    The options are those of `DaemonOptions`.
    """

    @classmethod
    def name(cls) -> str:
        return "purgatory"

    def schema(self) -> StructType:
        """The columns of results if sessions are named, else those of pending operations."""
        return from_arrow_schema(RESULT_ROWS if self.options.get(SESSION) else PENDING_ROWS)

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        # TRAP: Spark refuses a reader with `pushFilters` where spark.sql.python.filterPushdown.enabled is not set.
        is_pushed = self.options.get("pushFilters", "").lower() == "true"
        return (FilteringReader if is_pushed else PendingReader)(DaemonOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise PipelineError('a daemon is never overwritten: give .mode("append")')
        return DaemonWriter(DaemonOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        del schema
        return ResultReader(DaemonOptions.of(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        del overwrite
        return DaemonWriter(DaemonOptions.of(self.options), schema)
