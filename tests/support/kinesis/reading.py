"""Runs the executor's reader over a scripted service, and returns plain rows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from spark_ssp.grouping.identifiers import ShardId, SlotId
from spark_ssp.kinesis_source.model.ranges import (
    ExpectedSize,
    RangeEnd,
    RangeStart,
    ShardRange,
    SlotRange,
    Stragglers,
)
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    SequenceNumber,
    ShardEnd,
    ShardIterator,
    StartingPosition,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import ConnectionOptions, KinesisOptions
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.testing.kinesis import ManualClock
from tests.support.fakes.scripted import (
    CREATED,
    STREAM,
    FakeTime,
    ScriptedService,
    ScriptedShard,
    Step,
    recs,
)

A = ShardId("shardId-000000000000")
B = ShardId("shardId-000000000001")


LOCAL = ConnectionOptions(endpoint_url="http://localhost:1")


class Row(NamedTuple):
    """One row, without the columns that are the same for all."""

    shard: str
    sequence: int
    sub: int
    key: str
    data: bytes


def options(**changes: Any) -> KinesisOptions:
    """Return the defaults, for the scripted stream on a local service, with some `changes`."""
    plain = KinesisOptions(
        streams=(STREAM,),
        starting_position=StartingPosition(default=TrimHorizon()),
        connection=LOCAL,
    )
    return replace(plain, **changes)


def shard_range(
    shard: ShardId = A,
    start: RangeStart = TrimHorizon(),  # noqa: B008 - frozen
    end: RangeEnd = ShardEnd(),  # noqa: B008 - frozen
    *,
    seen: EpochMillis | None = None,
    first: int | None = None,
    expected: ExpectedSize | None = None,
    stragglers: Stragglers | None = None,
    iterator: str | None = None,
) -> ShardRange:
    return ShardRange(
        stream=STREAM,
        shard=shard,
        hash_range=None,
        created=CREATED,
        start=start,
        start_caught_up_ms=seen,
        expect_first=None if first is None else SequenceNumber(str(first)),
        end=end,
        expected=expected,
        stragglers=stragglers,
        iterator=None if iterator is None else ShardIterator(iterator),
    )


def shard_of(
    *sequences: int, closed: bool = False, script: Iterable[Step] = (), hidden: int = 0
) -> ScriptedShard:
    """Shard A with these records. `hidden`: the number of the last ones that do not appear yet."""
    return ScriptedShard(
        shard_id=A, records=recs(*sequences), closed=closed, script=deque(script), hidden=hidden
    )


def slot_of(*shards: ShardRange) -> SlotRange:
    return SlotRange(slot=SlotId(0), shards=shards)


def read(
    service: ScriptedService,
    *shards: ShardRange,
    time: FakeTime | None = None,
    **changes: Any,
) -> list[Row]:
    """Return all rows of a slot of these ranges, in the order in which they came."""
    batches = read_slot(
        slot_of(*shards),
        options(**changes),
        service,
        clock=(time or FakeTime()).clock,
        hash_ranges=HashRangeCache(),
        rates=ReadRates(),
    )
    return rows_of(list(batches))


def timing_of(clock: ManualClock) -> Clock:
    """Return the reader's clock for a service whose clock moves by its waiting."""

    def wait(_: threading.Event, seconds: float) -> None:
        clock.advance(round(seconds * 1000) + 1)

    return Clock(monotonic=lambda: clock.now_ms() / 1000, wait=wait, random=lambda: 0.0)


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    return [
        Row(
            shard=row["shardId"],
            sequence=int(row["sequenceNumber"]),
            sub=row["subSequenceNumber"],
            key=row["partitionKey"],
            data=row["data"],
        )
        for batch in batches
        for row in batch.to_pylist()
    ]


def sequences(rows: Sequence[Row], shard: ShardId = A) -> list[int]:
    return [row.sequence for row in rows if row.shard == shard]
