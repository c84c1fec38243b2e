"""Measures the shards that a query reads, or that its application shares by leases: the delay,
the reader and the pace of each.

A delay in milliseconds is also the amount that remains to be read: a query that reads an hour of
records in half an hour reads twice as fast as they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_ssp.common.errors import SspError, StreamNotFoundError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    Latest,
    Position,
    Retention,
    SequenceNumber,
    ShardEnd,
    ShardState,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.planning.active_shards import ancestors
from spark_ssp.kinesis_source.planning.data_loss import Evidence, Verdict, judge
from spark_ssp.operations.health import (
    Behind,
    Finding,
    Pace,
    Part,
    Reader,
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
from spark_ssp.operations.inspection.positions import Earlier, ShardRow, shard_rows
from spark_ssp.operations.inspection.spark_checkpoint import Source
from spark_ssp.operations.inspection.streams import (
    ListedStream,
    References,
    first_records,
    list_streams,
    try_lags,
)


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
                committed=_known(row.committed),
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
        before = None if row is None else _known(row.committed)
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
        and judge(states[shard.key], evidence(shard, None)) is Verdict.LOST
    }
    by_key = {shard.key: shard for shard in shards}
    positions = {key: state.position for key, state in doubtful.items()}
    found, errors = first_records(positions, connection, references)
    lost = {
        key
        for key, first in found.items()
        if judge(doubtful[key], evidence(by_key[key], first)) is Verdict.LOST
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


def _known(position: Position | Latest | None) -> Position | None:
    return None if isinstance(position, Latest) else position


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
