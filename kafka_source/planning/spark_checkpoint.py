"""Parses offsets written by Spark's Kafka source, to resume its checkpoints.

    {"orders": {"0": 23, "1": 9}}

The offset of the next record to read, by topic and partition (Spark, `KafkaSourceOffset`). They
contain neither tasks nor topic ids: tasks are computed by grouping, ids stay unknown.

The first offset that is planned after one of Spark's source has this source's format, so its text
differs even if there is nothing to read: Spark then runs one empty batch, and the checkpoint has
changed to this source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError
from spark_ssp.common.versioned_json import Json, whole_number
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, TaskAssignment, up_to
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.offset import (
    BEFORE_FIRST_BATCH,
    Offset,
    Positions,
    decode,
    partition_number,
)
from spark_ssp.kafka_source.model.topic import Selection, kafka_name, partition_of
from spark_ssp.kafka_source.planning.data_loss import DataLoss
from spark_ssp.kafka_source.planning.topic_metadata import topics_read_whole

_SUBJECT: Final = "checkpoint of a kafka-ssp query"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOffset:
    """An offset of Spark's Kafka source."""

    positions: Positions


AnyOffset = Offset | SparkOffset


def decode_any(document: Any) -> AnyOffset:
    """Parse a stored offset, of this source or of Spark's Kafka source. This source's has a number
    as its version; a topic may be called "v". Raises IncompatibleStateError if it is neither."""
    if isinstance(document, dict) and not any(
        name == "v" and not isinstance(entry, dict) for name, entry in document.items()
    ):
        return _decode_spark(document)
    return decode(document)


def _decode_spark(document: Json) -> SparkOffset:
    try:
        positions = {
            partition_of(StreamName(topic), partition_number(number)): whole_number(
                position, what="position"
            )
            for topic, entries in document.items()
            for number, position in entries.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise IncompatibleStateError(
            _SUBJECT,
            found=f"neither an offset of kafka-ssp nor one of Spark's Kafka source ({error})",
            expected='{"v": 2, "topics": ...}, or positions by topic and partition',
            next_step=f"start the query on {NEW_CHECKPOINT}",
        ) from error
    return SparkOffset(positions={ssp: positions[ssp] for ssp in sorted(positions)})


def to_start_offset(
    offset: AnyOffset, grouping: FixedTasks, stored: TaskAssignment = NO_ASSIGNMENT
) -> Offset:
    """Return the start of a batch. For an offset of Spark's source, `grouping` makes the tasks of
    its partitions, so that partitions added since then count as an expansion. `stored` is the
    assignment of an assignment store, if there is one. Raises the errors of `FixedTasks.group`."""
    if isinstance(offset, Offset):
        return offset
    known = up_to(stored, offset.positions.keys())
    return _offset(offset.positions, {}, grouping.group(known, offset.positions.keys()))


def _offset(positions: Positions, explicit_starts: Positions, assignment: TaskAssignment) -> Offset:
    topics = sorted({ssp.stream for ssp in positions})
    return Offset(
        topics=dict.fromkeys(topics),
        positions=positions,
        explicit_starts=explicit_starts,
        assignment=assignment,
    )


# --- A batch that Spark's source planned and did not finish ---------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """The two offsets of a batch that is already planned, and its losses that are known only
    now."""

    start: Offset
    end: Offset
    losses: tuple[DataLoss, ...] = ()


def new_partitions_in_batch(start: AnyOffset, end: AnyOffset) -> tuple[SystemStreamPartition, ...]:
    """Return the partitions whose oldest record must be known to run the batch, sorted. Offsets of
    Spark's source do not contain the start of partitions that are new in the batch."""
    if isinstance(end, Offset):
        return ()
    return tuple(sorted(end.positions.keys() - start.positions.keys()))


def to_batch(
    start: AnyOffset,
    end: AnyOffset,
    grouping: FixedTasks,
    *,
    earliest: Mapping[SystemStreamPartition, int],
    selection: Selection | None = None,
    dropped: Collection[StreamName] = (),
    stored: TaskAssignment = NO_ASSIGNMENT,
) -> PlannedBatch:
    """Return the batch from `start` to `end`, each of this source or of Spark's.

    As in Spark, a partition that is new in a batch starts at its oldest record. `earliest` has that
    offset for `new_partitions_in_batch`; a missing partition no longer exists. The caller raises or
    logs the losses, among them those that the two offsets show: Spark's source logs a batch before
    it fails because of these. Topics in `dropped` have none of them. `stored` is as for
    `to_start_offset`.

    Raises IncompatibleStateError if the batch is unknown: the first one of Spark's source, whose
    start is stored in a file that only that source reads, and a batch of Spark's source after one
    of this source.
    """
    first = to_start_offset(start, grouping, stored)
    if isinstance(end, Offset):
        return PlannedBatch(start=first, end=end)
    if isinstance(start, Offset):
        raise _first_batch() if start == BEFORE_FIRST_BATCH else _mixed()
    losses = list(_losses_between(first.positions, end.positions, dropped))
    # As in Spark, nothing is read from a partition that ends before its start.
    explicit_starts = {
        ssp: stop for ssp, stop in end.positions.items() if stop < first.positions.get(ssp, 0)
    }
    expanded = topics_read_whole(first, selection)
    for ssp in new_partitions_in_batch(start, end):
        oldest, position = earliest.get(ssp), end.positions[ssp]
        explicit_starts[ssp] = position if oldest is None else min(oldest, position)
        if oldest is None or oldest > (0 if ssp.stream in expanded else position):
            losses.append(_expired_start(ssp, oldest))
    assignment = grouping.group(first.assignment, end.positions.keys())
    return PlannedBatch(
        start=first, end=_offset(end.positions, explicit_starts, assignment), losses=tuple(losses)
    )


def _losses_between(
    start: Positions, end: Positions, dropped: Collection[StreamName]
) -> Iterator[DataLoss]:
    """Yield the losses that the two offsets of Spark's source show."""
    kept = {ssp.stream for ssp in end}
    found = "a batch that Spark's Kafka source had planned without it"
    for topic in sorted({ssp.stream for ssp in start} - kept - set(dropped)):
        yield DataLoss(
            subject=f"topic {topic}",
            found=found,
            expected="every topic of the checkpoint",
            unread=topic,
        )
    for ssp in sorted(one for one in start if one.stream in kept - set(dropped)):
        subject = f"partition {kafka_name(ssp)}"
        position, stop = start[ssp], end.get(ssp)
        if stop is None:
            yield DataLoss(
                subject=subject, found=found, expected="every partition of the checkpoint"
            )
        elif stop < position:
            yield DataLoss(
                subject=subject,
                found=f"an end at {stop}, before the position {position}, in a batch that Spark's "
                "Kafka source had planned: the log was truncated, the topic was deleted and "
                "created again, or an open transaction held back its committed records",
                expected=f"an end at {position} or after it",
            )


def _expired_start(ssp: SystemStreamPartition, oldest: int | None) -> DataLoss:
    return DataLoss(
        subject=f"partition {kafka_name(ssp)}",
        found="the partition deleted"
        if oldest is None
        else f"a new partition whose oldest record is {oldest}",
        expected="the records of the batch that Spark's Kafka source had planned",
    )


def _first_batch() -> IncompatibleStateError:
    return IncompatibleStateError(
        _SUBJECT,
        found="the unfinished first batch of Spark's Kafka source, whose start only that source "
        "knows",
        expected="a checkpoint with at least one finished batch",
        next_step='run the query with format("kafka") until a batch is finished, for example with '
        f"the trigger availableNow; or start on {NEW_CHECKPOINT}, with the JSON in the "
        "file sources/0/0 of this one (after its first line, v1) as startingOffsets",
    )


def _mixed() -> IncompatibleStateError:
    return IncompatibleStateError(
        _SUBJECT,
        found="an offset of Spark's Kafka source after one of kafka-ssp",
        expected="offsets of one query that follow each other",
        next_step="do not edit or mix the files of a checkpoint; start on a new one",
    )
