"""`spark-ssp checkpoint`: The batches and positions of a Spark checkpoint, and the replay of a
restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import click

from spark_ssp.common.errors import SspError, StreamNotFoundError, UnsupportedError
from spark_ssp.common.logs import count_of
from spark_ssp.common.times import time_text
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kafka_source.model.offset import Offset as KafkaOffset
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.offset import Offset, encode_state
from spark_ssp.kinesis_source.model.shard import AfterRecord, Position, ShardState
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    dynamodb_connection,
    kafka_options,
    options_file,
    s3_connection,
    stream_references,
)
from spark_ssp.operations.cli import (
    Environment,
    Screen,
    note,
    to_document,
    write_json,
)
from spark_ssp.operations.health import Finding, Health, Limits, Part, assess, delay_text
from spark_ssp.operations.inspection.checkpoint_folder import (
    CheckpointFolderError,
    Folder,
    open_folder,
)
from spark_ssp.operations.inspection.lease_table import ObservedTable, observe_tables
from spark_ssp.operations.inspection.positions import (
    PartitionRow,
    ShardRow,
    only_planned,
    partition_rows,
    record_id,
    shard_rows,
)
from spark_ssp.operations.inspection.query_facts import Surroundings, lease_tables, read_query
from spark_ssp.operations.inspection.spark_checkpoint import (
    Checkpoint,
    Source,
    only_source,
    read_checkpoint,
)
from spark_ssp.operations.inspection.starting_position import (
    AwslabsPositions,
    Skip,
    StartOptions,
    StreamPositions,
    after_in_partitions,
    after_in_shards,
    check_not_younger,
    deleted_stream,
    kafka_positions,
    kafka_start,
    kinesis_positions,
    kinesis_start,
    proofs_of,
    read_awslabs,
    without_dropped,
    without_expired_records,
    without_records,
)
from spark_ssp.operations.inspection.streams import (
    ListedStream,
    References,
    first_records,
    list_streams,
)
from spark_ssp.operations.inspection.topics import describe_topics, latest_offsets
from spark_ssp.operations.snapshot import task_text

_DELAYS: Final = ("DELAY", "PLANNED DELAY")
_ALWAYS_MS: Final = 1_000 * 24 * 3_600_000
_LIMITS: Final = Limits(max_delay_ms=_ALWAYS_MS, stuck_after_ms=_ALWAYS_MS)
"""Without limits: `spark-ssp status` judges the delay."""


def _skips(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[Skip, ...]:
    found = []
    for value in values:
        part, _, position = value.rpartition(":")
        record = record_id(position)
        if not part or record is None:
            raise click.BadParameter(
                "expected SHARD:SEQUENCE_NUMBER, with /n for user record n of an aggregate, or "
                "PARTITION:OFFSET"
            )
        found.append(Skip(part=part, record=record))
    return tuple(found)


@click.command("checkpoint")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.option(
    "--as-starting-position",
    "as_start",
    is_flag=True,
    help="Write the options, as JSON, with which another query starts exactly after the last "
    "committed batch. For Kinesis this lists the stream's shards.",
)
@click.option(
    "--delay",
    is_flag=True,
    help="Measure how far the committed and the planned batch are behind: reads each shard, or "
    "asks the brokers.",
)
@click.option("--source", type=int, help="The source, if the query has several: 0, 1, …")
@click.option(
    "--from",
    "origin",
    type=click.Choice(["awslabs", "databricks-json"]),
    help="With --as-starting-position: the checkpoint is of this connector.",
)
@click.option(
    "--drop",
    "dropped",
    multiple=True,
    metavar="NAME",
    help="With --as-starting-position: leave out this topic or stream, for example a deleted one; "
    "may be repeated.",
)
@click.option(
    "--after",
    "skips",
    multiple=True,
    callback=_skips,
    metavar="PART:POSITION",
    help="With --as-starting-position: start this shard or partition after this record, as tail "
    "shows it; may be repeated. The unread records before it are left out too.",
)
@options_file
@kafka_options
@aws_options
@click.pass_context
def checkpoint_command(
    context: click.Context,
    path: str,
    as_json: bool,
    as_start: bool,
    delay: bool,
    source: int | None,
    origin: str | None,
    dropped: tuple[str, ...],
    skips: tuple[Skip, ...],
    aws: Given,
    kafka: Given,
) -> None:
    """Show what the Spark checkpoint at PATH holds: a folder, or a URI such as s3://bucket/folder.

    The query may be running. Nothing is written.
    """
    if origin == "databricks-json":
        raise _undocumented()
    if origin is not None and not as_start:
        raise click.UsageError("--from needs --as-starting-position")
    if dropped and not as_start:
        raise click.UsageError("--drop needs --as-starting-position")
    if skips and not as_start:
        raise click.UsageError("--after needs --as-starting-position")
    if delay and as_start:
        raise click.UsageError("--delay and --as-starting-position: give one of them")
    folder = open_folder(path, s3_connection(aws))
    try:
        found = read_checkpoint(folder, path)
        if as_start:
            _write_start(_start(folder, found, source, origin, dropped, skips, aws, kafka))
            return
        measured = _measure(folder, found, aws, kafka, context.obj) if delay else None
        if as_json:
            write_json(_document(found, source, measured))
        else:
            _show(Screen(), found, source, measured)
    finally:
        folder.close()


def _undocumented() -> UnsupportedError:
    return UnsupportedError(
        "--from databricks-json",
        found="positions of Databricks' Kinesis source, whose format is not documented: the "
        "examples of its progress show lastSeqNum, and no page defines it",
        expected="a documented format: awslabs",
        next_step="stop that query, and start the other one at_timestamp shortly before its last "
        "batch: some records come twice",
    )


# --- Delay ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """The delay of a query, in all and of each shard or partition, by its source and name."""

    health: Health
    parts: Mapping[tuple[int | None, str], Part]
    findings: tuple[Finding, ...]

    def texts(self, source: Source, row: ShardRow | PartitionRow) -> tuple[str | None, str | None]:
        """Return the committed and the planned delay of a shard or partition."""
        if row.state == "ended":
            return None, None
        part = self.parts.get((source.index, _name(row)))
        if part is None:
            return "unknown", "unknown"
        return delay_text(part.committed), delay_text(part.planned)

    def document(self, source: Source, row: ShardRow | PartitionRow) -> dict[str, Any]:
        """Return the same for JSON; None: it is not known, or has ended."""
        part = self.parts.get((source.index, _name(row)))
        return {
            "committedDelay": None if part is None else to_document(part.committed),
            "plannedDelay": None if part is None else to_document(part.planned),
        }


def _measure(
    folder: Folder, found: Checkpoint, aws: Given, kafka: Given, environment: Environment
) -> _Measured:
    names = lease_tables(found)
    tables: Mapping[str, ObservedTable | SspError] = {}
    if names:
        tables = observe_tables(
            names, dynamodb_connection(aws), environment, wait_ms=None, failover_ms=0
        )
    around = Surroundings(
        kinesis=connection(aws),
        streams=stream_references(aws),
        kafka=kafka.options,
        kafka_retention_ms=None,
        tables=tables,
        limits=_LIMITS,
        now_ms=environment.now_ms(),
    )
    query = read_query(folder, found, around)
    return _Measured(
        health=assess(query, _LIMITS, around.now_ms),
        parts={(part.source, part.name): part for part in query.parts},
        findings=query.findings,
    )


# --- Starting position ----------------------------------------------------------------------------


def _start(
    folder: Folder,
    found: Checkpoint,
    number: int | None,
    origin: str | None,
    dropped: tuple[str, ...],
    skips: tuple[Skip, ...],
    aws: Given,
    kafka: Given,
) -> StartOptions:
    if origin == "awslabs":
        index = only_source(found, number, own=False).index
        foreign = read_awslabs(folder, found, index)
        planned_ms = None if found.last is None else found.last.planned_ms
        return _start_of_awslabs(foreign, planned_ms, dropped, skips, aws)
    source = only_source(found, number)
    match source.committed:
        case Offset(streams=streams) as offset if streams:
            start = _start_of_kinesis(offset, dropped, skips, aws)
        case (KafkaOffset() | SparkOffset()) as offset if offset.positions:
            start = _start_of_kafka(offset, dropped, skips, kafka)
        case _:
            raise CheckpointFolderError(
                f"source {source.index} of {found.location}",
                found="no committed batch with a position",
                expected="a batch that ended",
                next_step="start the other query with the same start as this one",
            )
    return replace(start, notes=(*start.notes, *map(_left_out, only_planned(source))))


def _left_out(name: str) -> str:
    return (
        f"{name} is only in the batch that is planned and not committed: it is left out. Add it to "
        "the other query, or read it with a separate one, from its start in this query: the "
        "position COMMITTED that spark-ssp checkpoint shows, or else PLANNED"
    )


def _start_of_awslabs(
    foreign: AwslabsPositions,
    planned_ms: int | None,
    dropped: tuple[str, ...],
    skips: tuple[Skip, ...],
    aws: Given,
) -> StartOptions:
    references = stream_references(aws)
    without_dropped([foreign.stream], dropped)
    streams = list_streams([foreign.stream], connection(aws), references)
    younger = check_not_younger(streams[foreign.stream].description, planned_ms)
    positions, skipped = after_in_shards({foreign.stream: foreign.positions}, streams, skips)
    kept = foreign.positions.items() & positions[foreign.stream].items()
    stored = replace(foreign, positions=dict(kept))
    absent = _without_records(stored, streams[foreign.stream], planned_ms, aws, references)
    start = kinesis_start(positions, streams, references)
    return replace(start, notes=(*younger, *absent, *foreign.notes, *skipped, *start.notes))


def _start_of_kinesis(
    offset: Offset, dropped: tuple[str, ...], skips: tuple[Skip, ...], aws: Given
) -> StartOptions:
    references = stream_references(aws)
    names = without_dropped(offset.streams, dropped)
    streams = {name: _listed(name, aws, references) for name in names}
    positions = kinesis_positions(
        offset, {name: stream.description for name, stream in streams.items()}
    )
    positions, skipped = after_in_shards(positions, streams, skips)
    positions, expired = _without_expired_records(offset, positions, streams, aws, references)
    start = kinesis_start(positions, streams, references)
    return replace(start, notes=(*skipped, *expired, *start.notes))


def _start_of_kafka(
    offset: KafkaOffset | SparkOffset,
    dropped: tuple[str, ...],
    skips: tuple[Skip, ...],
    kafka: Given,
) -> StartOptions:
    topics = without_dropped({ssp.stream for ssp in offset.positions}, dropped)
    positions, skipped = after_in_partitions(offset.positions, skips)
    before = replace(offset, positions=positions)
    if not kafka.options:
        start = kafka_start(before, topics)
        return replace(start, notes=(*skipped, *start.notes))
    now = describe_topics(topics, kafka.options)
    known = [ssp for ssp in before.positions if ssp.stream in now]
    changed = kafka_positions(before, topics, now, latest_offsets(known, kafka.options))
    start = kafka_start(before, topics, now)
    return replace(start, notes=(*skipped, *changed, *start.notes))


def _without_records(
    foreign: AwslabsPositions,
    stream: ListedStream,
    planned_ms: int | None,
    aws: Given,
    references: References,
) -> tuple[str, ...]:
    """Look up the records of the positions; return remarks on those that are not there."""
    ends = {
        shard.shard_id: (shard.first_sequence_number, shard.ending_sequence_number)
        for shard in stream.shards
    }
    wanted = {
        ShardKey(stream=foreign.stream, shard=shard): position
        for shard, position in foreign.positions.items()
        if isinstance(position, AfterRecord)
        and shard in ends
        and position.sequence_number not in ends[shard]
    }
    first, errors = first_records(wanted, connection(aws), references)
    if errors:
        wanted = {key: position for key, position in wanted.items() if key in first}
    return (*without_records(wanted, first, planned_ms), *map(_unknown, errors))


def _unknown(error: SspError) -> str:
    return (
        f"whether the records of these positions have expired is not known: {error}. If one has, "
        "the other query fails"
    )


def _without_expired_records(
    offset: Offset,
    positions: Mapping[StreamName, StreamPositions],
    streams: Mapping[StreamName, ListedStream],
    aws: Given,
    references: References,
) -> tuple[dict[StreamName, StreamPositions], tuple[str, ...]]:
    """Look up the records of the positions that are proven to be whole; return the positions and
    remarks."""
    descriptions = {name: stream.description for name, stream in streams.items()}
    proofs = proofs_of(offset, positions, descriptions, connect(connection(aws)).service_time())
    wanted = {key: proof.position for key, proof in proofs.items()}
    first, errors = first_records(wanted, connection(aws), references)
    found, expired = without_expired_records(positions, proofs, first)
    return found, (*expired, *map(_unknown, errors))


def _listed(name: StreamName, aws: Given, references: References) -> ListedStream:
    try:
        return list_streams([name], connection(aws), references)[name]
    except StreamNotFoundError as error:
        raise deleted_stream(error, name) from error


def _write_start(start: StartOptions) -> None:
    write_json(dict(start.options))
    for text in start.notes:
        note(text)


# --- Output ---------------------------------------------------------------------------------------


def _chosen(found: Checkpoint, number: int | None) -> list[Source]:
    chosen = [source for source in found.sources if number in (None, source.index)]
    if number is not None and not chosen:
        raise click.BadParameter(
            f"{number}: the query has {len(found.sources)} sources", param_hint="--source"
        )
    return chosen


def _show(
    screen: Screen, found: Checkpoint, number: int | None, measured: _Measured | None
) -> None:
    screen.line(f"{found.location} · query {found.query or 'without an id'}")
    screen.line(_summary(found))
    if measured is not None:
        health = measured.health
        screen.line(
            f"delay {delay_text(health.committed, health.unmeasured)} by the committed batch, "
            f"{delay_text(health.planned, health.unmeasured)} by the planned one"
        )
        for finding in measured.findings:
            screen.line(f"{finding.verdict}: {finding.reason}")
            screen.line(f"  -> {finding.remedy}")
    for text in found.notes:
        screen.line(f"note: {text}")
    for source in _chosen(found, number):
        screen.line()
        _show_source(screen, source, measured)


def _summary(found: Checkpoint) -> str:
    if found.committed is None and found.planned is None:
        return "no batch is planned yet"
    parts = [
        "no batch is committed" if found.committed is None else f"batch {found.committed} committed"
    ]
    if found.planned is not None:
        time = found.planned.planned_ms
        when = "" if time is None else f" at {time_text(time)}"
        parts.append(
            f"batch {found.planned.batch} planned{when} and not committed: a restart runs it again"
        )
    elif found.last is not None and found.last.planned_ms is not None:
        parts.append(f"planned at {time_text(found.last.planned_ms)}: a restart repeats nothing")
    return ", ".join(parts)


def _show_source(screen: Screen, source: Source, measured: _Measured | None) -> None:
    newest = source.planned or source.committed
    head = f"source {source.index}: {source.format}"
    if not source.is_readable:
        screen.line(f"{head}; not read here")
    elif isinstance(newest, Offset):
        if not newest.streams:
            screen.line(f"{head} · no streams yet", "bold")
            return
        screen.line(f"{head} · {_streams(newest)} · {count_of(newest.slots, 'slot')}", "bold")
        screen.table(
            ("SLOT", "STREAM", "SHARD", "COMMITTED", "PLANNED", "STATE", *_DELAYS),
            [
                (
                    row.slot,
                    row.stream if len(newest.streams) > 1 else "",
                    row.shard,
                    screen.position(row.committed),
                    screen.position(row.planned),
                    row.state,
                    *_delays(source, row, measured),
                )
                for row in shard_rows(source)
            ],
            right=("SLOT", *_DELAYS),
            wrapped=("STREAM",),
        )
    elif newest is not None:
        rows = partition_rows(source)
        screen.line(f"{head} · {_topics(newest) if rows else 'no partitions yet'}", "bold")
        if not rows:
            return
        screen.table(
            ("TOPIC", "PARTITION", "TASK", "COMMITTED", "PLANNED", "STATE", *_DELAYS),
            [
                (
                    row.topic,
                    row.partition,
                    task_text(row.task),
                    row.committed,
                    row.planned,
                    row.state,
                    *_delays(source, row, measured),
                )
                for row in rows
            ],
            right=("PARTITION", "COMMITTED", "PLANNED", *_DELAYS),
            wrapped=("TOPIC", "TASK"),
        )


def _streams(offset: Offset) -> str:
    word = "stream" if len(offset.streams) == 1 else "streams"
    tables = sorted({entry.leases for entry in offset.streams.values() if entry.leases})
    leases = f" · shared by lease table {', '.join(tables)}" if tables else ""
    names = ", ".join(
        f"{name} (created {time_text(entry.created)})"
        for name, entry in sorted(offset.streams.items())
    )
    return f"{word} {names}{leases}"


def _topics(offset: KafkaOffset | SparkOffset) -> str:
    ids = _topic_ids(offset)
    names = ", ".join(f"{name} (id {known or 'unknown'})" for name, known in ids.items())
    return f"{'topic' if len(ids) == 1 else 'topics'} {names}"


def _topic_ids(offset: KafkaOffset | SparkOffset) -> dict[StreamName, str | None]:
    """Return the ids of the topics, sorted. Offsets of Spark's own source have none."""
    known = offset.topics if isinstance(offset, KafkaOffset) else {}
    return {name: known.get(name) for name in sorted({ssp.stream for ssp in offset.positions})}


def _name(row: ShardRow | PartitionRow) -> str:
    """Return the name of a row, as parts of a query have it."""
    if isinstance(row, ShardRow):
        return f"{row.stream}/{row.shard}"
    return f"{row.topic}-{row.partition}"


def _delays(
    source: Source, row: ShardRow | PartitionRow, measured: _Measured | None
) -> tuple[str | None, ...]:
    return (None, None) if measured is None else measured.texts(source, row)


def _document(found: Checkpoint, number: int | None, measured: _Measured | None) -> dict[str, Any]:
    planned = found.planned
    document: dict[str, Any] = {
        "location": found.location,
        "query": found.query,
        "committedBatch": found.committed,
        "plannedBatch": None if planned is None else planned.batch,
        "plannedAtMs": None if planned is None else planned.planned_ms,
        "keptBatches": list(found.kept),
        "notes": list(found.notes),
        "sources": [_source_document(source, measured) for source in _chosen(found, number)],
    }
    if measured is not None:
        document |= {
            "committedDelay": to_document(measured.health.committed),
            "plannedDelay": to_document(measured.health.planned),
            "unmeasured": measured.health.unmeasured,
            "findings": [to_document(finding) for finding in measured.findings],
        }
    return document


def _source_document(source: Source, measured: _Measured | None) -> dict[str, Any]:
    newest = source.planned or source.committed
    document: dict[str, Any] = {"source": source.index, "format": source.format}
    if isinstance(newest, Offset):
        document["slots"] = newest.slots
        document["streams"] = {
            name: {"createdMs": entry.created, "leaseTable": entry.leases}
            for name, entry in sorted(newest.streams.items())
        }
        document["shards"] = [
            asdict(row)
            | {
                "committed": position_json(row.committed),
                "planned": position_json(row.planned),
            }
            | ({} if measured is None else measured.document(source, row))
            for row in shard_rows(source)
        ]
        document["onlyPlanned"] = only_planned(source)
    elif isinstance(newest, KafkaOffset | SparkOffset):
        document["onlyPlanned"] = only_planned(source)
        document["topics"] = {name: {"id": known} for name, known in _topic_ids(newest).items()}
        document["partitions"] = [
            asdict(row) | ({} if measured is None else measured.document(source, row))
            for row in partition_rows(source)
        ]
    return document


def position_json(position: Position | None) -> Any:
    """Return a position as an offset has it."""
    return None if position is None else encode_state(ShardState(position=position))
