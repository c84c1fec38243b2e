"""Avro as AWS Glue's serializers write it, decoded in bulk with the schemas of Glue's registry."""

import io
import json
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any
from uuid import UUID

import boto3
import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"streamName": "departures", "region": "eu-west-1", "startingPosition": "trim_horizon"}
REGISTRY = {"region_name": "eu-west-1"}
# The schema to read. A writer may have another one that Avro resolves to it, older or newer.
READER = """{"type": "record", "name": "Departure", "fields": [
    {"name": "index", "type": "long"},
    {"name": "carrier", "type": "string"},
    {"name": "tailnum", "type": ["null", "string"], "default": null},
    {"name": "time_hour", "default": null,
     "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]}]}"""
FIELDS = [("index", pa.int64()), ("carrier", pa.string()), ("tailnum", pa.string())]
FIELDS += [("time_hour", pa.timestamp("us", "UTC"))]
POSITION = [("shardId", pa.string()), ("sequenceNumber", pa.string())]
# `data` is the record's bytes if there is an error, for a correction after the stream's retention.
COLUMNS = pa.schema([*FIELDS, *POSITION, ("error", pa.string()), ("data", pa.binary())])
# ArithmeticError: a date or time that Python does not have.
UNDECODABLE = (ArithmeticError, EOFError, LookupError, ValueError, zlib.error)


@cache
def schemas(version: UUID, *registry: Any) -> tuple[Any, Any]:
    """Return the writer's schema and the reader's; each Python worker fetches a version once."""
    client = boto3.client("glue", **dict(registry))
    writer = client.get_schema_version(SchemaVersionId=str(version))["SchemaDefinition"]
    return fastavro.parse_schema(json.loads(writer)), fastavro.parse_schema(json.loads(READER))


def decode(records: DataFrame, registry: dict[str, str]) -> DataFrame:
    """Return a row for each record: the fields, or the error and the bytes."""

    def row(data: bytes, **position: str) -> dict[str, Any]:
        # Version 3 of the header, compression (0: none, 5: zlib), the schema's version, Avro.
        if len(data) < 18 or data[0] != 3 or data[1] not in (0, 5):
            return {**position, "error": "not written by a serializer of Glue", "data": data}
        # An error of the registry fails the query, which then reads the batch again.
        both = schemas(UUID(bytes=data[2:18]), *registry.items())
        try:
            avro = zlib.decompress(data[18:]) if data[1] == 5 else data[18:]
            fields: Any = fastavro.schemaless_reader(io.BytesIO(avro), *both)
            return {**position, **fields}
        except UNDECODABLE as error:
            return {**position, "error": type(error).__name__, "data": data}

    def batches(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in records:
            yield pa.RecordBatch.from_pylist([row(**each) for each in batch.to_pylist()], COLUMNS)

    schema = records.sparkSession.createDataFrame(COLUMNS.empty_table()).schema
    return records.select("data", *dict(POSITION)).mapInArrow(batches, schema)


def start(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = decode(records, REGISTRY).writeStream.format("parquet").trigger(**trigger)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return writer.start(f"{folder}/departures")
