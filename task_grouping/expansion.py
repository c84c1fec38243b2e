"""Where the keys of a partition were before its stream was expanded (SEP-5).

Tasks can stay through an expansion if every key of a partition, by then, came from one partition
before. That is so when a key's partition is hash(key) mod n and the count is multiplied, since
(h mod kn) mod n = h mod n.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from ssp_common.options.plugins import Pluggable


@runtime_checkable
class PartitionExpansionAlgorithm(Protocol):
    """How a system divides a stream's keys anew when it adds partitions.

    A class is named by its dotted path (`my_company.kafka.Halving`) and made without arguments.
    """

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        """The partition that had all the keys of partition `current` when there were
        `initial_count` partitions, a divisor of `current_count`.

        A pure function into ``range(initial_count)``. A partition that was there before is
        answered as it is: its keys stayed. It is asked about each change of the count that is seen,
        which may be several expansions: the answer must not hang on the counts between.
        """


class ModuloExpansion:
    """For streams whose producers go by hash(key) mod n, as Kafka's do. The default."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        """See `PartitionExpansionAlgorithm`."""
        return current % initial_count


def load_expansion_algorithm(dotted_path: str) -> PartitionExpansionAlgorithm:
    """The algorithm of the class at `dotted_path`. Raises BadValueError: see `ssp_common`."""
    return _PLUGGABLE.load(dotted_path)


_PLUGGABLE: Final = Pluggable(
    protocol=PartitionExpansionAlgorithm,  # type: ignore[type-abstract]
    method="partition_before_expansion",
    example="my_company.kafka.Halving",
)
