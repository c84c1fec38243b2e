"""Values shared by options, offsets and planning: partitions, selections, and starts and ends. A
partition of a topic is a `SystemStreamPartition` of the system "kafka". A position is always the
offset of the next record to read. Times are milliseconds since the epoch, as in records."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

from spark_ssp.grouping.identifiers import (
    EpochMillis,
    StreamName,
    SystemName,
    SystemStreamPartition,
)

SYSTEM: Final = SystemName("kafka")

TopicId = NewType("TopicId", str)
"""The id that the brokers gave a topic when it was created, as text (KIP-516). A topic that was
deleted and created again has a new one."""


def partition_of(topic: StreamName, partition: int) -> SystemStreamPartition:
    """Return a partition of a topic."""
    return SystemStreamPartition(system=SYSTEM, stream=topic, partition=partition)


def kafka_name(ssp: SystemStreamPartition) -> str:
    """Return the name that Kafka's tools give a partition: `orders-0`."""
    return f"{ssp.stream}-{ssp.partition}"


# --- Selection ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """All partitions of these topics, sorted, at least one."""

    topics: tuple[StreamName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """All partitions of every topic whose name contains a match of the pattern, as in Spark.
    Internal topics are excluded."""

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """These partitions, sorted, at least one."""

    partitions: tuple[SystemStreamPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


def is_selected(selection: Selection, ssp: SystemStreamPartition) -> bool:
    """Return whether the options name the partition, whether it exists or not."""
    match selection:
        case Subscribe(topics=topics):
            return ssp.stream in topics
        case SubscribePattern(pattern=pattern):
            return re.search(pattern, ssp.stream) is not None
        case Assign(partitions=partitions):
            place = bisect_left(partitions, ssp)
            return partitions[place : place + 1] == (ssp,)


# --- Starts and ends ------------------------------------------------------------------------------


class LogicalOffset(StrEnum):
    """The start or the end of a partition's log; -2 and -1 in JSON."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffsets:
    """An offset or a logical offset for each partition; for an end, the first offset that is
    excluded. All partitions that are read must be named."""

    offsets: Mapping[SystemStreamPartition, LogicalOffset | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """The first record of every partition whose time is `time_ms` or later."""

    time_ms: EpochMillis


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimes:
    """A time for each partition, as in `AtTime`. All partitions that are read must be named."""

    times_ms: Mapping[SystemStreamPartition, EpochMillis]


Bound = LogicalOffset | AtOffsets | AtTime | AtTimes
"""The start of reading or, in a batch query, its end."""


class NoMatch(StrEnum):
    """The start in a partition whose records are all older than the start time."""

    ERROR = "error"
    LATEST = "latest"


class IsolationLevel(StrEnum):
    """Kafka's `isolation.level`: whether records of transactions that are not committed are
    read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"
