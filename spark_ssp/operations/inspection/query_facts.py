"""Looks at a query from outside: its checkpoint, its lease tables, the streams and topics that it
reads.

A checkpoint shows when a batch was planned (in its offset, by the driver's clock) and committed
(the time of the file in `commits`). It shows neither whether a process runs the query nor the phase
of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_ssp.common.errors import SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.model.offset import Offset as KafkaOffset
from spark_ssp.kafka_source.model.topic import IsolationLevel
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.operations.health import Finding, Limits, Part, Query, Verdict, unknown, unreadable
from spark_ssp.operations.inspection.checkpoint_folder import DamagedFileError, Folder
from spark_ssp.operations.inspection.lease_table import ObservedTable
from spark_ssp.operations.inspection.parts import kafka_parts, kinesis_parts
from spark_ssp.operations.inspection.positions import Earlier
from spark_ssp.operations.inspection.spark_checkpoint import (
    Checkpoint,
    Source,
    decode_offset,
    format_of,
    parse_offset,
    read_batch,
)
from spark_ssp.operations.inspection.streams import References
from spark_ssp.operations.inspection.topics import topic_options

_PACE_BATCHES: Final = 20
"""The batches over which the pace of a query is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The values that a query is compared with, and the ways to read them."""

    kinesis: ConnectionOptions
    streams: References
    kafka: Mapping[str, str]
    """Options of the Kafka source; empty if no brokers were named."""
    kafka_retention_ms: int | None
    """Kafka's answers do not have it."""
    tables: Mapping[str, ObservedTable | SspError]
    """Lease tables by name, or the errors of reading them."""
    limits: Limits
    now_ms: int


def lease_tables(checkpoint: Checkpoint) -> set[str]:
    """Return the names of the lease tables by which the sources share their shards."""
    offsets = [source.planned or source.committed for source in checkpoint.sources]
    return {
        entry.leases
        for offset in offsets
        if isinstance(offset, Offset)
        for entry in offset.streams.values()
        if entry.leases is not None
    }


def read_query(folder: Folder, checkpoint: Checkpoint, around: Surroundings) -> Query:
    """Read the state of a query. A service that refuses or does not answer is a finding, so that a
    batch that hangs shows nevertheless."""
    earlier = _earlier(folder, checkpoint)
    parts: list[Part] = []
    findings: list[Finding] = []
    try:
        batches = batches_in(folder, checkpoint)
    except SspError as error:
        batches = Query(committed=checkpoint.committed)
        findings.append(unreadable(error, "the times of its batches are not known: "))
    is_there = _are_streams_there(batches, around)
    for source in checkpoint.sources:
        try:
            before = earlier.get(source.index, Earlier())
            more, found = _read_source(source, before, around, is_there=is_there)
        except SspError as error:
            more, found = [], [unreadable(error, _no_delay(source))]
        parts += [replace(part, source=source.index) for part in more]
        findings += found
    return replace(batches, parts=tuple(parts), findings=tuple(findings))


def _are_streams_there(batches: Query, around: Surroundings) -> bool:
    """Return whether a stream that is not found was deleted: if the region was given, or the query
    has stopped. One that commits may read in another region than that of AWS's configuration."""
    committed = batches.committed_at_ms
    has_stopped = committed is not None and around.now_ms - committed > around.limits.stuck_after_ms
    return around.kinesis.region is not None or has_stopped


def batches_in(folder: Folder, checkpoint: Checkpoint) -> Query:
    """Return the facts that a checkpoint shows by itself: the batches and their times."""
    newest = checkpoint.planned or checkpoint.last
    committed = checkpoint.committed
    return Query(
        committed=committed,
        committed_at_ms=None if committed is None else _committed_at(folder, committed),
        in_progress=None if checkpoint.planned is None else checkpoint.planned.batch,
        planned_at_ms=None if newest is None else newest.planned_ms,
    )


def _read_source(
    source: Source, earlier: Earlier, around: Surroundings, *, is_there: bool
) -> tuple[list[Part], list[Finding]]:
    newest = source.planned or source.committed
    if isinstance(newest, Offset):
        return kinesis_parts(
            source,
            earlier,
            connection=around.kinesis,
            references=around.streams,
            is_there=is_there,
            tables=around.tables,
            limit_ms=around.limits.max_delay_ms,
            now_ms=around.now_ms,
        )
    if not isinstance(newest, KafkaOffset | SparkOffset) or not newest.positions:
        return [], []
    if not around.kafka:
        reason = f"{_no_delay(source)}no brokers were named"
        return [], [unknown(reason, "give --bootstrap-servers")]
    options = topic_options(sorted({ssp.stream for ssp in newest.positions}), around.kafka)
    return kafka_parts(
        # With read_committed, a log would end at an open transaction.
        connect(replace(options, isolation_level=IsolationLevel.READ_UNCOMMITTED)),
        source,
        earlier,
        retention_ms=around.kafka_retention_ms,
        limit_ms=around.limits.max_delay_ms,
        now_ms=around.now_ms,
    )


def damaged(error: DamagedFileError) -> Finding:
    """Return the finding for a damaged file of a checkpoint."""
    return Finding(
        verdict=Verdict.FAILED,
        reason=f"{error.subject} is damaged, and the next start fails: found {error.found}; "
        f"expected {error.expected}",
        remedy=error.next_step,
    )


def _no_delay(source: Source) -> str:
    return f"the delay of source {source.index} ({source.format}) is not known: "


def _committed_at(folder: Folder, batch: int) -> int | None:
    return folder.modified_ms(f"commits/{batch}")


def _earlier(folder: Folder, checkpoint: Checkpoint) -> dict[int, Earlier]:
    """Return the offset of each source some batches before the last committed one; none if it
    cannot be read, as when Spark has just deleted it, or the files have no different times."""
    try:
        return _read_earlier(folder, checkpoint)
    except SspError:
        return {}


def _read_earlier(folder: Folder, checkpoint: Checkpoint) -> dict[int, Earlier]:
    last = checkpoint.committed
    before = [batch for batch in checkpoint.kept if last is not None and batch < last]
    if last is None or not before:
        return {}
    batch = before[-_PACE_BATCHES:][0]
    begin, end = _committed_at(folder, batch), _committed_at(folder, last)
    if begin is None or end is None or begin >= end:
        return {}
    texts = read_batch(folder, checkpoint.location, batch).offsets
    found = {}
    for source, text in zip(checkpoint.sources, texts, strict=False):
        document = parse_offset(text)
        if source.is_readable and document is not None and format_of(document) == source.format:
            found[source.index] = Earlier(
                offset=decode_offset(document), elapsed_ms=end - begin, last_ms=end
            )
    return found
