"""`spark-ssp tail`: The records of a Kinesis stream or a Kafka topic, or of the planned batch of a
checkpoint."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
from click.core import ParameterSource

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.common.locations import shown_location
from spark_ssp.common.times import time_text
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.model.offset import Offset as KafkaOffset
from spark_ssp.kafka_source.planning.topic_metadata import recreated_topics
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    kafka_options,
    millis_of,
    options_file,
    s3_connection,
    stream_ref,
    stream_references,
)
from spark_ssp.operations.cli import Environment, Screen, note, write_json
from spark_ssp.operations.inspection.checkpoint_folder import CheckpointFolderError, open_folder
from spark_ssp.operations.inspection.positions import record_id
from spark_ssp.operations.inspection.records import (
    KafkaTail,
    KinesisTail,
    PartitionSpans,
    Record,
    ShardSpan,
    Start,
    Tail,
    partition_spans,
    shard_spans,
)
from spark_ssp.operations.inspection.spark_checkpoint import (
    only_source,
    read_checkpoint,
)
from spark_ssp.operations.inspection.streams import describe_streams
from spark_ssp.operations.inspection.topics import describe_topics, topic_options
from spark_ssp.operations.snapshot import short_name

_PAUSE_S: Final = 1.0
"""Between two rounds of reads at the newest records: a shard allows five reads a second to all of
its readers together."""
_SHOWN_BYTES: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS: Final = ("key", "partitionKey", "part", "shardId", "partition")

Filter = Callable[[Record], bool]


# --- Arguments ------------------------------------------------------------------------------------


def _start(context: click.Context, parameter: click.Parameter, value: str) -> Start:
    """Parse a position, -5m, latest, trim_horizon, earliest or a time."""
    text = value.strip()
    record = record_id(text)
    if record is not None:
        return Start(record=record)
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
            "expected -5m, latest, trim_horizon, 2026-01-31T10:00:00Z, or the position of a record"
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
@click.argument("stream", required=False)
@click.option(
    "--from",
    "start",
    callback=_start,
    default="latest",
    show_default=True,
    metavar="START",
    help="-5m, latest, trim_horizon, a time such as 2026-01-31T10:00:00Z; or, with --shard or "
    "--partition, the position of a record: a sequence number or an offset.",
)
@click.option("--shard", help="Read only this shard of the stream, by id or number.")
@click.option("--partition", type=click.IntRange(min=0), help="Read only this partition.")
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="Read the records of the batch that this checkpoint has planned and not committed.",
)
@click.option("--source", type=int, help="With --checkpoint, the source: 0, 1, …")
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
    stream: str | None,
    start: Start,
    shard: str | None,
    partition: int | None,
    checkpoint: str | None,
    source: int | None,
    filters: list[Filter],
    most: int | None,
    no_follow: bool,
    as_json: bool,
    aws: Given,
    kafka: Given,
) -> None:
    """Show the records of STREAM: a Kinesis stream, or with --bootstrap-servers a Kafka topic.

    With --checkpoint, STREAM is only needed if the query reads several. Aggregated records are
    split. Data that is not printable text is shown in hexadecimal. Records are written to the
    standard output and nowhere else.
    """
    environment: Environment = context.obj
    is_given = context.get_parameter_source("start") is not ParameterSource.DEFAULT
    if checkpoint is not None:
        if is_given or shard is not None or partition is not None:
            raise click.UsageError(
                "--checkpoint has its own starts and shards: leave out --from, --shard and "
                "--partition; --where selects"
            )
        tail = _planned(checkpoint, source, stream, aws, kafka, environment)
    elif stream is None:
        raise click.UsageError("Missing argument 'STREAM'.")
    elif source is not None:
        raise click.UsageError("--source needs --checkpoint")
    elif start.record is not None and shard is None and partition is None:
        raise click.UsageError("a position in --from needs --shard, or for Kafka --partition")
    elif kafka.options:
        if shard is not None:
            raise click.UsageError("--shard is of Kinesis: give --partition")
        options = topic_options([stream], kafka.options)
        tail = KafkaTail(options, start, environment.now_ms(), partition=partition)
    else:
        if partition is not None:
            raise click.UsageError("--partition is of Kafka: give --shard, or --bootstrap-servers")
        tail = KinesisTail(stream_ref(stream, aws), connection(aws), start, shard=shard)
    screen = Screen()
    left = most
    with closing(tail):
        while left is None or left > 0:
            found = tail.read()
            for text in found.notes:
                note(text)
            for record in found.records:
                if left == 0:
                    break
                if all(matches(record) for matches in filters):
                    _write(screen, record, as_json=as_json)
                    left = None if left is None else left - 1
            if found.is_finished or (found.is_caught_up and no_follow):
                break
            if found.is_caught_up and not found.records and not kafka.options:
                environment.sleep(_PAUSE_S)


def _planned(
    path: str,
    number: int | None,
    stream: str | None,
    aws: Given,
    kafka: Given,
    environment: Environment,
) -> Tail:
    """Return the records of the batch that is planned and not committed."""
    with closing(open_folder(path, s3_connection(aws))) as folder:
        found = read_checkpoint(folder, path)
    source = only_source(found, number)
    shards, partitions = shard_spans(source), partition_spans(source)
    name = _only(path, {*shards, *partitions}, stream)
    if name in shards and isinstance(source.planned, Offset):
        spans: tuple[ShardSpan, ...] = shards[name]
        kinesis, references = connection(aws), stream_references(aws)
        found_now = describe_streams([name], kinesis, references).get(name)
        if found_now is not None and found_now.created != source.planned.streams[name].created:
            raise _recreated(f"stream {name}")
        return KinesisTail(stream_ref(name, aws), kinesis, Start(), spans=spans)
    offsets: PartitionSpans = partitions[name]
    if not kafka.options:
        raise click.UsageError(f"{name} is a topic: give --bootstrap-servers")
    if isinstance(source.planned, KafkaOffset) and recreated_topics(
        source.planned, describe_topics([name], kafka.options)
    ):
        raise _recreated(f"topic {name}")
    options = topic_options([name], kafka.options)
    return KafkaTail(options, Start(), environment.now_ms(), spans=offsets)


def _recreated(subject: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        subject,
        found="deleted and created again since the batch was planned",
        expected="the one that the query has read",
        next_step="look at the new one without --checkpoint",
    )


def _only(path: str, names: set[StreamName], stream: str | None) -> StreamName:
    """Return the named stream or topic of the planned batch, or the only one."""
    if not names:
        raise CheckpointFolderError(
            f"checkpoint {shown_location(path)}",
            found="no batch that is planned and not committed",
            expected="a batch in progress, or one that failed",
            next_step="look at the stream itself: spark-ssp tail STREAM --shard SHARD --from "
            "POSITION",
        )
    chosen = sorted(name for name in names if stream in (None, name))
    if len(chosen) == 1:
        return chosen[0]
    raise click.BadParameter(
        f"the query reads {', '.join(sorted(names))}: name one of them", param_hint="STREAM"
    )


def _write(screen: Screen, record: Record, *, as_json: bool) -> None:
    if not as_json:
        screen.row(
            f"{time_text(record.time_ms)}  {short_name(record.part)}  {record.position}  "
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
