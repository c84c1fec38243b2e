"""Plans queries on the driver: the batches of a streaming query, from one offset to the next, and
the reading of a batch query (`spark.read`), whose start and end are resolved to offsets once.

`BatchPlanner` combines the metadata of `planning.offset_fetcher` with the decisions of
`planning.plan_batch`. Between calls it keeps only state that may be lost at any time; planning a
batch again needs only its two offsets.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_ssp.checkpoint.assignments.store import AssignmentStore
from spark_ssp.checkpoint.assignments.sync import AssignmentSync, with_store_uri
from spark_ssp.common.errors import (
    AccessError,
    IncompatibleStateError,
    InvalidOptionsError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
)
from spark_ssp.common.logs import Detail, abbreviate, count_of, versions
from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    SINGLE,
    TaskAssignment,
    inherit,
    restrict_to,
    up_to,
)
from spark_ssp.grouping.fixed_tasks import FixedTasks, PartitionCountError
from spark_ssp.grouping.identifiers import (
    EpochMillis,
    StreamName,
    SystemStreamPartition,
)
from spark_ssp.kafka_source.client.api import KafkaService, OffsetSpec
from spark_ssp.kafka_source.model.offset import (
    BEFORE_FIRST_BATCH,
    Offset,
    Positions,
    without_topics,
)
from spark_ssp.kafka_source.model.ranges import TaskRange, plan_ranges
from spark_ssp.kafka_source.model.topic import (
    AtOffsets,
    AtTime,
    AtTimes,
    Bound,
    IsolationLevel,
    LogicalOffset,
    kafka_name,
    partition_of,
)
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.alignment import (
    AlignedEnd,
    Pace,
    Unread,
    find_aligned_end,
    run_lookups,
)
from spark_ssp.kafka_source.planning.data_loss import DataLoss, raise_data_loss, report_data_loss
from spark_ssp.kafka_source.planning.offset_bounds import (
    PartitionBounds,
    bounds_by_partition,
    check_names_exactly,
    describe_bound,
    option_name,
    times_in,
)
from spark_ssp.kafka_source.planning.offset_fetcher import OffsetFetcher
from spark_ssp.kafka_source.planning.plan_batch import (
    BatchRules,
    SuspectedCount,
    count_expansions,
    count_unread,
    create_grouping,
    create_split,
    explain_recreated,
    find_expansions,
    plan_batch,
    suspected_counts,
    unread_in,
)
from spark_ssp.kafka_source.planning.rate_limit import (
    UNLIMITED,
    ReadLimits,
    ReadTask,
    RecordSizeEstimator,
    TriggerDelay,
)
from spark_ssp.kafka_source.planning.spark_checkpoint import (
    AnyOffset,
    new_partitions_in_batch,
    to_batch,
    to_start_offset,
)
from spark_ssp.kafka_source.planning.topic_metadata import (
    BatchContext,
    Topics,
    different_offsets,
    different_offsets_error,
    moved_topics,
    offsets_of,
    positions_in,
    unaccepted_positions,
    undescribed_topics,
    unknown_offsets_error,
    with_accepted_ids,
)

_log = logging.getLogger(__name__)

Lag = Mapping[StreamName, Mapping[int, int | None]]
"""The offsets behind the end of each partition, by topic."""


class BatchPlanner:
    """Plans the batches of one query. Not thread-safe: Spark calls it from one thread. `monotonic`
    is a clock in seconds and `sleep` waits for seconds; `read` reads a range as a task does.
    `store` is the store of the option assignmentStore."""

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
        self._sync: AssignmentSync | None = None
        self._planned_at: float | None = None
        """The time of the last batch that minOffsetsPerTrigger did not delay."""
        self._pace: Pace | None = None
        self._has_aligned = False
        """True once the line for an aligned batch has been logged in this run."""
        self._lag: dict[StreamName, dict[int, int | None]] = {}
        self._has_started = False
        """True once the line for the start of the run has been logged."""
        self.expansions = 0
        """Topics whose number of partitions has grown, counted for each growth."""
        self.losses = 0
        """Losses that failOnDataLoss=false tolerated, topics that went missing among them."""
        self._missing: frozenset[SystemStreamPartition] = frozenset()
        self._missing_subjects: frozenset[str] = frozenset()
        """Those of the losses, if the missing ones do not exist any more."""

    # --- Called by Spark -------------------------------------------------------------------------

    def next_offset(self, start: AnyOffset, limits: ReadLimits | None) -> Offset | None:
        """Return the end of the next batch, or None if there is nothing to read and nothing to
        record. Without `limits` the batch reads up to the latest offsets, despite the options.
        Raises the errors of `OffsetFetcher.fetch` and `plan_batch`."""
        grouping = self._grouping(start)
        first = self._start_offset(start, grouping)
        kept = without_topics(first, self._options.drop_topics)
        if (changed := self._with_accepted_ids(kept)) is not first:
            # It may become this batch's end, whose explicit starts would be read from.
            first = replace(changed, explicit_starts={})
        known = inherit(first.assignment, self._stored())
        snapshot = self._fetcher.fetch(first, known)
        if (changed := self._with_accepted_ids(first, snapshot.topics)) is not first:
            # The brokers described the topic only during the fetch, which took it for another one.
            first = replace(changed, explicit_starts={})
            if self._fetcher.frozen:
                self._fetcher.freeze(first.topics.keys())
            snapshot = self._fetcher.fetch(first, known)
        context = BatchContext(
            start=first,
            metadata=snapshot.metadata,
            initial_positions=snapshot.initial_positions,
            selection=self._options.selection,
            described=snapshot.topics,
        )
        if self._options.fail_on_data_loss:
            if snapshot.denied is not None:
                raise snapshot.denied
            # Before the store is read: a topic that was created again may have another count.
            raise_data_loss((*context.missing_losses, *context.topic_losses))
        rules = BatchRules(
            grouping=grouping,
            fail_on_data_loss=self._options.fail_on_data_loss,
            limits=self._limits(context, limits),
            trigger_delay=self._trigger_delay(limits),
            stored=self._synced_assignment(context),
            split=create_split(self._options),
        )
        aligned = self._aligned_end(context, rules)
        plan = plan_batch(
            context, rules if aligned is None else replace(rules, aligned=aligned.lags)
        )
        report_data_loss(plan.losses, fail=False)
        self.losses += len(plan.losses)
        self._note_missing(context, snapshot.denied)
        if not plan.delayed:
            self._planned_at = self._monotonic()
        delayed_at = context.start_positions.positions
        self._update_lag(context, delayed_at if plan.delayed else plan.end.positions)
        self._log(first, plan.end)
        if aligned is not None:
            self._log_aligned(aligned, unread_in(context))
        if plan.end is first and first is start:
            return None
        self.expansions += count_expansions(first.assignment, plan.end.assignment)
        try:
            self._warn_of_missed_counts(first.assignment, plan.end.assignment)
        except SspError as error:
            _log.warning("could not check whether an expansion was missed: %s", Detail(error))
        return plan.end

    def stop_at_latest(self) -> None:
        """Read only up to the current ends from now on: no records, partitions or topics that come
        later."""
        self._fetcher.freeze()

    @property
    def stops_at_latest(self) -> bool:
        """Return whether `stop_at_latest` was called: without a next batch the query ends."""
        return self._fetcher.frozen

    def ranges(self, start: AnyOffset, end: AnyOffset) -> tuple[TaskRange, ...]:
        """Return the ranges of a batch's tasks. The offsets of this source suffice; for a batch
        that Spark's own source planned, the brokers are asked for the first offsets of new
        partitions."""
        if isinstance(start, Offset) and isinstance(end, Offset):
            return () if start == end else self._ranges(start, end)
        grouping = self._grouping(start)
        self._start_offset(start, grouping)
        dropped = self._options.drop_topics
        new = new_partitions_in_batch(start, end)
        fresh = [ssp for ssp in new if ssp.stream not in dropped]
        answers = self._fetcher.fetch_bounds(dict.fromkeys(fresh, LogicalOffset.EARLIEST))
        earliest = {ssp: 0 for ssp in new if ssp.stream in dropped}
        batch = to_batch(
            start,
            end,
            grouping,
            earliest=earliest | {ssp: at for ssp, at in answers.items() if at is not None},
            selection=self._options.selection,
            dropped=dropped,
            stored=self._stored(),
        )
        report_data_loss(batch.losses, fail=self._options.fail_on_data_loss)
        self.losses += len(batch.losses)
        return self._ranges(batch.start, batch.end)

    def _ranges(self, start: Offset, end: Offset) -> tuple[TaskRange, ...]:
        """Return the ranges without those of dropped topics. A task that had only these stays,
        without records: sinks recognize repeated rows by the number of their task."""
        dropped = self._options.drop_topics
        kept = self._with_accepted_ids(without_topics(end, dropped))
        tasks = plan_ranges(start, replace(end, topics={**end.topics, **kept.topics}))
        return tuple(
            replace(
                task,
                partitions=tuple(
                    part for part in task.partitions if part.ssp.stream not in dropped
                ),
            )
            for task in tasks
        )

    def close(self) -> None:
        """Close the store's connections."""
        if self._store is not None:
            self._store.close()

    def lag(self) -> Lag:
        """Return the lag after the last planned batch."""
        return self._lag

    # --- Internals --------------------------------------------------------------------------------

    def _grouping(self, start: AnyOffset) -> FixedTasks:
        """Return the grouper for the partitions after `start`, which also updates the store."""
        label = start.assignment.grouper if isinstance(start, Offset) else ""
        if label not in self._groupings:
            self._groupings[label] = create_grouping(self._options, label)
        grouping = self._groupings[label]
        if self._store is not None and (self._sync is None or self._sync.grouping != grouping):
            self._sync = AssignmentSync(self._store, grouping)
        return grouping

    def _with_accepted_ids(self, offset: Offset, found: Topics | None = None) -> Offset:
        """Return the offset with the new ids of topics that moved to another cluster
        (`moved_topics`). The topics, if they were not `found` yet, are described only while the
        offset has other ids than acceptTopicIds."""
        accepted, selection = self._options.accept_topic_ids, self._options.selection
        positions = unaccepted_positions(offset, accepted)
        if not positions:
            return offset
        if found is None:
            found = self._fetcher.confirm(
                lambda: self._service.describe(selection),
                lambda topics: undescribed_topics(positions, topics, selection),
            )
        topics = moved_topics(positions, found, accepted)
        if not topics:
            return offset
        moved = positions_in(offset, topics)
        wrong = self._fetcher.confirm(
            lambda: different_offsets(
                moved,
                self._service.list_offsets(moved.keys(), LogicalOffset.LATEST, uncommitted=True),
            ),
            lambda differences: differences,
        )
        if wrong:
            raise different_offsets_error(wrong)
        _log.warning("accepted as the same topics by acceptTopicIds: %s", abbreviate(topics))
        return with_accepted_ids(offset, topics, accepted)

    def _start_offset(self, start: AnyOffset, grouping: FixedTasks) -> Offset:
        """Return the start as an offset of this source. Errors name the store: without one, the
        partitions of an offset of Spark's source are grouped without earlier tasks."""
        stored = self._stored()
        try:
            return to_start_offset(start, grouping, stored)
        except (PartitionCountError, IncompatibleStateError) as error:
            raise error if self._store is None else with_store_uri(error, self._store) from error

    def _stored(self) -> TaskAssignment:
        return NO_ASSIGNMENT if self._sync is None else self._sync.stored()

    def _synced_assignment(self, context: BatchContext) -> TaskAssignment:
        """Return the store's assignment of the streams in the metadata, after adding the new ones:
        the store has them before Spark logs an offset that contains them."""
        if self._sync is None:
            return NO_ASSIGNMENT
        with explain_recreated(context):
            return self._sync.previous(context.start.assignment, context.assigned)

    def _note_missing(self, context: BatchContext, denied: AccessError | None) -> None:
        """Log the partitions that went missing or are back since the last batch."""
        missing = frozenset(context.missing)
        lost, back = missing - self._missing, self._missing & set(context.partitions)
        subjects = frozenset(loss.subject for loss in context.missing_losses)
        self.losses += len(subjects - self._missing_subjects)
        self._missing, self._missing_subjects = missing, subjects
        if lost:
            _log.warning(
                "missing from the brokers' answers: %s%s. Their positions stay in the checkpoint: "
                "the query continues there once they are back. Name topics that were deleted on "
                "purpose in dropTopics",
                describe_topics(lost),
                "" if denied is None else f" ({denied})",
            )
        if back:
            _log.warning(
                "no longer missing, read from the last position: %s", describe_topics(back)
            )

    def _warn_of_missed_counts(self, before: TaskAssignment, now: TaskAssignment) -> None:
        if now.grouper == SINGLE:
            return  # No key can move if there is a single task.
        for expansion in find_expansions(before, now):
            new = [
                partition_of(expansion.stream.stream, number)
                for number in range(expansion.old, expansion.new)
            ]
            oldest = self._service.first_records(new, EpochMillis(0))
            latest = self._service.list_offsets(new, LogicalOffset.LATEST)
            ends = {ssp: offset or 0 for ssp, offset in latest.items()}
            times = {
                ssp.partition: None if one is None else one.time_ms for ssp, one in oldest.items()
            }
            trimmed = {
                ssp.partition
                for ssp, one in oldest.items()
                if (ends.get(ssp) if one is None else one.offset)
            }
            for suspicion in suspected_counts(expansion, times, trimmed=trimmed):
                if suspicion.is_likely(self._early_records(suspicion, ends)):
                    _log.warning("%s", suspicion.warning())
                    break

    def _early_records(
        self, suspicion: SuspectedCount, ends: Mapping[SystemStreamPartition, int]
    ) -> dict[int, int]:
        """Return, by partition, the number of records between the times of the suspected count.
        `ends` are the latest offsets of the new partitions."""
        early = {ssp: end for ssp, end in ends.items() if ssp.partition in suspicion.early}

        def offsets_at(time: int) -> dict[SystemStreamPartition, int]:
            found = self._service.list_offsets(early, AtTime(time_ms=EpochMillis(time)))
            offsets = {ssp: found.get(ssp) for ssp in early}
            # A partition whose records are all older has no offset of that time.
            return {ssp: early[ssp] if at is None else at for ssp, at in offsets.items()}

        starts = offsets_at(suspicion.from_ms)
        until = early if suspicion.until_ms is None else offsets_at(suspicion.until_ms)
        return {ssp.partition: until[ssp] - starts[ssp] for ssp in early}

    def _limits(self, context: BatchContext, limits: ReadLimits | None) -> ReadLimits:
        if limits is None or limits.max_bytes is None:
            return limits or UNLIMITED
        sizes = self._estimates.estimate(
            context.metadata, context.start_positions.positions, limits.max_bytes
        )
        return replace(limits, bytes_per_offset=sizes)

    def _aligned_end(self, context: BatchContext, rules: BatchRules) -> AlignedEnd | None:
        """Return the end of an aligned batch; None without alignBatches, and if the limits leave no
        record unread."""
        if not self._options.align_batches:
            return None
        unread = unread_in(context)
        lags = count_unread(unread)
        if rules.limits.allow(lags) or rules.delays(lags):
            return None
        steps = find_aligned_end(unread, rules.limits, self._pace)
        aligned = run_lookups(steps, lambda time: self._service.first_records(unread.keys(), time))
        self._pace = aligned.pace
        return aligned

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

    def _log(self, start: Offset, end: Offset) -> None:
        if not self._has_started:
            self._has_started = True
            _log.info("%s", _describe_start(self._options, start, end.assignment))
        elif changes := _describe_changes(start.assignment, end.assignment):
            _log.info("%s", changes)

    def _log_aligned(self, aligned: AlignedEnd, unread: Unread) -> None:
        """Log the first aligned batch of a run, and each further one at DEBUG."""
        level = logging.DEBUG if self._has_aligned else logging.INFO
        self._has_aligned = True
        _log.log(level, "%s", _describe_aligned(aligned, unread))

    def _update_lag(self, context: BatchContext, positions: Positions) -> None:
        """Keep the offsets behind `positions`, those of open transactions and behind them included.
        How far a missing partition reaches is unknown."""
        whole = self._fetcher.whole_ends
        self._lag = {}
        for ssp in context.assigned:
            self._lag.setdefault(ssp.stream, {})[ssp.partition] = None
        for ssp in context.partitions:
            log = offsets_of(context.metadata, ssp)
            position = positions.get(ssp, log.earliest or 0)
            end = max(log.end, whole.get(ssp) or 0)
            self._lag[ssp.stream][ssp.partition] = max(0, end - position)


def describe_topics(partitions: Iterable[SystemStreamPartition]) -> str:
    """Return the topics of partitions, for a log line."""
    counts = Counter(ssp.stream for ssp in partitions)
    return abbreviate(
        [
            f"topic {topic} with {count_of(count, 'partition')}"
            for topic, count in sorted(counts.items())
        ]
    )


def _describe_changes(before: TaskAssignment, now: TaskAssignment) -> str:
    """Return the partitions in which a batch differs from the one before; empty if none."""
    old, new = before.owners(), now.owners()
    parts = []
    added = [f"{ssp.stream}-{ssp.partition} ({new[ssp]})" for ssp in new if ssp not in old]
    if added:
        parts.append(f"now read: {abbreviate(added)}")
    removed = [f"{ssp.stream}-{ssp.partition}" for ssp in old if ssp not in new]
    if removed:
        parts.append(f"no longer read: {abbreviate(removed)}")
    return "; ".join(parts)


def _describe_aligned(aligned: AlignedEnd, unread: Unread) -> str:
    """Return the line for an aligned batch, with the partition that has most of its offsets."""
    end = "the latest offsets" if aligned.time_ms is None else time_text(aligned.time_ms)
    total = sum(map(len, unread.values()))
    line = f"batch aligned at {end}: {sum(aligned.lags.values())} of {total} unread offsets"
    if not aligned.lags:
        return line
    most = max(sorted(aligned.lags), key=aligned.lags.__getitem__)
    return (
        f"{line}, {aligned.lags[most]} of them in {kafka_name(most)}, which holds back the others"
    )


def _describe_start(options: KafkaOptions, start: Offset, now: TaskAssignment) -> str:
    """Return the line for the start of a run."""
    begin = "its checkpoint" if start.positions else describe_bound(options.start)
    tasks = count_of(len(set(now.owners().values())), "task")
    parts = [
        f"query starts from {begin}: {describe_topics(now.owners()) or 'no topics yet'}",
        "tasks by the offsets of each batch" if create_split(options) else tasks,
    ]
    if start.positions and (changes := _describe_changes(start.assignment, now)):
        parts.append(changes)
    if options.commit_offsets_to_group is not None:
        parts.append(f"offsets committed to consumer group {options.commit_offsets_to_group}")
    return "; ".join([*parts, versions()])


def lag_metrics(lag: Lag) -> dict[str, Any] | None:
    """Return the lag as JSON for the query's progress; None before the first batch.

        {"topics": {"orders": {"offsetsBehindLatest": {"0": 3, "1": 0},
                               "maxOffsetsBehindLatest": 3, "sumOffsetsBehindLatest": 3}},
         "minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 3, "avgOffsetsBehindLatest": 1.5,
         "sumOffsetsBehindLatest": 3}

    Offsets, not records: compacted records and transaction markers count as well. The names and the
    meaning of minimum, maximum and average are those of the metrics of Spark's source. Null is
    unknown: a partition that is missing, and all that follows from it.
    """
    behind = [offsets for partitions in lag.values() for offsets in partitions.values()]
    if not behind:
        return None
    return {
        "topics": {
            topic: {
                "offsetsBehindLatest": {str(p): lag[topic][p] for p in sorted(lag[topic])},
                **_figures(lag[topic].values(), max=max, sum=sum),
            }
            for topic in sorted(lag)
        },
        **_figures(behind, min=min, max=max, avg=_mean, sum=sum),
    }


def _figures(
    lags: Collection[int | None], **functions: Callable[[Sequence[int]], float]
) -> dict[str, float | None]:
    """Return figures of the lags, each None if one of the lags is unknown."""
    known = [offsets for offsets in lags if offsets is not None]
    is_known = len(known) == len(lags)
    return {
        f"{name}OffsetsBehindLatest": function(known) if is_known else None
        for name, function in functions.items()
    }


def _mean(lags: Sequence[int]) -> float:
    return sum(lags) / len(lags)


# --- Batch queries --------------------------------------------------------------------------------

Ends = Mapping[SystemStreamPartition, int]

_TRANSACTION_POLL_S: Final = 1.0
"""The time between two looks at transactions that are open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClock:
    """The clocks of one plan: the time in epoch milliseconds, a clock and a wait in seconds."""

    now_ms: int
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan of a batch read. `ranges` has one range for each task with records to read."""

    ranges: tuple[TaskRange, ...]
    has_fixed_end: bool
    """A plan made later ends at the same records."""


def plan_read(
    options: KafkaOptions,
    service: KafkaService,
    *,
    clock: BatchClock,
    store: AssignmentStore | None = None,
) -> ReadPlan:
    """Plan a batch read. Tasks are those of `store` for topics that it contains; it is not written
    to.

    Raises the errors of `OffsetFetcher.fetch` and `FixedTasks.group`, InvalidOptionsError for a
    start after its end, DataLossError for bounds outside the logs unless that is tolerated, and
    ServiceUnavailableError if transactions before the end stay open.
    """
    stored = None if store is None else store.read()
    known = NO_ASSIGNMENT if stored is None else stored.assignment
    fetcher, context = _fetch(options, service, clock, known)
    held = _await_transactions(options, context, fetcher, service, clock)
    if held is not None:
        # Starts and the oldest records may have moved meanwhile, too.
        fetcher, context = _fetch(options, service, clock, known)
    positions = context.start_positions.positions
    ends, end_losses = _find_ends(_end_of(options), context, fetcher, service, held or {})
    losses = (*context.start_positions.losses, *end_losses)
    report_data_loss(
        losses,
        fail=options.fail_on_data_loss,
        otherwise="choose a start and an end within the partitions",
    )
    streams = {ssp.system_stream for ssp in context.partitions}
    known = up_to(restrict_to(known, streams), context.partitions)
    try:
        tasks = create_grouping(options).group(known, context.partitions)
    except (PartitionCountError, IncompatibleStateError) as error:
        raise error if store is None else with_store_uri(error, store) from error
    _check_order(options, context, ends)
    # There may be nothing left to read after a tolerated gap.
    explicit_starts = {ssp: min(at, ends[ssp]) for ssp, at in positions.items()}
    end = Offset(
        topics={name: topic.topic_id for name, topic in context.metadata.items()},
        positions=ends,
        explicit_starts=explicit_starts,
        assignment=tasks,
        split=create_split(options),
    )
    ranges = plan_ranges(BEFORE_FIRST_BATCH, end)
    _log.info("%s", _describe_read(options, context, ranges))
    return ReadPlan(
        ranges=ranges,
        has_fixed_end=has_fixed_end(options.end, clock.now_ms) and not end_losses,
    )


def has_fixed_end(end: Bound | None, now_ms: int) -> bool:
    """Return whether `end` has neither the latest offset nor a time after `now_ms`, which means the
    latest offset until it has passed."""
    match end:
        case AtOffsets(offsets=offsets):
            return LogicalOffset.LATEST not in offsets.values()
        case AtTime(time_ms=time_ms):
            return time_ms <= now_ms
        case AtTimes(times_ms=times_ms):
            return max(times_ms.values(), default=now_ms) <= now_ms
        case _:
            return False


def _describe_read(options: KafkaOptions, context: BatchContext, tasks: Sequence[TaskRange]) -> str:
    """Return the line for the plan."""
    begin = describe_bound(options.start)
    end = describe_bound(_end_of(options), "ending")
    topics = describe_topics(context.partitions) or "no topics"
    read = [part for task in tasks for part in task.partitions]
    offsets = sum(part.end - part.start for part in read)
    partitions = len({part.ssp for part in read})
    return "; ".join(
        [
            f"batch read from {begin} to {end}: {topics}",
            f"{count_of(offsets, 'offset')} in {count_of(partitions, 'partition')}",
            count_of(len(tasks), "task"),
            versions(),
        ]
    )


def _check_order(options: KafkaOptions, context: BatchContext, ends: Ends) -> None:
    """Raise InvalidOptionsError, like Spark, if a partition starts after its end, unless that is
    due to a tolerated loss."""
    wrong = [
        f"{kafka_name(ssp)} to {ends[ssp]}, which starts at {begin}"
        for ssp, begin in sorted(context.start_positions.positions.items())
        if begin > ends[ssp]
        and begin == context.initial_positions.get(ssp, offsets_of(context.metadata, ssp).earliest)
    ]
    if not wrong:
        return
    problem = OptionProblem(
        option=option_name(_end_of(options), "ending"),
        found=abbreviate(wrong),
        expected="an end that is not before its start",
        next_step="choose a later end or an earlier start",
    )
    raise InvalidOptionsError("kafka-ssp", [problem])


def _end_of(options: KafkaOptions) -> Bound:
    return options.end or LogicalOffset.LATEST


def _fetch(
    options: KafkaOptions, service: KafkaService, clock: BatchClock, known: TaskAssignment
) -> tuple[OffsetFetcher, BatchContext]:
    """Fetch the partitions to read. Raises the errors of `OffsetFetcher.fetch`, and
    InvalidOptionsError for an end that names other partitions."""
    fetcher = OffsetFetcher(
        options, service, monotonic=clock.monotonic, sleep=clock.sleep, whole_logs=True
    )
    snapshot = fetcher.fetch(BEFORE_FIRST_BATCH, known)
    context = BatchContext(
        start=BEFORE_FIRST_BATCH,
        metadata=snapshot.metadata,
        initial_positions=snapshot.initial_positions,
    )
    bound = _end_of(options)
    check_names_exactly(option_name(bound, "ending"), bound, context.partitions)
    return fetcher, context


def _await_transactions(
    options: KafkaOptions,
    context: BatchContext,
    fetcher: OffsetFetcher,
    service: KafkaService,
    clock: BatchClock,
) -> Ends | None:
    """Wait for the transactions that are open before an end that the options fix: an offset, or a
    time that has passed. Return None if there are none; else the ends that are not reached after
    pollTimeout, if failOnDataLoss tolerates that.

    To readers of committed records the log ends at the oldest open transaction. If the end moved
    there, the read that starts where this one should end would leave out the records in between.
    """
    bound = _end_of(options)
    if options.isolation_level is not IsolationLevel.READ_COMMITTED:
        return None
    ends = _log_ends(context)
    goals = _fixed_ends(bounds_by_partition(bound, context.partitions), ends, fetcher, clock.now_ms)
    if not (held := {ssp: goal for ssp, goal in goals.items() if ends[ssp] < goal}):
        return None
    began, has_waited = clock.monotonic(), False
    while held:
        if has_waited:
            clock.sleep(_TRANSACTION_POLL_S)
        answers = service.list_offsets(held.keys(), LogicalOffset.LATEST)
        held = {ssp: goal for ssp, goal in held.items() if (answers.get(ssp) or 0) < goal}
        shown = abbreviate([f"{kafka_name(ssp)} at {answers.get(ssp)}" for ssp in sorted(held)])
        if held and (clock.monotonic() - began) * 1000 >= options.poll_timeout_ms:
            if unknown := [ssp for ssp in held if answers.get(ssp) is None]:
                raise unknown_offsets_error(unknown, "end")
            if not options.fail_on_data_loss:
                break
            raise ServiceUnavailableError(
                f"option {option_name(bound, 'ending')}",
                found=f"transactions open for {duration_text(options.poll_timeout_ms)} before the "
                f"end of the read: {shown}",
                expected="an end before which all transactions are committed or aborted",
                next_step="read again later, or choose an earlier end; raise pollTimeout if the "
                "transactions take longer. One whose producer is gone is aborted after the "
                "producer's transaction.timeout.ms. With failOnDataLoss=false the read ends there",
            )
        if held and not has_waited:
            _log.warning("waiting for transactions before the end of the read: %s", shown)
        has_waited = True
    return held


def _log_ends(context: BatchContext) -> dict[SystemStreamPartition, int]:
    return {ssp: offsets_of(context.metadata, ssp).end for ssp in context.partitions}


def _fixed_ends(
    bounds: PartitionBounds, ends: Ends, fetcher: OffsetFetcher, now_ms: int
) -> dict[SystemStreamPartition, int]:
    """Return the ends that later records do not move, except those up to `ends`: an offset as far
    as the log has it, and for a time that has passed its offset, or else the end of the log."""
    passed = {ssp: at for ssp, at in times_in(bounds).items() if at.time_ms <= now_ms}
    by_time = _offsets(fetcher, passed, "offset by time")
    named = {**{ssp: at for ssp, at in bounds.items() if isinstance(at, int)}, **by_time}
    fixed = {ssp: at for ssp, at in named.items() if at is None or at > ends.get(ssp, 0)}
    whole = _offsets(fetcher, dict.fromkeys(fixed, LogicalOffset.LATEST), "end")
    return {
        ssp: min(end for end in (whole[ssp], at) if end is not None) for ssp, at in fixed.items()
    }


def _offsets(
    fetcher: OffsetFetcher, points: Mapping[SystemStreamPartition, OffsetSpec], what: str
) -> Mapping[SystemStreamPartition, int | None]:
    """Return the offset of each of `points`; an unknown one is an error about `what`."""
    answers = fetcher.fetch_bounds(points)
    unknown = [
        ssp
        for ssp, point in points.items()
        if ssp not in answers or (answers[ssp] is None and not isinstance(point, AtTime))
    ]
    if unknown:
        raise unknown_offsets_error(unknown, what)
    return answers


def _find_ends(
    bound: Bound, context: BatchContext, fetcher: OffsetFetcher, service: KafkaService, held: Ends
) -> tuple[Ends, list[DataLoss]]:
    """Return the first offset that is not read in each partition, and the losses. A time later than
    every record's means the latest offset. `held` are ends that open transactions hold back."""
    bounds = bounds_by_partition(bound, context.partitions)
    answers = _offsets(fetcher, times_in(bounds), "offset by time")
    named = {ssp: at for ssp, at in bounds.items() if isinstance(at, int)}
    requested = {**answers, **held, **named}
    ends = _log_ends(context)
    beyond = {ssp: at for ssp, at in requested.items() if at is not None and at > ends[ssp]}
    doubtful = {ssp: at for ssp, at in beyond.items() if ssp not in held}
    for ssp, end in _confirmed_ends(doubtful, fetcher, service).items():
        ends[ssp] = max(ends[ssp], end)  # a start after an open transaction is an end as well
    losses = [
        DataLoss(
            subject=f"partition {kafka_name(ssp)}",
            found=f"an end at {ends[ssp]}, before the requested end {at}"
            + (", with an open transaction" if ssp in held else ""),
            expected=f"{option_name(bound, 'ending')} within the partitions",
        )
        for ssp, at in beyond.items()
        if at > ends[ssp] and (ssp in held or ssp in named)
    ]
    found = {
        ssp: end if (at := requested.get(ssp)) is None else min(at, end)
        for ssp, end in ends.items()
    }
    return found, losses


def _confirmed_ends(named: Ends, fetcher: OffsetFetcher, service: KafkaService) -> Ends:
    """Return the ends of logs that end before the `named` offsets, requested again until none does:
    the answer of a broker may be behind for a moment."""
    if not named:
        return {}
    answers = fetcher.confirm(
        lambda: service.list_offsets(named.keys(), LogicalOffset.LATEST),
        lambda answers: different_offsets(named, answers),
    )
    return {ssp: end for ssp, end in answers.items() if end is not None}
