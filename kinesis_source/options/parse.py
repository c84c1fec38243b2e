"""Parses Spark's map of options into `KinesisOptions` and checks the options against each other.

Runs only on the driver; executors receive the result by pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kinesis_source.model.shard import StartingPosition, StreamRef
from kinesis_source.options import table
from kinesis_source.options.connection_parsing import (
    connection_of,
    credential_problems,
    region_problems,
    stream_problems,
    streams_of,
    warn,
)
from kinesis_source.options.leases import (
    APPLICATION_NAME,
    LEASE_TABLE,
    lease_options,
    lease_problems,
)
from kinesis_source.options.starting_position import resolve_start
from kinesis_source.options.values import KinesisOptions
from ssp_common.options.spec import (
    BadValueError,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    read_options,
)
from ssp_common.options.trigger import TRIGGER, trigger_problems

SOURCE: Final = "kinesis-ssp"

_BOUNDING: Final = (
    table.MAX_RECORDS_PER_TRIGGER,
    table.MAX_BYTES_PER_TRIGGER,
    table.MAX_BYTES_PER_SHARD,
    APPLICATION_NAME,
    LEASE_TABLE,
)
"""A batch may leave records unread: above a limit, or in shards whose leases are taken later."""


def parse_options(
    raw: Mapping[str, str], *, pyspark_without_limits: str | None = None
) -> KinesisOptions:
    """Parse and check the options; log a warning for those without effect.

    `pyspark_without_limits` is the installed version of a PySpark that passes no limits.

    Raises InvalidOptionsError, which lists every problem.
    """
    reading = read_options(table.KINESIS_OPTIONS, raw)
    streams = streams_of(reading)
    start, start_problems = _start(reading, streams)
    problems = (
        *reading.problems,
        *stream_problems(reading, streams),
        *start_problems,
        *region_problems(reading),
        *credential_problems(reading),
        *lease_problems(reading),
        *trigger_problems(reading, _BOUNDING, pyspark_without_limits),
    )
    if problems:
        raise InvalidOptionsError(SOURCE, problems)
    warn(reading, SOURCE)
    return KinesisOptions(
        streams=streams,
        starting_position=start,
        slots=reading.value(table.SLOTS),
        slot_assignment=reading.value(table.SLOT_ASSIGNMENT),
        max_records_per_trigger=reading.value(table.MAX_RECORDS_PER_TRIGGER),
        max_bytes_per_trigger=reading.value(table.MAX_BYTES_PER_TRIGGER),
        is_triggered_by_time=reading.value(TRIGGER) is not None,
        max_bytes_per_shard=reading.value(table.MAX_BYTES_PER_SHARD),
        shard_discovery_interval_ms=reading.value(table.SHARD_DISCOVERY_INTERVAL),
        max_records_per_fetch=reading.value(table.MAX_RECORDS_PER_FETCH),
        min_fetch_period_ms=reading.value(table.MIN_FETCH_PERIOD),
        fail_on_data_loss=reading.value(table.FAIL_ON_DATA_LOSS),
        deaggregate=reading.value(table.DEAGGREGATE),
        max_bytes_in_flight=reading.value(table.MAX_BYTES_IN_FLIGHT),
        leases=lease_options(reading),
        connection=connection_of(reading),
    )


# --- Streams and their start ---------------------------------------------------------------------


def _start(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> tuple[StartingPosition, tuple[OptionProblem, ...]]:
    parsed = reading.value(table.STARTING_POSITION)
    if not streams:
        # The map cannot be checked; the missing streams are reported elsewhere.
        return StartingPosition(default=parsed.default), ()
    try:
        return resolve_start(parsed, [stream.name for stream in streams]), ()
    except BadValueError as error:
        option = reading.name(table.STARTING_POSITION)
        return StartingPosition(default=parsed.default), tuple(
            OptionProblem(
                option=option,
                found=fault.found,
                expected=fault.expected,
                next_step=fault.next_step,
            )
            for fault in error.faults
        )
