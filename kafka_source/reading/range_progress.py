"""How far the reading of ranges is: says which records to keep, and when a range is done. Pure.

Offsets of a log have gaps: control records, compaction, records of aborted transactions. So a range
is done when its last offset was seen, or anything that lies behind it: a record, or the end of the
log. What was already seen, and what belongs to no open range, is not kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby

from kafka_source.model.ranges import PartitionRange
from task_grouping.identifiers import SystemStreamPartition


def split_generations(ranges: Iterable[PartitionRange]) -> list[tuple[PartitionRange, ...]]:
    """The ranges of a task, in its order, in groups that may be read side by side.

    Those of one generation may: no key is in two of them. A newer generation waits for the older.
    """
    return [tuple(group) for _, group in groupby(ranges, key=lambda range_: range_.generation)]


class RangeProgress:
    """The state of a wave. `advances` counts what brought it further."""

    def __init__(self, ranges: Iterable[PartitionRange]) -> None:
        self._ranges = {range_.ssp: range_ for range_ in ranges}
        self._open = {ssp: range_.start for ssp, range_ in self._ranges.items()}
        self.advances = 0
        for ssp, start in list(self._open.items()):
            self._advance_to(ssp, start)

    @property
    def done(self) -> bool:
        """Whether every range was read to its end."""
        return not self._open

    @property
    def positions(self) -> dict[SystemStreamPartition, int]:
        """The next offset of each range that is not done, in the order of the ranges."""
        return dict(self._open)

    def position(self, ssp: SystemStreamPartition) -> int | None:
        """The next offset; None when the range is done, or is none of this wave."""
        return self._open.get(ssp)

    def range_of(self, ssp: SystemStreamPartition) -> PartitionRange:
        """The range of a partition of this wave."""
        return self._ranges[ssp]

    def select(self, ssp: SystemStreamPartition, offsets: Sequence[int]) -> slice:
        """Which of these consecutive records of a partition are to be kept: offsets, ascending."""
        position = self._open.get(ssp)
        if position is None or not len(offsets):
            return slice(0, 0)
        begin = bisect_left(offsets, position)
        end = bisect_left(offsets, self._ranges[ssp].end, lo=begin)
        if begin < len(offsets):
            self._advance_to(ssp, int(offsets[-1]) + 1)
        return slice(begin, end)

    def reach_end_of_log(self, ssp: SystemStreamPartition, end: int) -> None:
        """The log ends at `end` for now: nothing lies between the position and it."""
        self._advance_to(ssp, end)

    def skip_to(self, ssp: SystemStreamPartition, offset: int) -> None:
        """What lies before `offset` is gone."""
        self._advance_to(ssp, offset)

    def abandon(self, ssp: SystemStreamPartition) -> None:
        """Nothing more of the range is to be had."""
        if ssp in self._open:
            self._advance_to(ssp, self._ranges[ssp].end)

    def _advance_to(self, ssp: SystemStreamPartition, position: int) -> None:
        """Move on to `position`, never back."""
        before = self._open.get(ssp)
        if before is None:
            return
        if position >= self._ranges[ssp].end:
            del self._open[ssp]
            self.advances += 1
        elif position > before:
            self._open[ssp] = position
            self.advances += 1
