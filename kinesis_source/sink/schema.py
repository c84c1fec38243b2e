"""Maps the columns of a query to the parts of a Kinesis record. The names are those of awslabs'
connector."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import BinaryType, StringType, StructType

from spark_ssp.common.spark.record_columns import RecordColumn, find_columns, is_text, of_types
from spark_ssp.kinesis_source.sink.columns import SinkColumns

_COLUMNS: Final = (
    RecordColumn(
        name="data",
        fits=of_types(StringType, BinaryType),
        type_text="string or binary",
        if_missing=(
            "no column data",
            "a column data",
            "select the content of the records AS data",
        ),
    ),
    RecordColumn(
        name="partitionKey",
        fits=is_text,
        type_text="string",
        if_missing=(
            "no column partitionKey",
            "a column partitionKey, whose hash decides the shard of a record",
            "select a key AS partitionKey, for example uuid() to spread records evenly",
        ),
    ),
    RecordColumn(name="explicitHashKey", fits=is_text, type_text="string"),
)

_STREAM: Final = RecordColumn(
    name="stream",
    fits=is_text,
    type_text="string",
    if_missing=(
        "neither a column stream nor the option streamName or streamARN",
        "one of them",
        'name the stream: .option("streamName", ...)',
    ),
)


def resolve_columns(schema: StructType, *, stream_given: bool) -> SinkColumns:
    """Return the columns of the parts of a record. `stream_given`: an option names the stream, so a
    column `stream` is ignored. Raises InvalidRowsError with all problems."""
    places = find_columns(schema, _COLUMNS if stream_given else (_STREAM, *_COLUMNS))
    return SinkColumns(
        data=places["data"],
        partition_key=places["partitionKey"],
        explicit_hash_key=places.get("explicitHashKey"),
        stream=places.get("stream"),
    )
