"""Parses and validates the options of the sink into `SinkOptions`. Runs only on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from spark_ssp.common.options.batch_write import batch_write_problems
from spark_ssp.common.options.spec import (
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    read_options,
)
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options import table as source_table
from spark_ssp.kinesis_source.options.connection_parsing import (
    connection_of,
    credential_problems,
    region_problems,
    streams_of,
    warn,
)
from spark_ssp.kinesis_source.sink import table
from spark_ssp.kinesis_source.sink.values import SinkOptions

SINK: Final = "kinesis-ssp"

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Options of every sink, which Spark reads itself and also passes on."""


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse and validate. Raises InvalidOptionsError with all problems; else warns of the options
    that have no effect, once per call."""
    own = {name: raw[name] for name in raw if name.strip().lower() not in _SPARK_OPTIONS}
    reading = read_options(table.SINK_OPTIONS, own)
    streams = streams_of(reading)
    problems = (
        *reading.problems,
        *_stream_problems(reading, streams),
        *_aggregation_problems(reading),
        *_repeat_key_problems(reading),
        *batch_write_problems(reading, table.BATCH_WRITE_ID, table.INCLUDE_REPEAT_KEYS),
        *region_problems(reading),
        *credential_problems(reading),
    )
    if problems:
        raise InvalidOptionsError(SINK, problems)
    warn(reading, SINK)
    return SinkOptions(
        stream=streams[0] if streams else None,
        is_ordered=reading.value(table.ORDERING),
        is_aggregating=reading.value(table.AGGREGATION),
        include_repeat_keys=reading.value(table.INCLUDE_REPEAT_KEYS),
        batch_write=reading.value(table.BATCH_WRITE_ID),
        delivery_timeout_ms=reading.value(table.DELIVERY_TIMEOUT),
        max_requests_in_flight=reading.value(table.MAX_REQUESTS_IN_FLIGHT),
        connection=connection_of(reading),
    )


def _stream_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    if len(streams) > 1:
        yield OptionProblem(
            option=reading.name(
                source_table.STREAM_NAME
                if reading.given(source_table.STREAM_NAME)
                else source_table.STREAM_ARN
            ),
            found=f"{len(streams)} streams",
            expected="one stream for all rows",
            next_step="name one, or leave it out and add a column stream with the name for each "
            "row",
        )


def _aggregation_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    if reading.value(table.AGGREGATION) and reading.value(table.ORDERING):
        yield OptionProblem(
            option=reading.name(table.AGGREGATION),
            found=f"{reading.name(table.AGGREGATION)}=true together with ordering=key",
            expected="one of them: an aggregate has rows of many keys",
            next_step="leave one of them out",
        )


def _repeat_key_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    if reading.value(table.INCLUDE_REPEAT_KEYS) and not reading.value(table.AGGREGATION):
        yield OptionProblem(
            option=table.INCLUDE_REPEAT_KEYS.name,
            found="true without aggregation=true",
            expected="aggregates: a record that is not aggregated has no place for repeat keys",
            next_step="set aggregation=true if all consumers split aggregates, or remove it",
        )
