"""Registers `spark.readStream.format("kinesis-ssp")` with Spark, without a register call.

Spark imports every top-level module named `pyspark_*` on the Python path and registers its
`DefaultSource`; one that fails or is slow affects the lookup of all. So this module imports only
PySpark until a query uses this source.
"""

from __future__ import annotations

from collections.abc import MutableMapping

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StringType, StructField, StructType
except ImportError as error:
    from spark_ssp.common.spark.requirement import pyspark_error

    raise pyspark_error() from error

FORMAT = "kinesis-ssp"


class DefaultSource(DataSource):
    """The source and sink `kinesis-ssp`, for streaming and batch queries. Their options:
    docs/guide/kinesis-options.md. Spark creates this object, and the readers, more than once and
    pickles all of them. So none does any I/O in its constructor."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the options.

        Spark calls this in `load()`: the options are parsed here, so that a wrong one fails there
        and not when the query starts. Raises InvalidOptionsError. A read that requests a drain
        (`leases/drain.py`) or the statuses of readers (`spark_ssp/common/spark/reader_status.py`)
        returns the answer as the name of a column.
        """
        from spark_ssp.common.spark.pyspark_api import PYSPARK_WITHOUT_LIMITS
        from spark_ssp.common.spark.reader_status import find_statuses
        from spark_ssp.common.spark.schema_check import check_not_table
        from spark_ssp.kinesis_source.leases.drain import drain
        from spark_ssp.kinesis_source.options.parse import parse_at_load
        from spark_ssp.kinesis_source.source import spark_schema

        answer = drain(self._options) or find_statuses(self._options)
        if answer is not None:
            return StructType([StructField(str(answer), StringType())])
        if self._options:  # otherwise the error names the missing ones
            check_not_table(FORMAT, self._options)
        options = parse_at_load(self._options, pyspark_without_limits=PYSPARK_WITHOUT_LIMITS)
        return spark_schema(include_repeat_keys=options.include_repeat_keys)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of one query, of the columns in `schema`. With wrong options
        (InvalidOptionsError), or with columns of the user's that the source does not have
        (UnsupportedError: Spark then never calls `schema`), its first call raises the error."""
        from spark_ssp.common.spark.gc_freeze import without_collections

        with without_collections():
            from spark_ssp.common.errors import SspError
            from spark_ssp.common.spark.pyspark_api import FailedStreamReader
            from spark_ssp.common.spark.schema_check import check_not_table
            from spark_ssp.kinesis_source.source import KinesisStreamReader

            try:
                check_not_table(FORMAT, self._options)
                return KinesisStreamReader(self._options, schema)
            except SspError as error:
                return FailedStreamReader(error)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query, of the columns in `schema`. Raises
        InvalidOptionsError or UnsupportedError."""
        from spark_ssp.common.spark.pyspark_api import replanned
        from spark_ssp.common.spark.schema_check import check_not_table
        from spark_ssp.kinesis_source.source import KinesisBatchReader

        check_not_table(FORMAT, self._options)
        return replanned(KinesisBatchReader(self._options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query. Raises InvalidOptionsError, InvalidRowsError for
        columns that are not parts of records, the errors of a stream that does not exist or may not
        be described, or UnsupportedError for the mode `overwrite`."""
        from spark_ssp.common.spark.schema_check import check_append, check_not_table
        from spark_ssp.kinesis_source.sink.table_sink import KinesisBatchWriter

        check_not_table(FORMAT, self._options)
        check_append("stream", overwrite=overwrite)
        return KinesisBatchWriter(self._options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one batch of a streaming query. Raises the errors of `writer`. The
        output mode complete appends the whole result with each batch."""
        from spark_ssp.common.spark.schema_check import check_not_table
        from spark_ssp.kinesis_source.sink.table_sink import KinesisStreamWriter

        check_not_table(FORMAT, self._options)
        return KinesisStreamWriter(self._options, schema)
