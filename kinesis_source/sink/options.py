"""The options of the Kinesis sink: their declarations, their values, and the parser. Executors
receive the values by pickle; only the driver parses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.common.options.endpoints import AWSLABS, ConnectionOptions
from spark_ssp.common.options.shared import BatchWrite, batch_write_option, batch_write_problems
from spark_ssp.common.options.spec import (
    KINESIS,
    Alias,
    ForeignOption,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    OptionTable,
    option,
    options_of,
    read_options,
)
from spark_ssp.common.options.values import boolean, choice, duration, integer
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.compatibility import SINK_OPTIONS_WITHOUT_EFFECT
from spark_ssp.kinesis_source.options.connection import (
    connection_of,
    credential_problems,
    name_and_arn_problem,
    region_problems,
    streams_of,
    warn,
)
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS, StreamChoice

SINK: Final = "kinesis-ssp"

_KEY: Final = "key"
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Options of every sink, which Spark reads itself and also passes on."""


def _is_by_key(text: str) -> bool:
    return choice("none", _KEY)(text) == _KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of a sink. `stream` None: each row names its stream in the column `stream`.
    `is_ordered`: the order of a partition key is kept within a task. `is_aggregating`: rows are
    written as aggregates of the KPL. `batch_write`: the id of the query and the number of the
    batch, for a batch write in `foreachBatch`."""

    stream: StreamRef | None = None
    is_ordered: bool = option(
        "ordering",
        _is_by_key,
        "`key`: within a task, the records of a partition key are stored in the order of the rows, "
        "one after the other. `none`: a record that is sent again may follow later ones.",
        default="none",
    )
    is_aggregating: bool = option(
        "aggregation",
        boolean,
        "Write several rows as one record, in the format of the Kinesis Producer Library, which "
        "every consumer has to split.",
        default="false",
        aliases=(Alias(name="kinesis.sink.aggregationEnabled", origin=AWSLABS),),
    )
    include_repeat_keys: bool = option(
        "includeRepeatKeys",
        boolean,
        "With `aggregation`: add tags to the records, by which a reader can drop rows that were "
        "written again. See [Duplicates](kinesis-sink.md#duplicates).",
        default="false",
    )
    batch_write: BatchWrite | None = batch_write_option("includeRepeatKeys", "stream")
    delivery_timeout_ms: int = option(
        "deliveryTimeout",
        duration(1_000, _DAY_MS),
        "How long a record is sent again after its first refusal, before the task fails: a "
        "duration from 1s to 1d.",
        default="2m",
        aliases=(Alias(name="kinesis.sink.recordTtl", origin=AWSLABS),),
    )
    max_requests_in_flight: int = option(
        "maxRequestsInFlight",
        integer(1, 100),
        "The most concurrent requests of a task: 1 to 100.",
        default="8",
        # It limits the connections of the KPL, which has one for a request.
        aliases=(Alias(name="kinesis.sink.maxConnections", origin=AWSLABS),),
    )
    connection: ConnectionOptions


_OWN: Final = options_of(StreamChoice, SinkOptions, ConnectionOptions)

SINK_OPTIONS: Final = OptionTable(
    options=_OWN,
    foreign=(
        *SINK_OPTIONS_WITHOUT_EFFECT,
        *(
            ForeignOption(
                name=name, origin=KINESIS, refused=False, advice="it is an option of the source"
            )
            for name in (declared.name for declared in KINESIS_OPTIONS.options)
            if name not in {declared.name for declared in _OWN}
        ),
    ),
    prefixes=("kinesis.sink.", "includerepeat"),
)


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse and validate. Raises InvalidOptionsError with all problems; else warns of the options
    that have no effect, once per call."""
    own = {name: raw[name] for name in raw if name.strip().lower() not in _SPARK_OPTIONS}
    reading = read_options(SINK_OPTIONS, own)
    streams = streams_of(reading)
    options = SinkOptions(
        stream=streams[0] if streams else None,
        connection=connection_of(reading),
        **reading.fields(SinkOptions),
    )
    problems = (
        *reading.problems,
        *_stream_problems(reading, streams),
        *_aggregation_problems(reading, options),
        *_repeat_key_problems(options),
        *batch_write_problems(
            reading, "includeRepeatKeys=true", is_included=options.include_repeat_keys
        ),
        *region_problems(reading),
        *credential_problems(reading),
    )
    if problems:
        raise InvalidOptionsError(SINK, problems)
    warn(reading, SINK)
    return options


def _stream_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    if reading.given("streamName") and reading.given("streamARN"):
        yield name_and_arn_problem(reading)
    elif len(streams) > 1:
        yield OptionProblem(
            option=reading.given_names("streamName", "streamARN")[0],
            found=f"{len(streams)} streams",
            expected="one stream for all rows",
            next_step="name one, or leave it out and add a column stream with the name for each "
            "row",
        )


def _aggregation_problems(reading: OptionReading, options: SinkOptions) -> Iterator[OptionProblem]:
    if options.is_aggregating and options.is_ordered:
        name = reading.name("aggregation")
        yield OptionProblem(
            option=name,
            found=f"{name}=true together with ordering=key",
            expected="one of them: an aggregate has rows of many keys",
            next_step="leave aggregation or ordering out",
        )


def _repeat_key_problems(options: SinkOptions) -> Iterator[OptionProblem]:
    if options.include_repeat_keys and not options.is_aggregating:
        yield OptionProblem(
            option="includeRepeatKeys",
            found="true without aggregation=true",
            expected="aggregates: a record that is not aggregated has no place for repeat keys",
            next_step="set aggregation=true if all consumers split aggregates, or remove it",
        )
