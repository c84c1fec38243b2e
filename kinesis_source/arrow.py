"""Rows on their way to Spark: chunks of one shard's records, gathered into Arrow record batches.

A chunk holds what one page of the service contributes, by column. Batches are built from many
chunks at once, each column in one call; what is constant over a chunk (stream, shard) is written
as a run. Nothing is done record by record, except to split a chunk that is too big for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import pyarrow as pa
import pyarrow.compute as pc

from kinesis_source.model import EpochMillis, SequenceNumber
from task_grouping.identifiers import ShardKey, SlotId

ARROW_SCHEMA = pa.schema(
    [
        pa.field("partitionKey", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("stream", pa.string()),
        pa.field("shardId", pa.string()),
        pa.field("sequenceNumber", pa.string()),
        pa.field("subSequenceNumber", pa.int64()),
        pa.field("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
        pa.field("ssp", pa.int32()),
    ]
)
"""Exactly what PySpark makes of `schema.SPARK_SCHEMA`; a test compares the two."""

MAX_BATCH_ROWS = 65_536
MAX_BATCH_BYTES = 16 << 20
"""Above one of these a batch is split, unless it is a single row. Far below Arrow's limit of 2 GiB
for a column of `string` or `binary`, and small enough for the JVM to hold several."""

ROW_OVERHEAD_BYTES = 256
"""What a record takes in memory beside its key and data: five Python objects and their pointers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive rows of one shard, by column; all columns have the same length."""

    shard: ShardKey
    partition_keys: Sequence[str]
    data: Sequence[bytes]
    sequence_numbers: Sequence[SequenceNumber]
    sub_sequence_numbers: Sequence[int] | None
    """None: every row is a whole Kinesis record, numbered 0."""
    arrival_millis: Sequence[EpochMillis]
    weight: int
    """Bytes that the rows take, as `weigh` counts them."""

    def __len__(self) -> int:
        return len(self.sequence_numbers)


def weigh(partition_keys: Sequence[str], data: Sequence[bytes]) -> int:
    """Bytes that these records take in memory, about: keys, data and a fixed overhead each."""
    return sum(map(len, partition_keys)) + sum(map(len, data)) + ROW_OVERHEAD_BYTES * len(data)


def to_batches(chunks: Iterable[Chunk], slot: SlotId) -> Iterator[pa.RecordBatch]:
    """`chunks` in order as batches of at most MAX_BATCH_ROWS and MAX_BATCH_BYTES.

    Empty chunks vanish. Only a row that is bigger than MAX_BATCH_BYTES by itself exceeds it.
    """
    gathered: list[Chunk] = []
    rows = weight = 0
    for chunk in chain.from_iterable(map(_split, chunks)):
        if gathered and (
            rows + len(chunk) > MAX_BATCH_ROWS or weight + chunk.weight > MAX_BATCH_BYTES
        ):
            yield _build(gathered, slot)
            gathered, rows, weight = [], 0, 0
        gathered.append(chunk)
        rows += len(chunk)
        weight += chunk.weight
    if gathered:
        yield _build(gathered, slot)


def _split(chunk: Chunk) -> Iterator[Chunk]:
    """The chunk itself where it fits a batch, else pieces that do."""
    if len(chunk) <= MAX_BATCH_ROWS and chunk.weight <= MAX_BATCH_BYTES:
        if len(chunk):
            yield chunk
        return
    weights = [
        len(key) + len(data) + ROW_OVERHEAD_BYTES
        for key, data in zip(chunk.partition_keys, chunk.data, strict=True)
    ]
    begin = weight = 0
    for index, row_weight in enumerate(weights):
        if index > begin and (
            index - begin >= MAX_BATCH_ROWS or weight + row_weight > MAX_BATCH_BYTES
        ):
            yield _piece(chunk, begin, index, weight)
            begin, weight = index, 0
        weight += row_weight
    yield _piece(chunk, begin, len(chunk), weight)


def _piece(chunk: Chunk, begin: int, end: int, weight: int) -> Chunk:
    subs = chunk.sub_sequence_numbers
    return Chunk(
        shard=chunk.shard,
        partition_keys=chunk.partition_keys[begin:end],
        data=chunk.data[begin:end],
        sequence_numbers=chunk.sequence_numbers[begin:end],
        sub_sequence_numbers=None if subs is None else subs[begin:end],
        arrival_millis=chunk.arrival_millis[begin:end],
        weight=weight,
    )


def _build(chunks: Sequence[Chunk], slot: SlotId) -> pa.RecordBatch:
    rows = sum(map(len, chunks))

    def column(values: Callable[[Chunk], Iterable[object]], kind: pa.DataType) -> pa.Array:
        return pa.array(list(chain.from_iterable(map(values, chunks))), type=kind)

    def constant(value: Callable[[Chunk], str]) -> pa.Array:
        ends = pa.array(accumulate(map(len, chunks)), type=pa.int32())
        values = pa.array(list(map(value, chunks)), type=pa.string())
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))

    def subs(chunk: Chunk) -> Iterable[int]:
        known = chunk.sub_sequence_numbers
        return (0,) * len(chunk) if known is None else known

    millis = column(lambda chunk: chunk.arrival_millis, pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            column(lambda chunk: chunk.partition_keys, pa.string()),
            column(lambda chunk: chunk.data, pa.binary()),
            constant(lambda chunk: chunk.shard.stream),
            constant(lambda chunk: chunk.shard.shard),
            column(lambda chunk: chunk.sequence_numbers, pa.string()),
            column(subs, pa.int64()),
            millis.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            pa.repeat(pa.scalar(slot, pa.int32()), rows),
        ],
        schema=ARROW_SCHEMA,
    )
