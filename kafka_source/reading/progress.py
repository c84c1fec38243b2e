"""Progress through the ranges of a generation, and the reason why a partition makes none.

Offsets of a log have gaps: control records, compaction, records of aborted transactions. So a range
is done after its last offset, or anything after it: a record, or the end of the log. Records that
were read before or belong to no open range are not kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.ranges import PartitionRange
from spark_ssp.kafka_source.model.topic import TopicId, kafka_name
from spark_ssp.kafka_source.planning.data_loss import DataLoss


def split_generations(ranges: Iterable[PartitionRange]) -> list[tuple[PartitionRange, ...]]:
    """Split the ranges of a task, in order, into groups that may be read concurrently. Ranges of
    one generation may, since they share no key. A newer generation waits for the older."""
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


# --- Stalled partitions ---------------------------------------------------------------------------
#
# For a moment after a topic was created or deleted or a leader was elected, brokers contradict each
# other; a leader that was paused knows neither its successor nor the records since. A log that
# begins after the position is certain nevertheless. A deleted topic or partition, a log that ends
# before the position, or a topic with another id, which may be that of the previous topic, must be
# confirmed several times; a log that ends within the range is certain after a timeout, as is a
# deletion or an end before the position that the query tolerates: the topic may only be hidden, or
# the leader behind, for a while.

CONFIRMATIONS: Final = 3
"""The number of checks in a row that must agree on one of these."""

CONFIRM_INTERVAL_S: Final = 1.0
"""The pause between such checks, where reading waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The topic, the earliest offset and the end of a partition, as returned by brokers; None if
    missing."""

    topic: TopicDescription | None
    earliest: int | None
    end: int | None


class StallReason(StrEnum):
    """The reason why a partition makes no progress."""

    OK = "ok"
    """Nothing is lost: there are records to read, or brokers answered from outdated metadata."""
    DELETED = "deleted"
    RECREATED = "recreated"
    EXPIRED = "expired"
    TRUNCATED = "truncated"
    """The log ends before the position."""
    REWRITTEN = "rewritten"
    """Records before the position were truncated, and the log has grown past it again."""
    INCOMPLETE = "incomplete"
    """The log ends before the end of the range, at the position or after it."""


def is_recreated(range_: PartitionRange, topic: TopicDescription | None) -> bool:
    """Return whether the topic has another id than the planned one. Unknown ids are ignored."""
    ids = {range_.topic_id, None if topic is None else topic.topic_id}
    return topic is not None and None not in ids and len(ids) > 1


def diagnose(
    range_: PartitionRange, position: int, status: PartitionStatus, *, truncated: bool = False
) -> StallReason:
    """Return why a range that was read up to `position` makes no progress; `truncated` if brokers
    have reported that records before it were truncated."""
    topic = status.topic
    if topic is None:
        return StallReason.DELETED
    if is_recreated(range_, topic):
        return StallReason.RECREATED
    if topic.partition_count <= range_.ssp.partition:
        # Kafka deletes no single partition: with a known id, such an answer is outdated.
        unknown = None in (range_.topic_id, topic.topic_id)
        return StallReason.DELETED if unknown else StallReason.OK
    if status.earliest is not None and status.earliest > position:
        return StallReason.EXPIRED
    if status.end is not None and status.end < position:
        return StallReason.TRUNCATED
    if truncated:
        return StallReason.REWRITTEN
    if status.end is not None and status.end < range_.end:
        return StallReason.INCOMPLETE
    return StallReason.OK


def to_data_loss(
    range_: PartitionRange, position: int, reason: StallReason, status: PartitionStatus
) -> DataLoss:
    """Return the data loss that corresponds to a reason."""
    recreated: tuple[StreamName, TopicId] | None = None
    reading = f"while it was read from {position} up to {range_.end}"
    match reason:
        case StallReason.DELETED:
            found, expected = (
                f"the partition deleted {reading}",
                "an existing partition",
            )
        case StallReason.RECREATED:
            now = None if status.topic is None else status.topic.topic_id
            found = f"the topic deleted and created again (id {now}) {reading}"
            expected = f"the planned topic (id {range_.topic_id})"
            recreated = None if now is None else (range_.ssp.stream, now)
        case StallReason.EXPIRED:
            found = f"its oldest record at {status.earliest} {reading}"
            expected = "reading within the topic's retention"
        case StallReason.REWRITTEN:
            found = f"a log that was truncated and written again {reading}"
            expected = "a log that keeps the records it has returned"
        case _:
            found = (
                f"an end at {status.end} {reading}: the log was truncated, or the topic was "
                "deleted and created again"
            )
            expected = f"an end at {range_.end} or after it"
    return DataLoss(
        subject=f"partition {kafka_name(range_.ssp)}",
        found=found,
        expected=expected,
        recreated=recreated,
        unread=range_.ssp.stream if status.topic is None else None,
    )
