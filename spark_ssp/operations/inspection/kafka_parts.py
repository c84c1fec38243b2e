"""Measures the partitions that a query reads: the delay of each in offsets and in time, and its
pace."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_ssp.common.errors import NEW_CHECKPOINT
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.api import KafkaService, TopicDescription
from spark_ssp.kafka_source.model.offset import Offset
from spark_ssp.kafka_source.model.topic import (
    AtTime,
    LogicalOffset,
    Subscribe,
    kafka_name,
    partition_of,
)
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from spark_ssp.kafka_source.planning.topic_metadata import recreated_topics
from spark_ssp.operations.health import (
    Behind,
    Finding,
    Pace,
    Part,
    Reader,
    Verdict,
    not_the_same,
)
from spark_ssp.operations.inspection.positions import Earlier, partition_rows
from spark_ssp.operations.inspection.spark_checkpoint import Source
from spark_ssp.operations.inspection.topics import Place, record_ages

Positions = Mapping[SystemStreamPartition, int | None]


def kafka_parts(
    service: KafkaService,
    source: Source,
    earlier: Earlier,
    *,
    retention_ms: int | None,
    limit_ms: int,
    now_ms: int,
) -> tuple[list[Part], list[Finding]]:
    """Measure the partitions of a source that has an offset. `limit_ms`: the delay from which on
    the pace is measured too. Needs Describe on the topics."""
    rows = {
        partition_of(StreamName(row.topic), row.partition): row for row in partition_rows(source)
    }
    names = tuple(sorted({ssp.stream for ssp in rows}))
    topics = service.describe(Subscribe(topics=names))
    changed = _changed(source, names, topics)
    added = _added(rows.keys(), topics)
    asked = sorted(ssp for ssp in (*rows, *added) if ssp.stream not in changed)
    begins = service.list_offsets(asked, LogicalOffset.EARLIEST)
    ends = service.list_offsets(asked, LogicalOffset.LATEST)
    committed: dict[SystemStreamPartition, int | None] = {}
    planned: dict[SystemStreamPartition, int | None] = {}
    for ssp in asked:
        row = rows.get(ssp)
        known = None if row is None else row.committed
        committed[ssp] = begins.get(ssp) if known is None else known
        planned[ssp] = committed[ssp] if row is None or row.planned is None else row.planned
    marks = [limit_ms] if retention_ms is None else [limit_ms, retention_ms // 2, retention_ms]
    unread = {place for positions in (committed, planned) for place in _unread(positions, ends)}
    ages = record_ages(service, unread, now_ms, marks)
    delays = {ssp: _behind(ssp, committed, ends, ages) for ssp in asked}
    late = [ssp for ssp in asked if earlier.shows_pace(delays[ssp].ms, limit_ms, now_ms)]
    paces = _paces(service, late, delays, committed, ends, earlier, now_ms)
    parts = [
        Part(
            name=kafka_name(ssp),
            reader=Reader.QUERY if ssp in rows else Reader.WAITING,
            committed=delays[ssp],
            planned=_behind(ssp, planned, ends, ages),
            retention_ms=retention_ms,
            pace=paces.get(ssp),
            is_lost=_is_before(committed[ssp], begins.get(ssp)),
        )
        for ssp in asked
    ]
    findings = [
        not_the_same(
            f"topic {topic}",
            change,
            "the query reads it on other brokers",
            check="--bootstrap-servers, and that the user may describe the topic,",
            option="dropTopics",
        )
        for topic, change in changed.items()
    ]
    beyond = [ssp for ssp in asked if _is_before(ends.get(ssp), committed[ssp])]
    return parts, findings + [_beyond(ssp, committed[ssp], ends[ssp]) for ssp in beyond]


def _changed(
    source: Source, names: Collection[StreamName], topics: Mapping[StreamName, TopicDescription]
) -> dict[StreamName, str]:
    """Return the topics that are not those of the checkpoint any more, with the change. Checkpoints
    of Spark's own source have no ids to compare."""
    newest = source.planned or source.committed
    recreated = recreated_topics(newest, topics) if isinstance(newest, Offset) else frozenset()
    return {
        name: "deleted and created again"
        if name in recreated
        else "deleted, or hidden from this user,"
        for name in names
        if name in recreated or name not in topics
    }


def _added(
    known: Collection[SystemStreamPartition], topics: Mapping[StreamName, TopicDescription]
) -> list[SystemStreamPartition]:
    """Return the partitions that the query does not have yet, of the topics of which it has all
    others: with `assign` it may read only some."""
    counts: dict[StreamName, int] = {}
    for ssp in known:
        counts[ssp.stream] = counts.get(ssp.stream, 0) + 1
    return [
        partition_of(name, number)
        for name, count in sorted(counts.items())
        if name in topics and partition_of(name, count - 1) in known
        for number in range(count, topics[name].partition_count)
    ]


def _is_before(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def _unread(positions: Positions, ends: Positions) -> list[Place]:
    return [
        (ssp, position)
        for ssp, position in positions.items()
        if position is not None and _is_before(position, ends.get(ssp))
    ]


def _behind(
    ssp: SystemStreamPartition, positions: Positions, ends: Positions, ages: Mapping[Place, int]
) -> Behind:
    position, end = positions[ssp], ends.get(ssp)
    if position is None or end is None or position > end:
        return Behind()  # after the end: it is a position in another log
    if position == end:
        return Behind(ms=0, offsets=0)
    return Behind(ms=ages.get((ssp, position)), offsets=end - position)


def _beyond(ssp: SystemStreamPartition, position: int | None, end: int | None) -> Finding:
    return Finding(
        verdict=Verdict.FAILED,
        reason=f"{kafka_name(ssp)} ends at {end}, before the position {position}: its log was cut, "
        "or it is another topic of the same name",
        remedy=f"start the query on {NEW_CHECKPOINT}, from earliest if all records are new",
    )


def _paces(
    service: KafkaService,
    late: Collection[SystemStreamPartition],
    delays: Mapping[SystemStreamPartition, Behind],
    committed: Positions,
    ends: Positions,
    earlier: Earlier,
    now_ms: int,
) -> dict[SystemStreamPartition, Pace]:
    """Return how many offsets of late partitions were read and written in a millisecond: read
    between two commits, written in as long a time until now."""
    if not late or not isinstance(earlier.offset, Offset | SparkOffset):
        return {}
    since = AtTime(time_ms=EpochMillis(now_ms - earlier.elapsed_ms))
    then = service.list_offsets(late, since)
    found = {}
    for ssp in late:
        before, now, end = earlier.offset.positions.get(ssp), committed[ssp], ends.get(ssp)
        if before is None or now is None or end is None or ssp not in then:
            continue
        first = then[ssp]
        found[ssp] = Pace(
            backlog=delays[ssp].offsets or 0,
            read=max(0, now - before) / earlier.elapsed_ms,
            written=0 if first is None else (end - first) / earlier.elapsed_ms,
        )
    return found
