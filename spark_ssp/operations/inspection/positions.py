"""The position of each shard or partition in a checkpoint, and its part of a replay."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from spark_ssp.common.structs import replace
from spark_ssp.grouping.assignment import whole_streams
from spark_ssp.grouping.identifiers import ShardKey, SystemStreamPartition
from spark_ssp.kafka_source.model.offset import Offset as KafkaOffset
from spark_ssp.kafka_source.model.ranges import plan_ranges
from spark_ssp.kafka_source.model.topic import kafka_name
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardState,
)
from spark_ssp.kinesis_source.planning.input_partitions import start_state
from spark_ssp.operations.inspection.spark_checkpoint import Source, SourceOffset

_RECORD: Final = re.compile(r"([0-9]{1,128})(?:/([0-9]{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordId:
    """A sequence number and the index of a user record, or an offset."""

    number: int
    sub: int = 0

    @property
    def at(self) -> AfterRecord:
        """Return the position in a shard whose next record is this one."""
        return replace(self.after, sub=self.sub - 1)

    @property
    def after(self) -> AfterRecord:
        """Return the position in a shard after this record."""
        return AfterRecord(sequence_number=SequenceNumber(str(self.number)), sub=self.sub)

    def __str__(self) -> str:
        return f"{self.number}/{self.sub}" if self.sub else str(self.number)


def record_id(text: str) -> RecordId | None:
    """Parse a position as `spark-ssp tail` shows it; None for another text."""
    match = _RECORD.fullmatch(text.strip())
    return None if match is None else RecordId(number=int(match[1]), sub=int(match[2] or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """A shard of a Kinesis source."""

    stream: str
    shard: str
    slot: int | None
    """None while it waits, and for a shard that another worker has taken."""
    committed: Position | None
    """After the last committed batch; None if the query had not begun to read it."""
    planned: Position | None
    """After the batch that a restart runs again."""
    state: str
    """`replay`, `unchanged`, `read`, `ended`, `waiting` or `other worker`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition of a Kafka source."""

    topic: str
    partition: int
    task: str | None
    """None for a checkpoint of Spark's own source, which has no tasks."""
    committed: int | None
    """The offset of the next record after the last committed batch."""
    planned: int | None
    state: str
    """`replay`, `unchanged` or `read`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """An offset of a source some batches before the last committed one. None: it is not known."""

    offset: SourceOffset | None = None
    elapsed_ms: int = 0
    """Between the two commits."""
    last_ms: int = 0
    """The time of the last commit."""

    def shows_pace(self, delay_ms: int | None, limit_ms: int, now_ms: int) -> bool:
        """Return whether these batches show how fast the query reads: if a delay was too large at
        the last commit already. Else there was no more to read then."""
        return delay_ms is not None and delay_ms - (now_ms - self.last_ms) > limit_ms


def shard_rows(source: Source) -> list[ShardRow]:
    """Return the shards of a source, by slot, then those without one."""
    start = source.committed if isinstance(source.committed, Offset) else BEFORE_FIRST_BATCH
    end = source.planned if isinstance(source.planned, Offset) else None
    newest = start if end is None else end
    rows = [_shard_row(key, start, end) for key in newest.states]
    rows += [
        _unread_row(key, state, word)
        for shards, word in ((newest.waiting, "waiting"), (newest.lost_shards, "other worker"))
        for key, state in shards.items()
    ]
    return sorted(rows, key=lambda row: (row.slot is None, row.slot or 0, row.stream, row.shard))


def _shard_row(key: ShardKey, start: Offset, end: Offset | None) -> ShardRow:
    newest = start if end is None else end
    state = newest.states[key]
    before: ShardState | None = state
    if end is not None:
        before = start_state(key, start, end)
    committed = None if before is None else before.position
    if end is not None:
        word = "unchanged" if committed in (None, state.position) else "replay"
    else:
        word = "ended" if isinstance(state.position, ShardEnd) else "read"
    return ShardRow(
        stream=key.stream,
        shard=key.shard,
        slot=newest.assignment[key],
        committed=committed,
        planned=None if end is None else state.position,
        state=word,
    )


def _unread_row(key: ShardKey, state: ShardState, word: str) -> ShardRow:
    return ShardRow(
        stream=key.stream,
        shard=key.shard,
        slot=None,
        committed=state.position,
        planned=None,
        state=word,
    )


def partition_rows(source: Source) -> list[PartitionRow]:
    """Return the partitions of a source, by topic and number. Raises IncompatibleStateError for
    offsets that do not follow each other."""
    start, end = source.committed, source.planned
    if isinstance(end, KafkaOffset) and isinstance(start, KafkaOffset):
        plan_ranges(start, end)
    before = _positions(start)
    after = _positions(end)
    begins = dict(end.explicit_starts) if isinstance(end, KafkaOffset) else {}
    tasks: dict[SystemStreamPartition, str] = {}
    newest = start if end is None else end
    if isinstance(newest, KafkaOffset):
        tasks = {ssp: str(task) for ssp, task in newest.assignment.owners().items()}
    rows = []
    for ssp in sorted(before.keys() | after.keys()):
        committed = begins.get(ssp, before.get(ssp))
        planned = after.get(ssp)
        state = "read" if end is None else "unchanged" if committed == planned else "replay"
        rows.append(
            PartitionRow(
                topic=ssp.stream,
                partition=ssp.partition,
                task=tasks.get(ssp),
                committed=committed,
                planned=planned,
                state=state,
            )
        )
    return rows


def only_planned(source: Source) -> tuple[str, ...]:
    """Return the streams or topics that the planned batch has and the committed one lacks, sorted.
    With the option `assign` also such partitions of other topics."""
    start, end = source.committed, source.planned
    if isinstance(end, Offset):
        known = start.streams.keys() if isinstance(start, Offset) else ()
        return tuple(sorted(end.streams.keys() - known))
    before = _positions(start)
    topics, is_whole = {ssp.stream for ssp in before}, has_whole_topics(before)
    found: set[str] = set()
    for ssp in _positions(end).keys() - before.keys():
        if ssp.stream not in topics:
            found.add(ssp.stream)
        elif not is_whole:
            found.add(kafka_name(ssp))
    return tuple(sorted(found))


def has_whole_topics(partitions: Collection[SystemStreamPartition]) -> bool:
    """Return whether these are all partitions of each topic, up to the last of them. Those that
    come later belong to the query then, unless it reads the first ones only; else its option is
    `assign`, and none belongs to it."""
    return whole_streams(partitions) == {ssp.system_stream for ssp in partitions}


def _positions(offset: Any) -> dict[SystemStreamPartition, int]:
    return dict(offset.positions) if isinstance(offset, KafkaOffset | SparkOffset) else {}
