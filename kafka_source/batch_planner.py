"""The driver's side of a query: from one offset to the next.

`BatchPlanner` brings together what `finding` sees and what `planning` decides. Between two calls it
holds only what may be lost at any time; a batch that is planned already needs its two offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from checkpoint.assignments.store import AssignmentStore
from checkpoint.assignments.sync import AssignmentSync, with_store_uri
from kafka_source.client.api import KafkaService
from kafka_source.model.offset import Offset
from kafka_source.model.ranges import TaskRange, plan_ranges
from kafka_source.model.topic import AtTime, LogicalOffset, partition_of
from kafka_source.options.values import KafkaOptions
from kafka_source.planning.data_loss import log_data_loss
from kafka_source.planning.grouper_factory import create_grouping
from kafka_source.planning.missed_expansions import (
    SuspectedCount,
    find_expansions,
    suspected_counts,
)
from kafka_source.planning.moved_topics import (
    check_same_offsets,
    may_have_moved,
    moved_topics,
    positions_in,
    with_accepted_ids,
)
from kafka_source.planning.offset_fetcher import MetadataSnapshot, OffsetFetcher
from kafka_source.planning.plan_batch import BatchRules, explain_recreated, plan_batch
from kafka_source.planning.rate_limit import UNLIMITED, ReadLimits, TriggerDelay
from kafka_source.planning.record_size_estimator import ReadTask, RecordSizeEstimator
from kafka_source.planning.spark_checkpoint import (
    AnyOffset,
    new_partitions_in_batch,
    to_batch,
    to_start_offset,
)
from kafka_source.planning.topic_metadata import (
    find_start_positions,
    offsets_of,
    partitions_of,
    raise_data_loss,
    topic_losses,
)
from ssp_common.errors import IncompatibleStateError
from ssp_common.logs import abbreviate
from task_grouping.assignment import NO_ASSIGNMENT, TaskAssignment
from task_grouping.fixed_tasks import FixedTasks, PartitionCountError
from task_grouping.identifiers import EpochMillis, StreamName, WorkerId
from task_grouping.merging import SINGLE, inherit

_log = logging.getLogger(f"spark_ssp.{__name__}")

WORKER: Final = WorkerId("0")
"""Names the task of grouper=single, "Task-0": a query is one worker, wherever it runs."""


class BatchPlanner:
    """Plans one query's batches. Not thread-safe: Spark calls it from one thread.

    `monotonic` is a clock in seconds and `sleep` waits that many; `read` reads as a task does.
    `store` is what the option assignmentStore names.
    """

    def __init__(
        self,
        options: KafkaOptions,
        service: KafkaService,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        read: ReadTask,
        store: AssignmentStore | None = None,
    ) -> None:
        self._options = options
        self._service = service
        self._monotonic = monotonic
        self._groupings: dict[str, FixedTasks] = {}
        """By the label of the grouper that made the tasks of a start."""
        self._fetcher = OffsetFetcher(options, service, monotonic=monotonic, sleep=sleep)
        self._estimates = RecordSizeEstimator(read, monotonic)
        self._store = store
        self._keeping: AssignmentSync | None = None
        self._planned_at: float | None = None
        """When a batch was last planned in earnest, for minOffsetsPerTrigger."""
        self._lag: dict[StreamName, dict[int, int]] = {}

    # --- What Spark asks -------------------------------------------------------------------------

    def next_offset(self, start: AnyOffset, limits: ReadLimits | None) -> Offset | None:
        """The end of the next batch; None when there is nothing to read and nothing to record.

        `limits` None: all there is, whatever the options say. Raises what `OffsetFetcher.fetch` and
        `plan_batch` raise.
        """
        grouping = self._grouping(start)
        begin = self._begin(start, grouping)
        if (moved := self._moved(begin)) is not begin:
            # It may become this batch's end, whose `begins` would be where to begin.
            begin = replace(moved, explicit_starts={})
        snapshot = self._fetcher.fetch(begin, inherit(begin.assignment, self._stored()))
        if self._options.fail_on_data_loss:
            # Before the store is asked: a topic that was created again may have another count.
            raise_data_loss(tuple(topic_losses(begin, snapshot.metadata)))
        rules = BatchRules(
            grouping=grouping,
            fail_on_data_loss=self._options.fail_on_data_loss,
            limits=self._limits(begin, snapshot, limits),
            trigger_delay=self._trigger_delay(limits),
            initial_positions=snapshot.initial_positions,
            previous=self._agreed(begin, snapshot),
        )
        plan = plan_batch(begin, snapshot.metadata, rules)
        log_data_loss(plan.losses)
        if not plan.delayed:
            self._planned_at = self._monotonic()
        self._note_lag(snapshot, plan.end)
        if plan.end is begin and begin is start:
            return None
        _log_changes(begin.assignment, plan.end.assignment)
        self._warn_of_unseen_counts(begin.assignment, plan.end.assignment)
        return plan.end

    def stop_at_latest(self) -> None:
        """From now on read what there is at this moment and no more: neither records nor
        partitions nor topics that come later."""
        self._fetcher.freeze()

    def ranges(self, start: AnyOffset, end: AnyOffset) -> tuple[TaskRange, ...]:
        """What the tasks of a batch read. Of this source's offsets nothing else is needed; where
        Spark's own source planned the batch, brokers are asked where new partitions begin."""
        if isinstance(start, Offset) and isinstance(end, Offset):
            return () if start == end else plan_ranges(start, self._moved(end))
        grouping = self._grouping(start)
        self._begin(start, grouping)
        fresh = new_partitions_in_batch(start, end)
        answers = self._service.list_offsets(fresh, LogicalOffset.EARLIEST) if fresh else {}
        batch = to_batch(
            start,
            end,
            grouping,
            earliest={ssp: offset for ssp, offset in answers.items() if offset is not None},
            previous=self._stored(),
        )
        if self._options.fail_on_data_loss:
            raise_data_loss(batch.losses)
        log_data_loss(batch.losses)
        return plan_ranges(batch.start, batch.end)

    def close(self) -> None:
        """Let go of the store's connections."""
        if self._store is not None:
            self._store.close()

    def lag(self) -> Mapping[StreamName, Mapping[int, int]]:
        """Offsets behind the end, by topic and partition, after the batch planned last."""
        return self._lag

    # --- Inside ----------------------------------------------------------------------------------

    def _grouping(self, start: AnyOffset) -> FixedTasks:
        """Return the grouper for the partitions after `start`, by which the store is updated
        too."""
        label = start.assignment.grouper if isinstance(start, Offset) else ""
        if label not in self._groupings:
            self._groupings[label] = create_grouping(self._options, WORKER, label)
        grouping = self._groupings[label]
        if self._store is not None and (
            self._keeping is None or self._keeping.grouping != grouping
        ):
            self._keeping = AssignmentSync(self._store, grouping)
        return grouping

    def _moved(self, offset: Offset) -> Offset:
        """Return the offset with the new ids of topics that moved to another cluster
        (`moved_topics`). Brokers are asked only while the offset has other ids than
        acceptTopicIds."""
        accepted = self._options.accept_topic_ids
        if not may_have_moved(offset, accepted):
            return offset
        topics = moved_topics(offset, self._service.describe(self._options.selection), accepted)
        if not topics:
            return offset
        positions = positions_in(offset, topics)
        check_same_offsets(
            positions, self._service.list_offsets(positions.keys(), LogicalOffset.LATEST)
        )
        _log.warning("Accepted as the same topics by acceptTopicIds: %s.", abbreviate(topics))
        return with_accepted_ids(offset, topics, accepted)

    def _begin(self, start: AnyOffset, grouping: FixedTasks) -> Offset:
        """The start as this source writes it. Errors name the store: without one, partitions of an
        offset of Spark's are grouped from nothing."""
        stored = self._stored()
        try:
            return to_start_offset(start, grouping, stored)
        except (PartitionCountError, IncompatibleStateError) as error:
            raise error if self._store is None else with_store_uri(error, self._store) from error

    def _stored(self) -> TaskAssignment:
        return NO_ASSIGNMENT if self._keeping is None else self._keeping.stored()

    def _agreed(self, start: Offset, snapshot: MetadataSnapshot) -> TaskAssignment:
        """What the store has to say of the streams found, by now including what is new: it stands
        there before Spark logs an offset that has it."""
        if self._keeping is None:
            return NO_ASSIGNMENT
        with explain_recreated(start, snapshot.metadata):
            return self._keeping.previous(start.assignment, partitions_of(snapshot.metadata))

    def _warn_of_unseen_counts(self, before: TaskAssignment, now: TaskAssignment) -> None:
        if now.grouper == SINGLE:
            return  # With a single task, no key can move.
        for expansion in find_expansions(before, now):
            new = [
                partition_of(expansion.stream.stream, number)
                for number in range(expansion.old, expansion.new)
            ]
            times = self._service.first_timestamps(new)
            for found in suspected_counts(
                expansion, {ssp.partition: times.get(ssp) for ssp in new}
            ):
                if found.is_likely(self._records_before(found)):
                    _log.warning("%s", found.warning())
                    break

    def _records_before(self, found: SuspectedCount) -> dict[int, int]:
        """Return, by partition, the number of records older than the end of the suspected count."""
        stream = found.expansion.stream.stream
        early = [partition_of(stream, number) for number in found.early]
        ends = self._service.list_offsets(early, LogicalOffset.LATEST)
        if found.until is not None:
            until = self._service.list_offsets(early, AtTime(time_ms=EpochMillis(found.until)))
            ends = {ssp: end if until.get(ssp) is None else until[ssp] for ssp, end in ends.items()}
        starts = self._service.list_offsets(early, LogicalOffset.EARLIEST)
        return {ssp.partition: (ends.get(ssp) or 0) - (starts.get(ssp) or 0) for ssp in early}

    def _limits(
        self, start: Offset, snapshot: MetadataSnapshot, limits: ReadLimits | None
    ) -> ReadLimits:
        if limits is None or limits.max_bytes is None:
            return limits or UNLIMITED
        positions = find_start_positions(
            start, snapshot.metadata, snapshot.initial_positions
        ).positions
        return replace(
            limits, bytes_per_offset=self._estimates.estimate(snapshot.metadata, positions)
        )

    def _trigger_delay(self, limits: ReadLimits | None) -> TriggerDelay | None:
        least = self._options.min_offsets_per_trigger
        if least is None or limits is None or self._fetcher.frozen:
            return None
        waited = None
        if self._planned_at is not None:
            waited = round((self._monotonic() - self._planned_at) * 1000)
        return TriggerDelay(
            min_offsets=least, max_delay_ms=self._options.max_trigger_delay_ms, waited_ms=waited
        )

    def _note_lag(self, snapshot: MetadataSnapshot, end: Offset) -> None:
        self._lag = {}
        for ssp in partitions_of(snapshot.metadata):
            log = offsets_of(snapshot.metadata, ssp)
            position = end.positions.get(ssp, log.earliest or 0)
            self._lag.setdefault(ssp.stream, {})[ssp.partition] = max(0, log.end - position)


def _log_changes(before: TaskAssignment, now: TaskAssignment) -> None:
    old, new = before.owners(), now.owners()
    entered = [f"{ssp.stream}-{ssp.partition} ({new[ssp]})" for ssp in new if ssp not in old]
    if entered:
        _log.info("Now read: %s.", abbreviate(entered))
    left = [f"{ssp.stream}-{ssp.partition}" for ssp in old if ssp not in new]
    if left:
        _log.info("No longer read: %s.", abbreviate(left))
