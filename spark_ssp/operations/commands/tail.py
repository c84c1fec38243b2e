"""`spark-ssp tail`: The records of a Kinesis stream or a Kafka topic."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.times import time_text
from spark_ssp.grouping.identifiers import ShardId, SystemStreamPartition
from spark_ssp.kafka_source.client.admin_client import connect as connect_kafka
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
from spark_ssp.kinesis_source.model.deaggregation import split
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
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    kafka_options,
    millis_of,
    options_file,
    stream_ref,
)
from spark_ssp.operations.inspection.topics import topic_options
from spark_ssp.operations.snapshot import short_name
from spark_ssp.operations.terminal import Environment, Screen, write_json

_PAUSE_S: Final = 1.0
"""Between two rounds of reads at the newest records: a shard allows five reads a second to all of
its readers together."""
_SHOWN_BYTES: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS: Final = ("key", "partitionKey", "part", "shardId", "partition")
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


Filter = Callable[[Record], bool]


# --- Arguments ------------------------------------------------------------------------------------


def _start(context: click.Context, parameter: click.Parameter, value: str) -> Start:
    """Parse -5m, latest, trim_horizon, earliest or a time."""
    text = value.strip()
    if text.lower() == "latest":
        return Start(age_ms=0)
    if text.lower() in ("trim_horizon", "earliest"):
        return Start()
    if text.startswith("-"):
        return Start(age_ms=millis_of(text[1:]))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            "expected -5m, latest, trim_horizon or 2026-01-31T10:00:00Z"
        ) from None
    if time.tzinfo is None:
        raise click.BadParameter("the time has no zone: add Z for UTC")
    return Start(time_ms=(time - _EPOCH) // timedelta(milliseconds=1))


def _filters(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[Filter]:
    found: list[Filter] = []
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or name not in _FIELDS:
            raise click.BadParameter(f"expected one of {', '.join(_FIELDS)}, and =VALUE")
        by_key = name in ("key", "partitionKey")
        found.append(_has_key(text) if by_key else _is_in(text))
    return found


def _has_key(text: str) -> Filter:
    keys = (text, text.encode())
    return lambda record: record.key in keys


def _is_in(part: str) -> Filter:
    return lambda record: part in (record.part, short_name(record.part))


# --- The command ----------------------------------------------------------------------------------


@click.command("tail")
@click.argument("stream")
@click.option(
    "--from",
    "start",
    callback=_start,
    default="latest",
    show_default=True,
    metavar="START",
    help="-5m, latest, trim_horizon, or a time such as 2026-01-31T10:00:00Z.",
)
@click.option(
    "--where",
    "filters",
    multiple=True,
    callback=_filters,
    metavar="FIELD=VALUE",
    help="Only records with this partitionKey (of Kafka: key), shardId or partition. Repeatable: "
    "all have to match.",
)
@click.option("--max", "most", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--no-follow", is_flag=True, help="Stop at the newest record.")
@click.option("--json", "as_json", is_flag=True, help="Write a line of JSON for each record.")
@options_file
@kafka_options
@aws_options
@click.pass_context
def tail_command(
    context: click.Context,
    stream: str,
    start: Start,
    filters: list[Filter],
    most: int | None,
    no_follow: bool,
    as_json: bool,
    aws: Given,
    kafka: Given,
) -> None:
    """Show the records of STREAM: a Kinesis stream, or with --bootstrap-servers a Kafka topic.

    Aggregated records are split. Data that is not printable text is shown in hexadecimal. Records
    are written to the standard output and nowhere else.
    """
    environment: Environment = context.obj
    tail: KafkaTail | KinesisTail
    if kafka.options:
        options = topic_options([stream], kafka.options)
        tail = KafkaTail(options, start, environment.now_ms())
    else:
        tail = KinesisTail(stream_ref(stream), connection(aws), start)
    screen = Screen()
    left = most
    try:
        while left is None or left > 0:
            found = tail.read()
            for record in found.records:
                if left == 0:
                    break
                if all(matches(record) for matches in filters):
                    _write(screen, record, as_json=as_json)
                    left = None if left is None else left - 1
            if found.is_caught_up:
                if no_follow:
                    break
                if not found.records and not kafka.options:
                    environment.sleep(_PAUSE_S)
    finally:
        tail.close()


def _write(screen: Screen, record: Record, *, as_json: bool) -> None:
    if not as_json:
        screen.row(
            f"{time_text(record.time_ms)}  {short_name(record.part)}  "
            f"{_text(record.key)}  {_text(record.data)}"
        )
        return
    document: dict[str, Any] = {
        "stream": record.stream,
        "part": record.part,
        "position": record.position,
        "timeMs": record.time_ms,
    }
    for name, value in (("key", record.key), ("data", record.data)):
        text = _decoded(value)
        if value is None or text is not None:
            document[name] = text
        else:
            assert isinstance(value, bytes)
            document[f"{name}Base64"] = base64.b64encode(value).decode()
    write_json(document, lines=True)


def _decoded(value: bytes | str | None) -> str | None:
    """Return text; None for bytes that are not UTF-8."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _text(value: bytes | str | None) -> str:
    """Return text without characters that a terminal interprets; other bytes in hexadecimal."""
    if value is None:
        return "-"
    text = _decoded(value)
    if text is not None:
        return text.expandtabs(1) if text else '""'
    assert isinstance(value, bytes)
    more = f"… ({len(value)} bytes)" if len(value) > _SHOWN_BYTES else ""
    return f"0x{value[:_SHOWN_BYTES].hex()}{more}"


# --- Reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The records of one round of reads."""

    records: tuple[Record, ...]
    is_caught_up: bool
    """True if every shard or partition was read up to its newest record."""


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
