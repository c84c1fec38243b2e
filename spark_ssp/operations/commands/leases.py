"""`spark-ssp leases`: The leases of a query or a KCL application: owner, progress, lag, unread
shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import click

from spark_ssp.checkpoint.leases.lease import (
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StreamIdentifier,
)
from spark_ssp.common.errors import StreamNotFoundError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    ShardEnd,
)
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    dynamodb_connection,
    options_file,
    stream_references,
    to_millis,
    wait_between_readings,
    wait_option,
)
from spark_ssp.operations.cli import (
    FINDING,
    Environment,
    Screen,
    unavailable_noted,
    write_json,
)
from spark_ssp.operations.health import Reader, exceeds
from spark_ssp.operations.inspection.lease_table import (
    Age,
    LeaseTable,
    ObservedTable,
    ShardLease,
    TableRows,
    leases_by_worker,
    namesakes_in,
    observe,
    shard_leases,
    streams_of,
    without_namesakes,
)
from spark_ssp.operations.inspection.streams import ListedStream, References, lags_of, list_streams
from spark_ssp.operations.snapshot import short_name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    application: str
    streams: tuple[str, ...]
    with_lag: bool
    max_lag_ms: int | None
    failover_ms: int
    kinesis: ConnectionOptions
    references: References


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One look at an application."""

    table: TableRows
    """Without the rows of `namesakes`."""
    namesakes: tuple[StreamIdentifier, ...]
    """Streams of the rows that only have the name of one of `streams`."""
    shards: tuple[ShardLease, ...]
    streams: Mapping[StreamName, ListedStream | None]
    """None: there is no such stream."""
    now_ms: int
    lagging: tuple[ShardLease, ...]
    unmeasured: tuple[ShardLease, ...]
    """With --max-lag: shards whose lag is not known."""
    is_judged: bool
    """False with --max-lag if there is no shard to judge by it."""

    @property
    def unread(self) -> tuple[ShardLease, ...]:
        return tuple(row for row in self.shards if row.reader.is_missing)

    @property
    def has_finding(self) -> bool:
        return bool(
            self.unread
            or self.lagging
            or self.unmeasured
            or not self.is_judged
            or self.absent
            or self.table.rows.malformed
        )

    @property
    def absent(self) -> tuple[StreamName, ...]:
        return tuple(name for name, stream in self.streams.items() if stream is None)


@click.command("leases")
@click.argument("application")
@click.option("--table", help="The lease table; default: the application's name.")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    help="A stream of the application, repeatable. Needed where the rows do not name it, as those "
    "of a KCL that reads a single stream.",
)
@click.option("--no-lag", is_flag=True, help="Do not measure the lag, which reads each shard.")
@click.option("--max-lag", callback=to_millis, help="A greater lag is a finding, as in 10m.")
@wait_option(
    "The table is read twice, this far apart: shows which leases are renewed and which are stale. "
    "Default: 5 s more than --failover. 0: read once.",
    least_ms=0,
)
@click.option("--watch", is_flag=True, help="Read again and again, until Ctrl-C.")
@click.option("--interval", callback=to_millis, default="5s", show_default=True, help="Of --watch.")
@click.option(
    "--failover",
    callback=to_millis,
    default="10s",
    show_default=True,
    help="The workers' failover time: a lease that is not renewed for longer is stale.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON; with --watch, a line each time.")
@options_file
@aws_options
@click.pass_context
def leases_command(
    context: click.Context,
    application: str,
    table: str | None,
    streams: tuple[str, ...],
    no_lag: bool,
    max_lag: int | None,
    wait: int | None,
    watch: bool,
    interval: int,
    failover: int,
    as_json: bool,
    aws: Given,
) -> None:
    """Show the leases of APPLICATION: a query with applicationName, or a KCL application.

    Exit code 1 if nobody reads a shard, a stream does not exist, a row is malformed, or a lag
    exceeds --max-lag or is not known, as without any shard to read.
    """
    if no_lag and max_lag is not None:
        raise click.UsageError(
            "--max-lag needs the lag, which --no-lag leaves out: give one of them"
        )
    if watch and wait is not None:
        raise click.UsageError("--watch reads every --interval, and --wait twice: give one of them")
    environment: Environment = context.obj
    settings = _Settings(
        application=application,
        streams=streams,
        with_lag=not no_lag,
        max_lag_ms=max_lag,
        failover_ms=failover,
        kinesis=connection(aws),
        references=stream_references(aws),
    )
    rows = LeaseTable(application, table or application, dynamodb_connection(aws))
    pauses: Iterable[int | None] = [None]
    if watch:
        pauses = itertools.chain([None], itertools.repeat(interval))
    elif wait != 0:
        pauses = [None, wait_between_readings(wait, failover)]
    observed: ObservedTable | None = None
    try:
        for pause in pauses:
            if pause is not None:
                environment.sleep(pause / 1000)
            with unavailable_noted() if watch and pause is not None else nullcontext():
                found = rows.read()
                observed = observe(observed, found.rows, environment.monotonic(), failover)
                if watch or wait == 0 or pause is not None:
                    reading = _read(settings, found, observed, environment.now_ms())
                    _write(settings, reading, as_json=as_json, watch=watch)
    finally:
        rows.close()
    if reading.has_finding:
        context.exit(FINDING)


def _read(settings: _Settings, table: TableRows, observed: ObservedTable, now_ms: int) -> _Reading:
    names = tuple(StreamName(name) for name in settings.streams) or streams_of(table.rows.leases)
    streams = {name: _listed(name, settings) for name in names}
    described = {name: one.description for name, one in streams.items() if one is not None}
    own = without_namesakes(observed, described)
    shards = shard_leases(
        own,
        {name: None if stream is None else stream.shards for name, stream in streams.items()},
    )
    if settings.with_lag:
        shards = _with_lags(shards, streams, settings)
    limit, shards_read = settings.max_lag_ms, _readable(shards)
    judged = [] if limit is None else [(row, exceeds(row.lag_ms, limit)) for row in shards_read]
    return _Reading(
        table=replace(table, rows=own.rows),
        namesakes=namesakes_in(table.rows, described),
        shards=tuple(shards),
        streams=streams,
        now_ms=now_ms,
        lagging=tuple(row for row, is_late in judged if is_late),
        unmeasured=tuple(row for row, is_late in judged if is_late is None),
        is_judged=limit is None or bool(judged),
    )


def _listed(name: StreamName, settings: _Settings) -> ListedStream | None:
    try:
        return list_streams([name], settings.kinesis, settings.references)[name]
    except StreamNotFoundError:
        return None


def _readable(rows: Iterable[ShardLease]) -> list[ShardLease]:
    return [row for row in rows if row.reader not in (Reader.ENDED, Reader.WAITING)]


def _with_lags(
    rows: list[ShardLease],
    streams: Mapping[StreamName, ListedStream | None],
    settings: _Settings,
) -> list[ShardLease]:
    positions = {
        ShardKey(stream=row.stream, shard=row.shard): position
        for row in rows
        if row.stream is not None
        and streams.get(row.stream) is not None
        and row.reader is not Reader.ENDED
        and (position := row.position) is not None
    }
    lags = lags_of(positions, settings.kinesis, settings.references)
    return [
        row
        if row.stream is None
        else replace(row, lag_ms=lags.get(ShardKey(stream=row.stream, shard=row.shard)))
        for row in rows
    ]


# --- Output --------------------------------------------------------------------------------------


def _write(settings: _Settings, reading: _Reading, *, as_json: bool, watch: bool) -> None:
    if as_json:
        write_json(_document(settings, reading), lines=watch)
        return
    screen = Screen()
    if watch:
        screen.clear()
    _show(screen, reading)


def _show(screen: Screen, reading: _Reading) -> None:
    several = len({row.stream for row in reading.shards}) > 1
    screen.table(
        ("STREAM", "SHARD", "OWNER", "STATE", "CHECKPOINT", "LAG", "RENEWED", "PARENTS"),
        [
            (
                (row.stream or "") if several else "",
                row.shard,
                _owner(row),
                row.state,
                _progress(screen, row.progress),
                None if row.lag_ms is None else duration_text(row.lag_ms),
                _age(row.age),
                ", ".join(short_name(parent) for parent in row.parents),
            )
            for row in reading.shards
        ],
        right=("LAG",),
        wrapped=("STREAM", "SHARD", "OWNER"),
    )
    screen.line(_summary(reading))
    for text in _remarks(reading):
        screen.line(text)


def _owner(row: ShardLease) -> str:
    return f"{row.owner or '-'}" + (f" -> {row.next_owner}" if row.next_owner else "")


def _progress(screen: Screen, progress: Progress | None) -> str:
    match progress:
        case None:
            return "-"
        case Processed(sequence_number=number, sub=sub):
            return screen.position(AfterRecord(sequence_number=number, sub=sub))
        case ShardEnded():
            return screen.position(ShardEnd())
        case StartAtLatest():
            return "LATEST"
        case StartAtTimestamp(at_ms=None):
            return "AT_TIMESTAMP"
        case StartAtTimestamp(at_ms=int(millis)):
            return time_text(millis)
    return "TRIM_HORIZON"


def _age(age: Age | None) -> str:
    """Return the text of an age: nothing after one reading."""
    if age is None or (age.at_most is None and age.at_least == 0):
        return "-"
    if age.at_most is not None:
        return f"< {duration_text(age.at_most)} ago"
    return f"> {duration_text(age.at_least)} ago"


def _summary(reading: _Reading) -> str:
    readable = _readable(reading.shards)
    held = len(readable) - len(reading.unread)
    unseen = sum(row.reader is Reader.UNKNOWN for row in readable)
    workers = leases_by_worker(reading.shards)
    parts = [
        f"{held} of {len(readable)} shards "
        + (f"held, {unseen} not seen to be renewed" if unseen else "read"),
        f"{len(workers)} {'worker' if len(workers) == 1 else 'workers'}",
    ]
    kinds = {
        name: any(row.is_ours for row in reading.shards if row.owner == name) for name in workers
    }
    for is_ours, kind in ((True, "spark-ssp"), (False, "the KCL")):
        count = sum(1 for value in kinds.values() if value is is_ours)
        if count:
            parts[-1] += f", {count} of {kind}"
    leaders = sorted({row.worker for row in reading.table.kcl.leaders})
    if leaders:
        parts.append(f"KCL 3 leader: {', '.join(leaders)}")
    return " · ".join(parts)


def _remarks(reading: _Reading) -> Iterable[str]:
    if reading.absent:
        yield (
            f"no such stream: {', '.join(reading.absent)}: deleted, or in another region or "
            "account. The rows are those that its readers left in the table"
        )
    if reading.namesakes:
        yield (
            f"not shown: the rows of {', '.join(map(str, reading.namesakes))}, of another account, "
            "or of a stream that was deleted and created again"
        )
    if reading.unread:
        yield f"nobody reads: {_names(reading.unread)}"
    if reading.lagging:
        yield f"too far behind: {_names(reading.lagging)}"
    if reading.unmeasured:
        yield f"lag not known: {_names(reading.unmeasured)}"
    if not reading.is_judged:
        yield "lag not known: the table has no lease of a shard that is to be read"
    metrics = reading.table.kcl.metrics
    if metrics:
        ages = ", ".join(
            f"{row.worker} {duration_text(max(0, reading.now_ms - row.updated * 1000))} ago"
            for row in metrics
        )
        yield f"worker metrics, by the workers' clocks: {ages}"
    if not reading.streams:
        yield (
            "the rows do not name the stream: with --stream, this shows lag, and shards without a "
            "lease"
        )
    for error in reading.table.rows.malformed:
        yield f"malformed row: {error}"


def _names(rows: Iterable[ShardLease]) -> str:
    return ", ".join(
        row.shard if row.stream is None else f"{row.stream}/{row.shard}" for row in rows
    )


def _document(settings: _Settings, reading: _Reading) -> dict[str, Any]:
    return {
        "application": settings.application,
        "timeMs": reading.now_ms,
        "streams": sorted(reading.streams),
        "streamsNotFound": sorted(reading.absent),
        "streamsNotShown": list(map(str, reading.namesakes)),
        "leaders": [
            {"worker": row.worker, "at": row.location.name.lower()}
            for row in reading.table.kcl.leaders
        ],
        "workerMetrics": [
            {"worker": row.worker, "updatedS": row.updated, "sparkSsp": row.ours}
            for row in reading.table.kcl.metrics
        ],
        "workers": [
            {"worker": worker, "leases": count}
            for worker, count in sorted(leases_by_worker(reading.shards).items())
        ],
        "malformed": [str(error) for error in reading.table.rows.malformed],
        "shards": [_shard_document(row) for row in reading.shards],
    }


def _shard_document(row: ShardLease) -> dict[str, Any]:
    age = row.age
    return {
        "stream": row.stream,
        "shard": row.shard,
        "state": str(row.state),
        "nobodyReadsIt": row.reader.is_missing,
        "reader": str(row.reader),
        "owner": row.owner,
        "nextOwner": row.next_owner,
        "sparkSsp": row.is_ours,
        "checkpoint": _progress_document(row.progress),
        "lagMs": row.lag_ms,
        "renewedAtLeastMsAgo": None if age is None else age.at_least,
        "renewedAtMostMsAgo": None if age is None else age.at_most,
        "parents": list(row.parents),
        "closed": row.is_closed,
    }


def _progress_document(progress: Progress | None) -> Any:
    match progress:
        case None:
            return None
        case Processed(sequence_number=number, sub=sub):
            return {"after": number, "sub": sub}
        case ShardEnded():
            return {"at": "SHARD_END"}
        case StartAtLatest(since_ms=millis):
            return {"at": "LATEST", "sinceMs": millis}
        case StartAtTimestamp(at_ms=millis):
            return {"at": "AT_TIMESTAMP", "timeMs": millis}
    return {"at": "TRIM_HORIZON"}
