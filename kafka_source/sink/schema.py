"""Maps the columns of a query to the parts of a record. The rules are those of Spark's Kafka sink
(`KafkaWriter.validateQuery`): names are case-sensitive; any other column is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from kafka_source.sink.columns import SinkColumns
from ssp_common.errors import InvalidRowsError

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def resolve_columns(schema: StructType, *, topic_given: bool) -> SinkColumns:
    """Return the columns of the parts of a record. `topic_given`: the option `topic` is set, so a
    column `topic` is ignored. Raises InvalidRowsError with all problems."""
    fields: dict[str, tuple[int, StructField]] = {}
    for index, field in enumerate(schema.fields):
        fields.setdefault(field.name, (index, field))
    if topic_given:
        fields.pop("topic", None)
    problems = list(_problems(fields, topic_given=topic_given))
    if problems:
        raise InvalidRowsError(
            ", ".join(f"column {column}" for column, _, _, _ in problems),
            found="; ".join(found for _, found, _, _ in problems),
            expected="; ".join(expected for _, _, expected, _ in problems),
            next_step="; ".join(next_step for _, _, _, next_step in problems),
        )
    places = {name: index for name, (index, _) in fields.items()}
    return SinkColumns(
        value=places["value"],
        key=places.get("key"),
        headers=places.get("headers"),
        partition=places.get("partition"),
        topic=places.get("topic"),
    )


def _problems(
    fields: dict[str, tuple[int, StructField]], *, topic_given: bool
) -> Iterator[tuple[str, str, str, str]]:
    """Return the column, found, expected and next step of each problem."""
    if "topic" not in fields and not topic_given:
        yield (
            "topic",
            "neither a column topic nor the option topic",
            "one of them",
            'name the topic: .option("topic", ...)',
        )
    if "value" not in fields:
        yield (
            "value",
            "no column value",
            "a column value",
            "select the content of the records AS value",
        )
    for name, (kinds, text) in _TYPES.items():
        if name not in fields:
            continue
        kind = fields[name][1].dataType
        fits = _is_headers(kind) if name == "headers" else isinstance(kind, kinds)
        if not fits:
            yield (
                name,
                f"{name} of type {kind.simpleString()}",
                f"{name} of type {text}",
                _advice(name, kind),
            )


_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "topic": ((StringType,), "string"),
    "key": ((StringType, BinaryType), "string or binary"),
    "value": ((StringType, BinaryType), "string or binary"),
    "headers": ((ArrayType,), HEADERS_TYPE),
    "partition": ((IntegerType,), "int"),
}


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    found = [(field.name.lower(), type(field.dataType)) for field in kind.elementType.fields]
    return found == [("key", StringType), ("value", BinaryType)]


def _advice(name: str, kind: DataType) -> str:
    if name == "headers":
        return f"CAST it: CAST({name} AS {HEADERS_TYPE.upper()})"
    if name == "partition":
        return "CAST it: CAST(partition AS INT)"
    if isinstance(kind, StructType | ArrayType):
        return f"convert it to text, for example by to_json({name}) AS {name}"
    return f"CAST it: CAST({name} AS STRING)"
