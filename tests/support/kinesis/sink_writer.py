"""A writer of the Kinesis sink, rows for it, and the entries of its requests, decoded as a service
does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    HashRange,
    SequenceNumber,
    ShardId,
    StreamName,
)
from spark_ssp.kinesis_source.client.api import KinesisWriter
from spark_ssp.kinesis_source.model.deaggregation import WriteId
from spark_ssp.kinesis_source.model.shard import PutEntries, Shard, StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.sink.aggregation import ShardMap
from spark_ssp.kinesis_source.sink.columns import Rows, SinkColumns
from spark_ssp.kinesis_source.sink.delivery import DeliveryMetrics
from spark_ssp.kinesis_source.sink.options import SinkOptions
from spark_ssp.kinesis_source.sink.writer import RecordWriter, TargetCache
from spark_ssp.testing.kinesis import EmbeddedKinesis

COLUMNS = SinkColumns(data=0, partition_key=1)
PLACED = SinkColumns(data=0, partition_key=1, explicit_hash_key=2)
NAMED = SinkColumns(data=0, partition_key=1, stream=2)
ORDERS = StreamRef(name=StreamName("orders"))
SHARD = Shard(
    shard_id=ShardId("shardId-000000000000"),
    hash_range=HashRange(first=0, last=MAX_HASH_KEY),
    first_sequence_number=SequenceNumber("0"),
    closed=False,
)
"""The only shard of a stream."""


def batch(*columns: Any) -> pa.RecordBatch:
    names = ["data", "partitionKey", "more"][: len(columns)]
    return pa.RecordBatch.from_pydict(dict(zip(names, columns, strict=True)))


def rows(numbers: range, keys: int = 50) -> pa.RecordBatch:
    return batch([b"%d" % n for n in numbers], [f"key-{n % keys}" for n in numbers])


def writer(
    service: KinesisWriter,
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
    service: KinesisWriter, *batches: pa.RecordBatch, **options: Any
) -> dict[StreamName, DeliveryMetrics]:
    return writer(service, **options).write(batches)


def data_of(kinesis: EmbeddedKinesis) -> list[tuple[str | None, bytes]]:
    return [(one.partition_key, one.data) for one in kinesis.state.records("orders")]


class Entry(NamedTuple):
    """An entry of a request."""

    data: bytes
    partition_key: str | None = None
    explicit_hash_key: str | None = None


def rows_of(entries: Sequence[Entry]) -> Rows:
    """Return rows that have the data and keys of entries."""
    hash_keys = [one.explicit_hash_key for one in entries]
    sizes = [len(one.data) + len((one.partition_key or "").encode()) for one in entries]
    return Rows(
        pa.array([one.data for one in entries], pa.binary()),
        pa.array([one.partition_key for one in entries], pa.string()),
        pa.array(hash_keys, pa.string()) if any(hash_keys) else None,
        np.array(sizes, np.int64),
    )


def entries_of(entries: PutEntries) -> list[Entry]:
    """Decode entries."""
    decoded = json.loads(b"[%b]" % b"".join(entries.text).removesuffix(b","))
    assert len(decoded) == entries.count
    return [_entry(**one) for one in decoded]


def _entry(Data: str, PartitionKey: str | None = None, ExplicitHashKey: str | None = None) -> Entry:
    return Entry(base64.b64decode(Data, validate=True), PartitionKey, ExplicitHashKey)


def shard_of(shard_map: ShardMap, hash_key: int) -> ShardId:
    """Return the shard that a map predicts for a hash key."""
    return shard_map.shards[int(shard_map.place([None], [str(hash_key)])[0])]
