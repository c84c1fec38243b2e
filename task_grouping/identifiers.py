"""Names of the things that are grouped: streams, shards, slots; and of what is in them.

These are the words of the whole project: a *shard* is what Kinesis has, a *slot* is one of the N
virtual partitions of a query (Samza's system-stream-partition, SSP) and becomes one Spark task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

ShardId = NewType("ShardId", str)
"""A shard's id as the service gives it, for example ``shardId-000000000000``."""

StreamName = NewType("StreamName", str)
"""A stream's name within one account and region; never an ARN."""

SlotId = NewType("SlotId", int)
"""A slot's number, from 0 to N - 1."""

SequenceNumber = NewType("SequenceNumber", str)
"""A record's sequence number in decimal, as the service gives it."""

EpochMillis = NewType("EpochMillis", int)
"""Milliseconds since 1970-01-01T00:00:00Z."""

WorkerId = NewType("WorkerId", str)
"""Who holds a lease (Samza's processor id, SEP-1): always text, even if it looks like a number."""

MAX_HASH_KEY = (1 << 128) - 1
"""The largest hash key of a Kinesis shard (the MD5 space, Kinesis API reference, HashKeyRange)."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ShardKey:
    """One shard among all the shards of a query. Orders by stream, then by shard id."""

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
