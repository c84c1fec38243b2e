"""Avro in Confluent's wire format, decoded in bulk with the schemas of its registry."""

from collections.abc import Iterator
from functools import cache
from json import JSONDecodeError
from typing import Any

import pyarrow as pa
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"kafka.bootstrap.servers": "broker1:9092", "subscribe": "departures"}
REGISTRY = {"url": "https://registry:8081"}

# The schema to read. A writer may have another one that Avro resolves to it, older or newer.
READER = """{"type": "record", "name": "Departure", "fields": [
    {"name": "index", "type": "long"},
    {"name": "carrier", "type": "string"},
    {"name": "tailnum", "type": ["null", "string"], "default": null},
    {"name": "time_hour", "default": null,
     "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]}]}"""
FIELDS = [("index", pa.int64()), ("carrier", pa.string()), ("tailnum", pa.string())]
FIELDS += [("time_hour", pa.timestamp("us", "UTC"))]
POSITION = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
# `value` is the record's bytes if there is an error, for a correction after the topic's retention.
COLUMNS = pa.schema([*FIELDS, *POSITION, ("error", pa.string()), ("value", pa.binary())])
# ArithmeticError: a date or time that Python does not have.
UNDECODABLE = (ArithmeticError, EOFError, LookupError, SerializationError, ValueError)


@cache
def deserializer(*registry: tuple[str, str]) -> Any:
    """Return that of this Python worker, which remembers the schemas that it has fetched."""
    return AvroDeserializer(SchemaRegistryClient(dict(registry)), READER)


def decode(records: DataFrame, registry: dict[str, str]) -> DataFrame:
    """Return a row for each record: the fields, or the error and the bytes."""

    def row(value: bytes | None, topic: str, **position: Any) -> dict[str, Any]:
        row = {"topic": topic, **position}
        if value is None:
            return {**row, "error": "no value"}
        context = SerializationContext(topic, MessageField.VALUE)
        fields = deserializer(*registry.items())
        try:
            return {**row, **fields(value, context)}
        # An error of the registry fails the query, which then reads the batch again.
        except JSONDecodeError:
            raise
        except UNDECODABLE as error:
            return {**row, "error": type(error).__name__, "value": value}

    def batches(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in records:
            yield pa.RecordBatch.from_pylist([row(**each) for each in batch.to_pylist()], COLUMNS)

    schema = records.sparkSession.createDataFrame(COLUMNS.empty_table()).schema
    return records.select("value", *dict(POSITION)).mapInArrow(batches, schema)


def start(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    records = spark.readStream.format("kafka-ssp").options(**SOURCE).load()
    writer = decode(records, REGISTRY).writeStream.format("parquet").trigger(**trigger)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return writer.start(f"{folder}/departures")
