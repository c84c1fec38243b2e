"""A stream with a consumer, read by subscriptions between its first and its last records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.client.subscriptions import open_subscriber
from spark_ssp.kinesis_source.model.ranges import ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    ConsumerArn,
    SequenceNumber,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.reading.process_wide import ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from tests.support.kinesis.reading import Row, options, rows_of, slot_of

if TYPE_CHECKING:
    from types_boto3_kinesis import KinesisClient


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedStream:
    """Its ranges, each from the beginning of a shard to its last record, and how to connect."""

    name: str
    connection: ConnectionOptions
    slot: SlotRange

    @classmethod
    def of(
        cls,
        name: str,
        consumer: str,
        last: Mapping[str, str],
        connection: ConnectionOptions,
    ) -> Self:
        """`last` has the number of each shard's last record, `consumer` is an ARN."""
        stream = StreamRef(name=StreamName(name))
        created = connect(connection).describe(stream).created
        ranges = (
            ShardRange(
                stream=stream,
                shard=ShardId(shard),
                hash_range=None,
                created=created,
                start=TrimHorizon(),
                start_caught_up_ms=None,
                expect_first=None,
                end=AfterRecord(sequence_number=SequenceNumber(last[shard])),
                consumer=ConsumerArn(consumer),
            )
            for shard in sorted(last)
        )
        return cls(name=name, connection=connection, slot=slot_of(*ranges))

    def batches(self, **changes: Any) -> Iterator[pa.RecordBatch]:
        """Read it as a task, with `changes` of the options."""
        return self._read(self.slot, **changes)

    def rows(self, **changes: Any) -> list[Row]:
        """Return the rows of a task, sorted."""
        return sorted(rows_of(list(self.batches(**changes))))

    def polled(self) -> list[Row]:
        """Return the rows of a task that polls all, sorted."""
        shards = tuple(replace(each, consumer=None) for each in self.slot.shards)
        return sorted(rows_of(list(self._read(replace(self.slot, shards=shards)))))

    def _read(self, slot: SlotRange, **changes: Any) -> Iterator[pa.RecordBatch]:
        return read_slot(
            slot,
            options(connection=self.connection, **changes),
            connect(self.connection),
            rates=ReadRates(),
            open_subscriber=lambda window: open_subscriber(self.connection, window=window),
        )


def connection_to(endpoint_url: str, *, timeout_ms: int) -> ConnectionOptions:
    """Return options for a local service, with the time to wait for connections and answers."""
    return ConnectionOptions(
        region="us-east-1",
        endpoint_url=endpoint_url,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        connect_timeout_ms=timeout_ms,
        read_timeout_ms=timeout_ms,
    )


def put_numbers(client: KinesisClient, stream: str, count: int) -> dict[str, str]:
    """Put the numbers up to `count` as records; return the number of each shard's last record."""
    last: dict[str, str] = {}
    for start in range(0, count, 500):
        entries = [
            {"PartitionKey": f"key-{number}", "Data": b"%d" % number}
            for number in range(start, min(count, start + 500))
        ]
        for result in client.put_records(StreamName=stream, Records=entries)["Records"]:  # type: ignore[arg-type]
            last[result["ShardId"]] = result["SequenceNumber"]
    return last
