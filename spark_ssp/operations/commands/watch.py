"""`spark-ssp watch`: The live page of a query that another process runs, from its checkpoint.

A checkpoint has the shards and tasks of each batch and the time of its planning. It has no rows, no
duration and no lag; the lag after the newest batch can be measured. So the health of the query is
known only as far as its batches show it: `spark-ssp status` measures the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from spark_ssp.checkpoint.leases.lease import Lease, ShardEnded
from spark_ssp.common.locations import shown_location
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.spark.reader_status import Status
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kafka_source.batch_planner import lag_metrics
from spark_ssp.kafka_source.model import offset as kafka_offset
from spark_ssp.kafka_source.planning.topic_metadata import recreated_topics
from spark_ssp.kinesis_source.model import offset as kinesis_offset
from spark_ssp.kinesis_source.model.shard import EpochMillis, ShardEnd
from spark_ssp.kinesis_source.probing.shard_lag import progress_entry
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    dynamodb_connection,
    kafka_options,
    options_file,
    s3_connection,
    stream_references,
    to_millis,
)
from spark_ssp.operations.cli import (
    Environment,
    note,
    to_document,
    unavailable_noted,
    write_file,
    write_json,
)
from spark_ssp.operations.health import Finding, Health, Limits, Query, assess, unknown
from spark_ssp.operations.inspection.checkpoint_folder import (
    CheckpointFolderError,
    DamagedFileError,
    Folder,
    open_folder,
)
from spark_ssp.operations.inspection.lease_table import LeaseTable, is_other
from spark_ssp.operations.inspection.query_facts import batches_in, damaged
from spark_ssp.operations.inspection.spark_checkpoint import (
    Checkpoint,
    LoggedBatch,
    batches_of,
    parse_offset,
    query_id,
    read_checkpoint,
    read_kept_batch,
)
from spark_ssp.operations.inspection.streams import References, describe_streams, lags_of
from spark_ssp.operations.inspection.topics import describe_topics, latest_offsets
from spark_ssp.operations.live_page.page import page
from spark_ssp.operations.live_page.server import Timelines, start_server
from spark_ssp.operations.live_page.timeline import MAX_BATCHES
from spark_ssp.operations.observed_queries import ObservedQuery
from spark_ssp.operations.snapshot import (
    LeaseCounts,
    QuerySnapshot,
    ShardSnapshot,
    StreamSnapshot,
    source_snapshot,
)

_MOST_OWNERS = 20
Measure = Callable[[Any], Status | None]
"""Returns the status of a source after a batch, from its end offset, a document."""


@click.command("watch")
@click.argument("path")
@click.option(
    "--application",
    help="The applicationName of the query: shows the owners of leases, from its lease table.",
)
@click.option("--table", help="The lease table; default: the application's name.")
@click.option(
    "--lag",
    is_flag=True,
    help="Measure the lag after the newest batch, which reads each shard, or asks the brokers for "
    "the ends of partitions.",
)
@click.option(
    "--once",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page to a file, without serving it.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the newest batch as JSON instead.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve at.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: any free port.")
@click.option(
    "--token",
    envvar="SPARK_SSP_PAGE_TOKEN",
    show_envvar=True,
    help="Opens the page; default: none on this machine, else random. Other users of the machine "
    "see a command line: give it by the environment or --token-file.",
)
@click.option(
    "--token-file",
    type=click.File(encoding="utf-8"),
    help="A file with the token.",
)
@click.option(
    "--max-delay",
    callback=to_millis,
    default="10m",
    show_default=True,
    help="A shard whose oldest unplanned record is older is red.",
)
@click.option(
    "--stuck-after",
    callback=to_millis,
    default="15m",
    show_default=True,
    help="A query whose planned batch is not committed for longer is STALLED.",
)
@click.option(
    "--interval", callback=to_millis, default="5s", show_default=True, help="Between two readings."
)
@options_file
@aws_options
@kafka_options
@click.pass_context
def watch_command(
    context: click.Context,
    path: str,
    application: str | None,
    table: str | None,
    lag: bool,
    once: Path | None,
    as_json: bool,
    host: str,
    port: int,
    token: str | None,
    token_file: TextIO | None,
    max_delay: int,
    stuck_after: int,
    interval: int,
    aws: Given,
    kafka: Given,
) -> None:
    """Serve a page of the query whose checkpoint is at PATH, until Ctrl-C.

    It shows the shards or partitions of each task over the batches of the checkpoint, with --lag
    also how far the newest batch is behind the stream or topic. Rows and durations are not in a
    checkpoint: serve_live_page in the query's own program shows them.
    """
    environment: Environment = context.obj
    folder = open_folder(path, s3_connection(aws))
    leases = None
    if application is not None:
        leases = LeaseTable(application, table or application, dynamodb_connection(aws))
    measure = None
    if lag:
        measure = partial(
            measure_status,
            kinesis=connection(aws),
            references=stream_references(aws),
            kafka=kafka.options,
        )
    if token_file is not None:
        token = _token(token_file)
    timelines = Timelines(Limits(max_delay_ms=max_delay, stuck_after_ms=stuck_after))
    observed = CheckpointHealth(folder, path)
    timelines.attach(observed)
    server = None
    try:
        update = _updates(CheckpointReader(folder, path, measure), leases, timelines, observed)
        found = update()
        if not found:
            raise _no_batches(path)
        if as_json:
            write_json(to_document(found[-1]))
            return
        if once is not None:
            content = timelines.render(environment.now_ms())
            write_file(once, page(content), "--once")
            return
        server = start_server(
            timelines, host=host, port=port, token=token, now_ms=environment.now_ms
        )
        note(f"serving {server.url} until Ctrl-C")
        for _ in itertools.count():
            environment.sleep(interval / 1000)
            with unavailable_noted():
                update()
    finally:
        if server is not None:
            server.stop()
        if leases is not None:
            leases.close()
        folder.close()


def _token(file: TextIO) -> str:
    try:
        return file.read().strip()
    except UnicodeDecodeError:
        raise click.BadParameter(
            f"{file.name}: bytes that are not UTF-8", param_hint="--token-file"
        ) from None


def _updates(
    reader: CheckpointReader,
    leases: LeaseTable | None,
    timelines: Timelines,
    observed: CheckpointHealth,
) -> Callable[[], Sequence[QuerySnapshot]]:
    unowned: list[QuerySnapshot] = []  # kept if the lease table cannot be read

    def update() -> Sequence[QuerySnapshot]:
        problem: CheckpointFolderError | None = None
        try:
            unowned.extend(reader.read_new(MAX_BATCHES))
        except CheckpointFolderError as error:
            if not observed.is_known:
                raise
            problem = error
        del unowned[:-MAX_BATCHES]
        rows: Sequence[Lease] = ()
        if leases is not None and unowned:
            rows = own_leases(leases.read().rows.leases, reader.created)
        owned = [with_owners(snapshot, rows) for snapshot in unowned]
        unowned.clear()
        for snapshot in owned:
            timelines.publish(snapshot)
        observed.update(owned[-1] if owned else None, problem)
        return owned

    return update


def _no_batches(path: str) -> CheckpointFolderError:
    return CheckpointFolderError(
        f"checkpoint {shown_location(path)}",
        found="no planned batch",
        expected="the checkpoint of a query that has planned a batch",
        next_step="name the query's checkpointLocation itself, or start the query first",
    )


# --- The health of the query ----------------------------------------------------------------------


class CheckpointHealth:
    """The health of the one query of a checkpoint, as far as its batches show it."""

    def __init__(self, folder: Folder, location: str) -> None:
        self._folder = folder
        self._location = location
        self._known: tuple[ObservedQuery, Query] | None = None
        self.version = 0

    @property
    def is_known(self) -> bool:
        """Return whether the checkpoint has had a batch to show."""
        return self._known is not None

    def update(
        self, newest: QuerySnapshot | None, problem: CheckpointFolderError | None = None
    ) -> None:
        """Read the checkpoint. `newest`: the newest batch, if it is another one than before. A
        checkpoint that is damaged is a finding, and so is a `problem` met when its batches were
        read. Raises SspError if it cannot be read."""
        before = None if self._known is None else self._known[0]
        if newest is not None:
            before = ObservedQuery(
                run_id=newest.run_id,
                query_id=newest.query_id,
                name=newest.name,
                started_ms=newest.time_ms,
                snapshot=newest,
            )
        if before is None:
            return
        try:
            facts = facts_of(self._folder, read_checkpoint(self._folder, self._location))
        except CheckpointFolderError as error:
            problem = problem or error
        if problem is not None:
            facts = Query(findings=(_problem(problem),))
        if self._known != (before, facts):
            self._known = before, facts
            self.version += 1

    def get(self, run_id: str) -> ObservedQuery | None:
        """Return the query."""
        known = self._known
        return known[0] if known is not None and known[0].run_id == run_id else None

    def assessed(self, limits: Limits, now_ms: int) -> list[tuple[ObservedQuery, Health]]:
        """Return the query with its health."""
        if self._known is None:
            return []
        query, facts = self._known
        return [(query, assess(facts, limits, now_ms))]


def _problem(error: CheckpointFolderError) -> Finding:
    if isinstance(error, DamagedFileError):
        return damaged(error)
    reason = f"the state of the checkpoint is not known: found {error.found}"
    return unknown(reason, error.next_step)


def facts_of(folder: Folder, checkpoint: Checkpoint) -> Query:
    """Return the facts that a checkpoint shows by itself, and the remark that there are others."""
    remark = unknown(
        "a checkpoint shows neither the committed delay nor the readers of shards",
        f"spark-ssp status {checkpoint.location} measures both",
    )
    return replace(batches_in(folder, checkpoint), findings=(remark,))


# --- The batches of a checkpoint as snapshots -----------------------------------------------------


class CheckpointReader:
    """Reads the batches of a checkpoint while its query runs: each once, the newest again each time
    if its lag is measured."""

    def __init__(self, folder: Folder, location: str, measure: Measure | None = None) -> None:
        self._folder = folder
        self._location = location
        self._measure = measure
        self._newest: LoggedBatch | None = None
        self._id: str | None = None

    @property
    def created(self) -> Mapping[StreamName, EpochMillis]:
        """The creation times of the streams in the newest batch."""
        texts = () if self._newest is None else self._newest.offsets
        ends = [end for end in map(parse_offset, texts) if kinesis_offset.is_offset(end)]
        return {
            name: entry.created
            for end in ends
            for name, entry in kinesis_offset.decode(end).streams.items()
        }

    def read_new(self, most: int) -> list[QuerySnapshot]:
        """Return the snapshots of the batches since the last call, at most the newest `most`.

        Raises SspError if a file is damaged or cannot be read, or a lag cannot be measured.
        """
        if self._id is None:
            if "metadata" not in self._folder.listing().files:
                return []
            self._id = query_id(self._folder, self._location)
        last = -1 if self._newest is None else self._newest.batch
        found = [n for n in batches_of(self._folder.listing("offsets").names) if n > last]
        read = [read_kept_batch(self._folder, self._location, n) for n in found[-most:]]
        batches = [batch for batch in read if batch is not None and batch.planned_ms is not None]
        newest = batches[-1] if batches else self._newest
        if not batches and self._measure is not None and newest is not None:
            batches = [newest]
        snapshots = [
            snapshot_of(
                batch,
                query=self._id,
                location=self._location,
                measure=self._measure if batch is newest else None,
            )
            for batch in batches
        ]
        self._newest = newest  # after an error the batches are read again
        return snapshots


def snapshot_of(
    batch: LoggedBatch, *, query: str, location: str, measure: Measure | None = None
) -> QuerySnapshot:
    """Return the snapshot of a planned batch. The location is the query's name."""
    ends = [parse_offset(text) for text in batch.offsets if text is not None]
    sources = [source_snapshot(end, measure(end) if measure else None, rows=None) for end in ends]
    return QuerySnapshot(
        query_id=query,
        run_id=query,
        name=shown_location(location),
        batch_id=batch.batch,
        time_ms=batch.planned_ms or 0,
        rows=None,
        phases_ms={},
        sources=tuple(source for source in sources if source is not None),
    )


def own_leases(
    leases: Iterable[Lease], created: Mapping[StreamName, EpochMillis]
) -> tuple[Lease, ...]:
    """Leave out the leases of streams that only have the name of one that was created then. A
    checkpoint does not have the account, which `without_namesakes` compares too."""
    return tuple(
        lease
        for lease in leases
        if lease.stream is None
        or lease.stream.name not in created
        or not is_other(lease.stream, created[lease.stream.name])
    )


def with_owners(snapshot: QuerySnapshot, leases: Iterable[Lease]) -> QuerySnapshot:
    """Return the snapshot with the owners of a lease table, of each shard and counted by stream."""
    every = tuple(leases)
    sources = tuple(
        replace(source, streams=tuple(_with_owners(stream, every) for stream in source.streams))
        for source in snapshot.sources
    )
    return replace(snapshot, sources=sources)


def _with_owners(stream: StreamSnapshot, leases: Iterable[Lease]) -> StreamSnapshot:
    found: Mapping[str, Lease] = {
        lease.shard: lease
        for lease in leases
        if lease.stream is None or lease.stream.name == stream.name
    }
    if not found:
        return stream
    counts: dict[str, int] = {}
    free = 0
    for lease in found.values():
        if isinstance(lease.progress, ShardEnded):
            continue
        if lease.holder is None:
            free += 1
        else:
            counts[lease.holder] = counts.get(lease.holder, 0) + 1
    shown = dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_MOST_OWNERS])
    return replace(
        stream,
        shards=tuple(_with_owner(shard, found.get(shard.shard)) for shard in stream.shards),
        leases=LeaseCounts(
            by_owner=shown, free=free, others=sum(counts.values()) - sum(shown.values())
        ),
    )


def _with_owner(shard: ShardSnapshot, lease: Lease | None) -> ShardSnapshot:
    return shard if lease is None or shard.task is None else replace(shard, owner=lease.holder)


# --- Lag, as the status that the query's reader reports -------------------------------------------


def measure_status(
    end: Any, kinesis: ConnectionOptions, references: References, kafka: Mapping[str, str]
) -> Status | None:
    """Return the lag of each shard or partition behind the end offset of a batch, a document; None
    for a source of another package. Streams and topics that were deleted, or created again, have
    none. `kafka`: options of the Kafka source.

    Raises SspError if the service or the brokers cannot be read.
    """
    if kinesis_offset.is_offset(end):
        return _kinesis_status(kinesis_offset.decode(end), kinesis, references)
    if kafka_offset.is_offset(end):
        return _kafka_status(kafka_offset.decode(end), kafka)
    return None


def _kinesis_status(
    end: kinesis_offset.Offset, connection: ConnectionOptions, references: References
) -> Status:
    streams = describe_streams(end.streams, connection, references)
    positions = {
        key: state.position
        for key, state in end.states.items()
        if not isinstance(state.position, ShardEnd)
        and key.stream in streams
        and streams[key.stream].created == end.streams[key.stream].created
    }
    lags: dict[StreamName, dict[ShardId, int]] = {}
    for key, lag in lags_of(positions, connection, references).items():
        if lag is not None:
            lags.setdefault(key.stream, {})[key.shard] = lag
    return {stream: progress_entry(found) for stream, found in lags.items()}


def _kafka_status(end: kafka_offset.Offset, options: Mapping[str, str]) -> Status | None:
    topics = describe_topics(end.topics, options)
    known = topics.keys() - recreated_topics(end, topics)
    latest = latest_offsets((ssp for ssp in end.positions if ssp.stream in known), options)
    lags: dict[StreamName, dict[int, int]] = {}
    for ssp, offset in latest.items():
        behind = offset - end.positions[ssp]
        if behind >= 0:  # else it is a position in another log
            lags.setdefault(ssp.stream, {})[ssp.partition] = behind
    return lag_metrics(lags)
