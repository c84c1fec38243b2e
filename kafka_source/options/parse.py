"""Parses and validates Spark's map of options into `KafkaOptions`. Runs only on the driver;
executors receive the result by pickle. The rules are those of Spark's `KafkaSourceProvider`
(`validateStreamOptions`, `validateBatchOptions`, `checkOffsetLimitValidity`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from spark_ssp.checkpoint.assignments.store import StoreKind, parse_store_uri
from spark_ssp.common.errors import printable
from spark_ssp.common.options.endpoints import (
    CREDENTIALS_PROVIDER,
    ConnectionOptions,
    argument_problems,
    provider_problems,
    with_provider,
)
from spark_ssp.common.options.shared import trigger_problems
from spark_ssp.common.options.spec import (
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    defaults_of,
    options_of,
    read_options,
)
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
from spark_ssp.kafka_source.options.client_properties import PREFIX, ClientProperties, TokenProvider
from spark_ssp.kafka_source.options.logins import DEFAULT_METHOD, MECHANISM, METHOD, OAUTHBEARER
from spark_ssp.kafka_source.options.translation import (
    ISOLATION_LEVEL,
    ParsedProperties,
    access_problems,
    access_warnings,
    missing_brokers,
    read_properties,
)
from spark_ssp.kafka_source.options.values import (
    KAFKA_OPTIONS,
    GrouperName,
    KafkaOptions,
    QueryKind,
    RangeChoice,
    TokenChoice,
    TopicChoice,
)

SOURCE: Final = "kafka-ssp"

_log = logging.getLogger(__name__)

_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""The first option that is set takes precedence."""

_TASK_OPTIONS: Final = (
    "grouper",
    "tasks",
    "partitionExpansionAlgorithm",
    "onPartitionCountChange",
    "assignmentStore",
)
_SPLITTING: Final = ("minPartitions", "maxRecordsPerPartition")
_BATCH_GROUP_ID_PREFIX: Final = "spark-kafka-relation"


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
    reading = read_options(KAFKA_OPTIONS, own)
    client = read_properties(raw)
    selection = _selection(reading)
    given = KafkaOptions(
        selection=selection or Subscribe(topics=()),
        start=_start(reading, query),
        end=_end(reading, query),
        relies_on_tasks=bool(_task_options(reading)),
        store_connection=with_provider(ConnectionOptions(), reading),
        isolation_level=IsolationLevel(client.properties.config()[ISOLATION_LEVEL]),
        client=with_functions(client.properties, reading),
        **reading.fields(KafkaOptions),
    )
    problems = (
        *_selection_problems(reading, given),
        *reading.problems,
        *_bound_problems(reading, query),
        *_limit_problems(given),
        *_task_problems(reading, given),
        *trigger_problems(reading, query, pyspark_without_limits),
        *missing_brokers(client),
        *client.problems,
        *function_problems(client.properties, reading),
        *unused_problems(client.properties, reading, given.assignment_store),
        *access_problems(client.properties),
    )
    if problems or selection is None:
        raise InvalidOptionsError(SOURCE, problems)
    _warn(reading, client, query)
    return given if query is QueryKind.STREAM else _of_batch(reading, given)


def _of_batch(reading: OptionReading, given: KafkaOptions) -> KafkaOptions:
    """Return the options of a batch query, in which those of streaming queries have no effect."""
    if not reading.given("groupIdPrefix"):
        given = replace(given, group_id_prefix=_BATCH_GROUP_ID_PREFIX)
    return replace(given, **defaults_of(KafkaOptions, QueryKind.STREAM))


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
    given = reading.values(TopicChoice)
    if given.topics:
        return Subscribe(topics=given.topics)
    if given.pattern is not None:
        return SubscribePattern(pattern=given.pattern)
    return Assign(partitions=given.partitions) if given.partitions else None


def _selection_problems(reading: OptionReading, options: KafkaOptions) -> Iterator[OptionProblem]:
    given = [one.name for one in options_of(TopicChoice) if reading.given(one.name)]
    if len(given) != 1:
        yield OptionProblem(
            option=given[0] if given else "subscribe",
            found=" together with ".join(given)
            if given
            else "neither subscribe nor subscribePattern nor assign",
            expected="one of them",
            next_step=f"keep one of {', '.join(given)}" if given else "name the topics to read",
        )
    choice = reading.values(TopicChoice)
    named = {*choice.topics} | {ssp.stream for ssp in choice.partitions}
    if both := sorted(named & {*options.drop_topics}):
        yield OptionProblem(
            option="dropTopics",
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


def _first(reading: OptionReading, names: tuple[str, ...]) -> Bound | None:
    """Return the value of the first of these options that is given."""
    given = reading.values(RangeChoice)
    values = {
        "startingTimestamp": given.start_time,
        "startingOffsetsByTimestamp": given.start_times,
        "startingOffsets": given.start,
        "endingTimestamp": given.end_time,
        "endingOffsetsByTimestamp": given.end_times,
        "endingOffsets": given.end,
    }
    return next((values[name] for name in names if reading.given(name)), None)


def _bound_problems(reading: OptionReading, query: QueryKind) -> Iterator[OptionProblem]:
    if query is QueryKind.STREAM:
        for name in _ENDS:
            if reading.given(name):
                yield OptionProblem(
                    option=name,
                    found="an end in a streaming query",
                    expected="an end only in batch queries (spark.read)",
                    next_step="remove it, or read with spark.read",
                )
        return
    start, end = _start(reading, query), _first(reading, _ENDS) or LogicalOffset.LATEST
    yield from _edge_problems("startingOffsets", start, LogicalOffset.LATEST, "start")
    yield from _edge_problems("endingOffsets", end, LogicalOffset.EARLIEST, "end")
    if isinstance(start, AtOffsets) and isinstance(end, AtOffsets):
        yield from _order_problems("endingOffsets", start.offsets, end.offsets)
    elif isinstance(start, AtTimes) and isinstance(end, AtTimes):
        yield from _order_problems("endingOffsetsByTimestamp", start.times_ms, end.times_ms)


def _edge_problems(
    option: str, bound: Bound, banned: LogicalOffset, what: str
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
            option=option,
            found=place,
            expected=f"a {what} other than {banned} in a batch query",
            next_step="write an offset"
            if option == "endingOffsets"
            else "write an offset, or read with spark.readStream",
        )


def _order_problems(
    option: str,
    start: Mapping[SystemStreamPartition, LogicalOffset | int],
    end: Mapping[SystemStreamPartition, LogicalOffset | int],
) -> Iterator[OptionProblem]:
    """Check that start and end have the same partitions, and no end is before its start."""
    for ssp in sorted(start.keys() ^ end.keys()):
        yield OptionProblem(
            option=option,
            found=f"{kafka_name(ssp)} {'without an end' if ssp in start else 'without a start'}",
            expected="the same partitions in the start and in the end",
            next_step=f"name {kafka_name(ssp)} in both",
        )
    for ssp in sorted(start.keys() & end.keys()):
        first, last = start[ssp], end[ssp]
        if isinstance(first, int) and isinstance(last, int) and first > last:
            yield OptionProblem(
                option=option,
                found=f"{kafka_name(ssp)} to {last}, which starts at {first}",
                expected="an end that is not before its start",
                next_step=f"swap the start and the end of {kafka_name(ssp)}",
            )


# --- Limits and tasks -----------------------------------------------------------------------------


def _limit_problems(options: KafkaOptions) -> Iterator[OptionProblem]:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        yield OptionProblem(
            option="minOffsetsPerTrigger",
            found=f"{least}, more than maxOffsetsPerTrigger ({most})",
            expected="at most maxOffsetsPerTrigger",
            next_step="lower it, or raise maxOffsetsPerTrigger",
        )


def _task_problems(reading: OptionReading, options: KafkaOptions) -> Iterator[OptionProblem]:
    if reading.given("tasks") and options.grouper not in {None, GrouperName.PARTITION}:
        yield OptionProblem(
            option="tasks",
            found=f"tasks with the grouper {options.grouper}",
            expected="tasks only with the grouper partition",
            next_step="remove it, or use grouper=partition",
        )

    fixing = _task_options(reading)
    for name in _SPLITTING:
        if reading.given(name) and fixing:
            yield OptionProblem(
                option=name,
                found=f"{name} together with {', '.join(fixing)}",
                expected="either partitions that several tasks read, or tasks with whole "
                "partitions, which keep the order of a key",
                next_step=f"remove {name}, or remove {', '.join(fixing)}",
            )


def _task_options(reading: OptionReading) -> list[str]:
    """Return the given options for which the query relies on its tasks. Without any it uses the
    defaults of Spark's source."""
    includes_task = reading.fields(KafkaOptions).get("include_task", False)
    return [
        *(name for name in _TASK_OPTIONS if reading.given(name)),
        *(["includeTask"] if includes_task else []),
    ]


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
        for name in reading.only_given(QueryKind.STREAM):
            _log.warning("option %s has no effect in a batch query", name)
    elif reading.given("maxTriggerDelay") and not reading.given("minOffsetsPerTrigger"):
        _log.warning("option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    for names in (_STARTS, _ENDS):
        given = [name for name in names if reading.given(name)]
        for name in given[1:]:
            _log.warning("option %s has no effect together with %s", name, given[0])


_PROVIDER: Final = "tokenProvider"
_PROTOCOL: Final = "security.protocol"
_TOKEN_PROPERTIES: Final = ("sasl.oauthbearer.", "enable.sasl.oauthbearer.")
_AWS_STORES: Final = (StoreKind.S3, StoreKind.DYNAMODB)


def with_functions(client: ClientProperties, reading: OptionReading) -> ClientProperties:
    """Return the properties with the functions of the user for the login: `credentialsProvider` for
    AWS's IAM, `tokenProvider` for other tokens of OAUTHBEARER."""
    given = reading.values(TokenChoice)
    return replace(
        client,
        iam=None if client.iam is None else with_provider(client.iam, reading),
        token_provider=None
        if given.provider is None
        else TokenProvider(path=given.provider, secret_arguments=given.secret_arguments),
    )


def function_problems(client: ClientProperties, reading: OptionReading) -> Iterator[OptionProblem]:
    """Yield the problems of the options, alone and together with other properties of the login."""
    profile = client.iam is not None and client.iam.aws_profile is not None
    others = ["awsProfileName in kafka.sasl.jaas.config"] if profile else []
    yield from provider_problems(reading, others)
    yield from argument_problems(reading, _PROVIDER, "tokenProviderSecretArguments")
    if _PROVIDER in reading.valid:
        yield from _token_problems(client)


def _token_problems(client: ClientProperties) -> Iterator[OptionProblem]:
    name, values = _PROVIDER, client.config()
    if client.iam is not None:
        yield OptionProblem(
            option=name,
            found=f"{name} with a login of AWS's IAM, whose tokens are signed here",
            expected="one source of tokens",
            next_step="remove it, and name the AWS credentials by credentialsProvider; or set "
            f"{PREFIX}{MECHANISM}={OAUTHBEARER} without the login of AWS's IAM",
        )
        return
    if values.get(MECHANISM, "").upper() != OAUTHBEARER:
        yield OptionProblem(
            option=name,
            found=f"{name} with {_setting(values, MECHANISM)}",
            expected=f"a login by {OAUTHBEARER}",
            next_step=f"set {PREFIX}{MECHANISM}={OAUTHBEARER}, or remove {name}",
        )
    if not values.get(_PROTOCOL, "").startswith("SASL_"):
        yield OptionProblem(
            option=name,
            found=f"{name} with {_setting(values, _PROTOCOL)}",
            expected="a protocol with a login",
            next_step=f"set {PREFIX}{_PROTOCOL}=SASL_SSL, or remove {name}",
        )
    given = {client.option(one) for one in values if one.startswith(_TOKEN_PROPERTIES)} - {
        PREFIX + METHOD if values.get(METHOD) == DEFAULT_METHOD else ""
    }
    for option in sorted(given):
        yield OptionProblem(
            option=option,
            found=f"another source of tokens or a setting of one, together with {name}",
            expected="one source of tokens",
            next_step=f"remove {option}, or remove {name}",
        )


def _setting(values: Mapping[str, str], name: str) -> str:
    return f"{PREFIX}{name}={values[name]}" if name in values else f"no {PREFIX}{name}"


def unused_problems(
    client: ClientProperties, reading: OptionReading, store: str | None
) -> Iterator[OptionProblem]:
    """Yield the problem of a provider for which a query has no use."""
    has_aws_store = store is not None and parse_store_uri(store).kind in _AWS_STORES
    if CREDENTIALS_PROVIDER in reading.valid and client.iam is None and not has_aws_store:
        yield OptionProblem(
            option=CREDENTIALS_PROVIDER,
            found="neither a login by AWS's IAM nor an assignment store in S3 or DynamoDB",
            expected="a use of AWS credentials",
            next_step="set kafka.sasl.mechanism=AWS_MSK_IAM, or remove it",
        )
