"""Reads topics: their ids and partitions, first and next offsets, and the times of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.grouping.assignment import NO_ASSIGNMENT
from spark_ssp.grouping.identifiers import (
    EpochMillis,
    StreamName,
    SystemStreamPartition,
    TaskName,
)
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.api import KafkaService, TopicDescription
from spark_ssp.kafka_source.model.topic import LogicalOffset, TopicId, partition_of
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS, KafkaOptions
from spark_ssp.kafka_source.planning.plan_batch import create_grouping
from spark_ssp.kafka_source.planning.topic_metadata import not_found_error
from spark_ssp.operations.health import age_ms

_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition, and the task that a new query would give it to."""

    ssp: SystemStreamPartition
    begin: int | None
    """The offset of the oldest record; None if the partition's leader is unknown."""
    end: int | None
    """The offset after the newest record (with read_committed, the last stable offset)."""
    task: TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Topics of one cluster."""

    ids: Mapping[StreamName, TopicId | None]
    partitions: tuple[PartitionState, ...]


def read_topics(names: Iterable[str], options: Mapping[str, str]) -> Topics:
    """Read topics. StreamNotFoundError if one does not exist. Needs Describe on the topics."""
    parsed = topic_options(names, options)
    service = connect(parsed)
    found = service.describe(parsed.selection)
    missing = sorted({StreamName(name) for name in names} - found.keys())
    if missing:
        raise not_found_error(parsed.selection, missing)
    partitions = [
        partition_of(name, number)
        for name in sorted(found)
        for number in range(found[name].partition_count)
    ]
    begins = service.list_offsets(partitions, LogicalOffset.EARLIEST)
    ends = service.list_offsets(partitions, LogicalOffset.LATEST)
    assignment = create_grouping(parsed).group(NO_ASSIGNMENT, frozenset(partitions))
    owners = assignment.owners()
    return Topics(
        ids={name: topic.topic_id for name, topic in sorted(found.items())},
        partitions=tuple(
            PartitionState(ssp=ssp, begin=begins.get(ssp), end=ends.get(ssp), task=owners[ssp])
            for ssp in partitions
        ),
    )


def topic_options(topics: Iterable[str], options: Mapping[str, str]) -> KafkaOptions:
    """Parse options of a query, with these topics. Raises InvalidOptionsError."""
    others = KAFKA_OPTIONS.left_out(options, *_SELECTIONS)
    return parse_options({**others, "subscribe": ",".join(topics)})


def describe_topics(
    topics: Iterable[StreamName], options: Mapping[str, str]
) -> Mapping[StreamName, TopicDescription]:
    """Return the ids and partition counts of the topics that exist."""
    parsed = topic_options(topics, options)
    return connect(parsed).describe(parsed.selection)


def latest_offsets(
    partitions: Iterable[SystemStreamPartition], options: Mapping[str, str]
) -> dict[SystemStreamPartition, int]:
    """Return the offset after the newest record of each partition that has a leader, with any
    isolation level: an open transaction is no end of a log."""
    wanted = sorted(partitions)
    if not wanted:
        return {}
    parsed = topic_options(sorted({ssp.stream for ssp in wanted}), options)
    found = connect(parsed).list_offsets(wanted, LogicalOffset.LATEST, uncommitted=True)
    return {ssp: offset for ssp, offset in found.items() if offset is not None}


# --- The age of records ---------------------------------------------------------------------------

_FIRST_MARK_MS: Final = 4_000
_LAST_MARK_MS: Final = 1_000 * 24 * 3_600_000

Place = tuple[SystemStreamPartition, int]
"""An offset in a partition."""


def record_ages(
    service: KafkaService, places: Iterable[Place], now_ms: int, marks: Iterable[int] = ()
) -> dict[Place, int]:
    """Return the ages of the records at these offsets, in milliseconds, rounded up.

    Brokers find the first record since a time, not the time of a record. So times ever further back
    are requested, each twice as far as the one before, until the record is among those since then:
    a few requests for all partitions together. The age is that of the first one, which is the
    record or one before it. `marks` are ages that are requested too, so that a comparison with one
    of them is exact.

    Absent are a record that has no time, and one at or after a record whose time is in the future:
    that one is the first since every time.
    """
    pending = set(places)
    steps = set(marks)
    mark = _FIRST_MARK_MS
    while mark <= _LAST_MARK_MS:
        steps.add(mark)
        mark *= 2
    found: dict[Place, int] = {}
    for age in sorted(steps):
        if not pending:
            break
        since = EpochMillis(max(0, now_ms - age))
        answers = service.first_records({ssp for ssp, _ in pending}, since)
        for place in sorted(pending):
            first = answers.get(place[0])
            if first is not None and first.offset <= place[1]:
                pending.remove(place)
                known = age_ms(first.time_ms, now_ms)
                if known is not None:
                    found[place] = known
    return found
