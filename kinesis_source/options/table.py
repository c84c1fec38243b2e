"""The option table of the Kinesis source: names, defaults, meanings, and other products' names.

The reference in the documentation is checked against this table. `connection` and `leases` contain
parts of it; `parse` checks the options against each other.
"""

from __future__ import annotations

from typing import Any, Final

from spark_ssp.common.options.sibling_format import KINESIS, options_of_sister
from spark_ssp.common.options.spec import (
    Alias,
    OptionSpec,
    OptionTable,
)
from spark_ssp.common.options.trigger import TRIGGER
from spark_ssp.common.options.values import (
    boolean,
    choice,
    duration,
    integer,
    listed,
    matching,
    size,
    url,
    url_or_host,
)
from spark_ssp.kinesis_source.model.shard import Latest
from spark_ssp.kinesis_source.options.compatibility import OTHER_CONNECTORS_OPTIONS
from spark_ssp.kinesis_source.options.connection import CONNECTION_OPTIONS
from spark_ssp.kinesis_source.options.fan_out import FAN_OUT_OPTIONS
from spark_ssp.kinesis_source.options.leases import LEASE_OPTIONS
from spark_ssp.kinesis_source.options.starting_position import ParsedStart, parse_end, parse_start
from spark_ssp.kinesis_source.options.values import SlotAssignment

_DATABRICKS: Final = "Databricks"
_AWSLABS: Final = "awslabs"

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_DAY: Final = 24 * 60 * _MINUTE
_MIB: Final = 1 << 20


# --- Converters ----------------------------------------------------------------------------------


def _stream_name(text: str) -> str:
    convert = matching(
        "[a-zA-Z0-9_.-]{1,128}",
        "stream names of 1 to 128 letters, digits, '_', '.' and '-', comma separated",
        "use streamARN for an ARN" if text.startswith("arn:") else "give the stream's name",
    )
    return convert(text)


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

_region: Final = matching(
    # A host label that does not end like an availability zone (eu-west-1a).
    r"(?![a-z]+(-[a-z]+)+-[0-9]+[a-z]$)[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
    "a region's code such as eu-west-1",
    "write the code, without the letter of an availability zone",
)


def _assignment(text: str) -> SlotAssignment:
    return SlotAssignment(choice(*SlotAssignment)(text))


# --- Streams and positions ------------------------------------------------------------------------

STREAM_NAME: Final[OptionSpec[tuple[str, ...]]] = OptionSpec(
    name="streamName",
    convert=listed(_stream_name),
    default=(),
    default_text="this or `streamARN`",
    doc="One stream, or several, comma separated.",
    aliases=(Alias(name="kinesis.streamName", origin=_AWSLABS),),
)

STREAM_ARN: Final[OptionSpec[tuple[str, ...]]] = OptionSpec(
    name="streamARN",
    convert=listed(_stream_arn),
    default=(),
    default_text="this or `streamName`",
    doc="The same by ARN; all in one region, with different names.",
)

REGION: Final[OptionSpec[str | None]] = OptionSpec(
    name="region",
    convert=_region,
    default=None,
    default_text="from `streamARN`, else from an `endpointUrl` of AWS, else AWS's configuration",
    doc="The streams' region.",
    aliases=(
        Alias(name="kinesis.kinesisRegion", origin=_AWSLABS),
        Alias(name="kinesis.region", origin=_AWSLABS),
    ),
)

ENDPOINT_URL: Final[OptionSpec[str | None]] = OptionSpec(
    name="endpointUrl",
    convert=url,
    default=None,
    default_text="from AWS's configuration",
    doc="The endpoint of Kinesis, such as `http://localhost:4567`.",
    aliases=(
        Alias(name="endpoint", origin=_DATABRICKS, convert=url_or_host),
        Alias(name="kinesis.endpointUrl", origin=_AWSLABS),
    ),
)

STARTING_POSITION: Final[OptionSpec[ParsedStart]] = OptionSpec(
    name="startingPosition",
    convert=parse_start,
    default=ParsedStart(default=Latest()),
    default_text="`latest`",
    doc="The start of a new query: `latest`, `trim_horizon` (or `earliest`), "
    "`at_timestamp <time>`, or JSON by shard. See [below](#where-a-query-starts). In a batch read "
    "the default is `trim_horizon`.",
    aliases=(
        Alias(name="initialPosition", origin=_DATABRICKS),
        Alias(name="kinesis.startingPosition", origin=_AWSLABS),
    ),
)

ENDING_POSITION: Final[OptionSpec[ParsedStart]] = OptionSpec(
    name="endingPosition",
    convert=parse_end,
    default=ParsedStart(default=Latest()),
    default_text="`latest`",
    doc="Only in a batch read: its end, with the syntax of `startingPosition`. See "
    "[below](#where-a-batch-read-ends).",
)

MAX_RECORDS: Final[OptionSpec[int | None]] = OptionSpec(
    name="maxRecords",
    convert=integer(1),
    default=None,
    default_text="no limit",
    doc="Only in a batch read: the approximate maximum of Kinesis records (before they are split), "
    "the oldest of each shard after the start: 1 or more.",
)

DROP_STREAMS: Final[OptionSpec[tuple[str, ...]]] = OptionSpec(
    name="dropStreams",
    convert=listed(_stream_name),
    default=(),
    default_text="none",
    doc="Streams, comma separated, that the query no longer reads: they leave its checkpoint with "
    "their unread records. See [Streams that are no longer "
    "read](kinesis.md#streams-that-are-no-longer-read).",
)

FAIL_ON_DATA_LOSS: Final[OptionSpec[bool]] = OptionSpec(
    name="failOnDataLoss",
    convert=boolean,
    default=True,
    default_text="`true`",
    doc="Fail the query on data loss; if false, log a warning and continue after the gap.",
    aliases=(Alias(name="kinesis.failOnDataLoss", origin=_AWSLABS),),
)

DEAGGREGATE: Final[OptionSpec[bool]] = OptionSpec(
    name="deaggregate",
    convert=boolean,
    default=True,
    default_text="`true`",
    doc="Split records that the Kinesis Producer Library aggregated.",
)

INCLUDE_REPEAT_KEYS: Final[OptionSpec[bool]] = OptionSpec(
    name="includeRepeatKeys",
    convert=boolean,
    default=False,
    default_text="`false`",
    doc="Add the column `repeatKey`, by which rows that the sink wrote twice can be dropped. See "
    "[Duplicates](kinesis-sink.md#duplicates).",
)

# --- Tasks and limits ----------------------------------------------------------------------------

SLOTS: Final[OptionSpec[int | None]] = OptionSpec(
    name="slots",
    convert=integer(1),
    default=None,
    default_text="the number of open shards at the start, at most 64",
    doc="The number of tasks that share the shards: 1 or more; fixed while the query runs. Best "
    "the number of cores that the query may use.",
    aliases=(Alias(name="maxPartitions", origin=_DATABRICKS),),
)

SLOT_ASSIGNMENT: Final[OptionSpec[SlotAssignment]] = OptionSpec(
    name="slotAssignment",
    convert=_assignment,
    default=SlotAssignment.FREE,
    default_text="`free`",
    doc="`free`: a new shard takes a free slot; `hash-range`: a slot keeps its range of hash keys.",
)

MAX_RECORDS_PER_TRIGGER: Final[OptionSpec[int | None]] = OptionSpec(
    name="maxRecordsPerTrigger",
    convert=integer(1),
    default=None,
    default_text="no limit",
    doc="The approximate maximum of Kinesis records (before they are split) in a batch: 1 or more.",
)

MAX_BYTES_PER_TRIGGER: Final[OptionSpec[int | None]] = OptionSpec(
    name="maxBytesPerTrigger",
    convert=size(1),
    default=None,
    default_text="no limit",
    doc="The approximate maximum of data in a batch: a size.",
)

MAX_BYTES_PER_SHARD: Final[OptionSpec[int]] = OptionSpec(
    name="maxBytesPerShard",
    convert=size(0),
    default=256 << 20,
    default_text="`256m`",
    doc="The approximate maximum of data of one shard in a batch, while the shard is far behind "
    "and neither maxRecordsPerTrigger nor maxBytesPerTrigger is set: a size; 0 means no limit.",
)

SHARD_DISCOVERY_INTERVAL: Final[OptionSpec[int]] = OptionSpec(
    name="shardDiscoveryInterval",
    convert=duration(100, _DAY),
    default=10 * _SECOND,
    default_text="`10s`",
    doc="The interval of shard discovery: a duration from 100ms to 1d.",
    aliases=(
        Alias(name="shardFetchInterval", origin=_DATABRICKS),
        Alias(name="kinesis.describeShardInterval", origin=_AWSLABS),
    ),
)

MAX_RECORDS_PER_FETCH: Final[OptionSpec[int]] = OptionSpec(
    name="maxRecordsPerFetch",
    convert=integer(1, 10_000),
    default=10_000,
    default_text="`10000`",
    doc="Records per GetRecords call: 1 to 10000.",
    aliases=(Alias(name="kinesis.getRecords.numberOfRecordsPerFetch", origin=_AWSLABS),),
)

MIN_FETCH_PERIOD: Final[OptionSpec[int]] = OptionSpec(
    name="minFetchPeriod",
    convert=duration(200, 4 * _MINUTE),
    default=400,
    default_text="`400ms`",
    doc="The time between two fetches of a shard near its latest record: a duration from 200ms "
    "(the service allows five calls per second) to 4m (iterators live five minutes).",
    aliases=(
        Alias(
            name="kinesis.getRecords.fetchIntervalMs",
            origin=_AWSLABS,
            convert=integer(200, 4 * _MINUTE),
        ),
    ),
)

MAX_BYTES_IN_FLIGHT: Final[OptionSpec[int]] = OptionSpec(
    name="maxBytesInFlight",
    convert=size(_MIB),
    default=64 * _MIB,
    default_text="`64m`",
    doc="Memory for fetched data in each task: a size of 1m or more.",
)

_SPECS: Final[tuple[OptionSpec[Any], ...]] = (
    STREAM_NAME,
    STREAM_ARN,
    REGION,
    ENDPOINT_URL,
    STARTING_POSITION,
    ENDING_POSITION,
    MAX_RECORDS,
    *FAN_OUT_OPTIONS,
    DROP_STREAMS,
    FAIL_ON_DATA_LOSS,
    DEAGGREGATE,
    INCLUDE_REPEAT_KEYS,
    SLOTS,
    SLOT_ASSIGNMENT,
    MAX_RECORDS_PER_TRIGGER,
    MAX_BYTES_PER_TRIGGER,
    MAX_BYTES_PER_SHARD,
    TRIGGER,
    SHARD_DISCOVERY_INTERVAL,
    MAX_RECORDS_PER_FETCH,
    MIN_FETCH_PERIOD,
    MAX_BYTES_IN_FLIGHT,
    *LEASE_OPTIONS,
    *CONNECTION_OPTIONS,
)

KINESIS_OPTIONS: Final = OptionTable(
    specs=_SPECS,
    foreign=(*OTHER_CONNECTORS_OPTIONS, *options_of_sister(KINESIS, *_SPECS)),
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
