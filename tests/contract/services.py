"""The services that the contract suite runs over, and the known faults of each.

moto's Kinesis, which the suite does not run over, has no record distribution strategy either.

The contract is the Kinesis API reference. Where a service is known to differ, the difference has a
name here, and the suite asserts the difference itself: it is noticed when it goes away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.exceptions import ClientError

from tests.support.waiting import until

if TYPE_CHECKING:
    from types_boto3_kinesis import KinesisClient
    from types_boto3_kinesis.type_defs import GetRecordsOutputTypeDef, ShardTypeDef

FIRST = "shardId-000000000000"
SECOND = "shardId-000000000001"
MIDDLE = 1 << 127
WAIT_S = 20


class Quirk(StrEnum):
    """A known difference from the API reference."""

    ANY_BATCH_SIZE = "PutRecords takes more than 500 records"
    CLOSED_SHARD_IS_GONE = "a shard that was split is not found, with its records"
    CLOSED_SHARD_IS_IN_USE = "splitting a closed shard is ResourceInUse, not InvalidArgument"
    ENDING_NUMBER_IS_MAX_LONG = "the EndingSequenceNumber of a closed shard is 2^63 - 1"
    FOREIGN_NUMBERS_PASS = "a sequence number of another shard or stream opens an iterator"
    FUTURE_OF_AN_EMPTY_SHARD = "AT_TIMESTAMP in the future is taken when the shard is empty"
    KEYS_PLACE_ALL_RECORDS = "there is no record distribution strategy: keys place every record"
    LAG_TO_THE_LAST_RECORD = "MillisBehindLatest counts to the last record put, not to now"
    MADE_UP_ITERATOR_IS_500 = "an iterator that it never gave is answered with a bare 500"
    NEXT_TOKEN_LIVES_ON = "the NextToken of ListShards never expires"
    NO_DRY_RUN = "DryRun is ignored: the request is carried out"
    NOTHING_EXPIRES = "records and closed shards outlive the retention period"
    ON_DEMAND_IS_RESHARDED = "SplitShard splits the shards of an on-demand stream"
    RECORD_SIZE_IS_NOT_TOLD = "DescribeStreamSummary gives no MaxRecordSizeInKiB"
    TRIM_HORIZON_IS_NOW = "the shard filter AT_TRIM_HORIZON gives all shards"


QUIRKS: Final[dict[str, frozenset[Quirk]]] = {
    "embedded": frozenset(),
    "kinesis-mock": frozenset(Quirk) - {Quirk.CLOSED_SHARD_IS_GONE},
    "ministack": frozenset({Quirk.CLOSED_SHARD_IS_GONE}),
}
"""Of ministack only those of consumers and SubscribeToShard."""


@dataclass(kw_only=True)
class Service:
    """One service under test. Each `stream()` is new."""

    name: str
    client: KinesisClient
    now_ms: Callable[[], int]
    advance: Callable[[int], object]
    _numbers: count[int] = field(default_factory=count)

    def has(self, quirk: Quirk) -> bool:
        return quirk in QUIRKS[self.name]

    def stream(self, shards: int = 1) -> str:
        """The name of a new, active stream."""
        name = f"stream-{next(self._numbers)}"
        self.client.create_stream(StreamName=name, ShardCount=shards)
        self.settled(name)
        return name

    def settled(self, stream: str) -> None:
        """Wait until the stream is active."""
        self.until(lambda: self.summary(stream)["StreamStatus"] == "ACTIVE")

    def summary(self, stream: str) -> dict[str, Any]:
        answer = self.client.describe_stream_summary(StreamName=stream)
        return dict(answer["StreamDescriptionSummary"])

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a condition, up to a deadline."""
        until(reached, "the service gets there", within_s=WAIT_S)

    def stream_names(self) -> list[str]:
        """Return the names of all streams."""
        found: list[str] = []
        more = True
        while more:
            start: Any = {"ExclusiveStartStreamName": found[-1]} if found else {}
            answer = self.client.list_streams(**start)
            found += answer["StreamNames"]
            more = answer["HasMoreStreams"]
        return found

    def put(self, stream: str, *data: str, key: int | None = 0) -> list[str]:
        """Put each text by itself, at hash key `key`; the sequence numbers."""
        return [
            self.client.put_record(
                StreamName=stream,
                PartitionKey=f"key-{text}",
                Data=text.encode(),
                ExplicitHashKey=str(key),
            )["SequenceNumber"]
            for text in data
        ]

    def iterator(
        self, stream: str, shard: str = FIRST, kind: str = "TRIM_HORIZON", **more: Any
    ) -> str:
        answer = self.client.get_shard_iterator(
            StreamName=stream,
            ShardId=shard,
            ShardIteratorType=kind,  # type: ignore[arg-type]
            **more,
        )
        return answer["ShardIterator"]

    def page(self, iterator: str, limit: int = 10_000) -> GetRecordsOutputTypeDef:
        """One answer of GetRecords."""
        return self.client.get_records(ShardIterator=iterator, Limit=limit)

    def read(self, stream: str, shard: str = FIRST, kind: str = "TRIM_HORIZON", **more: Any) -> str:
        """All that can be read now from there on, put together."""
        token: str | None = self.iterator(stream, shard, kind, **more)
        found = ""
        while token is not None:
            page = self.page(token)
            found += texts(page)
            if not page["Records"]:
                break
            token = page.get("NextShardIterator")
        return found

    def listing(self, stream: str) -> list[ShardTypeDef]:
        """ListShards."""
        return self.client.list_shards(StreamName=stream)["Shards"]

    def shards(self, stream: str) -> dict[str, ShardTypeDef]:
        """ListShards, by id, in the order of the answer."""
        return {shard["ShardId"]: shard for shard in self.listing(stream)}

    def open_shards(self, stream: str) -> list[str]:
        return [
            shard_id
            for shard_id, shard in self.shards(stream).items()
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]

    def split(self, stream: str, shard: str, at: int) -> list[str]:
        """Split and wait; the children."""
        before = set(self.shards(stream))
        self.client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(at))
        self.settled(stream)
        return [s for s in self.shards(stream) if s not in before]

    def merge(self, stream: str, shard: str, adjacent: str) -> str:
        """Merge and wait; the child."""
        before = set(self.shards(stream))
        self.client.merge_shards(
            StreamName=stream, ShardToMerge=shard, AdjacentShardToMerge=adjacent
        )
        self.settled(stream)
        (child,) = (s for s in self.shards(stream) if s not in before)
        return child


def texts(page: GetRecordsOutputTypeDef) -> str:
    """The data of a page, put together."""
    return "".join(record["Data"].decode() for record in page["Records"])


def refusal(call: Callable[..., object], **arguments: Any) -> str:
    """The error code that a call is answered with."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"]
