"""Parses Spark's map of options into `KinesisOptions` and checks the options against each other.
Runs only on the driver; executors receive the result by pickle."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from spark_ssp.common import now_ms
from spark_ssp.common.options.shared import trigger_problems
from spark_ssp.common.options.spec import (
    BadValueError,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    options_of,
    read_options,
)
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.deaggregation import WHOLE_RECORD
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    ConsumerArn,
    Latest,
    StartingPosition,
    StartPoint,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.connection import (
    connection_of,
    credential_problems,
    region_problems,
    stream_problems,
    streams_of,
    warn,
)
from spark_ssp.kinesis_source.options.starting_position import (
    ParsedStart,
    default_start,
    resolve_start,
)
from spark_ssp.kinesis_source.options.values import (
    CONSUMER_ARN_PATTERN,
    CONSUMER_NAME_PATTERN,
    KINESIS_OPTIONS,
    NO_ROLE,
    ConsumerLifecycle,
    ConsumerMode,
    FanOutChoice,
    FanOutOptions,
    KinesisOptions,
    LeaseChoice,
    LeaseOptions,
    LeaseRole,
    PositionChoice,
    QueryKind,
)

SOURCE: Final = "kinesis-ssp"

_log = logging.getLogger(__name__)


def parse_at_load(
    raw: Mapping[str, str], *, pyspark_without_limits: str | None = None
) -> KinesisOptions:
    """Parse options without knowing the kind of query: a batch read if an option is set that only
    batch reads have."""
    names = {one.name.lower() for one in KINESIS_OPTIONS.options if one.only is QueryKind.BATCH}
    is_batch = any(name.strip().lower() in names for name in raw)
    kind = QueryKind.BATCH if is_batch else QueryKind.STREAM
    return parse_options(raw, kind, pyspark_without_limits=pyspark_without_limits)


def parse_options(
    raw: Mapping[str, str],
    query: QueryKind = QueryKind.STREAM,
    *,
    pyspark_without_limits: str | None = None,
    now_ms: Callable[[], int] = now_ms,
) -> KinesisOptions:
    """Parse and check the options; log a warning for those without effect.

    `pyspark_without_limits` is the installed version of a PySpark that passes no limits. `now_ms`
    is what a position such as -24h is relative to.

    Raises InvalidOptionsError, which lists every problem.
    """
    reading = read_options(KINESIS_OPTIONS, raw)
    streams = streams_of(reading)
    batch = query is QueryKind.BATCH
    positions = reading.values(PositionChoice)
    options = KinesisOptions(
        streams=streams,
        starting_position=StartingPosition(default=TrimHorizon()),
        leases=_lease_options(reading),
        fan_out=_fan_out_options(reading),
        connection=connection_of(reading),
        **reading.fields(KinesisOptions),
    )
    resolve = partial(_position, reading, streams, now_ms(), deaggregate=options.deaggregate)
    start, start_problems = resolve("startingPosition", positions.start)
    end, end_problems = resolve("endingPosition", positions.end)
    if batch and "startingPosition" not in reading.valid:
        start = options.starting_position
    options = replace(options, starting_position=start, ending_position=end if batch else None)
    problems = (
        *reading.problems,
        *stream_problems(reading, streams),
        *start_problems,
        *end_problems,
        *(_batch_problems(reading, start, end) if batch else _stream_problems(reading)),
        *_drop_problems(options),
        *_repeat_key_problems(options),
        *region_problems(reading),
        *credential_problems(reading, has_lease_role=has_lease_role(reading)),
        *_lease_problems(reading),
        *_fan_out_problems(reading, streams),
        *trigger_problems(reading, query, pyspark_without_limits),
    )
    if problems:
        raise InvalidOptionsError(SOURCE, problems)
    warn(reading, SOURCE)
    unused = reading.only_given(QueryKind.STREAM) if batch else []
    if unused:
        _log.warning("options without effect in a batch read: %s", ", ".join(unused))
    return options


# --- Streams, their start and their end ----------------------------------------------------------


def _position(
    reading: OptionReading,
    streams: tuple[StreamRef, ...],
    now_ms: int,
    name: str,
    parsed: ParsedStart,
    *,
    deaggregate: bool,
) -> tuple[StartingPosition, tuple[OptionProblem, ...]]:
    default = StartingPosition(default=default_start(parsed, now_ms, deaggregate=deaggregate))
    if not streams:
        # The map cannot be checked; the missing streams are reported elsewhere.
        return default, ()
    names = [stream.name for stream in streams]
    try:
        return resolve_start(parsed, names, now_ms, deaggregate=deaggregate), ()
    except BadValueError as error:
        return default, error.problems(reading.name(name))


def _drop_problems(options: KinesisOptions) -> Iterator[OptionProblem]:
    both = {stream.name for stream in options.streams} & {*options.drop_streams}
    if both:
        yield OptionProblem(
            option="dropStreams",
            found=f"streams that the query reads: {', '.join(sorted(both))}",
            expected="streams that the query no longer reads",
            next_step="name them in one of the two options",
        )


def _repeat_key_problems(options: KinesisOptions) -> Iterator[OptionProblem]:
    if options.include_repeat_keys and not options.deaggregate:
        yield OptionProblem(
            option="includeRepeatKeys",
            found="true with deaggregate=false",
            expected="aggregates that are split, which contain the repeat keys",
            next_step="set deaggregate=true, or leave includeRepeatKeys out",
        )


# --- The kind of query ---------------------------------------------------------------------------


def _stream_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    wrong = {problem.option for problem in reading.problems}
    for name in reading.only_given(QueryKind.BATCH):
        if name not in wrong:
            yield OptionProblem(
                option=name,
                found=f"{name} in a streaming query",
                expected="the option only in a batch read (spark.read)",
                next_step="remove it, or read with spark.read",
            )


def _batch_problems(
    reading: OptionReading, start: StartingPosition, end: StartingPosition
) -> Iterator[OptionProblem]:
    if any(isinstance(point, Latest) for point in (start.default, *start.by_shard.values())):
        yield OptionProblem(
            option=reading.name("startingPosition"),
            found="latest as the start of a batch read, which would have nothing to read",
            expected="trim_horizon, at_timestamp <time> or a record by shard",
            next_step="choose an earlier start, or read with spark.readStream",
        )
    shards = start.by_shard.keys() | end.by_shard.keys()
    pairs = [(start.default, end.default)] + [
        (start.by_shard.get(key, start.default), end.by_shard.get(key, end.default))
        for key in sorted(shards)
    ]
    invalid = {problem.option for problem in reading.problems}
    is_known = reading.name("deaggregate") not in invalid
    if is_known and any(_is_after(first, last) for first, last in pairs):
        yield OptionProblem(
            option="endingPosition",
            found="an end that is before its start",
            expected="an end that is not before its start",
            next_step="choose a later end or an earlier start",
        )
    for name in reading.given_names("applicationName", "leaseTable"):
        yield OptionProblem(
            option=name,
            found=f"{name} in a batch read, which reads every shard",
            expected="leases only in streaming queries",
            next_step="remove it and the other options of leases",
        )


def _is_after(first: StartPoint | None, last: StartPoint | None) -> bool:
    if isinstance(first, AtTimestamp) and isinstance(last, AtTimestamp):
        return first.millis > last.millis
    if isinstance(first, AfterRecord) and isinstance(last, AfterRecord):
        one, other = int(first.sequence_number), int(last.sequence_number)
        # An end within a record that is not split is the end of it.
        return one > other or (one == other and last.sub < first.sub < WHOLE_RECORD)
    return False


# --- Leases --------------------------------------------------------------------------------------


def _lease_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    """Report options for leases that are given without leases, which are surely intended."""
    if reading.given_names("applicationName", "leaseTable"):
        if reading.given("leaseRoleExternalId") and not has_lease_role(reading):
            yield OptionProblem(
                option="leaseRoleExternalId",
                found="leaseRoleExternalId without leaseRoleArn",
                expected="the role that it is for",
                next_step="give leaseRoleArn too, or remove it",
            )
        return
    declared = options_of(LeaseOptions, LeaseChoice)
    for name in reading.given_names(*(option.name for option in declared)):
        yield OptionProblem(
            option=name,
            found=f"{name} without applicationName",
            expected="the name of the application whose workers share the shards",
            next_step="set applicationName too, or remove it",
        )


def has_lease_role(reading: OptionReading) -> bool:
    """Return whether the lease table has a role of its own."""
    return reading.given("leaseRoleArn") and reading.values(LeaseChoice).role_arn != NO_ROLE


def lease_role(reading: OptionReading) -> LeaseRole | None:
    """Return the role for the lease table; None: that of the streams, if any."""
    given = reading.values(LeaseChoice)
    if given.role_arn is None:
        return None
    return LeaseRole(
        arn=None if given.role_arn == NO_ROLE else given.role_arn,
        external_id=given.role_external_id,
    )


def _lease_options(reading: OptionReading) -> LeaseOptions | None:
    """Return the lease options; None without leases."""
    given = reading.values(LeaseChoice)
    application = given.application_name or given.lease_table
    if application is None:
        return None
    options = LeaseOptions(
        application=application,
        table=given.lease_table or application,
        role=lease_role(reading),
        **reading.fields(LeaseOptions),
    )
    if reading.given("leaseMaxOutage"):
        return options
    return replace(options, max_outage_ms=options.failover_ms)


# --- Enhanced fan-out ----------------------------------------------------------------------------


def _fan_out_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    """Report contradictions between the options, and a consumer that has no name."""
    names = [option.name for option in options_of(FanOutChoice)]
    wrong = {problem.option for problem in reading.problems}
    if wrong & {reading.name(name) for name in names}:
        return
    if reading.values(FanOutChoice).mode is ConsumerMode.POLLING:
        for given in reading.given_names(*names[1:]):
            yield OptionProblem(
                option=given,
                found=f"{given} without consumerMode=efo",
                expected="the options of a consumer only with enhanced fan-out",
                next_step="set consumerMode=efo too, or remove it",
            )
        return
    if reading.given("consumerArn"):
        yield from _arn_problems(reading, streams)
        return
    name = _consumer_name(reading)
    if name is None:
        yield OptionProblem(
            option="consumerName",
            found="consumerMode=efo without consumerName, consumerArn or applicationName",
            expected="the name of the query's consumer",
            next_step="set consumerName to a name that no other reader of the stream uses",
        )
    elif not re.fullmatch(CONSUMER_NAME_PATTERN, name):
        yield OptionProblem(
            option="consumerName",
            found=f"no consumerName, and an application whose name has {len(name)} characters",
            expected="a consumer's name of at most 128 characters",
            next_step="set consumerName",
        )


def _arn_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    option, given = reading.name("consumerArn"), reading.values(FanOutChoice)
    for name in reading.given_names("consumerName"):
        yield OptionProblem(
            option=name,
            found=f"{name} together with {option}",
            expected="one of them",
            next_step=f"remove {name} or {option}",
        )
    if reading.given("consumerLifecycle") and given.lifecycle is ConsumerLifecycle.JOB:
        yield OptionProblem(
            option=reading.name("consumerLifecycle"),
            found=f"job together with {option}",
            expected="self for consumers that are registered already",
            next_step="remove it, or give consumerName in place of the ARN",
        )
    found = sorted(_stream_of(arn)[0] for arn in given.arns)
    if streams and found != sorted(stream.name for stream in streams):
        yield OptionProblem(
            option=option,
            found=f"consumers of {', '.join(found)}",
            expected=f"one consumer for each of {', '.join(s.name for s in streams)}",
            next_step="give the ARN of one consumer for each stream of the query",
        )
        return
    arns = {stream.name: stream.arn for stream in streams}
    for arn in given.arns:
        stream, stream_arn = _stream_of(arn)
        if arns.get(stream) not in (None, stream_arn):
            yield OptionProblem(
                option=option,
                found=f"a consumer of {stream_arn}",
                expected=f"a consumer of {arns[stream]}",
                next_step="give the ARN of a consumer of the stream that the query reads",
            )


def _fan_out_options(reading: OptionReading) -> FanOutOptions | None:
    """Return the options of enhanced fan-out; None with polling."""
    given = reading.values(FanOutChoice)
    if given.mode is ConsumerMode.POLLING:
        return None
    arns = {_stream_of(arn)[0]: ConsumerArn(arn) for arn in given.arns}
    return FanOutOptions(
        consumer_name=None if arns else _consumer_name(reading),
        consumer_arns=tuple(sorted(arns.items())),
        lifecycle=ConsumerLifecycle.SELF if arns else given.lifecycle,
    )


def _consumer_name(reading: OptionReading) -> str | None:
    leases = reading.values(LeaseChoice)
    return reading.values(FanOutChoice).name or leases.application_name or leases.lease_table


def _stream_of(arn: str) -> tuple[StreamName, str]:
    """Return the name and the ARN of the stream of a consumer."""
    match = re.fullmatch(CONSUMER_ARN_PATTERN, arn)
    if match is None:
        raise AssertionError("an ARN that the option's converter accepted")
    return StreamName(match["stream"]), match["stream_arn"]
