"""Puts records into streams, and keeps all puts as the truth for a query. A feed puts records one
after the other, so the order of a key is the order of its puts. It has the same methods for every
service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.fan_out_mode import FAN_OUT_OPTIONS
from tests.support.servers.kinesis_mock import KinesisMock
from tests.support.waiting import until

if TYPE_CHECKING:
    from types_boto3_kinesis import KinesisClient

FEEDS = ["embedded", pytest.param("kinesis_mock", marks=pytest.mark.long)]
"""For `parametrize` of `feed`, by a test that CI runs over only one of two services. The other one
has the same contract, and is read in CI by other tests."""


class Record(NamedTuple):
    """A record as the service took it. Sorts by stream, shard and sequence number."""

    stream: str
    shard: str
    sequence: int
    key: str
    data: bytes


def options_for(endpoint_url: str) -> dict[str, str]:
    """Return the options of a query on a local service. The intervals are short, so that a query of
    a few seconds meets the children of a reshard."""
    return {
        "endpointUrl": endpoint_url,
        "region": "us-east-1",
        "awsAccessKeyId": "local",
        "awsSecretAccessKey": "local",
        "shardDiscoveryInterval": "200ms",
        "minFetchPeriod": "200ms",
        **FAN_OUT_OPTIONS,
    }


class Feed(ABC):
    """One service's streams, with everything put into them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._serial = 0

    # --- Implemented per service ------------------------------------------------------------

    @property
    @abstractmethod
    def endpoint_url(self) -> str:
        """The address of the service."""

    @abstractmethod
    def create(self, stream: str, shards: int = 1) -> None:
        """Create a stream and wait until it is active."""

    @abstractmethod
    def _put(self, stream: str, key: str, data: bytes) -> tuple[str, str]:
        """Put a record; return its shard and its sequence number."""

    @abstractmethod
    def split(self, stream: str, shard: str) -> tuple[str, str]:
        """Split a shard in the middle; return the children, lower one first."""

    @abstractmethod
    def merge(self, stream: str, shard: str, adjacent: str) -> str:
        """Merge neighbours; return the child."""

    @abstractmethod
    def open_shards(self, stream: str) -> list[str]:
        """Return the shards that take puts, by hash key."""

    # --- The same everywhere -----------------------------------------------------------------

    def put(self, stream: str, count: int = 1, *, keys: int = 17) -> list[Record]:
        """Put `count` records of a number of keys in turn; the data are increasing numbers."""
        return [self._put_next(stream, keys) for _ in range(count)]

    def _put_next(self, stream: str, keys: int) -> Record:
        self._serial += 1
        return self.put_data(stream, f"key-{self._serial % keys}", b"%d" % self._serial)

    def put_data(self, stream: str, key: str, data: bytes) -> Record:
        """Put this record."""
        shard, number = self._put(stream, key, data)
        record = Record(stream=stream, shard=shard, sequence=int(number), key=key, data=data)
        self.records.append(record)
        return record

    def split_first(self, stream: str) -> tuple[str, str]:
        """Split the open shard with the lowest hash keys."""
        return self.split(stream, self.open_shards(stream)[0])

    def merge_first(self, stream: str) -> str:
        """Merge the two open shards with the lowest hash keys."""
        first, second = self.open_shards(stream)[:2]
        return self.merge(stream, first, second)


class EmbeddedFeed(Feed):
    """Feeds the embedded service directly: faults and limits apply only to the query."""

    def __init__(self, kinesis: EmbeddedKinesis) -> None:
        super().__init__()
        self._kinesis = kinesis

    @property
    def endpoint_url(self) -> str:
        return self._kinesis.endpoint_url

    def create(self, stream: str, shards: int = 1) -> None:
        self._kinesis.state.create_stream(stream, shards=shards)

    def _put(self, stream: str, key: str, data: bytes) -> tuple[str, str]:
        state = self._kinesis.state
        with state.lock:
            shard = state.stream(stream).route(key, None)
            return shard.shard_id, state.put(stream, key, data).sequence_number

    def split(self, stream: str, shard: str) -> tuple[str, str]:
        return self._kinesis.state.split(stream, shard)

    def merge(self, stream: str, shard: str, adjacent: str) -> str:
        return self._kinesis.state.merge(stream, shard, adjacent)

    def open_shards(self, stream: str) -> list[str]:
        return self._kinesis.state.open_shard_ids(stream)


class RemoteFeed(Feed):
    """Feeds a service through boto3, as a producer would."""

    def __init__(self, client: KinesisClient, kinesis: KinesisMock) -> None:
        super().__init__()
        self._client = client
        self._kinesis = kinesis

    @property
    def endpoint_url(self) -> str:
        return self._kinesis.endpoint_url

    def create(self, stream: str, shards: int = 1) -> None:
        self._client.create_stream(StreamName=stream, ShardCount=shards)
        self._settle(stream)

    def _put(self, stream: str, key: str, data: bytes) -> tuple[str, str]:
        answer = self._client.put_record(StreamName=stream, PartitionKey=key, Data=data)
        return answer["ShardId"], answer["SequenceNumber"]

    def split(self, stream: str, shard: str) -> tuple[str, str]:
        first, last = self.hash_ranges(stream)[shard]
        before = self.open_shards(stream)
        self._client.split_shard(
            StreamName=stream,
            ShardToSplit=shard,
            NewStartingHashKey=str((first + last + 1) // 2),
        )
        self._settle(stream)
        lower, upper = self._born(stream, before, 2)
        return lower, upper

    def merge(self, stream: str, shard: str, adjacent: str) -> str:
        before = self.open_shards(stream)
        self._client.merge_shards(
            StreamName=stream, ShardToMerge=shard, AdjacentShardToMerge=adjacent
        )
        self._settle(stream)
        (child,) = self._born(stream, before, 1)
        return child

    def open_shards(self, stream: str) -> list[str]:
        ranges = self.hash_ranges(stream)
        return sorted(ranges, key=lambda shard: ranges[shard])

    def _born(self, stream: str, before: Iterable[str], count: int) -> list[str]:
        """Wait for so many shards that were not open before; an active stream may list them a
        little later."""
        known = set(before)

        def new() -> list[str]:
            return [shard for shard in self.open_shards(stream) if shard not in known]

        until(lambda: len(new()) == count, f"{count} new shards are listed")
        return new()

    def hash_ranges(self, stream: str) -> dict[str, tuple[int, int]]:
        """Return the hash ranges of the open shards."""
        found: dict[str, tuple[int, int]] = {}
        pages = self._client.get_paginator("list_shards").paginate(StreamName=stream)
        for shard in (shard for page in pages for shard in page["Shards"]):
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                keys = shard["HashKeyRange"]
                found[shard["ShardId"]] = (
                    int(keys["StartingHashKey"]),
                    int(keys["EndingHashKey"]),
                )
        return found

    def delete_all(self) -> None:
        """Delete every stream and wait until they are gone."""
        for stream in self._client.list_streams()["StreamNames"]:
            self._client.delete_stream(StreamName=stream)
        until(lambda: not self._client.list_streams()["StreamNames"], "streams are deleted")

    def _settle(self, stream: str) -> None:
        until(
            lambda: self._summary(stream)["StreamStatus"] == "ACTIVE", f"stream {stream} is active"
        )

    def _summary(self, stream: str) -> dict[str, Any]:
        answer = self._client.describe_stream_summary(StreamName=stream)
        return dict(answer["StreamDescriptionSummary"])
