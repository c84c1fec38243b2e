"""Parses Spark's map of options into `KinesisOptions` and checks the options against each other.

Runs only on the driver; executors receive the result by pickle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from spark_ssp.common.options.spec import (
    BadValueError,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    OptionSpec,
    read_options,
)
from spark_ssp.common.options.trigger import TRIGGER, trigger_problems
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    Latest,
    StartingPosition,
    StartPoint,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options import table
from spark_ssp.kinesis_source.options.connection_parsing import (
    connection_of,
    credential_problems,
    region_problems,
    stream_problems,
    streams_of,
    warn,
    warn_in_batch_read,
)
from spark_ssp.kinesis_source.options.fan_out import fan_out_options, fan_out_problems
from spark_ssp.kinesis_source.options.leases import (
    APPLICATION_NAME,
    LEASE_TABLE,
    lease_options,
    lease_problems,
)
from spark_ssp.kinesis_source.options.starting_position import ParsedStart, resolve_start
from spark_ssp.kinesis_source.options.values import KinesisOptions, QueryKind

SOURCE: Final = "kinesis-ssp"

_BOUNDING: Final = (
    table.MAX_RECORDS_PER_TRIGGER,
    table.MAX_BYTES_PER_TRIGGER,
    table.MAX_BYTES_PER_SHARD,
    APPLICATION_NAME,
    LEASE_TABLE,
)
"""A batch may leave records unread: above a limit, or in shards whose leases are taken later."""


_ONLY_BATCH: Final = (table.ENDING_POSITION, table.MAX_RECORDS)
_ONLY_STREAM: Final = (
    table.MAX_RECORDS_PER_TRIGGER,
    table.MAX_BYTES_PER_TRIGGER,
    table.MAX_BYTES_PER_SHARD,
    table.DROP_STREAMS,
    table.SHARD_DISCOVERY_INTERVAL,
    TRIGGER,
)


def parse_at_load(
    raw: Mapping[str, str], *, pyspark_without_limits: str | None = None
) -> KinesisOptions:
    """Parse options without knowing the kind of query: a batch read if an option is set that only
    batch reads have."""
    names = {spec.name.lower() for spec in _ONLY_BATCH}
    is_batch = any(name.strip().lower() in names for name in raw)
    kind = QueryKind.BATCH if is_batch else QueryKind.STREAM
    return parse_options(raw, kind, pyspark_without_limits=pyspark_without_limits)


def parse_options(
    raw: Mapping[str, str],
    query: QueryKind = QueryKind.STREAM,
    *,
    pyspark_without_limits: str | None = None,
) -> KinesisOptions:
    """Parse and check the options; log a warning for those without effect.

    `pyspark_without_limits` is the installed version of a PySpark that passes no limits.

    Raises InvalidOptionsError, which lists every problem.
    """
    reading = read_options(table.KINESIS_OPTIONS, raw)
    streams = streams_of(reading)
    batch = query is QueryKind.BATCH
    start, start_problems = _position(reading, table.STARTING_POSITION, streams)
    end, end_problems = _position(reading, table.ENDING_POSITION, streams)
    if batch and not reading.given(table.STARTING_POSITION):
        start = StartingPosition(default=TrimHorizon())
    problems = (
        *reading.problems,
        *stream_problems(reading, streams),
        *start_problems,
        *end_problems,
        *(_batch_problems(reading, start, end) if batch else _stream_problems(reading)),
        *_drop_problems(reading, streams),
        *_repeat_key_problems(reading),
        *region_problems(reading),
        *credential_problems(reading),
        *lease_problems(reading),
        *fan_out_problems(reading, streams),
        *trigger_problems(reading, () if batch else _BOUNDING, pyspark_without_limits),
    )
    if problems:
        raise InvalidOptionsError(SOURCE, problems)
    warn(reading, SOURCE)
    if batch:
        warn_in_batch_read(reading, _ONLY_STREAM)
    return KinesisOptions(
        streams=streams,
        starting_position=start,
        ending_position=end if batch else None,
        max_records=reading.value(table.MAX_RECORDS),
        slots=reading.value(table.SLOTS),
        slot_assignment=reading.value(table.SLOT_ASSIGNMENT),
        max_records_per_trigger=reading.value(table.MAX_RECORDS_PER_TRIGGER),
        max_bytes_per_trigger=reading.value(table.MAX_BYTES_PER_TRIGGER),
        is_triggered_by_time=reading.value(TRIGGER) is not None,
        max_bytes_per_shard=reading.value(table.MAX_BYTES_PER_SHARD),
        shard_discovery_interval_ms=reading.value(table.SHARD_DISCOVERY_INTERVAL),
        max_records_per_fetch=reading.value(table.MAX_RECORDS_PER_FETCH),
        min_fetch_period_ms=reading.value(table.MIN_FETCH_PERIOD),
        drop_streams=tuple(StreamName(name) for name in reading.value(table.DROP_STREAMS)),
        fail_on_data_loss=reading.value(table.FAIL_ON_DATA_LOSS),
        deaggregate=reading.value(table.DEAGGREGATE),
        include_repeat_keys=reading.value(table.INCLUDE_REPEAT_KEYS),
        max_bytes_in_flight=reading.value(table.MAX_BYTES_IN_FLIGHT),
        leases=lease_options(reading),
        fan_out=fan_out_options(reading),
        connection=connection_of(reading),
    )


# --- Streams, their start and their end ----------------------------------------------------------


def _position(
    reading: OptionReading, spec: OptionSpec[ParsedStart], streams: tuple[StreamRef, ...]
) -> tuple[StartingPosition, tuple[OptionProblem, ...]]:
    parsed = reading.value(spec)
    if not streams:
        # The map cannot be checked; the missing streams are reported elsewhere.
        return StartingPosition(default=parsed.default), ()
    try:
        return resolve_start(parsed, [stream.name for stream in streams]), ()
    except BadValueError as error:
        option = reading.name(spec)
        return StartingPosition(default=parsed.default), tuple(
            OptionProblem(
                option=option,
                found=fault.found,
                expected=fault.expected,
                next_step=fault.next_step,
            )
            for fault in error.faults
        )


def _drop_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    both = {str(stream.name) for stream in streams} & {*reading.value(table.DROP_STREAMS)}
    if both:
        yield OptionProblem(
            option=table.DROP_STREAMS.name,
            found=f"streams that the query reads: {', '.join(sorted(both))}",
            expected="streams that the query no longer reads",
            next_step="name them in one of the two options",
        )


def _repeat_key_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    if reading.value(table.INCLUDE_REPEAT_KEYS) and not reading.value(table.DEAGGREGATE):
        yield OptionProblem(
            option=table.INCLUDE_REPEAT_KEYS.name,
            found="true with deaggregate=false",
            expected="aggregates that are split, which contain the repeat keys",
            next_step="set deaggregate=true, or leave includeRepeatKeys out",
        )


# --- The kind of query ---------------------------------------------------------------------------


def _stream_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    wrong = {problem.option for problem in reading.problems}
    for spec in _ONLY_BATCH:
        if reading.given(spec) and reading.name(spec) not in wrong:
            yield OptionProblem(
                option=reading.name(spec),
                found=f"{reading.name(spec)} in a streaming query",
                expected="the option only in a batch read (spark.read)",
                next_step="remove it, or read with spark.read",
            )


def _batch_problems(
    reading: OptionReading, start: StartingPosition, end: StartingPosition
) -> Iterator[OptionProblem]:
    if any(isinstance(point, Latest) for point in (start.default, *start.by_shard.values())):
        yield OptionProblem(
            option=reading.name(table.STARTING_POSITION),
            found="latest as the start of a batch read, which would have nothing to read",
            expected="trim_horizon, at_timestamp <time> or a record by shard",
            next_step="choose an earlier start, or read with spark.readStream",
        )
    shards = start.by_shard.keys() | end.by_shard.keys()
    pairs = [(start.default, end.default)] + [
        (start.by_shard.get(key, start.default), end.by_shard.get(key, end.default))
        for key in sorted(shards)
    ]
    if any(_is_after(first, last) for first, last in pairs):
        yield OptionProblem(
            option=table.ENDING_POSITION.name,
            found="an end that is before its start",
            expected="an end that is not before its start",
            next_step="choose a later end or an earlier start",
        )
    for spec in (APPLICATION_NAME, LEASE_TABLE):
        if reading.given(spec):
            yield OptionProblem(
                option=reading.name(spec),
                found=f"{reading.name(spec)} in a batch read, which reads every shard",
                expected="leases only in streaming queries",
                next_step="remove it and the other options of leases",
            )


def _is_after(first: StartPoint | None, last: StartPoint | None) -> bool:
    if isinstance(first, AtTimestamp) and isinstance(last, AtTimestamp):
        return first.millis > last.millis
    if isinstance(first, AfterRecord) and isinstance(last, AfterRecord):
        one, other = int(first.sequence_number), int(last.sequence_number)
        return (one, first.sub) > (other, last.sub)
    return False
