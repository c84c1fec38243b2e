"""The options of the Kinesis sink: their table, and their validation. Used only on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from spark_ssp.common.options.batch_write import batch_write_id, batch_write_problems
from spark_ssp.common.options.spec import (
    Alias,
    ForeignOption,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    OptionSpec,
    OptionTable,
    read_options,
)
from spark_ssp.common.options.values import boolean, choice, duration, integer
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.compatibility import SINK_OPTIONS_WITHOUT_EFFECT
from spark_ssp.kinesis_source.options.connection import CONNECTION_OPTIONS
from spark_ssp.kinesis_source.options.connection_parsing import (
    connection_of,
    credential_problems,
    region_problems,
    streams_of,
    warn,
)
from spark_ssp.kinesis_source.options.table import (
    ENDPOINT_URL,
    KINESIS_OPTIONS,
    REGION,
    STREAM_ARN,
    STREAM_NAME,
)
from spark_ssp.kinesis_source.sink.values import SinkOptions

_AWSLABS: Final = "awslabs"
_SOURCE: Final = "the Kinesis source"
_KEY: Final = "key"

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS


def _is_by_key(text: str) -> bool:
    return choice("none", _KEY)(text) == _KEY


ORDERING: Final[OptionSpec[bool]] = OptionSpec(
    name="ordering",
    convert=_is_by_key,
    default=False,
    default_text="`none`",
    doc="`key`: within a task, the records of a partition key are stored in the order of the rows, "
    "one after the other. `none`: a record that is sent again may follow later ones.",
)

DELIVERY_TIMEOUT: Final[OptionSpec[int]] = OptionSpec(
    name="deliveryTimeout",
    convert=duration(1_000, _DAY_MS),
    default=2 * _MINUTE_MS,
    default_text="`2m`",
    doc="How long a record is sent again after its first refusal, before the task fails: a "
    "duration from 1s to 1d.",
    aliases=(Alias(name="kinesis.sink.recordTtl", origin=_AWSLABS),),
)

MAX_REQUESTS_IN_FLIGHT: Final[OptionSpec[int]] = OptionSpec(
    name="maxRequestsInFlight",
    convert=integer(1, 100),
    default=8,
    default_text="`8`",
    doc="The most concurrent requests of a task: 1 to 100.",
    aliases=(Alias(name="kinesis.sink.maxConnections", origin=_AWSLABS),),
)

AGGREGATION: Final[OptionSpec[bool]] = OptionSpec(
    name="aggregation",
    convert=boolean,
    default=False,
    default_text="`false`",
    doc="Write several rows as one record, in the format of the Kinesis Producer Library, which "
    "every consumer has to split.",
    aliases=(Alias(name="kinesis.sink.aggregationEnabled", origin=_AWSLABS),),
)

INCLUDE_REPEAT_KEYS: Final[OptionSpec[bool]] = OptionSpec(
    name="includeRepeatKeys",
    convert=boolean,
    default=False,
    default_text="`false`",
    doc="With `aggregation`: add tags to the records, by which a reader can drop rows that were "
    "written again. See [Duplicates](kinesis-sink.md#duplicates).",
)

BATCH_WRITE_ID: Final = batch_write_id(INCLUDE_REPEAT_KEYS, "stream")

_STREAMS: Final = (STREAM_NAME, STREAM_ARN, REGION, ENDPOINT_URL)

_OWN: Final[tuple[OptionSpec[Any], ...]] = (
    *_STREAMS,
    ORDERING,
    AGGREGATION,
    INCLUDE_REPEAT_KEYS,
    BATCH_WRITE_ID,
    DELIVERY_TIMEOUT,
    MAX_REQUESTS_IN_FLIGHT,
    *CONNECTION_OPTIONS,
)

SINK_OPTIONS: Final = OptionTable(
    specs=_OWN,
    foreign=(
        *SINK_OPTIONS_WITHOUT_EFFECT,
        *(
            ForeignOption(
                name=spec.name,
                origin=_SOURCE,
                refused=False,
                advice="it is an option of the source",
            )
            for spec in KINESIS_OPTIONS.specs
            if spec not in _OWN and spec.name != INCLUDE_REPEAT_KEYS.name
        ),
    ),
    prefixes=("kinesis.sink.", "includerepeat"),
)
"""`maxConnections` of awslabs limits the connections of the KPL, which has one for a request."""


SINK: Final = "kinesis-ssp"

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Options of every sink, which Spark reads itself and also passes on."""


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse and validate. Raises InvalidOptionsError with all problems; else warns of the options
    that have no effect, once per call."""
    own = {name: raw[name] for name in raw if name.strip().lower() not in _SPARK_OPTIONS}
    reading = read_options(SINK_OPTIONS, own)
    streams = streams_of(reading)
    problems = (
        *reading.problems,
        *_stream_problems(reading, streams),
        *_aggregation_problems(reading),
        *_repeat_key_problems(reading),
        *batch_write_problems(reading, BATCH_WRITE_ID, INCLUDE_REPEAT_KEYS),
        *region_problems(reading),
        *credential_problems(reading),
    )
    if problems:
        raise InvalidOptionsError(SINK, problems)
    warn(reading, SINK)
    return SinkOptions(
        stream=streams[0] if streams else None,
        is_ordered=reading.value(ORDERING),
        is_aggregating=reading.value(AGGREGATION),
        include_repeat_keys=reading.value(INCLUDE_REPEAT_KEYS),
        batch_write=reading.value(BATCH_WRITE_ID),
        delivery_timeout_ms=reading.value(DELIVERY_TIMEOUT),
        max_requests_in_flight=reading.value(MAX_REQUESTS_IN_FLIGHT),
        connection=connection_of(reading),
    )


def _stream_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    if len(streams) > 1:
        yield OptionProblem(
            option=reading.name(STREAM_NAME if reading.given(STREAM_NAME) else STREAM_ARN),
            found=f"{len(streams)} streams",
            expected="one stream for all rows",
            next_step="name one, or leave it out and add a column stream with the name for each "
            "row",
        )


def _aggregation_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    if reading.value(AGGREGATION) and reading.value(ORDERING):
        yield OptionProblem(
            option=reading.name(AGGREGATION),
            found=f"{reading.name(AGGREGATION)}=true together with ordering=key",
            expected="one of them: an aggregate has rows of many keys",
            next_step="leave aggregation or ordering out",
        )


def _repeat_key_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    if reading.value(INCLUDE_REPEAT_KEYS) and not reading.value(AGGREGATION):
        yield OptionProblem(
            option=INCLUDE_REPEAT_KEYS.name,
            found="true without aggregation=true",
            expected="aggregates: a record that is not aggregated has no place for repeat keys",
            next_step="set aggregation=true if all consumers split aggregates, or remove it",
        )
