"""The table of the options of the Kafka source: names, defaults, descriptions and aliases.

Options of Spark's Kafka source that apply here keep their names and values (Structured Streaming +
Kafka Integration Guide; `KafkaSourceProvider`). Options that begin with `kafka.` are parsed by
`properties.translation`. Rules between options are in `options.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from spark_ssp.checkpoint.assignments.uri import StoreKind, parse_store_uri
from spark_ssp.common.options.allowlists import check_path
from spark_ssp.common.options.sibling_format import KAFKA, options_of_sister
from spark_ssp.common.options.spec import (
    Alias,
    BadValueError,
    Fault,
    ForeignOption,
    OptionSpec,
    OptionTable,
    shown,
)
from spark_ssp.common.options.trigger import TRIGGER
from spark_ssp.common.options.values import boolean, choice, duration, integer, size
from spark_ssp.grouping.fixed_tasks import OnPartitionCountChange, load_expansion_algorithm
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.topic import AtTime, Bound, LogicalOffset, NoMatch, TopicId
from spark_ssp.kafka_source.options.consumer_groups import COMMIT_OFFSETS_TO_GROUP, GROUP_ID_PREFIX
from spark_ssp.kafka_source.options.credentials import LOGIN_OPTIONS
from spark_ssp.kafka_source.options.offset_json import (
    TOPIC,
    TOPIC_RULE,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
    parse_topic_ids,
)
from spark_ssp.kafka_source.options.values import GrouperName

_SPARK: Final = "Spark"

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_DAY: Final = 24 * 60 * _MINUTE


# --- Converters -----------------------------------------------------------------------------------


def _topics(text: str) -> tuple[StreamName, ...]:
    """Parse topics. As in Spark, blanks between commas and duplicates are ignored."""
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
    return parse_offsets(text)


_epoch_ms: Final = integer(0)


def _timestamp(text: str) -> Bound:
    return AtTime(time_ms=EpochMillis(_epoch_ms(text)))


def _no_match(text: str) -> NoMatch:
    return NoMatch(choice(*NoMatch)(text))


def _grouper(text: str) -> GrouperName:
    return GrouperName(choice(*GrouperName)(text))


def _count_change(text: str) -> OnPartitionCountChange:
    return OnPartitionCountChange(choice(*OnPartitionCountChange)(text))


def _algorithm(text: str) -> str:
    load_expansion_algorithm(text)
    return text


def _store(text: str) -> str:
    uri = parse_store_uri(text)
    if uri.kind is StoreKind.LOCAL:
        check_path(uri.path)
    return uri.text


# --- Topics, start and end ------------------------------------------------------------------------

SUBSCRIBE: Final[OptionSpec[tuple[StreamName, ...]]] = OptionSpec(
    name="subscribe",
    convert=_topics,
    default=(),
    default_text="one of this, `subscribePattern` and `assign` is required",
    doc="Topics, comma-separated.",
)

SUBSCRIBE_PATTERN: Final[OptionSpec[str | None]] = OptionSpec(
    name="subscribePattern",
    convert=_pattern,
    default=None,
    default_text="one of this, `subscribe` and `assign` is required",
    doc="A regular expression. Reads every topic whose name contains a match.",
)

ASSIGN: Final[OptionSpec[tuple[SystemStreamPartition, ...]]] = OptionSpec(
    name="assign",
    convert=parse_partitions,
    default=(),
    default_text="one of this, `subscribe` and `subscribePattern` is required",
    doc='Partitions by topic: `{"topicA": [0, 1], "topicB": [2, 4]}`.',
)

STARTING_OFFSETS: Final[OptionSpec[Bound | None]] = OptionSpec(
    name="startingOffsets",
    convert=_bound,
    default=None,
    default_text="`latest`; in a batch query `earliest`",
    doc="Start of a new query: `earliest`, `latest` (not in a batch query), or offsets by "
    'partition: `{"topicA": {"0": 23, "1": -1}}`, where -2 is earliest and -1 latest. '
    "Partitions that are discovered later are read from their beginning.",
)

STARTING_TIMESTAMP: Final[OptionSpec[Bound | None]] = OptionSpec(
    name="startingTimestamp",
    convert=_timestamp,
    default=None,
    default_text="`startingOffsetsByTimestamp` applies",
    doc="Start at the first record of each partition with this time or a later one (milliseconds "
    "since 1970).",
)

STARTING_OFFSETS_BY_TIMESTAMP: Final[OptionSpec[Bound | None]] = OptionSpec(
    name="startingOffsetsByTimestamp",
    convert=parse_timestamps,
    default=None,
    default_text="`startingOffsets` applies",
    doc='Start at a time by partition: `{"topicA": {"0": 1000, "1": 1000}}`.',
)

STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY: Final[OptionSpec[NoMatch]] = OptionSpec(
    name="startingOffsetsByTimestampStrategy",
    convert=_no_match,
    default=NoMatch.ERROR,
    default_text="`error`",
    doc="Behaviour of a start by time in a partition without such records: `error` or `latest`.",
)

ENDING_OFFSETS: Final[OptionSpec[Bound | None]] = OptionSpec(
    name="endingOffsets",
    convert=_bound,
    default=None,
    default_text="`latest`",
    doc="End of a batch query: `latest` or offsets by partition, where -1 is latest.",
)

ENDING_TIMESTAMP: Final[OptionSpec[Bound | None]] = OptionSpec(
    name="endingTimestamp",
    convert=_timestamp,
    default=None,
    default_text="`endingOffsetsByTimestamp` applies",
    doc="End a batch query before the first record of each partition with this time or a later "
    "one; without such a record, at the latest offset.",
)

ENDING_OFFSETS_BY_TIMESTAMP: Final[OptionSpec[Bound | None]] = OptionSpec(
    name="endingOffsetsByTimestamp",
    convert=parse_timestamps,
    default=None,
    default_text="`endingOffsets` applies",
    doc="End a batch query at a time by partition.",
)

FAIL_ON_DATA_LOSS: Final[OptionSpec[bool]] = OptionSpec(
    name="failOnDataLoss",
    convert=boolean,
    default=True,
    default_text="`true`",
    doc="Fail the query on data loss; if `false`, log a warning and continue after the gap.",
)

DROP_TOPICS: Final[OptionSpec[tuple[StreamName, ...]]] = OptionSpec(
    name="dropTopics",
    convert=_topics,
    default=(),
    default_text="none",
    doc="Topics, comma-separated, that the query no longer reads: they leave its checkpoint with "
    "their unread records, and are excluded from `subscribePattern`. See [Topics that are no "
    "longer read](kafka.md#topics-that-are-no-longer-read).",
)

ACCEPT_TOPIC_IDS: Final[OptionSpec[Mapping[StreamName, TopicId]]] = OptionSpec(
    name="acceptTopicIds",
    convert=parse_topic_ids,
    default={},
    default_text="none: another id counts as data loss",
    doc='Topics that moved, as in a copy of the cluster: `{"topicA": "the new id"}`. The query '
    "continues at the same offsets if the topic has this id. See [A topic on another "
    "cluster](kafka.md#a-topic-on-another-cluster).",
)

# --- Limits, retries and timeouts -----------------------------------------------------------------

MAX_OFFSETS_PER_TRIGGER: Final[OptionSpec[int | None]] = OptionSpec(
    name="maxOffsetsPerTrigger",
    convert=integer(1),
    default=None,
    default_text="no limit",
    doc="Approximate maximum number of offsets in a batch, divided among the partitions in "
    "proportion to their available offsets.",
)

MIN_OFFSETS_PER_TRIGGER: Final[OptionSpec[int | None]] = OptionSpec(
    name="minOffsetsPerTrigger",
    convert=integer(1),
    default=None,
    default_text="none",
    doc="Minimum number of available offsets before a batch starts, unless `maxTriggerDelay` "
    "expires first.",
)

MAX_TRIGGER_DELAY: Final[OptionSpec[int]] = OptionSpec(
    name="maxTriggerDelay",
    convert=duration(0, 365 * _DAY),
    default=15 * _MINUTE,
    default_text="`15m`",
    doc="The longest wait for `minOffsetsPerTrigger`.",
)

MAX_BYTES_PER_TRIGGER: Final[OptionSpec[int | None]] = OptionSpec(
    name="maxBytesPerTrigger",
    convert=size(1),
    default=None,
    default_text="no limit",
    doc="Approximate maximum size of a batch (a size), estimated from earlier records.",
)

FETCH_OFFSET_NUM_RETRIES: Final[OptionSpec[int]] = OptionSpec(
    name="fetchOffset.numRetries",
    convert=integer(1, 1_000),
    default=3,
    default_text="`3`",
    doc="Maximum number of attempts to fetch offsets: 1 to 1000.",
)

FETCH_OFFSET_RETRY_INTERVAL_MS: Final[OptionSpec[int]] = OptionSpec(
    name="fetchOffset.retryIntervalMs",
    convert=integer(0, _DAY),
    default=_SECOND,
    default_text="`1000`",
    doc="Milliseconds between two attempts to fetch offsets.",
)

POLL_TIMEOUT: Final[OptionSpec[int]] = OptionSpec(
    name="pollTimeout",
    convert=duration(1, _DAY),
    default=2 * _MINUTE,
    default_text="`2m`",
    doc="Time that a task waits for records that the brokers reported, before it fails.",
    aliases=(Alias(name="kafkaConsumer.pollTimeoutMs", origin=_SPARK, convert=integer(1, _DAY)),),
)

# --- Columns --------------------------------------------------------------------------------------

INCLUDE_HEADERS: Final[OptionSpec[bool]] = OptionSpec(
    name="includeHeaders",
    convert=boolean,
    default=False,
    default_text="`false`",
    doc="Add the column `headers`.",
)

INCLUDE_TASK: Final[OptionSpec[bool]] = OptionSpec(
    name="includeTask",
    convert=boolean,
    default=False,
    default_text="`false`",
    doc="Add the columns `task` (text) and `ssp` (a number).",
)

# --- Tasks ----------------------------------------------------------------------------------------

GROUPER: Final[OptionSpec[GrouperName | None]] = OptionSpec(
    name="grouper",
    convert=_grouper,
    default=None,
    default_text="`ssp`; with any option for tasks `partition`",
    doc="`partition`: a task reads the partitions of the same number of all topics; `ssp`: a task "
    "reads one partition of one topic; `single`: one task reads all.",
)

TASKS: Final[OptionSpec[int | None]] = OptionSpec(
    name="tasks",
    convert=integer(1, 100_000),
    default=None,
    default_text="the largest number of partitions at the start",
    doc="Maximum number of tasks of the grouper `partition`: partition p goes to task p mod "
    "`tasks`.",
)

PARTITION_EXPANSION_ALGORITHM: Final[OptionSpec[str | None]] = OptionSpec(
    name="partitionExpansionAlgorithm",
    convert=_algorithm,
    default=None,
    default_text="modulo",
    doc="Dotted path of a class that maps a new partition to the earlier partition of its keys.",
)

ON_PARTITION_COUNT_CHANGE: Final[OptionSpec[OnPartitionCountChange | None]] = OptionSpec(
    name="onPartitionCountChange",
    convert=_count_change,
    default=None,
    default_text="`regroup`; with any option for tasks `keep`",
    doc="`keep`: keys stay with their tasks, and a number of partitions that prevents this is an "
    "error; `regroup`: tasks are always those of a new query.",
)

ASSIGNMENT_STORE: Final[OptionSpec[str | None]] = OptionSpec(
    name="assignmentStore",
    convert=_store,
    default=None,
    default_text="only in the checkpoint",
    doc="Store of the assignment of partitions to tasks, for other queries: a URI, `s3://`, "
    "`dynamodb://`, `gs://`, `abfs://` or `file://`.",
    # An invalid value may contain a password.
    secret=True,
)

PARTITION_DISCOVERY_INTERVAL: Final[OptionSpec[int]] = OptionSpec(
    name="partitionDiscoveryInterval",
    convert=duration(100, _DAY),
    default=10 * _SECOND,
    default_text="`10s`",
    doc="Interval of the search for new partitions and topics: a duration from 100ms to 1d.",
)

# --- Options without an equivalent ----------------------------------------------------------------

SERVICE_CREDENTIAL: Final = ForeignOption(
    name="databricks.serviceCredential",
    origin="Databricks",
    refused=True,
    advice="it decides the login; for Amazon MSK set kafka.sasl.mechanism=AWS_MSK_IAM and "
    "credentialsProvider, a function that returns the service credential's session; for others set "
    "kafka.sasl.mechanism=OAUTHBEARER and tokenProvider, a function that returns its tokens",
)

FOREIGN: Final = (
    *(
        ForeignOption(
            name=name,
            origin=_SPARK,
            refused=False,
            advice="grouper and tasks determine the tasks",
        )
        for name in ("minPartitions", "maxRecordsPerPartition")
    ),
    ForeignOption(
        name="topic",
        origin=_SPARK,
        refused=False,
        advice="it is an option of the sink; a source uses subscribe",
    ),
    SERVICE_CREDENTIAL,
)

_SPECS: Final[tuple[OptionSpec[Any], ...]] = (
    SUBSCRIBE,
    SUBSCRIBE_PATTERN,
    ASSIGN,
    STARTING_OFFSETS,
    STARTING_TIMESTAMP,
    STARTING_OFFSETS_BY_TIMESTAMP,
    STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY,
    ENDING_OFFSETS,
    ENDING_TIMESTAMP,
    ENDING_OFFSETS_BY_TIMESTAMP,
    FAIL_ON_DATA_LOSS,
    DROP_TOPICS,
    ACCEPT_TOPIC_IDS,
    MAX_OFFSETS_PER_TRIGGER,
    MIN_OFFSETS_PER_TRIGGER,
    MAX_TRIGGER_DELAY,
    MAX_BYTES_PER_TRIGGER,
    TRIGGER,
    FETCH_OFFSET_NUM_RETRIES,
    FETCH_OFFSET_RETRY_INTERVAL_MS,
    POLL_TIMEOUT,
    GROUP_ID_PREFIX,
    COMMIT_OFFSETS_TO_GROUP,
    INCLUDE_HEADERS,
    INCLUDE_TASK,
    GROUPER,
    TASKS,
    PARTITION_EXPANSION_ALGORITHM,
    ON_PARTITION_COUNT_CHANGE,
    ASSIGNMENT_STORE,
    PARTITION_DISCOVERY_INTERVAL,
    *LOGIN_OPTIONS,
)

KAFKA_OPTIONS: Final = OptionTable(
    specs=_SPECS,
    foreign=(*FOREIGN, *options_of_sister(KAFKA, *_SPECS)),
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
