"""Resolves starts and ends of reading that are given by logical offsets, offsets or times. Users
who name partitions must name all of them, as in Spark, so that none is forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Final, Literal

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.times import time_text
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.client.api import OffsetSpec
from spark_ssp.kafka_source.model.topic import (
    AtOffsets,
    AtTime,
    AtTimes,
    Bound,
    LogicalOffset,
    kafka_name,
)

_SOURCE: Final = "kafka-ssp"
_MAX_SHOWN: Final = 5

PartitionBounds = Mapping[SystemStreamPartition, int | OffsetSpec]
"""An offset, or the spec to request it by, for each partition."""


def bounds_by_partition(
    bound: Bound, partitions: Collection[SystemStreamPartition]
) -> PartitionBounds:
    """Return the bound of each of `partitions`, except those that it should name and does not."""
    match bound:
        case LogicalOffset() | AtTime():
            return dict.fromkeys(sorted(partitions), bound)
        case AtOffsets():
            given: PartitionBounds = bound.offsets
        case AtTimes():
            given = {ssp: AtTime(time_ms=time_ms) for ssp, time_ms in bound.times_ms.items()}
    return {ssp: given[ssp] for ssp in sorted(partitions) if ssp in given}


def times_in(bounds: PartitionBounds) -> dict[SystemStreamPartition, AtTime]:
    """Return the bounds that are times."""
    return {ssp: bound for ssp, bound in bounds.items() if isinstance(bound, AtTime)}


def option_name(bound: Bound, prefix: str) -> str:
    """Return the option of a bound; `prefix` is "starting" or "ending"."""
    match bound:
        case AtTime():
            return f"{prefix}Timestamp"
        case AtTimes():
            return f"{prefix}OffsetsByTimestamp"
        case LogicalOffset() | AtOffsets():
            return f"{prefix}Offsets"


def describe_bound(bound: Bound, kind: Literal["starting", "ending"] = "starting") -> str:
    """Return a bound for a log line."""
    match bound:
        case LogicalOffset():
            return bound.value
        case AtTime(time_ms=time_ms):
            return time_text(time_ms)
        case _:
            return option_name(bound, kind)


def names_exactly(bound: Bound, partitions: Collection[SystemStreamPartition]) -> bool:
    """Return whether the bound names exactly these partitions, or names none by its kind."""
    named = _named(bound)
    return named is None or named == set(partitions)


def _named(bound: Bound) -> Set[SystemStreamPartition] | None:
    match bound:
        case AtOffsets():
            return bound.offsets.keys()
        case AtTimes():
            return bound.times_ms.keys()
        case LogicalOffset() | AtTime():
            return None


def check_names_exactly(
    option: str, bound: Bound, partitions: Collection[SystemStreamPartition]
) -> None:
    """Raise InvalidOptionsError for `option` unless it names exactly `partitions` or none at
    all."""
    if names_exactly(bound, partitions):
        return
    named = set(_named(bound) or ())
    hint = ""
    if isinstance(bound, AtOffsets):
        hint = ": -1 is latest" if option.startswith("ending") else ": -2 is earliest, -1 is latest"
    problems = [
        OptionProblem(
            option=option,
            found=found + _listed(ssps),
            expected="every partition that is read, and no other",
            next_step=next_step,
        )
        for ssps, found, next_step in (
            (set(partitions) - named, "no entry for ", f"name them{hint}"),
            (
                named - set(partitions),
                "partitions missing or not read: ",
                "remove them",
            ),
        )
        if ssps
    ]
    raise InvalidOptionsError(_SOURCE, problems)


def no_offset_for_time(
    option: str, partitions: Collection[SystemStreamPartition]
) -> InvalidOptionsError:
    """Return the error for a start time later than every record of some partitions."""
    problem = OptionProblem(
        option=option,
        found=f"a time later than every record of {_listed(set(partitions))}",
        expected="records of this time or later in every partition",
        next_step="give an earlier time, or set startingOffsetsByTimestampStrategy to latest",
    )
    return InvalidOptionsError(_SOURCE, [problem])


def _listed(ssps: set[SystemStreamPartition]) -> str:
    names = [kafka_name(ssp) for ssp in sorted(ssps)]
    return abbreviate(names, _MAX_SHOWN)
