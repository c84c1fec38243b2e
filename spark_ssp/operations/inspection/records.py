"""Reads the records of streams and topics, to look at them: all as they arrive, one shard or
partition from a record on, or exactly those of a batch that a checkpoint has planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.admin_client import connect as connect_kafka
from spark_ssp.kafka_source.client.api import KafkaService
from spark_ssp.kafka_source.model.topic import AtTime, LogicalOffset, partition_of
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.topic_metadata import not_found_error
from spark_ssp.kafka_source.reading.consumer_api import (
    PartitionConsumer,
    PartitionEof,
    ReadError,
    RecordRun,
)
from spark_ssp.kafka_source.reading.pool import ConsumerKey, open_consumer
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    KinesisService,
    ShardNotFoundError,
)
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.deaggregation import last_sub, split
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    RecordPage,
    ShardIterator,
    StreamRef,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.reading.shard_reader import first_expected
from spark_ssp.operations.inspection.positions import RecordId, partition_rows
from spark_ssp.operations.inspection.spark_checkpoint import Source
from spark_ssp.operations.snapshot import short_name

_PAGE: Final = 1_000
_TAKE_BYTES: Final = 8 << 20
_READ_COLUMNS: Final = ("key", "value", "timestamp")
"""The columns of `kafka-ssp` that are shown, without the position."""
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start: at a record, `age_ms` before now, at `time_ms`, or, without any of them, at the
    oldest record."""

    record: RecordId | None = None
    age_ms: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record, or a user record of an aggregate."""

    stream: str
    part: str
    """The shard's id or the partition's number."""
    position: str
    """The sequence number, with `/n` for user record n of an aggregate; or the offset."""
    time_ms: int
    key: bytes | str | None = field(repr=False)
    data: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The records of one round of reads."""

    records: tuple[Record, ...]
    is_caught_up: bool
    """True if every shard or partition was read up to its newest record."""
    is_finished: bool = False
    """True if no record follows."""
    notes: tuple[str, ...] = ()
    """Remarks on records that are left out because they have expired."""


class Tail(Protocol):
    """Records that are read in rounds."""

    def read(self) -> Round:
        """Return the records of the next round."""

    def close(self) -> None:
        """Release connections."""


# --- The planned batch of a checkpoint ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpan:
    """A part of a shard; without an end, all that follows the start."""

    shard: ShardId
    start: Position
    end: Position | None = None
    first: RecordId | None = None
    """The record that the service has to return first; None: it is not known."""

    def contains(self, position: AfterRecord) -> bool:
        """Return whether the record that a position follows is in this part."""
        is_after = not isinstance(self.start, AfterRecord) or is_behind(self.start, position)
        return is_after and (self.end is None or not is_behind(self.end, position))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpan:
    """The offsets of a partition from `start`, None for the oldest, up to and without `end`."""

    start: int | None
    end: int


PartitionSpans = Mapping[SystemStreamPartition, PartitionSpan]


def shard_spans(source: Source) -> dict[StreamName, tuple[ShardSpan, ...]]:
    """Return the ranges that the planned batch of a Kinesis source reads, by stream: parents
    first."""
    start, end = source.committed, source.planned
    if not isinstance(end, Offset):
        return {}
    before = start if isinstance(start, Offset) else BEFORE_FIRST_BATCH
    streams = {name: StreamRef(name=name) for name in end.streams}
    ranges = [one for slot in plan_ranges(before, end, streams) for one in slot.shards]
    return {
        name: tuple(
            ShardSpan(shard=one.shard, start=one.start, end=one.end, first=_first(one))
            for one in sorted(ranges, key=lambda one: one.key)
            if one.stream.name == name
        )
        for name in sorted(streams)
    }


def _first(range_: ShardRange) -> RecordId | None:
    expected = first_expected(range_)
    return None if expected is None else RecordId(number=int(expected.sequence_number))


def partition_spans(source: Source) -> dict[StreamName, PartitionSpans]:
    """Return the ranges that the planned batch of a Kafka source reads, by topic."""
    found: dict[StreamName, dict[SystemStreamPartition, PartitionSpan]] = {}
    if source.planned is None or isinstance(source.planned, Offset):
        return {}
    for row in partition_rows(source):
        ssp = partition_of(StreamName(row.topic), row.partition)
        spans = found.setdefault(ssp.stream, {})
        if row.planned is not None and row.committed != row.planned:
            spans[ssp] = PartitionSpan(start=row.committed, end=row.planned)
    return dict(found)


# --- Kinesis --------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Cursor:
    span: ShardSpan
    position: Position
    iterator: ShardIterator | None = None
    is_begun: bool = False
    """True once its first record has been read, or noted as missing."""


class KinesisTail:
    """The records of a stream. A shard is read once its listed parents are read to their end. Needs
    kinesis:ListShards, kinesis:GetShardIterator and kinesis:GetRecords."""

    def __init__(
        self,
        stream: StreamRef,
        connection: ConnectionOptions,
        start: Start,
        *,
        shard: str | None = None,
        spans: Sequence[ShardSpan] | None = None,
    ) -> None:
        """With `spans`, only these are read, one after the other; with `shard`, its id or number,
        only this one. Raises ShardNotFoundError."""
        self._service: KinesisService = connect(connection)
        self._stream = stream
        self._cursors: dict[ShardId, _Cursor] = {}
        self._finished: set[ShardId] = set()
        self._began_ms: EpochMillis | None = None
        """The service's time at the first read."""
        self._is_whole = spans is None and shard is None
        if spans is not None:
            self._add(spans)
            return
        self._start = self._position(start)
        listed = [one.shard_id for one in self._service.list_shards(stream)]
        if shard is None:
            self._first = set(listed)
            self._open()
            return
        named = [one for one in listed if shard in (one, short_name(one))]
        if not named:
            raise ShardNotFoundError(
                f"shard {shard} of stream {stream.name}",
                found="no such shard",
                expected="a shard of the stream, by id or number",
                next_step=f"spark-ssp shards {stream.name} lists them",
            )
        self._add([ShardSpan(shard=named[0], start=self._start, first=start.record)])

    def _position(self, start: Start) -> Position:
        if start.record is not None:
            return start.record.at
        if start.age_ms is not None:
            return AtTimestamp(millis=EpochMillis(self._service.service_time() - start.age_ms))
        if start.time_ms is not None:
            return AtTimestamp(millis=EpochMillis(start.time_ms))
        return TrimHorizon()

    def _add(self, spans: Sequence[ShardSpan]) -> None:
        for span in spans:
            self._cursors[span.shard] = _Cursor(span=span, position=span.start)

    def _open(self) -> None:
        """Begin the shards whose parents are finished; those that are new begin at their oldest
        record."""
        listed = {shard.shard_id: shard for shard in self._service.list_shards(self._stream)}
        for shard_id, shard in listed.items():
            if shard_id in self._cursors or shard_id in self._finished:
                continue
            if all(parent in self._finished or parent not in listed for parent in shard.parents):
                start = self._start if shard_id in self._first else TrimHorizon()
                self._add([ShardSpan(shard=shard_id, start=start)])

    def read(self) -> Round:
        """Read a page of each shard, or of the next one of those that were chosen."""
        records: list[Record] = []
        notes: list[str] = []
        chosen = sorted(self._cursors.items())[: None if self._is_whole else 1]
        caught_up = len(chosen) == len(self._cursors)
        for shard, cursor in chosen:
            page = self._page(shard, cursor)
            is_at_end = page is None or page.next_iterator is None
            if page is None:
                notes.append(f"{self._stream.name}/{shard} has expired: its records are left out")
            else:
                records += self._records(cursor.span, page)
                is_newest = self._is_newest(page)
                caught_up = caught_up and is_newest
                if not cursor.is_begun and (page.sequence_numbers or is_at_end or is_newest):
                    cursor.is_begun = True
                    notes += self._missing(cursor.span, page)
                if page.sequence_numbers:
                    cursor.position = AfterRecord(sequence_number=page.sequence_numbers[-1])
                cursor.iterator = page.next_iterator
                is_at_end = is_at_end or self._is_past(cursor, page)
            if is_at_end:
                del self._cursors[shard]
                self._finished.add(shard)
                caught_up = False
        if self._is_whole and not caught_up:
            self._open()
        if self._is_whole:
            records.sort(key=lambda record: record.time_ms)
        return Round(
            records=tuple(records),
            is_caught_up=caught_up,
            is_finished=not self._is_whole and not self._cursors,
            notes=tuple(notes),
        )

    def _missing(self, span: ShardSpan, page: RecordPage) -> tuple[str, ...]:
        """Return a remark if the first page of a span does not begin with its first record."""
        first = span.first
        if first is None:
            return ()
        numbers = page.sequence_numbers
        if numbers and int(numbers[0]) == first.number and first.sub <= last_sub(page.data[0]):
            return ()
        remark = (
            f"{self._stream.name}/{span.shard} has no record {first}: it has expired, or was never "
            "there, and records after it may have expired too"
        )
        return (remark,)

    def _is_newest(self, page: RecordPage) -> bool:
        """Return whether all records that were there at the first read have been read. Records with
        a lag of 0 may be followed by others, or by the end of the shard; an empty page with it is
        not."""
        if self._began_ms is None:
            self._began_ms = page.service_time
        if page.arrival_ms:
            return page.arrival_ms[-1] > self._began_ms
        return page.millis_behind_latest == 0

    def _is_past(self, cursor: _Cursor, page: RecordPage) -> bool:
        """Return whether no record of the span follows a page."""
        end = cursor.span.end
        if end is None:
            return False
        if page.sequence_numbers:
            return not is_behind(cursor.position, end)
        return page.millis_behind_latest == 0

    def _page(self, shard: ShardId, cursor: _Cursor) -> RecordPage | None:
        """Return the next page; None if the shard has expired."""
        try:
            if cursor.iterator is None:
                cursor.iterator = self._iterator(shard, cursor)
            try:
                return self._get(shard, cursor.iterator)
            except ExpiredIteratorError:
                return self._get(shard, self._iterator(shard, cursor))
        except ShardNotFoundError:
            return None

    def _iterator(self, shard: ShardId, cursor: _Cursor) -> ShardIterator:
        # At the start's own record: of an aggregate, user records may follow.
        is_start = cursor.position == cursor.span.start
        return self._service.open_iterator(self._stream, shard, cursor.position, inclusive=is_start)

    def _get(self, shard: ShardId, iterator: ShardIterator) -> RecordPage:
        return self._service.get_records(self._stream, shard, iterator, limit=_PAGE)

    def _records(self, span: ShardSpan, page: RecordPage) -> Iterator[Record]:
        columns = zip(
            page.sequence_numbers, page.partition_keys, page.arrival_ms, page.data, strict=True
        )
        for number, key, time_ms, data in columns:
            users = split(data)
            rows: list[tuple[int, str, str | None, bytes]] = [(0, number, key, data)]
            if users is not None:
                rows = [
                    (user.sub, f"{number}/{user.sub}", user.partition_key, user.data)
                    for user in users
                ]
            for sub, position, partition_key, content in rows:
                if span.contains(AfterRecord(sequence_number=number, sub=sub)):
                    yield Record(
                        stream=self._stream.name,
                        part=span.shard,
                        position=position,
                        time_ms=time_ms,
                        key=partition_key,
                        data=content,
                    )

    def close(self) -> None:
        """Do nothing: the connection belongs to the process."""


# --- Kafka ----------------------------------------------------------------------------------------


class KafkaTail:
    """The records of topics. Commits nothing. Needs Describe and Read on the topics."""

    def __init__(
        self,
        options: KafkaOptions,
        start: Start,
        now_ms: int,
        *,
        partition: int | None = None,
        spans: PartitionSpans | None = None,
    ) -> None:
        """With `spans`, only these are read; with `partition`, only this one of each topic."""
        service = connect_kafka(options)
        partitions = _partitions(service, options, partition) if spans is None else sorted(spans)
        ends = service.list_offsets(partitions, LogicalOffset.LATEST)
        if spans is None:
            found = _starts(service, partitions, start, now_ms)
        else:
            oldest = service.list_offsets(partitions, LogicalOffset.EARLIEST)
            found = {
                ssp: oldest.get(ssp) if span.start is None else span.start
                for ssp, span in spans.items()
            }
            ends = {ssp: span.end for ssp, span in spans.items()}
        positions = {
            ssp: offset
            for ssp in partitions
            if (offset := ends.get(ssp) if found.get(ssp) is None else found[ssp]) is not None
        }
        self._behind = {ssp for ssp, offset in positions.items() if offset < (ends.get(ssp) or 0)}
        key = ConsumerKey(client=options.client, group_id=f"{options.group_id_prefix}-tail")
        self._consumer: PartitionConsumer = open_consumer(key)
        self._consumer.assign(positions)
        self._ends: Mapping[SystemStreamPartition, int | None] = ends
        self._is_bounded = spans is not None

    def read(self) -> Round:
        """Wait for records for half a second."""
        for event in self._consumer.poll(_PAGE, _POLL_S):
            match event:
                case RecordRun(ssp=ssp, offsets=offsets):
                    self._consumer.keep(event, slice(0, len(offsets)))
                    if offsets[-1] + 1 >= (self._ends.get(ssp) or 0):
                        self._behind.discard(ssp)
                case PartitionEof(ssp=ssp):
                    self._behind.discard(ssp)
                case ReadError(error=error):
                    raise error
        records: list[Record] = []
        while self._consumer.buffered_rows:
            records += self._records(self._consumer.take(_TAKE_BYTES, _READ_COLUMNS))
        return Round(
            records=tuple(records),
            is_caught_up=not self._behind,
            is_finished=self._is_bounded and not self._behind,
        )

    def _records(self, columns: Any) -> Iterator[Record]:
        row = 0
        keys, values = columns.keys.to_pylist(), columns.values.to_pylist()
        times, offsets = columns.times_ms.to_pylist(), columns.offsets.to_pylist()
        for ssp, count in columns.runs:
            end = self._ends.get(ssp) if self._is_bounded else None
            for n in range(row, row + count):
                if end is None or offsets[n] < end:
                    yield Record(
                        stream=ssp.stream,
                        part=str(ssp.partition),
                        position=str(offsets[n]),
                        time_ms=times[n],
                        key=keys[n],
                        data=values[n],
                    )
            row += count

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _partitions(
    service: KafkaService, options: KafkaOptions, partition: int | None
) -> list[SystemStreamPartition]:
    topics = service.describe(options.selection)
    missing = set(getattr(options.selection, "topics", ())) - topics.keys()
    found = [
        partition_of(name, number)
        for name in sorted(topics)
        for number in range(topics[name].partition_count)
        if partition in (None, number)
    ]
    if missing or not found:
        raise not_found_error(options.selection, missing or topics.keys())
    return found


def _starts(
    service: KafkaService,
    partitions: Sequence[SystemStreamPartition],
    start: Start,
    now_ms: int,
) -> dict[SystemStreamPartition, int | None]:
    if start.record is not None:
        return dict.fromkeys(partitions, start.record.number)
    point: LogicalOffset | AtTime = LogicalOffset.EARLIEST
    if start.age_ms is not None:
        point = AtTime(time_ms=EpochMillis(now_ms - start.age_ms))
    elif start.time_ms is not None:
        point = AtTime(time_ms=EpochMillis(start.time_ms))
    if start.age_ms == 0:
        point = LogicalOffset.LATEST
    return dict(service.list_offsets(partitions, point))
