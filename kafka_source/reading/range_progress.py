"""Tracks progress through the ranges of a generation: the records to keep, and the finished ranges.

Offsets of a log have gaps: control records, compaction, records of aborted transactions. So a range
is done after its last offset, or anything after it: a record, or the end of the log. Records that
were read before or belong to no open range are not kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby

from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.model.ranges import PartitionRange


def split_generations(ranges: Iterable[PartitionRange]) -> list[tuple[PartitionRange, ...]]:
    """Split the ranges of a task, in order, into groups that may be read concurrently.

    Ranges of one generation may, since they share no key. A newer generation waits for the older.
    """
    return [tuple(group) for _, group in groupby(ranges, key=lambda range_: range_.generation)]


class RangeProgress:
    """The state of a generation of ranges. `advances` counts the steps of progress."""

    def __init__(self, ranges: Iterable[PartitionRange]) -> None:
        self._ranges = {range_.ssp: range_ for range_ in ranges}
        self._open = {ssp: range_.start for ssp, range_ in self._ranges.items()}
        self.advances = 0
        for ssp, start in list(self._open.items()):
            self._advance_to(ssp, start)

    @property
    def done(self) -> bool:
        """True if every range was read to its end."""
        return not self._open

    @property
    def positions(self) -> dict[SystemStreamPartition, int]:
        """The next offset of each unfinished range, in the order of the ranges."""
        return dict(self._open)

    def position(self, ssp: SystemStreamPartition) -> int | None:
        """Return the next offset; None if the range is done or not in this generation."""
        return self._open.get(ssp)

    def range_of(self, ssp: SystemStreamPartition) -> PartitionRange:
        """Return the range of a partition."""
        return self._ranges[ssp]

    def select(self, ssp: SystemStreamPartition, offsets: Sequence[int]) -> slice:
        """Return the records to keep, of consecutive records of a partition with ascending
        offsets."""
        position = self._open.get(ssp)
        if position is None or not len(offsets):
            return slice(0, 0)
        begin = bisect_left(offsets, position)
        end = bisect_left(offsets, self._ranges[ssp].end, lo=begin)
        if begin < len(offsets):
            self._advance_to(ssp, int(offsets[-1]) + 1)
        return slice(begin, end)

    def reach_end_of_log(self, ssp: SystemStreamPartition, end: int) -> None:
        """Advance to the current end of the log: no record is between the position and it."""
        self._advance_to(ssp, end)

    def skip_to(self, ssp: SystemStreamPartition, offset: int) -> None:
        """Skip the records before `offset`, which no longer exist."""
        self._advance_to(ssp, offset)

    def abandon(self, ssp: SystemStreamPartition) -> None:
        """Give up the rest of the range."""
        if ssp in self._open:
            self._advance_to(ssp, self._ranges[ssp].end)

    def _advance_to(self, ssp: SystemStreamPartition, position: int) -> None:
        """Advance to `position`, never back."""
        before = self._open.get(ssp)
        if before is None:
            return
        if position >= self._ranges[ssp].end:
            del self._open[ssp]
            self.advances += 1
        elif position > before:
            self._open[ssp] = position
            self.advances += 1
