"""Registers `spark.readStream.format("kafka-ssp")` with Spark, without a register call.

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
    from pyspark.sql.types import StructType
except ImportError as error:
    from spark_ssp.common.spark.requirement import pyspark_error

    raise pyspark_error() from error

FORMAT = "kafka-ssp"


class DefaultSource(DataSource):
    """The source and sink `kafka-ssp`, for streaming and batch queries. Its options extend those of
    Spark's Kafka source: docs/guide/kafka-options.md. Spark creates this object, and the readers,
    more than once and pickles all of them. So none does any I/O in its constructor."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the options. Spark calls this in `load()`, without the kind of
        query: the options are parsed here, so that options valid for neither kind fail there.
        Raises InvalidOptionsError."""
        from spark_ssp.common.spark.schema_check import check_not_table
        from spark_ssp.kafka_source.options.parse import parse_at_load
        from spark_ssp.kafka_source.source import spark_schema

        if self._options:  # otherwise the error names the missing ones
            check_not_table(FORMAT, self._options)
        options = parse_at_load(self._options)
        return spark_schema(
            include_headers=options.include_headers, include_task=options.include_task
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of one query, of the columns in `schema`. With wrong options
        (InvalidOptionsError), or with columns of the user's that the source does not have
        (UnsupportedError: Spark then never calls `schema`), its first call raises the error."""
        from spark_ssp.common.spark.gc_freeze import without_collections

        with without_collections():
            from spark_ssp.common.errors import SspError
            from spark_ssp.common.spark.pyspark_api import FailedStreamReader
            from spark_ssp.common.spark.schema_check import check_not_table
            from spark_ssp.kafka_source.source import KafkaStreamReader

            try:
                check_not_table(FORMAT, self._options)
                return KafkaStreamReader(self._options, schema)
            except SspError as error:
                return FailedStreamReader(error)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query, of the columns in `schema`. Raises
        InvalidOptionsError or UnsupportedError."""
        from spark_ssp.common.spark.pyspark_api import replanned
        from spark_ssp.common.spark.schema_check import check_not_table
        from spark_ssp.kafka_source.source import KafkaBatchReader

        check_not_table(FORMAT, self._options)
        return replanned(KafkaBatchReader(self._options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query. Raises InvalidOptionsError, InvalidRowsError for
        columns that are not parts of records, or UnsupportedError for the mode `overwrite`."""
        from spark_ssp.common.spark.schema_check import check_append, check_not_table
        from spark_ssp.kafka_source.sink.table_sink import KafkaBatchWriter

        check_not_table(FORMAT, self._options)
        check_append("topic", overwrite=overwrite)
        return KafkaBatchWriter(self._options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one batch of a streaming query. Raises the errors of `writer`. The
        output mode complete appends the whole result with each batch, as Spark's Kafka sink
        does."""
        from spark_ssp.common.spark.schema_check import check_not_table
        from spark_ssp.kafka_source.sink.table_sink import KafkaStreamWriter

        check_not_table(FORMAT, self._options)
        return KafkaStreamWriter(self._options, schema)
