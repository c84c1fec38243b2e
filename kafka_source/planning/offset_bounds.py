"""Starts and ends of reading, as users give them: by an edge, by offsets, by times. Pure.

Users who name partitions must name all of them, as Spark wants it, since none is to be forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Final

from kafka_source.client.api import OffsetSpec
from kafka_source.model.topic import AtOffsets, AtTime, AtTimes, Bound, LogicalOffset, kafka_name
from ssp_common.errors import InvalidOptionsError, OptionProblem
from task_grouping.identifiers import SystemStreamPartition

_SOURCE: Final = "kafka-ssp"
_SHOWN = 5

PartitionBounds = Mapping[SystemStreamPartition, int | OffsetSpec]
"""By partition, an offset, or what is to be asked for."""


def bounds_by_partition(
    bound: Bound, partitions: Collection[SystemStreamPartition]
) -> PartitionBounds:
    """What a bound means for each of `partitions`; of those that it should name and does not,
    nothing."""
    match bound:
        case LogicalOffset() | AtTime():
            return dict.fromkeys(sorted(partitions), bound)
        case AtOffsets():
            given: PartitionBounds = bound.offsets
        case AtTimes():
            given = {ssp: AtTime(time_ms=time_ms) for ssp, time_ms in bound.times_ms.items()}
    return {ssp: given[ssp] for ssp in sorted(partitions) if ssp in given}


def option_name(bound: Bound, prefix: str) -> str:
    """The option that a bound comes from; `prefix` is "starting" or "ending"."""
    match bound:
        case AtTime():
            return f"{prefix}Timestamp"
        case AtTimes():
            return f"{prefix}OffsetsByTimestamp"
        case LogicalOffset() | AtOffsets():
            return f"{prefix}Offsets"


def names_exactly(bound: Bound, partitions: Collection[SystemStreamPartition]) -> bool:
    """Whether a bound that names partitions names exactly these; others name none."""
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
    """Raise InvalidOptionsError, which names `option`, unless it names exactly `partitions` or
    none at all."""
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
            (set(partitions) - named, "nothing for ", f"name them{hint}"),
            (named - set(partitions), "what is not there or not read: ", "remove them"),
        )
        if ssps
    ]
    raise InvalidOptionsError(_SOURCE, problems)


def no_offset_for_time(
    option: str, partitions: Collection[SystemStreamPartition]
) -> InvalidOptionsError:
    """For a start by time in partitions that have no record so late."""
    problem = OptionProblem(
        option=option,
        found=f"a time later than every record of {_listed(set(partitions))}",
        expected="records of this time or later in every partition",
        next_step="give an earlier time, or set startingOffsetsByTimestampStrategy to latest",
    )
    return InvalidOptionsError(_SOURCE, [problem])


def _listed(ssps: set[SystemStreamPartition]) -> str:
    names = [kafka_name(ssp) for ssp in sorted(ssps)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
