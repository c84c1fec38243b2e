"""Identifiers of streams, shards, slots, partitions and tasks.

The terms are Samza's where Samza has one. A Kafka topic has *partitions*; a partition with its
system and stream is a *system-stream-partition* (SSP). A Kinesis stream has *shards*. Shards come
and go, so the SSPs of a Kinesis stream are virtual: slot i of a query is partition i of each of its
streams, regardless of the shards it carries. A *task* owns SSPs and becomes one Spark task; the
task of slot i has the name "Partition i" in `GroupByPartition`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple, NewType

ShardId = NewType("ShardId", str)
"""A shard's id as the service gives it, for example ``shardId-000000000000``."""

StreamName = NewType("StreamName", str)
"""A stream's name within one account and region, never an ARN; of Kafka, a topic's name."""

SlotId = NewType("SlotId", int)
"""A slot's number, from 0 to N - 1."""

SequenceNumber = NewType("SequenceNumber", str)
"""A record's sequence number in decimal, as the service gives it."""

SystemName = NewType("SystemName", str)
"""The kind of service of a stream, for example ``kafka``."""

TaskName = NewType("TaskName", str)
"""A task's name in Samza's form, for example ``Partition 0``: stable for the life of a query."""

EpochMillis = NewType("EpochMillis", int)
"""Milliseconds since 1970-01-01T00:00:00Z."""

WorkerId = NewType("WorkerId", str)
"""The owner of a lease (Samza's processor id, SEP-1): always text, also if it is a number."""

HASH_BYTES = 16
"""The size of an MD5."""
MAX_HASH_KEY = (1 << 128) - 1
"""The largest hash key of a Kinesis shard (the MD5 space, Kinesis API reference, HashKeyRange)."""


class ShardKey(NamedTuple):
    """One shard among all the shards of a query. Orders by stream, then by shard id. A tuple, since
    it is hashed and compared some seventy times for each shard and trigger. Made by keywords, and
    never taken apart as one."""

    stream: StreamName
    shard: ShardId

    def __str__(self) -> str:
        return f"{self.stream}/{self.shard}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRange:
    """The hash keys of a shard, both ends included. ``0 <= first <= last <= MAX_HASH_KEY``."""

    first: int
    last: int

    def __contains__(self, hash_key: int) -> bool:
        return self.first <= hash_key <= self.last


def hash_of(partition_key: str, explicit_hash_key: str | None = None) -> int:
    """Return the hash key of a Kinesis record: the explicit one, or the MD5 of the partition key as
    a number of 128 bits (Kinesis API reference, PutRecord)."""
    if explicit_hash_key is not None:
        return int(explicit_hash_key)
    return int.from_bytes(digest_of(partition_key))


def digest_of(partition_key: str) -> bytes:
    """Return the hash key of a record without an explicit one, as `HASH_BYTES` bytes."""
    return hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SystemStream:
    """A stream among those of all systems."""

    system: SystemName
    stream: StreamName

    def __str__(self) -> str:
        return f"{self.system}/{self.stream}"

    def partition(self, number: int) -> SystemStreamPartition:
        """Return one of its partitions."""
        return SystemStreamPartition(system=self.system, stream=self.stream, partition=number)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SystemStreamPartition:
    """One partition of a stream (SSP). Orders by system, stream, then partition as a number."""

    system: SystemName
    stream: StreamName
    partition: int

    @property
    def system_stream(self) -> SystemStream:
        """The stream that it is a partition of."""
        return SystemStream(system=self.system, stream=self.stream)

    def __str__(self) -> str:
        return f"SystemStreamPartition [{self.system}, {self.stream}, {self.partition}]"
