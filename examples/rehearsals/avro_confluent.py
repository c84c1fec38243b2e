"""Departures in two versions of a schema: `python -m examples.rehearsals.avro_confluent`.

Apicurio Registry serves the API of Confluent's registry. It is fetched the first time, 142 MB, and
so is Kafka, 43 MB. Needed: pip install '.[demo]' 'confluent-kafka[avro,schemaregistry]' in a
checkout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final
from unittest.mock import patch

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from examples.recipes import avro_confluent
from examples.rehearsals.avro_departures import (
    SCHEMAS,
    check,
    rows,
    with_impossible_time,
    without_time,
)
from examples.rehearsals.laptop import run
from spark_ssp import LocalKafka, disconnect_kafka
from tests.support.kafka.schema_registry import SchemaRegistry

BAD: Final = (b"", b"{}", b"\x00\x00\x00\x00\x01", None)


def write(brokers: str, registry: str) -> list[bytes | None]:
    """Write the departures with Confluent's serializer, and after them bad records, which are
    returned."""
    context = SerializationContext("departures", MessageField.VALUE)
    with (
        Producer({"bootstrap.servers": brokers}) as producer,
        SchemaRegistryClient({"url": registry}) as client,
    ):
        serializers = [AvroSerializer(client, json.dumps(schema)) for schema in SCHEMAS]
        for row in rows():
            value = serializers[row["index"] % 2](row, context)
            producer.produce("departures", key=row["carrier"], value=value)
        bad = [*BAD, with_impossible_time(serializers[1](without_time(), context))]
        for value in bad:
            producer.produce("departures", key="broken producer", value=value)
        producer.flush()
        return bad


def rehearse(spark: SparkSession, folder: Path) -> bool:
    """Return True if every departure is in the table, and every bad record with an error."""
    with SchemaRegistry() as registry, LocalKafka() as kafka:
        kafka.create_topic("departures", partitions=2)
        bad = write(kafka.bootstrap_servers, registry.url)
        with (
            patch.dict(avro_confluent.SOURCE, kafka.options | {"startingOffsets": "earliest"}),
            patch.dict(avro_confluent.REGISTRY, {"url": registry.url}),
        ):
            avro_confluent.start(spark, str(folder), availableNow=True).awaitTermination()
        disconnect_kafka()
    return check(spark, folder, bad, "value")


if __name__ == "__main__":
    sys.exit(run(rehearse))
