"""The writer of the Kinesis sink over a service that answers as it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    EpochMillis,
    HashRange,
    SequenceNumber,
    ShardId,
)
from spark_ssp.kinesis_source.model.shard import (
    PutEntries,
    PutOutcome,
    Shard,
    StreamDescription,
    StreamRef,
)
from tests.support.kinesis.sink_writer import NAMED, batch, writer

SHARD = Shard(
    shard_id=ShardId("shardId-000000000000"),
    hash_range=HashRange(first=0, last=MAX_HASH_KEY),
    first_sequence_number=SequenceNumber("0"),
    closed=False,
)


class Service:
    """Streams of one shard. `put` has the stream of each request."""

    def __init__(self) -> None:
        self.put: list[str] = []

    def describe(self, stream: StreamRef, *, within: float | None = None) -> StreamDescription:
        return StreamDescription(
            name=stream.name, arn=f"arn:{stream.name}", created=EpochMillis(0), retention_ms=1
        )

    def list_shards(
        self, stream: StreamRef, *, retry: bool = True, within: float | None = None
    ) -> tuple[Shard, ...]:
        return (SHARD,)

    def put_records(self, stream: StreamRef, entries: PutEntries) -> PutOutcome:
        self.put.append(stream.name)
        return PutOutcome(shards=[SHARD.shard_id] * entries.count, codes=[None] * entries.count)


def test_streams_take_turns() -> None:
    """A link that carries less than the rows of the first stream leaves room for the others."""
    added = threading.Event()

    class Waiting(Service):
        def put_records(self, stream: StreamRef, entries: PutEntries) -> PutOutcome:
            added.wait(60)
            return super().put_records(stream, entries)

    def batches() -> Iterator[pa.RecordBatch]:
        names = ["first"] * 60 + ["second"] * 2 + ["third"]
        yield batch([bytes(10_000)] * len(names), ["k"] * len(names), names)
        added.set()

    service = Waiting()
    writer(service, NAMED, stream=None, max_requests_in_flight=1).write(batches())
    assert service.put[:4] == ["first", "second", "third", "first"]
    assert len(service.put) > 5, "the first stream has more rows than two requests take"
