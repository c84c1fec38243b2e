"""A writer of the Kinesis sink, and rows for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.aggregation.repeat_keys import WriteId
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.sink.columns import SinkColumns
from spark_ssp.kinesis_source.sink.process_wide import TargetCache
from spark_ssp.kinesis_source.sink.values import DeliveryMetrics, SinkOptions
from spark_ssp.kinesis_source.sink.writer import RecordWriter
from spark_ssp.testing.kinesis import EmbeddedKinesis

COLUMNS = SinkColumns(data=0, partition_key=1)
PLACED = SinkColumns(data=0, partition_key=1, explicit_hash_key=2)
NAMED = SinkColumns(data=0, partition_key=1, stream=2)
ORDERS = StreamRef(name=StreamName("orders"))


def batch(*columns: Any) -> pa.RecordBatch:
    names = ["data", "partitionKey", "more"][: len(columns)]
    return pa.RecordBatch.from_pydict(dict(zip(names, columns, strict=True)))


def rows(numbers: range, keys: int = 50) -> pa.RecordBatch:
    return batch([b"%d" % n for n in numbers], [f"key-{n % keys}" for n in numbers])


def writer(
    service: Boto3Kinesis,
    columns: SinkColumns = COLUMNS,
    *,
    stream: StreamRef | None = ORDERS,
    write_id: Callable[[StreamName], WriteId] | None = None,
    **options: Any,
) -> RecordWriter:
    connection = ConnectionOptions()
    cache = TargetCache()
    return RecordWriter(
        service=service,
        target_of=lambda stream: cache.get(stream, connection, service),
        columns=columns,
        options=SinkOptions(stream=stream, connection=connection, **options),
        write_id=write_id,
    )


def write(
    service: Boto3Kinesis, *batches: pa.RecordBatch, **options: Any
) -> dict[StreamName, DeliveryMetrics]:
    return writer(service, **options).write(batches)


def data_of(kinesis: EmbeddedKinesis) -> list[tuple[str | None, bytes]]:
    return [(one.partition_key, one.data) for one in kinesis.state.records("orders")]
