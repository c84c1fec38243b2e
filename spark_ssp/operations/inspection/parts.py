"""Measures the shards and partitions that a query reads, or that its application shares by leases:
the delay, the reader and the pace of each.

A delay of shards in milliseconds is also the amount that remains to be read: a query that reads an
hour of records in half an hour reads twice as fast as they were written. The pace of partitions is
measured in offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_ssp.common.errors import NEW_CHECKPOINT, SspError, StreamNotFoundError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import (
    ShardId,
    ShardKey,
    StreamName,
    SystemStreamPartition,
)
from spark_ssp.kafka_source.client.api import KafkaService, TopicDescription
from spark_ssp.kafka_source.model.offset import Offset as KafkaOffset
from spark_ssp.kafka_source.model.topic import (
    AtTime,
    LogicalOffset,
    Subscribe,
    kafka_name,
    partition_of,
)
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from spark_ssp.kafka_source.planning.topic_metadata import recreated_topics
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    Position,
    Retention,
    SequenceNumber,
    ShardEnd,
    ShardState,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.planning.active_shards import ancestors
from spark_ssp.kinesis_source.planning.data_loss import Evidence, judge
from spark_ssp.kinesis_source.planning.data_loss import Verdict as Loss
from spark_ssp.operations.health import (
    Behind,
    Finding,
    Pace,
    Part,
    Reader,
    Verdict,
    not_the_same,
    unreadable,
)
from spark_ssp.operations.inspection.lease_table import (
    ObservedTable,
    ShardLease,
    State,
    shard_leases,
    without_namesakes,
)
from spark_ssp.operations.inspection.positions import (
    Earlier,
    ShardRow,
    has_whole_topics,
    partition_rows,
    shard_rows,
)
from spark_ssp.operations.inspection.spark_checkpoint import Source
from spark_ssp.operations.inspection.streams import (
    ListedStream,
    References,
    first_records,
    list_streams,
    try_lags,
)
from spark_ssp.operations.inspection.topics import Place, record_ages

# --- Shards --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    """A shard whose delay is to be measured."""

    key: ShardKey
    reader: Reader
    retention_ms: int
    committed: Position | None
    """None: unknown."""
    planned: Position | None = None
    """None: no batch is planned that reads it."""
    is_lost: bool = False
    is_own: bool = True


def kinesis_parts(
    source: Source,
    earlier: Earlier,
    *,
    connection: ConnectionOptions,
    references: References,
    is_there: bool,
    tables: Mapping[str, ObservedTable | SspError],
    limit_ms: int,
    now_ms: int,
) -> tuple[list[Part], list[Finding]]:
    """Measure the shards of a source that has an offset. A stream, table or shard that cannot be
    read is a finding, and does not hide the others. `is_there`: a stream that is not found was
    deleted. `limit_ms`: the delay from which on the pace is measured too. Needs the permissions of
    `list_streams` and `lags_of`."""
    newest = source.planned or source.committed
    if not isinstance(newest, Offset):
        return [], []
    rows = shard_rows(source)
    shards: list[_Shard] = []
    findings: list[Finding] = []
    for name, entry in sorted(newest.streams.items()):
        own = {
            ShardId(row.shard): row
            for row in rows
            if row.stream == name and row.state != "other worker"
        }
        try:
            stream = list_streams([name], connection, references)[name]
            if stream.description.created != entry.created:
                elsewhere = f"is another one than {stream.description.arn}"
                change = "deleted and created again"
                findings.append(_not_the_same(name, change, elsewhere, is_there))
            elif entry.leases is None:
                shards += _own_shards(name, own, stream)
            else:
                leases = _leases(name, stream, tables[entry.leases])
                shards += _shared_shards(name, own, stream, leases)
        except StreamNotFoundError as error:
            elsewhere = f"is in another region or account: found {error.found}"
            findings.append(_not_the_same(name, "deleted", elsewhere, is_there))
        except SspError as error:
            findings.append(unreadable(error))
    lost, errors = _lost(shards, source, now_ms, connection, references)
    shards = [replace(shard, is_lost=shard.is_lost or shard.key in lost) for shard in shards]
    parts, failed = _measured(shards, earlier, limit_ms, now_ms, connection, references)
    findings += [unreadable(error) for error in errors]
    return parts, list(dict.fromkeys(findings + failed))


def _leases(
    name: StreamName, stream: ListedStream, table: ObservedTable | SspError
) -> list[ShardLease]:
    if isinstance(table, SspError):
        raise table
    own = without_namesakes(table, {name: stream.description})
    return shard_leases(own, {name: stream.shards})


def _not_the_same(name: StreamName, change: str, elsewhere: str, is_there: bool) -> Finding:
    return not_the_same(
        f"stream {name}",
        change,
        f"the one that it reads {elsewhere}",
        check="--region, and the account of the credentials,",
        option="dropStreams",
        is_certain=is_there,
    )


def _own_shards(
    name: StreamName, rows: Mapping[ShardId, ShardRow], stream: ListedStream
) -> Iterable[_Shard]:
    """Yield the shards of a query that reads all of them: those of the offset, and those listed
    since, which it reads after their parents."""
    listed = {shard.shard_id: shard for shard in stream.shards}
    for shard, row in sorted(rows.items()):
        if not isinstance(row.committed, ShardEnd):
            yield _shard(
                name,
                shard,
                stream,
                reader=Reader.WAITING if row.state == "waiting" else Reader.QUERY,
                committed=row.committed,
                planned=row.planned,
                is_lost=shard not in listed,
            )
    for shard in sorted(listed.keys() - rows.keys() - ancestors(listed, rows.keys())):
        yield _shard(name, shard, stream, reader=Reader.WAITING, committed=TrimHorizon())


def shared_parts(
    name: StreamName,
    stream: ListedStream,
    leases: Iterable[ShardLease],
    *,
    connection: ConnectionOptions,
    references: References,
    limit_ms: int,
    now_ms: int,
) -> tuple[list[Part], list[Finding]]:
    """Measure the shards of a stream of an application, of which no checkpoint is known. One that
    cannot be read is a finding. Needs the permissions of `lags_of`."""
    shards = list(_shared_shards(name, {}, stream, leases))
    return _measured(shards, Earlier(), limit_ms, now_ms, connection, references)


def _shared_shards(
    name: StreamName,
    rows: Mapping[ShardId, ShardRow],
    stream: ListedStream,
    leases: Iterable[ShardLease],
) -> Iterable[_Shard]:
    """Yield the shards of the whole application. The checkpoint of a lease follows the commit of a
    batch, so the later of the two positions counts."""
    for lease in leases:
        if lease.stream != name or lease.state is State.ENDED:
            continue
        row = rows.get(lease.shard)
        before = None if row is None else row.committed
        committed = lease.position
        if before is not None and (committed is None or is_behind(committed, before)):
            committed = before
        if not isinstance(committed, ShardEnd):
            yield _shard(
                name,
                lease.shard,
                stream,
                reader=lease.reader,
                committed=committed,
                planned=None if row is None else row.planned,
                # It has expired, and was not read to its end.
                is_lost=lease.state is State.EXPIRED,
                is_own=row is not None,
            )


def _lost(
    shards: Sequence[_Shard],
    source: Source,
    now_ms: int,
    connection: ConnectionOptions,
    references: References,
) -> tuple[set[ShardKey], list[SspError]]:
    """Return the shards whose records after the last committed batch may have expired, by the rule
    of a query that starts. A shard that was read to its latest record within the retention needs no
    call. Also the errors of shards of which it is not known."""
    committed = source.committed if isinstance(source.committed, Offset) else BEFORE_FIRST_BATCH
    states = committed.states

    def evidence(shard: _Shard, found: SequenceNumber | None) -> Evidence:
        now, entry = EpochMillis(now_ms), committed.streams[shard.key.stream]
        kept = Retention.described(shard.retention_ms, now=now, before=entry.retention)
        return Evidence(found=found, time=now, kept_ms=kept.kept_ms(now))

    doubtful: dict[ShardKey, ShardState] = {
        shard.key: states[shard.key]
        for shard in shards
        if isinstance(shard.committed, AfterRecord)
        and shard.key in states
        and states[shard.key].position == shard.committed
        and judge(states[shard.key], evidence(shard, None)) is Loss.LOST
    }
    by_key = {shard.key: shard for shard in shards}
    positions = {key: state.position for key, state in doubtful.items()}
    found, errors = first_records(positions, connection, references)
    lost = {
        key
        for key, first in found.items()
        if judge(doubtful[key], evidence(by_key[key], first)) is Loss.LOST
    }
    return lost, errors


def _shard(
    name: StreamName,
    shard: ShardId,
    stream: ListedStream,
    *,
    reader: Reader,
    committed: Position | None,
    planned: Position | None = None,
    is_lost: bool = False,
    is_own: bool = True,
) -> _Shard:
    return _Shard(
        key=ShardKey(stream=name, shard=shard),
        reader=reader,
        retention_ms=stream.description.retention_ms,
        committed=committed,
        planned=planned,
        is_lost=is_lost,
        is_own=is_own,
    )


def _measured(
    shards: Sequence[_Shard],
    earlier: Earlier,
    limit_ms: int,
    now_ms: int,
    connection: ConnectionOptions,
    references: References,
) -> tuple[list[Part], list[Finding]]:
    """Return the shards with their delays: a probe of each, one more of those that are behind and
    in a planned batch, and one more of those that are too far behind, for their pace."""
    known = {shard.key: shard.committed for shard in shards if shard.committed is not None}
    committed, errors = try_lags(known, connection, references)
    chosen = {
        shard.key: shard.planned
        for shard in shards
        if shard.planned is not None and shard.planned != shard.committed
        if committed.get(shard.key)
    }
    planned, more = try_lags(chosen, connection, references)
    errors += more
    states = earlier.offset.states if isinstance(earlier.offset, Offset) else {}
    late = {
        key: states[key].position
        for key, lag in committed.items()
        if key in states and earlier.shows_pace(lag, limit_ms, now_ms)
    }
    before, more = try_lags(late, connection, references)
    errors += more
    parts: list[Part] = []
    for shard in shards:
        lag, then = committed.get(shard.key), before.get(shard.key)
        pace = None
        if lag is not None and then is not None:
            pace = Pace(backlog=lag, read=max(0, then - lag) / earlier.elapsed_ms, written=1)
        part = Part(
            name=str(shard.key),
            reader=shard.reader,
            committed=Behind(ms=lag),
            planned=Behind(ms=planned.get(shard.key, lag)),
            retention_ms=shard.retention_ms,
            pace=pace,
            is_lost=shard.is_lost,
            is_own=shard.is_own,
        )
        parts.append(part)
    return parts, [unreadable(error) for error in errors]


# --- Partitions ----------------------------------------------------------------------------------


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
    recreated = recreated_topics(newest, topics) if isinstance(newest, KafkaOffset) else frozenset()
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
    """Return the partitions that the query does not have yet."""
    if not has_whole_topics(known):
        return []
    return [
        ssp
        for name in sorted({ssp.stream for ssp in known} & topics.keys())
        for number in range(topics[name].partition_count)
        if (ssp := partition_of(name, number)) not in known
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
    if not late or not isinstance(earlier.offset, KafkaOffset | SparkOffset):
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
