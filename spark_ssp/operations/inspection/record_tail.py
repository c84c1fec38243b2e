"""Follows the records of a stream or of topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, SystemStreamPartition
from spark_ssp.kafka_source.client.admin_client import connect as connect_kafka
from spark_ssp.kafka_source.client.consumer_api import (
    PartitionConsumer,
    PartitionEof,
    ReadError,
    RecordRun,
)
from spark_ssp.kafka_source.consumers.pool import ConsumerKey, open_consumer
from spark_ssp.kafka_source.model.topic import AtTime, LogicalOffset, partition_of
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.metadata_checks import not_found_error
from spark_ssp.kinesis_source.aggregation.deaggregation import split
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    KinesisService,
    ShardNotFoundError,
)
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    RecordPage,
    ShardIterator,
    StreamRef,
    TrimHorizon,
)

_PAGE: Final = 1_000
_TAKE_BYTES: Final = 8 << 20
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start: `age_ms` before now, at `time_ms`, or, without both, at the oldest record."""

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


class Tail(Protocol):
    """Reads on from round to round. Raises SspError."""

    def read(self) -> Round:
        """Return the next records of every shard or partition."""

    def close(self) -> None:
        """Release connections."""


# --- Kinesis -------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Cursor:
    position: Position
    iterator: ShardIterator | None = None


class KinesisTail:
    """The records of a stream. A shard is read once its listed parents are read to their end. Needs
    kinesis:ListShards, kinesis:GetShardIterator and kinesis:GetRecords."""

    def __init__(self, stream: StreamRef, connection: ConnectionOptions, start: Start) -> None:
        self._service: KinesisService = connect(connection)
        self._stream = stream
        self._start = self._position(start)
        self._cursors: dict[ShardId, _Cursor] = {}
        self._finished: set[ShardId] = set()
        self._first = {shard.shard_id for shard in self._service.list_shards(stream)}
        self._open()

    def _position(self, start: Start) -> Position:
        if start.age_ms is not None:
            return AtTimestamp(millis=EpochMillis(self._service.service_time() - start.age_ms))
        if start.time_ms is not None:
            return AtTimestamp(millis=EpochMillis(start.time_ms))
        return TrimHorizon()

    def _open(self) -> None:
        """Begin the shards whose parents are finished; those that are new begin at their oldest
        record."""
        listed = {shard.shard_id: shard for shard in self._service.list_shards(self._stream)}
        for shard_id, shard in listed.items():
            if shard_id in self._cursors or shard_id in self._finished:
                continue
            if all(parent in self._finished or parent not in listed for parent in shard.parents):
                position = self._start if shard_id in self._first else TrimHorizon()
                self._cursors[shard_id] = _Cursor(position=position)

    def read(self) -> Round:
        """Read a page of each shard."""
        records: list[Record] = []
        caught_up = True
        for shard, cursor in sorted(self._cursors.items()):
            page = self._page(shard, cursor)
            if page is not None:
                records += self._records(shard, page)
                caught_up = caught_up and page.millis_behind_latest == 0
                if page.sequence_numbers:
                    cursor.position = AfterRecord(sequence_number=page.sequence_numbers[-1])
                cursor.iterator = page.next_iterator
            if page is None or page.next_iterator is None:
                del self._cursors[shard]
                self._finished.add(shard)
                caught_up = False
        if not caught_up:
            self._open()
        records.sort(key=lambda record: record.time_ms)
        return Round(records=tuple(records), is_caught_up=caught_up)

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
        return self._service.open_iterator(self._stream, shard, cursor.position)

    def _get(self, shard: ShardId, iterator: ShardIterator) -> RecordPage:
        return self._service.get_records(self._stream, shard, iterator, limit=_PAGE)

    def _records(self, shard: ShardId, page: RecordPage) -> Iterator[Record]:
        columns = zip(
            page.sequence_numbers, page.partition_keys, page.arrival_ms, page.data, strict=True
        )
        for number, key, time_ms, data in columns:
            record = Record(
                stream=self._stream.name,
                part=shard,
                position=number,
                time_ms=time_ms,
                key=key,
                data=data,
            )
            users = split(data)
            if users is None:
                yield record
            else:
                for user in users:
                    yield replace(
                        record,
                        position=f"{number}/{user.sub}",
                        key=user.partition_key,
                        data=user.data,
                    )

    def close(self) -> None:
        """Do nothing: the connection belongs to the process."""


# --- Kafka ---------------------------------------------------------------------------------------


class KafkaTail:
    """The records of topics. Commits nothing. Needs Describe and Read on the topics."""

    def __init__(self, options: KafkaOptions, start: Start, now_ms: int) -> None:
        service = connect_kafka(options)
        topics = service.describe(options.selection)
        names = getattr(options.selection, "topics", ())
        missing = set(names) - topics.keys()
        if missing:
            raise not_found_error(options.selection, missing)
        partitions = [
            partition_of(name, number)
            for name in sorted(topics)
            for number in range(topics[name].partition_count)
        ]
        ends = service.list_offsets(partitions, LogicalOffset.LATEST)
        point: LogicalOffset | AtTime = LogicalOffset.EARLIEST
        if start.age_ms is not None:
            point = AtTime(time_ms=EpochMillis(now_ms - start.age_ms))
        elif start.time_ms is not None:
            point = AtTime(time_ms=EpochMillis(start.time_ms))
        if start.age_ms == 0:
            point = LogicalOffset.LATEST
        found = service.list_offsets(partitions, point)
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
            records += _kafka_records(self._consumer.take(_TAKE_BYTES))
        return Round(records=tuple(records), is_caught_up=not self._behind)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def _kafka_records(columns: Any) -> Iterator[Record]:
    row = 0
    keys, values = columns.keys.to_pylist(), columns.values.to_pylist()
    times, offsets = columns.times_ms.to_pylist(), columns.offsets.to_pylist()
    for ssp, count in columns.runs:
        for n in range(row, row + count):
            yield Record(
                stream=ssp.stream,
                part=str(ssp.partition),
                position=str(offsets[n]),
                time_ms=times[n],
                key=keys[n],
                data=values[n],
            )
        row += count
