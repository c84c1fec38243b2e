"""The options of the Kafka source: their declarations, and their values as frozen dataclasses.

Options of Spark's Kafka source that apply here keep their names and values (Structured Streaming +
Kafka Integration Guide; `KafkaSourceProvider`). Options that begin with `kafka.` are parsed by
`options.translation`. Executors receive the values by pickle and import this module, so it stays
cheap to import: it loads neither the parser, `parse`, which checks the options against each other,
nor what only its converters use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from spark_ssp.common.errors import InvalidOptionsError, shown
from spark_ssp.common.options.endpoints import (
    PROVIDER_OPTIONS,
    ConnectionOptions,
    function_path,
    keyword_arguments,
)
from spark_ssp.common.options.shared import trigger_option
from spark_ssp.common.options.spec import (
    KINESIS,
    Alias,
    BadValueError,
    Fault,
    ForeignOption,
    OptionTable,
    QueryKind,
    option,
    options_of,
)
from spark_ssp.common.options.user_code import check_path
from spark_ssp.common.options.values import boolean, duration, integer, matching, member, size
from spark_ssp.grouping.fixed_tasks import OnPartitionCountChange, load_expansion_algorithm
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.topic import (
    AtTime,
    Bound,
    IsolationLevel,
    LogicalOffset,
    NoMatch,
    Selection,
    TopicId,
)
from spark_ssp.kafka_source.options.client_properties import ClientProperties

__all__ = [
    "KAFKA_OPTIONS",
    "GrouperName",
    "InvalidOptionsError",
    "KafkaOptions",
    "QueryKind",
    "RangeChoice",
    "TokenChoice",
    "TopicChoice",
]

_SPARK: Final = "Spark"

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_DAY: Final = 24 * 60 * _MINUTE


# --- Converters -----------------------------------------------------------------------------------


def _topics(text: str) -> tuple[StreamName, ...]:
    """Parse topics. As in Spark, blanks between commas and duplicates are ignored."""
    from spark_ssp.kafka_source.options.offset_json import TOPIC, TOPIC_RULE

    topics = {part.strip() for part in text.split(",")} - {""}
    faults = [
        Fault(
            found=shown(topic),
            expected=f"{TOPIC_RULE}, comma separated",
            next_step="give the topic's name; subscribePattern takes patterns",
        )
        for topic in sorted(topics)
        if not TOPIC.fullmatch(topic)
    ]
    if not topics:
        faults = [
            Fault(found="no topic", expected="one or more topics", next_step="name the topics")
        ]
    if faults:
        raise BadValueError(*faults)
    return tuple(StreamName(topic) for topic in sorted(topics))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadValueError(
            Fault(
                found=f"{shown(text)}, which does not compile: {error.msg}",
                expected="a regular expression",
                next_step="use the syntax of Python, which differs from Java's in a few classes",
            )
        ) from error
    return text


def _bound(text: str) -> Bound:
    if text.lower() in tuple(LogicalOffset):
        return LogicalOffset(text.lower())
    if not text.startswith("{"):
        raise BadValueError(
            Fault(
                found=shown(text),
                expected="earliest, latest, or JSON by topic and partition",
                next_step="write earliest, latest or JSON",
            )
        )
    from spark_ssp.kafka_source.options.offset_json import parse_offsets

    return parse_offsets(text)


def _partitions(text: str) -> tuple[SystemStreamPartition, ...]:
    from spark_ssp.kafka_source.options.offset_json import parse_partitions

    return parse_partitions(text)


def _timestamps(text: str) -> Bound:
    from spark_ssp.kafka_source.options.offset_json import parse_timestamps

    return parse_timestamps(text)


def _topic_ids(text: str) -> Mapping[StreamName, TopicId]:
    from spark_ssp.kafka_source.options.offset_json import parse_topic_ids

    return parse_topic_ids(text)


_epoch_ms: Final = integer(0)


def _timestamp(text: str) -> Bound:
    return AtTime(time_ms=EpochMillis(_epoch_ms(text)))


def _algorithm(text: str) -> str:
    load_expansion_algorithm(text)
    return text


def _store(text: str) -> str:
    from spark_ssp.checkpoint.assignments.store import StoreKind, parse_store_uri

    uri = parse_store_uri(text)
    if uri.kind is StoreKind.LOCAL:
        check_path(uri.path)
    return uri.text


# --- Topics, start and end ------------------------------------------------------------------------

_AT_TIMESTAMP: Final = "use startingPosition with at_timestamp"
_END: Final = (
    "use endingPosition in a batch read, and the trigger availableNow to stop a stream at the "
    "latest record"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """The options that name topics, of which a query has one."""

    topics: tuple[StreamName, ...] = option(
        "subscribe",
        _topics,
        "Topics, comma-separated.",
        unset="one of this, `subscribePattern` and `assign` is required",
        empty=(),
        sister="use streamName",
    )
    pattern: str | None = option(
        "subscribePattern",
        _pattern,
        "A regular expression. Reads every topic whose name contains a match.",
        unset="one of this, `subscribe` and `assign` is required",
        sister="use streamName",
    )
    partitions: tuple[SystemStreamPartition, ...] = option(
        "assign",
        _partitions,
        'Partitions by topic: `{"topicA": [0, 1], "topicB": [2, 4]}`.',
        unset="one of this, `subscribe` and `subscribePattern` is required",
        empty=(),
        sister="use streamName",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeChoice:
    """The options for start and end. Of several for one side, that by time is used before that by
    times, and that before the one by offsets."""

    start: Bound | None = option(
        "startingOffsets",
        _bound,
        "Start of a new query: `earliest`, `latest` (not in a batch query), or offsets by "
        'partition: `{"topicA": {"0": 23, "1": -1}}`, where -2 is earliest and -1 latest. '
        "Partitions that are discovered later are read from their beginning.",
        unset="`latest`; in a batch query `earliest`",
        sister="use startingPosition",
    )
    start_time: Bound | None = option(
        "startingTimestamp",
        _timestamp,
        "Start at the first record of each partition with this time or a later one (milliseconds "
        "since 1970).",
        unset="`startingOffsetsByTimestamp` applies",
        sister=_AT_TIMESTAMP,
    )
    start_times: Bound | None = option(
        "startingOffsetsByTimestamp",
        _timestamps,
        'Start at a time by partition: `{"topicA": {"0": 1000, "1": 1000}}`.',
        unset="`startingOffsets` applies",
        sister=_AT_TIMESTAMP,
    )
    end: Bound | None = option(
        "endingOffsets",
        _bound,
        "End of a batch query: `latest` or offsets by partition, where -1 is latest.",
        unset="`latest`",
        sister=_END,
        only=QueryKind.BATCH,
    )
    end_time: Bound | None = option(
        "endingTimestamp",
        _timestamp,
        "End a batch query before the first record of each partition with this time or a later "
        "one; without such a record, at the latest offset.",
        unset="`endingOffsetsByTimestamp` applies",
        sister=_END,
        only=QueryKind.BATCH,
    )
    end_times: Bound | None = option(
        "endingOffsetsByTimestamp",
        _timestamps,
        "End a batch query at a time by partition.",
        unset="`endingOffsets` applies",
        sister=_END,
        only=QueryKind.BATCH,
    )


# --- Tokens for a login ---------------------------------------------------------------------------

_AWS_PROVIDER: Final = "use credentialsProvider and credentialsProviderSecretArguments for AWS"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """The options that name a function of the user for the tokens of OAUTHBEARER, which the Kafka
    sink has too."""

    provider: str | None = option(
        "tokenProvider",
        function_path("my_company.kafka:token"),
        "A function that returns a token for `OAUTHBEARER` and its expiry time, as "
        "`module:function`. Every process that logs in to Kafka imports it, on the driver and on "
        "executors. See [Tokens from a function](kafka-logins.md#tokens-from-a-function).",
        unset="none",
        sister=_AWS_PROVIDER,
    )
    secret_arguments: str | None = option(
        "tokenProviderSecretArguments",
        keyword_arguments,
        "The keyword arguments of the function, as a JSON object. Never shown.",
        unset="no arguments",
        sister=_AWS_PROVIDER,
        secret=True,
    )


# --- The source -----------------------------------------------------------------------------------

_TRIGGER: Final = "set the interval by the trigger: processingTime"
_ATTEMPTS: Final = "use retry.maxAttempts, retry.maxBackoff and readTimeout"
_SLOTS: Final = "use slots and slotAssignment, which place shards in tasks"
_NO_GROUPS: Final = "Kinesis has no consumer groups; applicationName names those who share a stream"


class GrouperName(StrEnum):
    """The option `grouper`."""

    PARTITION = "partition"
    SSP = "ssp"
    SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """All options of a query. Times in milliseconds, sizes in bytes.

    None means: `end`, a streaming query; the limits, no limit; `tasks`, the largest number of
    partitions at the start; `expansion_algorithm` (a dotted path), modulo; `assignment_store` (a
    URI), only the offset; `commit_offsets_to_group`, no commits; `grouper` and
    `on_partition_count_change`, the defaults of `planning.plan_batch.create_grouping`.
    """

    selection: Selection
    start: Bound
    end: Bound | None = None
    no_match: NoMatch = option(
        "startingOffsetsByTimestampStrategy",
        member(NoMatch),
        "Behaviour of a start by time in a partition without such records: `error` or `latest`.",
        default="error",
        sister=_AT_TIMESTAMP,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        boolean,
        "Fail the query on data loss; if `false`, log a warning and continue after the gap.",
        default="true",
    )
    drop_topics: tuple[StreamName, ...] = option(
        "dropTopics",
        _topics,
        "Topics, comma-separated, that the query no longer reads: they leave its checkpoint with "
        "their unread records, and are excluded from `subscribePattern`. See [Topics that are no "
        "longer read](kafka-data-loss.md#topics-that-are-no-longer-read).",
        unset="none",
        empty=(),
        sister="use dropStreams",
        only=QueryKind.STREAM,
    )
    accept_topic_ids: Mapping[StreamName, TopicId] = option(
        "acceptTopicIds",
        _topic_ids,
        'Topics that moved, as in a copy of the cluster: `{"topicA": "the new id"}`. The query '
        "continues at the same offsets if the topic has this id. See [A topic on another "
        "cluster](kafka-data-loss.md#a-topic-on-another-cluster).",
        unset="none: another id counts as data loss",
        empty={},
        sister="a stream that was created again is read with failOnDataLoss=false",
        only=QueryKind.STREAM,
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        integer(1),
        "Approximate maximum number of offsets in a batch, divided among the partitions in "
        "proportion to their available offsets.",
        unset="no limit",
        sister="use maxRecordsPerTrigger",
        only=QueryKind.STREAM,
        bounds_batch=True,
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger",
        integer(1),
        "Minimum number of available offsets before a batch starts, unless `maxTriggerDelay` "
        "expires first.",
        unset="none",
        sister=_TRIGGER,
        only=QueryKind.STREAM,
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        duration(0, 365 * _DAY),
        "The longest wait for `minOffsetsPerTrigger`.",
        default="15m",
        sister=_TRIGGER,
        only=QueryKind.STREAM,
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        size(1),
        "Approximate maximum size of a batch (a size), estimated from earlier records.",
        unset="no limit",
        only=QueryKind.STREAM,
        bounds_batch=True,
    )
    align_batches: bool = option(
        "alignBatches",
        boolean,
        "End each limited batch at one time in all partitions, so that no row is late for a "
        "watermark because another partition was read ahead. See "
        "[Event time](event-time.md#kafka).",
        default="false",
        only=QueryKind.STREAM,
    )
    is_triggered_by_time: bool = trigger_option()
    """The trigger is declared to be neither availableNow nor once."""
    fetch_offset_attempts: int = option(
        "fetchOffset.numRetries",
        integer(1, 1_000),
        "Number of attempts to fetch offsets, up to twice as many if answers differ: 1 to 1000.",
        default="3",
        sister=_ATTEMPTS,
    )
    fetch_offset_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        integer(0, _DAY),
        "Milliseconds between two attempts to fetch offsets.",
        default="1000",
        sister=_ATTEMPTS,
    )
    poll_timeout_ms: int = option(
        "pollTimeout",
        duration(1, _DAY),
        "Time that a task waits for the brokers and for records that they reported, and a batch "
        "read for transactions before its end, before it fails.",
        default="2m",
        sister=_ATTEMPTS,
        aliases=(
            Alias(name="kafkaConsumer.pollTimeoutMs", origin=_SPARK, convert=integer(1, _DAY)),
        ),
    )
    group_id_prefix: str = option(
        "groupIdPrefix",
        matching(r"[\x21-\x7e]{1,200}", "text without white space", "use - or _ instead"),
        "Prefix of the name of the query's consumer group.",
        default="spark-kafka-source",
        default_text="`spark-kafka-source`; in a batch query `spark-kafka-relation`",
        sister=_NO_GROUPS,
    )
    commit_offsets_to_group: str | None = option(
        "commitOffsetsToGroup",
        matching(
            r"[\x21-\x7e]{1,249}",
            "the name of a consumer group: 1 to 249 characters without white space",
            "use - or _ instead",
        ),
        "Consumer group to which the offsets of completed batches are committed, for tools that "
        "show lag. See [Lag of a consumer group](kafka-lag.md#lag-of-a-consumer-group).",
        unset="none: no offsets are committed",
        sister=_NO_GROUPS,
        only=QueryKind.STREAM,
    )
    include_headers: bool = option(
        "includeHeaders",
        boolean,
        "Add the column `headers`.",
        default="false",
        sister="a record of Kinesis has no headers",
    )
    include_task: bool = option(
        "includeTask",
        boolean,
        "Add the columns `task` (text) and `ssp` (a number).",
        default="false",
        sister="a Kinesis query has the column ssp",
    )
    relies_on_tasks: bool = False
    """An option is set that makes the query rely on its tasks."""
    grouper: GrouperName | None = option(
        "grouper",
        member(GrouperName),
        "`partition`: a task reads the partitions of the same number of all topics; `ssp`: a task "
        "reads one partition of one topic; `single`: one task reads all.",
        unset="`ssp`; with any option for tasks `partition`",
        sister=_SLOTS,
    )
    tasks: int | None = option(
        "tasks",
        integer(1, 100_000),
        "Maximum number of tasks of the grouper `partition`: partition p goes to task p mod "
        "`tasks`.",
        unset="the largest number of partitions at the start",
        sister="use slots",
    )
    min_partitions: int | None = option(
        "minPartitions",
        integer(1, 100_000),
        "Approximate minimum number of tasks of a batch: partitions with many offsets are split "
        "into several tasks. Not together with an option for tasks. See [More tasks than "
        "partitions](kafka-tasks.md#more-tasks-than-partitions).",
        unset="a task reads a whole partition",
        sister="use slots",
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        integer(1),
        "Maximum number of offsets that a task reads: larger partitions are split into several "
        "tasks. Not together with an option for tasks.",
        unset="no limit",
        sister="use slots",
    )
    expansion_algorithm: str | None = option(
        "partitionExpansionAlgorithm",
        _algorithm,
        "Dotted path of a class that maps a new partition to the earlier partition of its keys.",
        unset="modulo",
        sister=_SLOTS,
    )
    on_partition_count_change: OnPartitionCountChange | None = option(
        "onPartitionCountChange",
        member(OnPartitionCountChange),
        "`keep`: keys stay with their tasks, and a number of partitions that prevents this is an "
        "error; `regroup`: tasks are always those of a new query.",
        unset="`regroup`; with any option for tasks `keep`",
        sister=_SLOTS,
    )
    assignment_store: str | None = option(
        "assignmentStore",
        _store,
        "Store of the assignment of partitions to tasks, for other queries: a URI, `s3://`, "
        "`dynamodb://`, `gs://`, `abfs://` or `file://`.",
        unset="only in the checkpoint",
        sister="the checkpoint keeps the slots of shards; to share a stream with other queries, "
        "use applicationName",
        # An invalid value may contain a password.
        secret=True,
    )
    partition_discovery_interval_ms: int = option(
        "partitionDiscoveryInterval",
        duration(100, _DAY),
        "Interval of the search for new partitions and topics: a duration from 100ms to 1d.",
        default="10s",
        sister="use shardDiscoveryInterval",
    )
    store_connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    """For an assignment store in S3 or DynamoDB."""
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    client: ClientProperties


SERVICE_CREDENTIAL: Final = ForeignOption(
    name="databricks.serviceCredential",
    origin="Databricks",
    refused=True,
    advice="it decides the login; for Amazon MSK set kafka.sasl.mechanism=AWS_MSK_IAM and "
    "credentialsProvider, a function that returns the service credential's session; for others set "
    "kafka.sasl.mechanism=OAUTHBEARER and tokenProvider, a function that returns its tokens",
)

LOGIN_OPTIONS: Final = (*PROVIDER_OPTIONS, *options_of(TokenChoice))
"""The options of source and sink that name functions."""

KAFKA_OPTIONS: Final = OptionTable(
    options=(*options_of(TopicChoice, RangeChoice, KafkaOptions), *LOGIN_OPTIONS),
    foreign=(
        ForeignOption(
            name="topic",
            origin=_SPARK,
            refused=False,
            advice="it is an option of the sink; a source uses subscribe",
        ),
        SERVICE_CREDENTIAL,
    ),
    sister=KINESIS,
    prefixes=(
        "starting",
        "ending",
        "subscribe",
        "fetchoffset.",
        "kafkaconsumer.",
        "groupid",
        "kinesis.",
    ),
)
