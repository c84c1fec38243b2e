"""Finds the partition that had a partition's keys before its stream was expanded (SEP-5).

Tasks can stay through an expansion if every key of a partition, by then, came from one partition
before. That is so when a key's partition is hash(key) mod n and the count is multiplied, since
(h mod kn) mod n = h mod n.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from spark_ssp.common.options.plugins import PluginSpec


@runtime_checkable
class PartitionExpansionAlgorithm(Protocol):
    """Maps a partition to the one that had its keys before the system added partitions.

    A class is named by its dotted path (`my_company.kafka.Halving`) and made without arguments.
    """

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        """Return the partition that had all the keys of partition `current` when there were
        `initial_count` partitions, a divisor of `current_count`.

        A pure function into `range(initial_count)`. A partition below
        `initial_count` maps to itself: its keys stayed. It is called for each observed change of
        the count, which may be several expansions: the result must not depend on counts between.
        """


class ModuloExpansion:
    """The default: for streams whose producers choose partition hash(key) mod n, as Kafka's do."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        """Return `current` modulo the initial count."""
        return current % initial_count


def load_expansion_algorithm(dotted_path: str) -> PartitionExpansionAlgorithm:
    """Return an instance of the class at `dotted_path`. Raises BadValueError."""
    return _PLUGGABLE.load(dotted_path)


_PLUGGABLE: Final = PluginSpec(
    protocol=PartitionExpansionAlgorithm,  # type: ignore[type-abstract]
    method="partition_before_expansion",
    example="my_company.kafka.Halving",
)
