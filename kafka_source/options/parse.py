"""Parses and validates Spark's map of options into `KafkaOptions`.

Runs only on the driver; executors receive the result by pickle. The rules are those of Spark's
`KafkaSourceProvider` (`validateStreamOptions`, `validateBatchOptions`, `checkOffsetLimitValidity`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from spark_ssp.common.errors import printable
from spark_ssp.common.options.credentials import with_provider
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.options.spec import (
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    OptionSpec,
    read_options,
)
from spark_ssp.common.options.trigger import TRIGGER, trigger_problems
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.model.topic import (
    Assign,
    AtOffsets,
    AtTimes,
    Bound,
    IsolationLevel,
    LogicalOffset,
    Selection,
    Subscribe,
    SubscribePattern,
    kafka_name,
)
from spark_ssp.kafka_source.options import table
from spark_ssp.kafka_source.options.consumer_groups import COMMIT_OFFSETS_TO_GROUP, GROUP_ID_PREFIX
from spark_ssp.kafka_source.options.credentials import (
    function_problems,
    unused_problems,
    with_functions,
)
from spark_ssp.kafka_source.options.values import GrouperName, KafkaOptions, QueryKind
from spark_ssp.kafka_source.properties.property_access import access_problems, access_warnings
from spark_ssp.kafka_source.properties.translation import (
    ISOLATION_LEVEL,
    PREFIX,
    ParsedProperties,
    missing_brokers,
    read_properties,
)

SOURCE: Final = "kafka-ssp"

_log = logging.getLogger(__name__)

_STARTS: Final = (
    table.STARTING_TIMESTAMP,
    table.STARTING_OFFSETS_BY_TIMESTAMP,
    table.STARTING_OFFSETS,
)
_ENDS: Final = (
    table.ENDING_TIMESTAMP,
    table.ENDING_OFFSETS_BY_TIMESTAMP,
    table.ENDING_OFFSETS,
)
"""The first option that is set takes precedence."""

_SELECTIONS: Final = (table.SUBSCRIBE, table.SUBSCRIBE_PATTERN, table.ASSIGN)
_STREAM_OPTIONS: Final = (
    table.MAX_OFFSETS_PER_TRIGGER,
    table.MIN_OFFSETS_PER_TRIGGER,
    table.MAX_TRIGGER_DELAY,
    table.MAX_BYTES_PER_TRIGGER,
    table.DROP_TOPICS,
    table.ACCEPT_TOPIC_IDS,
    COMMIT_OFFSETS_TO_GROUP,
    TRIGGER,
)
_BOUNDING: Final = (table.MAX_OFFSETS_PER_TRIGGER, table.MAX_BYTES_PER_TRIGGER)
"""A batch may leave records above these limits unread."""
_TASK_OPTIONS: Final = (
    table.GROUPER,
    table.TASKS,
    table.PARTITION_EXPANSION_ALGORITHM,
    table.ON_PARTITION_COUNT_CHANGE,
    table.ASSIGNMENT_STORE,
)
_GROUP_ID_PREFIXES: Final[Mapping[QueryKind, str]] = {
    QueryKind.STREAM: "spark-kafka-source",
    QueryKind.BATCH: "spark-kafka-relation",
}


def parse_options(
    raw: Mapping[str, str],
    query: QueryKind = QueryKind.STREAM,
    *,
    pyspark_without_limits: str | None = None,
) -> KafkaOptions:
    """Parse and validate. Raises InvalidOptionsError with all problems; else warns of the options
    that have no effect, once per call. `pyspark_without_limits` is the installed version of a
    PySpark that passes no limits."""
    own = {name: raw[name] for name in raw if not name.strip().lower().startswith(PREFIX)}
    reading = read_options(table.KAFKA_OPTIONS, own)
    client = read_properties(raw)
    start, end = _start(reading, query), _end(reading, query)
    selection = _selection(reading)
    bounding = _BOUNDING if query is QueryKind.STREAM else ()
    problems = (
        *_selection_problems(reading),
        *reading.problems,
        *_bound_problems(reading, query),
        *_limit_problems(reading),
        *_task_problems(reading),
        *trigger_problems(reading, bounding, pyspark_without_limits),
        *missing_brokers(client),
        *client.problems,
        *function_problems(client.properties, reading),
        *unused_problems(client.properties, reading, reading.value(table.ASSIGNMENT_STORE)),
        *access_problems(client.properties),
    )
    if problems or selection is None:
        raise InvalidOptionsError(SOURCE, problems)
    _warn(reading, client, query)
    stream = query is QueryKind.STREAM
    return KafkaOptions(
        selection=selection,
        start=start,
        end=end,
        no_match=reading.value(table.STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY),
        fail_on_data_loss=reading.value(table.FAIL_ON_DATA_LOSS),
        max_offsets_per_trigger=reading.value(table.MAX_OFFSETS_PER_TRIGGER) if stream else None,
        min_offsets_per_trigger=reading.value(table.MIN_OFFSETS_PER_TRIGGER) if stream else None,
        max_trigger_delay_ms=reading.value(table.MAX_TRIGGER_DELAY),
        max_bytes_per_trigger=reading.value(table.MAX_BYTES_PER_TRIGGER) if stream else None,
        is_triggered_by_time=reading.value(TRIGGER) is not None,
        drop_topics=reading.value(table.DROP_TOPICS) if stream else (),
        accept_topic_ids=reading.value(table.ACCEPT_TOPIC_IDS) if stream else {},
        include_headers=reading.value(table.INCLUDE_HEADERS),
        include_task=reading.value(table.INCLUDE_TASK),
        group_id_prefix=reading.value(GROUP_ID_PREFIX) or _GROUP_ID_PREFIXES[query],
        commit_offsets_to_group=reading.value(COMMIT_OFFSETS_TO_GROUP) if stream else None,
        fetch_offset_attempts=reading.value(table.FETCH_OFFSET_NUM_RETRIES),
        fetch_offset_retry_interval_ms=reading.value(table.FETCH_OFFSET_RETRY_INTERVAL_MS),
        poll_timeout_ms=reading.value(table.POLL_TIMEOUT),
        partition_discovery_interval_ms=reading.value(table.PARTITION_DISCOVERY_INTERVAL),
        relies_on_tasks=_relies_on_tasks(reading),
        grouper=reading.value(table.GROUPER),
        tasks=reading.value(table.TASKS),
        expansion_algorithm=reading.value(table.PARTITION_EXPANSION_ALGORITHM),
        on_partition_count_change=reading.value(table.ON_PARTITION_COUNT_CHANGE),
        assignment_store=reading.value(table.ASSIGNMENT_STORE),
        store_connection=with_provider(ConnectionOptions(), reading),
        isolation_level=IsolationLevel(client.properties.config()[ISOLATION_LEVEL]),
        client=with_functions(client.properties, reading),
    )


def parse_at_load(raw: Mapping[str, str]) -> KafkaOptions:
    """Parse options without knowing the kind of query: the likelier kind is tried first, a batch
    query if an `ending...` option is set. Raises the InvalidOptionsError of that kind if the
    options are valid for neither."""
    first, second = QueryKind.STREAM, QueryKind.BATCH
    if any(name.strip().lower().startswith("ending") for name in raw):
        first, second = second, first
    try:
        return parse_options(raw, first)
    except InvalidOptionsError as error:
        try:
            return parse_options(raw, second)
        except InvalidOptionsError:
            raise error from None


# --- Topics ---------------------------------------------------------------------------------------


def _selection(reading: OptionReading) -> Selection | None:
    """Return the topics to read; None if there is no valid option, which is reported as a
    problem."""
    topics = reading.value(table.SUBSCRIBE)
    if topics:
        return Subscribe(topics=topics)
    pattern = reading.value(table.SUBSCRIBE_PATTERN)
    if pattern is not None:
        return SubscribePattern(pattern=pattern)
    partitions = reading.value(table.ASSIGN)
    return Assign(partitions=partitions) if partitions else None


def _selection_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    given = [spec.name for spec in _SELECTIONS if reading.given(spec)]
    if len(given) != 1:
        yield OptionProblem(
            option=given[0] if given else table.SUBSCRIBE.name,
            found=" together with ".join(given)
            if given
            else "neither subscribe nor subscribePattern nor assign",
            expected="one of them",
            next_step=f"keep one of {', '.join(given)}" if given else "name the topics to read",
        )
    named = {*reading.value(table.SUBSCRIBE)}
    named |= {ssp.stream for ssp in reading.value(table.ASSIGN)}
    if both := sorted(named & {*reading.value(table.DROP_TOPICS)}):
        yield OptionProblem(
            option=table.DROP_TOPICS.name,
            found=f"topics that the query reads: {', '.join(both)}",
            expected="topics that the query no longer reads",
            next_step="name them in one of the two options",
        )


# --- Start and end --------------------------------------------------------------------------------


def _start(reading: OptionReading, query: QueryKind) -> Bound:
    default = LogicalOffset.LATEST if query is QueryKind.STREAM else LogicalOffset.EARLIEST
    return _first(reading, _STARTS) or default


def _end(reading: OptionReading, query: QueryKind) -> Bound | None:
    return None if query is QueryKind.STREAM else _first(reading, _ENDS) or LogicalOffset.LATEST


def _first(reading: OptionReading, specs: tuple[OptionSpec[Bound | None], ...]) -> Bound | None:
    return next((reading.value(spec) for spec in specs if reading.given(spec)), None)


def _bound_problems(reading: OptionReading, query: QueryKind) -> Iterator[OptionProblem]:
    if query is QueryKind.STREAM:
        for spec in _ENDS:
            if reading.given(spec):
                yield OptionProblem(
                    option=spec.name,
                    found="an end in a streaming query",
                    expected="an end only in batch queries (spark.read)",
                    next_step="remove it, or read with spark.read",
                )
        return
    start, end = _start(reading, query), _first(reading, _ENDS) or LogicalOffset.LATEST
    yield from _edge_problems(table.STARTING_OFFSETS, start, LogicalOffset.LATEST, "start")
    yield from _edge_problems(table.ENDING_OFFSETS, end, LogicalOffset.EARLIEST, "end")
    if isinstance(start, AtOffsets) and isinstance(end, AtOffsets):
        yield from _order_problems(table.ENDING_OFFSETS, start.offsets, end.offsets)
    elif isinstance(start, AtTimes) and isinstance(end, AtTimes):
        yield from _order_problems(table.ENDING_OFFSETS_BY_TIMESTAMP, start.times_ms, end.times_ms)


def _edge_problems(
    spec: OptionSpec[Bound | None], bound: Bound, banned: LogicalOffset, what: str
) -> Iterator[OptionProblem]:
    places = []
    if bound is banned:
        places = [banned.value]
    elif isinstance(bound, AtOffsets):
        places = [
            f"{kafka_name(ssp)} at {banned}" for ssp, at in bound.offsets.items() if at is banned
        ]
    for place in places:
        yield OptionProblem(
            option=spec.name,
            found=place,
            expected=f"a {what} other than {banned} in a batch query",
            next_step="write an offset"
            if spec is table.ENDING_OFFSETS
            else "write an offset, or read with spark.readStream",
        )


def _order_problems(
    spec: OptionSpec[Bound | None],
    start: Mapping[SystemStreamPartition, LogicalOffset | int],
    end: Mapping[SystemStreamPartition, LogicalOffset | int],
) -> Iterator[OptionProblem]:
    """Check that start and end have the same partitions, and no end is before its start."""
    for ssp in sorted(start.keys() ^ end.keys()):
        yield OptionProblem(
            option=spec.name,
            found=f"{kafka_name(ssp)} {'without an end' if ssp in start else 'without a start'}",
            expected="the same partitions in the start and in the end",
            next_step=f"name {kafka_name(ssp)} in both",
        )
    for ssp in sorted(start.keys() & end.keys()):
        first, last = start[ssp], end[ssp]
        if isinstance(first, int) and isinstance(last, int) and first > last:
            yield OptionProblem(
                option=spec.name,
                found=f"{kafka_name(ssp)} to {last}, which starts at {first}",
                expected="an end that is not before its start",
                next_step=f"swap the start and the end of {kafka_name(ssp)}",
            )


# --- Limits and tasks -----------------------------------------------------------------------------


def _limit_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    least = reading.value(table.MIN_OFFSETS_PER_TRIGGER)
    most = reading.value(table.MAX_OFFSETS_PER_TRIGGER)
    if least is not None and most is not None and least > most:
        yield OptionProblem(
            option=table.MIN_OFFSETS_PER_TRIGGER.name,
            found=f"{least}, more than maxOffsetsPerTrigger ({most})",
            expected="at most maxOffsetsPerTrigger",
            next_step="lower it, or raise maxOffsetsPerTrigger",
        )


def _task_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    grouper = reading.value(table.GROUPER)
    if reading.given(table.TASKS) and grouper not in {None, GrouperName.PARTITION}:
        yield OptionProblem(
            option=table.TASKS.name,
            found=f"tasks with the grouper {grouper}",
            expected="tasks only with the grouper partition",
            next_step="remove it, or use grouper=partition",
        )


def _relies_on_tasks(reading: OptionReading) -> bool:
    """Return whether the query relies on its tasks. Other queries use the defaults of Spark's
    source."""
    return reading.value(table.INCLUDE_TASK) or any(reading.given(one) for one in _TASK_OPTIONS)


# --- Warnings -------------------------------------------------------------------------------------


def _warn(reading: OptionReading, client: ParsedProperties, query: QueryKind) -> None:
    for option in reading.without_effect:
        _log.warning("option %s of %s has no effect: %s", option.name, option.origin, option.advice)
    for name in reading.unknown:
        _log.warning("option %s is unknown to %s and has no effect", printable(name), SOURCE)
    for line in client.warnings:
        _log.warning("option %s", line)
    for line in access_warnings(client.properties):
        _log.warning("option %s", line)
    if query is QueryKind.BATCH:
        for spec in _STREAM_OPTIONS:
            if reading.given(spec):
                _log.warning("option %s has no effect in a batch query", spec.name)
    elif reading.given(table.MAX_TRIGGER_DELAY) and not reading.given(
        table.MIN_OFFSETS_PER_TRIGGER
    ):
        _log.warning("option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    for specs in (_STARTS, _ENDS):
        given = [spec.name for spec in specs if reading.given(spec)]
        for name in given[1:]:
            _log.warning("option %s has no effect together with %s", name, given[0])
