"""The values that options, offsets and planning speak in. No I/O, no clock, no SDK type.

A partition of a topic is a `SystemStreamPartition` of the system "kafka". A position is always the
offset of the next record to read. Times are milliseconds since the epoch, as records carry them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

from task_grouping.identifiers import EpochMillis, StreamName, SystemName, SystemStreamPartition

SYSTEM: Final = SystemName("kafka")

TopicId = NewType("TopicId", str)
"""What the brokers gave a topic when it was created, as text (KIP-516). A topic that was deleted
and created again has another one."""


def partition_of(topic: StreamName, partition: int) -> SystemStreamPartition:
    """A partition of a topic."""
    return SystemStreamPartition(system=SYSTEM, stream=topic, partition=partition)


def kafka_name(ssp: SystemStreamPartition) -> str:
    """A partition as Kafka's own tools write it: `orders-0`."""
    return f"{ssp.stream}-{ssp.partition}"


# --- What to read ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """All partitions of these topics, sorted, at least one."""

    topics: tuple[StreamName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """All partitions of every topic in whose name the pattern is found, as Spark has it: not
    necessarily the whole name. Internal topics are left out."""

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """These partitions, sorted, at least one."""

    partitions: tuple[SystemStreamPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


# --- Where to start and to end --------------------------------------------------------------------


class LogicalOffset(StrEnum):
    """One of the two ends of a partition; -2 and -1 in JSON."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffsets:
    """Partition by partition: an end, or the offset of the next record (for an end of reading, of
    the first record left out). All partitions that are read must be named."""

    offsets: Mapping[SystemStreamPartition, LogicalOffset | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """In every partition, the first record whose time is `time_ms` or later."""

    time_ms: EpochMillis


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimes:
    """As `AtTime`, partition by partition. All partitions that are read must be named."""

    times_ms: Mapping[SystemStreamPartition, EpochMillis]


Bound = LogicalOffset | AtOffsets | AtTime | AtTimes
"""Where reading starts or, in a batch query, ends."""


class NoMatch(StrEnum):
    """What a start by time means in a partition that has no record so late."""

    ERROR = "error"
    LATEST = "latest"


class IsolationLevel(StrEnum):
    """Kafka's: whether records of transactions that are not committed are read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"
