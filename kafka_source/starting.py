"""Starts and ends that users name partition by partition: all partitions must be named, as Spark
wants it, since none is to be forgotten. Pure."""

from __future__ import annotations

from collections.abc import Collection

from kafka_source.model import AtOffsets, AtTimes, kafka_name
from ssp_common.errors import InvalidOptionsError, OptionProblem
from task_grouping.identifiers import SystemStreamPartition

_SHOWN = 5


def check_names_all(
    option: str, bound: AtOffsets | AtTimes, partitions: Collection[SystemStreamPartition]
) -> None:
    """Raise InvalidOptionsError, which names `option`, unless it names exactly `partitions`."""
    named = set(bound.points if isinstance(bound, AtOffsets) else bound.millis)
    hint = ": -2 is earliest, -1 is latest" if isinstance(bound, AtOffsets) else ""
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
    if problems:
        raise InvalidOptionsError("kafka-ssp", problems)


def _listed(ssps: set[SystemStreamPartition]) -> str:
    names = [kafka_name(ssp) for ssp in sorted(ssps)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
