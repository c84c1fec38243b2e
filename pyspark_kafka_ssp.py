"""Makes `spark.readStream.format("kafka-ssp")` known to Spark, without a register call.

Spark imports every top-level module named `pyspark_*` that it finds on the Python path and takes
its `DefaultSource`; one that fails or dawdles spoils the look-up for all. So this module imports
nothing but PySpark until a query asks for this source by name.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

FORMAT = "kafka-ssp"


class DefaultSource(DataSource):
    """The source `kafka-ssp`, for streams and for batch queries. Its options are those of Spark's
    own Kafka source, and some more: `kafka_source.options.table`.

    Spark builds this object, and the readers, more than once and pickles all. So none does any
    I/O when it is built.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The word that follows `format(`."""
        return FORMAT

    def schema(self) -> StructType:
        """The schema that the options ask for.

        Spark asks for it in `load()`, without saying for which kind of query: the options are
        parsed here, so that those that fit neither kind fail there. Raises InvalidOptionsError.
        """
        from kafka_source.model.schema import spark_schema
        from kafka_source.options.parse import parse_at_load

        options = parse_at_load(self._options)
        return spark_schema(
            include_headers=options.include_headers, include_task=options.include_task
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one query. Raises InvalidOptionsError, or UnsupportedError when the user
        asked for another schema: Spark then never calls `schema`.
        """
        from kafka_source.source import KafkaStreamReader

        reader = KafkaStreamReader(self._options)
        self._check_schema(schema)
        return reader

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query; raises as `streamReader`."""
        from kafka_source.source import KafkaBatchReader

        reader = KafkaBatchReader(self._options)
        self._check_schema(schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query. Raises InvalidOptionsError, InvalidRowsError when the
        columns are not those of records, or UnsupportedError for the mode `overwrite`."""
        from kafka_source.sink.table_sink import KafkaBatchWriter
        from ssp_common.errors import UnsupportedError

        if overwrite:
            raise UnsupportedError(
                "df.write.mode(...)",
                found="overwrite",
                expected="append: records of a topic are not replaced",
                next_step='use .mode("append"); to begin afresh, delete the topic and create it',
            )
        return KafkaBatchWriter(self._options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of one batch of a streaming query; raises as `writer`. The output mode
        complete adds the whole result again with each batch, as with Spark's own sink."""
        from kafka_source.sink.table_sink import KafkaStreamWriter

        return KafkaStreamWriter(self._options, schema)

    def _check_schema(self, schema: StructType) -> None:
        expected = self.schema()
        if _shape(schema) == _shape(expected):
            return
        from ssp_common.errors import UnsupportedError

        raise UnsupportedError(
            ".schema(...)",
            found=f"the schema {schema.simpleString()}",
            expected="no schema: that of this source follows from includeHeaders and includeTask",
            next_step="leave .schema(...) out and select or parse the columns after load()",
        )


def _shape(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
