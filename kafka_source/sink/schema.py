"""Maps the columns of a query to the parts of a record. The rules are those of Spark's Kafka sink
(`KafkaWriter.validateQuery`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from spark_ssp.common.spark.record_columns import RecordColumn, find_columns, is_text, of_types
from spark_ssp.kafka_source.sink.columns import SinkColumns

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def resolve_columns(schema: StructType, *, topic_given: bool) -> SinkColumns:
    """Return the columns of the parts of a record. `topic_given`: the option `topic` is set, so a
    column `topic` is ignored. Raises InvalidRowsError with all problems."""
    columns = _COLUMNS if topic_given else (_TOPIC, *_COLUMNS)
    places = find_columns(schema, columns)
    return SinkColumns(
        value=places["value"],
        key=places.get("key"),
        headers=places.get("headers"),
        partition=places.get("partition"),
        topic=places.get("topic"),
    )


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    found = [(field.name.lower(), type(field.dataType)) for field in kind.elementType.fields]
    return found == [("key", StringType), ("value", BinaryType)]


def _cast_to(type_text: str, name: str) -> str:
    return f"CAST it: CAST({name} AS {type_text.upper()})"


_BYTES: Final = RecordColumn(
    name="key", fits=of_types(StringType, BinaryType), type_text="string or binary"
)

_TOPIC: Final = RecordColumn(
    name="topic",
    fits=is_text,
    type_text="string",
    if_missing=(
        "neither a column topic nor the option topic",
        "one of them",
        'name the topic: .option("topic", ...)',
    ),
)

_COLUMNS: Final = (
    _BYTES,
    replace(
        _BYTES,
        name="value",
        if_missing=(
            "no column value",
            "a column value",
            "select the content of the records AS value",
        ),
    ),
    RecordColumn(
        name="headers",
        fits=_is_headers,
        type_text=HEADERS_TYPE,
        advice=lambda name, _: _cast_to(HEADERS_TYPE, name),
    ),
    RecordColumn(
        name="partition",
        fits=of_types(IntegerType),
        type_text="int",
        advice=lambda name, _: _cast_to("int", name),
    ),
)
