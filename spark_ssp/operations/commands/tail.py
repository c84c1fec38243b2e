"""`spark-ssp tail`: the records of a stream or topic, on the screen only."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from spark_ssp.common.times import time_text
from spark_ssp.operations.inspection.record_tail import KafkaTail, KinesisTail, Record, Start, Tail
from spark_ssp.operations.inspection.topics import topic_options
from spark_ssp.operations.terminal.connection import (
    Given,
    aws_options,
    connection,
    kafka_options,
    options_file,
    stream_ref,
)
from spark_ssp.operations.terminal.environment import Environment
from spark_ssp.operations.terminal.output import Screen, shard_number, write_json
from spark_ssp.operations.terminal.values import millis_of

_PAUSE_S: Final = 1.0
"""Between two rounds of reads at the newest records: a shard allows five reads a second to all of
its readers together."""
_SHOWN_BYTES: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS: Final = ("key", "partitionKey", "part", "shardId", "partition")


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


Filter = Callable[[Record], bool]


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
    return lambda record: part in (record.part, shard_number(record.part))


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
    tail: Tail
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
            f"{time_text(record.time_ms)}  {shard_number(record.part)}  "
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
