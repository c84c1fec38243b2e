"""The options of the Kinesis source: their declarations, and their values as frozen dataclasses.
Executors receive the values by pickle and import this module, so it stays cheap to import: it does
not load the parser, `parse`, which checks the options against each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar

from spark_ssp.checkpoint.worker_identity import find_fault
from spark_ssp.common.errors import InvalidOptionsError, shown
from spark_ssp.common.options.endpoints import (
    AWSLABS,
    DATABRICKS,
    ConnectionOptions,
    external_id,
    role_arn,
)
from spark_ssp.common.options.shared import trigger_option
from spark_ssp.common.options.spec import (
    KAFKA,
    Alias,
    BadValueError,
    Fault,
    OptionTable,
    QueryKind,
    option,
    options_of,
)
from spark_ssp.common.options.values import (
    boolean,
    duration,
    integer,
    listed,
    matching,
    member,
    size,
    url,
    url_or_host,
)
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import (
    ConsumerArn,
    StartingPosition,
    StreamRef,
)
from spark_ssp.kinesis_source.options.compatibility import OTHER_CONNECTORS_OPTIONS
from spark_ssp.kinesis_source.options.starting_position import ParsedStart, parse_end, parse_start

__all__ = [
    "KINESIS_OPTIONS",
    "ConnectionOptions",
    "ConsumerLifecycle",
    "ConsumerMode",
    "FanOutChoice",
    "FanOutOptions",
    "InvalidOptionsError",
    "KinesisOptions",
    "LeaseChoice",
    "LeaseOptions",
    "LeaseRole",
    "QueryKind",
    "SlotAssignment",
    "StreamChoice",
    "table_connection",
]

T = TypeVar("T")

_FLINK: Final = "Flink"
_GLUE: Final = "Glue"
_KCL: Final = "KCL"
_DSTREAM: Final = "Spark's DStream"

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_MIB: Final = 1 << 20


# --- Streams, start and end ----------------------------------------------------------------------


def _stream_name(text: str) -> StreamName:
    convert = matching(
        "[a-zA-Z0-9_.-]{1,128}",
        "stream names of 1 to 128 letters, digits, '_', '.' and '-', comma separated",
        "use streamARN for an ARN" if text.startswith("arn:") else "give the stream's name",
    )
    return StreamName(convert(text))


STREAM_ARN_PATTERN: Final = (
    r"arn:aws[a-z-]*:kinesis:(?P<region>[a-z0-9-]+):[0-9]{12}:stream/"
    r"(?P<name>[a-zA-Z0-9_.-]{1,128})"
)
"""StreamARN, Kinesis API reference."""

_stream_arn: Final = matching(
    STREAM_ARN_PATTERN,
    "ARNs such as arn:aws:kinesis:eu-west-1:123456789012:stream/orders, comma separated",
    "copy it from the console, or use streamName for a name",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChoice:
    """The options that name streams, which the Kinesis sink has too."""

    names: tuple[StreamName, ...] = option(
        "streamName",
        listed(_stream_name),
        "One stream, or several, comma separated.",
        unset="this or `streamARN`",
        empty=(),
        sister="use subscribe",
        aliases=(Alias(name="kinesis.streamName", origin=AWSLABS),),
    )
    arns: tuple[str, ...] = option(
        "streamARN",
        listed(_stream_arn),
        "The same by ARN; all in one region, with different names.",
        unset="this or `streamName`",
        empty=(),
        sister="use subscribe",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionChoice:
    """The options for start and end, before they are applied to the streams."""

    start: ParsedStart = option(
        "startingPosition",
        parse_start,
        "The start of a new query: `latest`, `trim_horizon` (or `earliest`), "
        "`at_timestamp <time>`, `-24h`, or JSON by shard ([forms](kinesis-start.md#forms)). "
        "In a batch read the default is `trim_horizon`.",
        default="latest",
        sister="use startingOffsets",
        aliases=(
            Alias(name="initialPosition", origin=DATABRICKS),
            Alias(name="kinesis.startingPosition", origin=AWSLABS),
        ),
    )
    end: ParsedStart = option(
        "endingPosition",
        parse_end,
        "Only in a batch read: its end, with the syntax of `startingPosition` "
        "([forms](kinesis-batch.md#where-a-batch-read-ends)).",
        default="latest",
        sister="use endingOffsets, endingTimestamp or endingOffsetsByTimestamp in a batch read",
        only=QueryKind.BATCH,
    )


# --- Enhanced fan-out ----------------------------------------------------------------------------

CONSUMER_NAME_PATTERN: Final = r"[a-zA-Z0-9_.-]{1,128}"
"""ConsumerName, Kinesis API reference, RegisterStreamConsumer."""
CONSUMER_ARN_PATTERN: Final = (
    r"(?P<stream_arn>arn:aws[a-z-]*:kinesis:[a-z0-9-]+:[0-9]{12}:stream/"
    rf"(?P<stream>[a-zA-Z0-9_.-]{{1,128}}))/consumer/(?P<name>{CONSUMER_NAME_PATTERN}):[0-9]+"
)
"""ConsumerARN, Kinesis API reference."""

_WRITE_MODE: Final = "write consumerMode=polling or consumerMode=efo instead"
_WRITE_LIFECYCLE: Final = "write consumerLifecycle=job or consumerLifecycle=self instead"
_NO_FAN_OUT: Final = "Kafka has no enhanced fan-out: its consumers share no rate of a partition"


class ConsumerMode(StrEnum):
    """The way tasks read: `POLLING` by GetRecords, `EFO` by enhanced fan-out."""

    POLLING = "polling"
    EFO = "efo"


class ConsumerLifecycle(StrEnum):
    """The party that registers and deregisters a consumer: `JOB`, the query; `SELF`, the user."""

    JOB = "job"
    SELF = "self"


def _translated(values: Mapping[str, T], advice: str) -> Callable[[str], T]:
    """Return a converter of another product's values."""

    def convert(text: str) -> T:
        found = values.get(text.lower())
        if found is None:
            raise BadValueError(
                Fault(found=shown(text), expected=" or ".join(values), next_step=advice)
            )
        return found

    return convert


_consumer_arn: Final = matching(
    CONSUMER_ARN_PATTERN,
    "ARNs of registered consumers, one for each stream, comma separated",
    "copy them from describe-stream-consumer, or use consumerName for a name",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutChoice:
    """The options of enhanced fan-out, as given."""

    mode: ConsumerMode = option(
        "consumerMode",
        member(ConsumerMode),
        "`polling`: read by GetRecords; `efo`: by enhanced fan-out. See "
        "[Enhanced fan-out](kinesis-fan-out.md).",
        default="polling",
        sister=_NO_FAN_OUT,
        aliases=(
            Alias(
                name="kinesis.consumerType",
                origin=AWSLABS,
                convert=_translated(
                    {"getrecords": ConsumerMode.POLLING, "subscribetoshard": ConsumerMode.EFO},
                    _WRITE_MODE,
                ),
            ),
            Alias(
                name="source.reader.type",
                origin=_FLINK,
                convert=_translated({str(mode): mode for mode in ConsumerMode}, _WRITE_MODE),
            ),
        ),
    )
    name: str | None = option(
        "consumerName",
        matching(
            CONSUMER_NAME_PATTERN,
            "1 to 128 letters, digits, '_', '.' and '-'",
            "use consumerArn for an ARN, or choose another name",
        ),
        "With `efo`: the name of the consumer, the same in each stream. No two queries may have "
        "the same, unless they share an `applicationName`.",
        unset="the value of `applicationName`",
        sister=_NO_FAN_OUT,
        aliases=(
            Alias(name="kinesis.consumerName", origin=AWSLABS),
            Alias(name="source.efo.consumer.name", origin=_FLINK),
        ),
    )
    arns: tuple[str, ...] = option(
        "consumerArn",
        listed(_consumer_arn),
        "With `efo`: the ARNs of consumers that are registered already, one for each stream.",
        unset="looked up by `consumerName`",
        empty=(),
        sister=_NO_FAN_OUT,
        aliases=(
            Alias(name="registeredConsumerId", origin=DATABRICKS),
            Alias(name="fanoutConsumerARN", origin=_GLUE),
        ),
    )
    lifecycle: ConsumerLifecycle = option(
        "consumerLifecycle",
        member(ConsumerLifecycle),
        "With `efo`: `job`: the query registers its consumer if it is missing, and, without "
        "leases, deregisters it at its end unless another query uses it; `self`: you do both. With "
        "`consumerArn` always `self`.",
        default="job",
        sister=_NO_FAN_OUT,
        aliases=(
            Alias(
                name="source.efo.lifecycle",
                origin=_FLINK,
                convert=_translated(
                    {
                        "job_managed": ConsumerLifecycle.JOB,
                        "self_managed": ConsumerLifecycle.SELF,
                    },
                    _WRITE_LIFECYCLE,
                ),
            ),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutOptions:
    """Enhanced fan-out: the consumer's name in every stream, or the ARN of a registered consumer
    for each stream."""

    consumer_name: str | None = None
    consumer_arns: tuple[tuple[StreamName, ConsumerArn], ...] = ()
    lifecycle: ConsumerLifecycle = ConsumerLifecycle.JOB


# --- Leases --------------------------------------------------------------------------------------

_MOST_TAGS: Final = 50
_TAG_KEY: Final = re.compile(r"(?!aws:)[\w .:/+@-]{1,128}")
_TAG_VALUE: Final = re.compile(r"[\w .:/+@-]{0,256}")
"""DynamoDB developer guide, tagging restrictions; without `=`, which separates key and value."""

NO_ROLE: Final = "none"

_CAPACITY: Final = re.compile(r"([1-9][0-9]{0,6})/([1-9][0-9]{0,6})", re.ASCII)

_NO_LEASES: Final = (
    "a Kafka query reads all partitions of its topics and has no leases; to share a topic, give "
    "each query its own partitions by assign"
)

_table_name: Final = matching(
    "[a-zA-Z0-9_.-]{3,255}",
    "3 to 255 letters, digits, '_', '.' and '-', as DynamoDB names its tables",
    "give another name",
)


def _worker_id(text: str) -> str:
    fault = find_fault(text)
    if fault is not None:
        raise BadValueError(fault)
    return text


_dotted_path: Final = matching(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+",
    "the dotted path of a class such as my_company.ids.PodName",
    "write the module, a dot and the class",
)


def _tags(text: str) -> tuple[tuple[str, str], ...]:
    faults: list[Fault] = []
    tags: dict[str, str] = {}
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or not _TAG_KEY.fullmatch(key) or not _TAG_VALUE.fullmatch(value):
            found, next_step = shown(part), "write key=value, without AWS's own keys (aws:)"
        elif key in tags:
            found, next_step = f"the key {shown(key)} twice", "remove one of them"
        else:
            tags[key] = value
            continue
        expected = "tags such as team=orders, comma separated"
        faults.append(Fault(found=found, expected=expected, next_step=next_step))
    if len(parts) > _MOST_TAGS:
        faults.append(
            Fault(
                found=f"{len(parts)} tags",
                expected=f"at most {_MOST_TAGS}",
                next_step=f"keep at most {_MOST_TAGS} tags",
            )
        )
    if faults:
        raise BadValueError(*faults)
    return tuple(sorted(tags.items()))


def _capacity(text: str) -> tuple[int, int]:
    match = _CAPACITY.fullmatch(text)
    if match is None:
        raise BadValueError(
            Fault(
                found=shown(text),
                expected="units for reads, a slash and units for writes, such as 10/5",
                next_step="write two whole numbers of 1 or more, or remove it for on-demand mode",
            )
        )
    return int(match[1]), int(match[2])


def _role_arn(text: str) -> str:
    return NO_ROLE if text.lower() == NO_ROLE else role_arn(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseChoice:
    """The options that turn leases on, and name the role for the lease table."""

    application_name: str | None = option(
        "applicationName",
        _table_name,
        "The name of the application. Shards are shared with all of its workers, other queries or "
        "the KCL, by a lease table in DynamoDB.",
        unset="none: the query reads every shard, without leases",
        sister=_NO_LEASES,
        aliases=(Alias(name="checkpointAppName", origin=_DSTREAM),),
        bounds_batch=True,
    )
    lease_table: str | None = option(
        "leaseTable",
        _table_name,
        "The lease table, if it has another name. Without `applicationName` it is also the name of "
        "the application.",
        unset="the value of `applicationName`",
        sister=_NO_LEASES,
        bounds_batch=True,
    )
    role_arn: str | None = option(
        "leaseRoleArn",
        _role_arn,
        "A role to assume for the lease table instead of `roleArn`, or `none`: the table is used "
        "with the credentials that roles are assumed with. For a stream of another account.",
        unset="the value of `roleArn`",
        sister=_NO_LEASES,
    )
    role_external_id: str | None = option(
        "leaseRoleExternalId",
        external_id,
        "The external id that this role requires. Shown only in [plans](#credentials).",
        unset="none",
        sister=_NO_LEASES,
        secret=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRole:
    """The role that is assumed for the lease table; `arn` None: none, the table is used with the
    credentials that a role would be assumed with."""

    arn: str | None
    external_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """The options for sharing shards with other workers. Times are in milliseconds.

    None means: `worker_id` and `processor_id_generator`, a random id; `max_leases`, no limit;
    `dynamodb_endpoint_url`, the one of AWS's configuration; `table_capacity` (for reads and
    writes), on demand; `role`, the role of the streams, if any.
    """

    application: str
    table: str
    worker_id: str | None = option(
        "workerId",
        _worker_id,
        "The id of this query's worker, unique among the workers. White space, also around it, is "
        "refused.",
        unset="from `processorIdGenerator`",
        sister=_NO_LEASES,
        verbatim=True,
    )
    processor_id_generator: str | None = option(
        "processorIdGenerator",
        _dotted_path,
        "The dotted path of a class that generates the worker id, such as "
        "`spark_ssp.HostAndQueryGenerator`. `workerId` overrides it.",
        unset="a random UUID",
        sister=_NO_LEASES,
    )
    failover_ms: int = option(
        "failoverTime",
        duration(_SECOND, 10 * _MINUTE),
        "The time without renewal after which a worker's leases expire and others take them; the "
        "same for all workers: a duration from 1s to 10m.",
        default="10s",
        sister=_NO_LEASES,
        aliases=(Alias(name="failoverTimeMillis", origin=_KCL),),
    )
    max_leases: int | None = option(
        "maxLeasesPerWorker",
        integer(1),
        "The most leases of this query: 1 or more. If all workers together take fewer leases than "
        "there are shards, some are not read.",
        unset="no limit",
        sister=_NO_LEASES,
        aliases=(Alias(name="maxLeasesForWorker", origin=_KCL),),
    )
    checkpoint_interval_ms: int = option(
        "checkpointInterval",
        duration(100, _HOUR),
        "The shortest time between two checkpoints of a lease: a duration from 100ms to 1h. The "
        "progress is written at once before a lease is handed over.",
        default="5s",
        sister=_NO_LEASES,
    )
    dynamodb_endpoint_url: str | None = option(
        "dynamodbEndpointUrl",
        url,
        "The endpoint of DynamoDB, such as `http://localhost:8000`.",
        unset="from AWS's configuration",
        sister=_NO_LEASES,
        aliases=(Alias(name="dynamoDBEndpoint", origin=_KCL, convert=url_or_host),),
    )
    table_tags: tuple[tuple[str, str], ...] = option(
        "leaseTableTags",
        _tags,
        "Tags for a table that is created: `team=orders,stage=test`.",
        unset="none",
        empty=(),
        sister=_NO_LEASES,
    )
    table_capacity: tuple[int, int] | None = option(
        "leaseTableReadWriteCapacity",
        _capacity,
        "Capacity for a table that is created: units for reads and writes, such as `10/5`.",
        unset="on demand",
        sister=_NO_LEASES,
    )
    max_outage_ms: int = option(
        "leaseMaxOutage",
        duration(_SECOND, _DAY),
        "How long the table may be unreachable before the query fails; until then the query "
        "continues to read its shards: a duration from 1s to 1d.",
        default="10s",
        default_text="the value of `failoverTime`",
        sister=_NO_LEASES,
    )
    role: LeaseRole | None = None

    def connection(self, streams: ConnectionOptions) -> ConnectionOptions:
        """Return the connection to DynamoDB. `streams`: that of the streams."""
        return table_connection(streams, self.dynamodb_endpoint_url, self.role)


def table_connection(
    streams: ConnectionOptions, endpoint_url: str | None, role: LeaseRole | None
) -> ConnectionOptions:
    """Return the connection to DynamoDB: that of the streams, with another endpoint, and another
    role if there is one."""
    connection = replace(streams, endpoint_url=endpoint_url)
    if role is None:
        return connection
    return replace(
        connection,
        role_arn=role.arn,
        role_external_id=role.external_id,
        role_option="leaseRoleArn",
    )


# --- The source ----------------------------------------------------------------------------------

_FETCHES: Final = "the source sizes its fetches; maxBytesPerTrigger limits a batch"


class SlotAssignment(StrEnum):
    """The slot of a new shard: `FREE` takes a free one, `HASH_RANGE` keeps keys in place."""

    FREE = "free"
    HASH_RANGE = "hash-range"


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisOptions:
    """All options of a query. Times are in milliseconds, sizes in bytes.

    `streams` is sorted by name, unique and not empty. None means: `slots`, the number of open
    shards at the start; the limits of records and bytes, no limit; `leases`, that every shard is
    read; `ending_position`, a streaming query.
    """

    streams: tuple[StreamRef, ...]
    starting_position: StartingPosition
    ending_position: StartingPosition | None = None
    max_records: int | None = option(
        "maxRecords",
        integer(1),
        "Only in a batch read: the approximate maximum of Kinesis records (before they are split), "
        "the oldest of each shard after the start: 1 or more.",
        unset="no limit",
        sister="a batch read has no limit of records; use endingOffsets",
        only=QueryKind.BATCH,
    )
    slots: int | None = option(
        "slots",
        integer(1),
        "The number of tasks that share the shards: 1 or more; fixed while the query runs. Best "
        "the number of cores that the query may use.",
        unset="the number of open shards at the start, at most 64",
        sister="use tasks",
        aliases=(Alias(name="maxPartitions", origin=DATABRICKS),),
    )
    slot_assignment: SlotAssignment = option(
        "slotAssignment",
        member(SlotAssignment),
        "`free`: a new shard takes a free slot; `hash-range`: a slot keeps its range of hash keys.",
        default="free",
        sister="use grouper",
    )
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger",
        integer(1),
        "The approximate maximum of Kinesis records (before they are split) in a batch: 1 or more.",
        unset="no limit",
        sister="use maxOffsetsPerTrigger",
        only=QueryKind.STREAM,
        bounds_batch=True,
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        size(1),
        "The approximate maximum of data in a batch: a size.",
        unset="no limit",
        only=QueryKind.STREAM,
        bounds_batch=True,
    )
    max_bytes_per_shard: int = option(
        "maxBytesPerShard",
        size(0),
        "The approximate maximum of data of one shard in a batch, while the shard is far behind "
        "and neither maxRecordsPerTrigger nor maxBytesPerTrigger is set: a size; 0 means no limit.",
        default="256m",
        sister=_FETCHES,
        only=QueryKind.STREAM,
        bounds_batch=True,
    )
    align_batches: bool = option(
        "alignBatches",
        boolean,
        "End each batch at one instant in all shards, so that no row is late for a watermark "
        "because a shard was read ahead of another one. See [Event time](event-time.md).",
        default="true",
        only=QueryKind.STREAM,
    )
    alignment_timeout_ms: int = option(
        "alignmentTimeout",
        duration(0, _DAY),
        "How long a shard that cannot be read, because it is throttled for instance, holds the "
        "others back under `alignBatches`: a duration.",
        default="5m",
        sister="a partition that cannot be read does not hold the others back",
        only=QueryKind.STREAM,
    )
    is_triggered_by_time: bool = trigger_option()
    """The trigger is declared to be neither availableNow nor once."""
    shard_discovery_interval_ms: int = option(
        "shardDiscoveryInterval",
        duration(100, _DAY),
        "The interval of shard discovery: a duration from 100ms to 1d. More than `10m` counts as "
        "that.",
        default="10s",
        sister="use partitionDiscoveryInterval",
        aliases=(
            Alias(name="shardFetchInterval", origin=DATABRICKS),
            Alias(name="kinesis.describeShardInterval", origin=AWSLABS),
        ),
        only=QueryKind.STREAM,
    )
    max_records_per_fetch: int = option(
        "maxRecordsPerFetch",
        integer(1, 10_000),
        "Records per GetRecords call: 1 to 10000.",
        default="10000",
        sister=_FETCHES,
        aliases=(Alias(name="kinesis.getRecords.numberOfRecordsPerFetch", origin=AWSLABS),),
    )
    min_fetch_period_ms: int = option(
        "minFetchPeriod",
        duration(200, 4 * _MINUTE),
        "The time between two fetches of a shard near its latest record: a duration from 200ms "
        "(the service allows five calls per second) to 4m (iterators live five minutes).",
        default="400ms",
        sister=_FETCHES,
        aliases=(
            Alias(
                name="kinesis.getRecords.fetchIntervalMs",
                origin=AWSLABS,
                convert=integer(200, 4 * _MINUTE),
            ),
        ),
    )
    drop_streams: tuple[StreamName, ...] = option(
        "dropStreams",
        listed(_stream_name),
        "Streams, comma separated, that the query no longer reads: they leave its checkpoint with "
        "their unread records. See [Streams that are no longer "
        "read](kinesis-data-loss.md#streams-that-are-no-longer-read).",
        unset="none",
        empty=(),
        sister="use dropTopics",
        only=QueryKind.STREAM,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        boolean,
        "Fail the query on data loss; if false, log a warning and continue after the gap.",
        default="true",
        aliases=(Alias(name="kinesis.failOnDataLoss", origin=AWSLABS),),
    )
    deaggregate: bool = option(
        "deaggregate",
        boolean,
        "Split records that the Kinesis Producer Library aggregated.",
        default="true",
        sister="it has no meaning for Kafka: a record of Kafka is one row",
    )
    include_repeat_keys: bool = option(
        "includeRepeatKeys",
        boolean,
        "Add the column `repeatKey`, by which rows that the sink wrote twice can be dropped. See "
        "[Duplicates](kinesis-sink.md#duplicates).",
        default="false",
        sister="use includeHeaders and spark_ssp.drop_duplicates",
    )
    max_bytes_in_flight: int = option(
        "maxBytesInFlight",
        size(_MIB),
        "Memory for fetched data in each task: a size of 1m or more.",
        default="64m",
        sister=_FETCHES,
    )
    leases: LeaseOptions | None = None
    fan_out: FanOutOptions | None = None
    connection: ConnectionOptions

    @property
    def lease_table(self) -> str | None:
        """The name of the lease table, if shards are shared."""
        return None if self.leases is None else self.leases.table


KINESIS_OPTIONS: Final = OptionTable(
    options=options_of(
        StreamChoice,
        PositionChoice,
        KinesisOptions,
        FanOutChoice,
        LeaseChoice,
        LeaseOptions,
        ConnectionOptions,
    ),
    foreign=OTHER_CONNECTORS_OPTIONS,
    sister=KAFKA,
    prefixes=(
        "kafka.",
        "kinesis.",
        "retry.",
        "aws",
        "role",
        "sts",
        "stream",
        "slot",
        "consumer",
        "lease",
        "dynamodb",
    ),
)
