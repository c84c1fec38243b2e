"""Departures in two versions of a schema: `python -m examples.rehearsals.avro_glue`.

moto serves Glue's registry. Needed: pip install '.[demo]' fastavro 'moto[glue]' in a checkout.
"""

from __future__ import annotations

import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import boto3
import fastavro
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession

from examples.recipes import avro_glue
from examples.rehearsals.avro_departures import (
    SCHEMAS,
    check,
    rows,
    with_impossible_time,
    without_time,
)
from examples.rehearsals.laptop import connection, run
from spark_ssp import EmbeddedKinesis

BAD: Final = (b"", b"{}", b"\x03\x00" + b"\x00" * 8)


@contextmanager
def glue() -> Iterator[dict[str, str]]:
    """Serve Glue, and yield boto3's settings for it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    try:
        yield {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1", **keys}
    finally:
        server.stop()


def register(settings: dict[str, Any]) -> list[UUID]:
    """Register both schemas as versions of one; return their ids."""
    client = boto3.client("glue", **settings)
    client.create_registry(RegistryName="flights")
    first = client.create_schema(
        RegistryId={"RegistryName": "flights"},
        SchemaName="departures",
        DataFormat="AVRO",
        Compatibility="BACKWARD",
        SchemaDefinition=json.dumps(SCHEMAS[0]),
    )
    second = client.register_schema_version(
        SchemaId={"RegistryName": "flights", "SchemaName": "departures"},
        SchemaDefinition=json.dumps(SCHEMAS[1]),
    )
    client.close()
    return [UUID(answer["SchemaVersionId"]) for answer in (first, second)]


def encode(row: dict[str, Any], versions: list[UUID]) -> bytes:
    """Return the departure as Glue's serializers write it, every third one compressed."""
    number: int = row["index"] % 2
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMAS[number]), row)
    if row["index"] % 3 == 0:
        return bytes([3, 5]) + versions[number].bytes + zlib.compress(body.getvalue())
    return bytes([3, 0]) + versions[number].bytes + body.getvalue()


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if every departure is in the table, and every bad record with an error."""
    with (
        EmbeddedKinesis() as kinesis,
        glue() as settings,
        patch.dict(avro_glue.SOURCE, connection(kinesis)),
        patch.dict(avro_glue.REGISTRY, settings),
    ):
        kinesis.state.create_stream("departures", shards=2)
        versions = register(settings)
        for row in rows():
            kinesis.state.put("departures", row["carrier"], encode(row, versions))
        # And two that end too early, compressed and not, and one with a time out of range.
        early = [encode(row, versions)[:20] for row in rows()[:2]]
        bad = (*BAD, *early, with_impossible_time(encode(without_time(), versions)))
        for data in bad:
            kinesis.state.put("departures", "broken producer", data)
        avro_glue.start(spark, str(folder), availableNow=True).awaitTermination()
    return check(spark, folder, bad, "data")


if __name__ == "__main__":
    sys.exit(run(rehearse))
