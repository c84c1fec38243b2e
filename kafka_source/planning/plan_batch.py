"""Plans a batch: computes its end offset from the start offset and the topic metadata.

Order through an expansion: the older records of a key that moved are in its previous partition. So
for each topic, a task's partitions advance generation by generation: a newer one only after the
older ones have reached the ends listed for them in this batch, within the limits. The ends of newer
partitions are listed first (`topic_metadata.Metadata`), so the records that a producer wrote to the
older partition before it used the newer one are read first. The ranges of a batch have the same
order within a task.

In an aligned batch (`alignment`) the ends are those of one instant, and all generations advance
together. So the order through an expansion is that of the records' times, and within the batch that
of generations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError
from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    AllSspToSingleTask,
    GroupByPartition,
    GroupBySystemStreamPartition,
    Grouper,
    TaskAssignment,
    inherit,
)
from spark_ssp.grouping.fixed_tasks import (
    REGROUP_OR_AFRESH,
    FixedTasks,
    ModuloExpansion,
    OnPartitionCountChange,
    PartitionCountError,
    PartitionExpansionAlgorithm,
    load_expansion_algorithm,
)
from spark_ssp.grouping.identifiers import (
    StreamName,
    SystemStream,
    SystemStreamPartition,
    TaskName,
    WorkerId,
)
from spark_ssp.kafka_source.model.offset import Offset, Split
from spark_ssp.kafka_source.model.topic import SYSTEM, TopicId
from spark_ssp.kafka_source.options.values import GrouperName, KafkaOptions
from spark_ssp.kafka_source.planning.alignment import Unread
from spark_ssp.kafka_source.planning.data_loss import DataLoss, raise_data_loss
from spark_ssp.kafka_source.planning.rate_limit import UNLIMITED, Lags, ReadLimits, TriggerDelay
from spark_ssp.kafka_source.planning.topic_metadata import (
    BatchContext,
    StartPositions,
    offsets_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """The options that batches are planned by, and the state beside the metadata.

    `stored`: the assignment of the assignment store, for streams that the start does not contain.
    `aligned`: the offsets that an aligned batch may read, of partitions that have some; None: all
    that are unread.
    """

    grouping: FixedTasks
    fail_on_data_loss: bool = True
    limits: ReadLimits = UNLIMITED
    aligned: Lags | None = None
    trigger_delay: TriggerDelay | None = None
    stored: TaskAssignment = NO_ASSIGNMENT
    split: Split | None = None

    def delays(self, lags: Lags) -> bool:
        """Return whether minOffsetsPerTrigger delays a batch with this backlog."""
        return self.trigger_delay is not None and self.trigger_delay.should_delay(
            sum(lags.values())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The end of a batch, which is the start itself if there is nothing to do, and the losses that
    failOnDataLoss=false tolerates, to be logged. What is missing (`BatchContext.missing`) is not
    lost: its positions stay."""

    end: Offset
    losses: tuple[DataLoss, ...] = ()
    delayed: bool = False
    """True if minOffsetsPerTrigger delays the batch."""


def plan_batch(context: BatchContext, rules: BatchRules) -> BatchPlan:
    """Plan the next batch. Raises DataLossError for lost records unless that is tolerated,
    PartitionCountError if a topic's partition count changed so that keys could not stay with their
    tasks, and IncompatibleStateError if another grouper made the tasks."""
    if rules.fail_on_data_loss:
        raise_data_loss((*context.missing_losses, *context.topic_losses))
    assignment = _assignment(context, rules)
    starts = context.start_positions
    if rules.fail_on_data_loss:
        raise_data_loss(starts.losses)
    lags = count_unread(unread_in(context))
    if rules.delays(lags):
        return BatchPlan(end=context.start, delayed=True)
    readable = lags if rules.aligned is None else rules.aligned
    granted = _grant_offsets(readable, assignment, rules.limits)
    end = Offset(
        topics=_topic_ids(context),
        positions={
            **{ssp: context.start.positions[ssp] for ssp in context.missing},
            **{ssp: position + granted.get(ssp, 0) for ssp, position in starts.positions.items()},
        },
        explicit_starts=starts.explicit_starts,
        assignment=assignment,
        split=rules.split,
    )
    unchanged = _is_unchanged(context.start, end, starts)
    return BatchPlan(
        end=context.start if unchanged else end, losses=(*context.topic_losses, *starts.losses)
    )


def _topic_ids(context: BatchContext) -> dict[StreamName, TopicId | None]:
    """Return the ids of the next offset. An id stays known if a broker returns none, as an old one
    during an upgrade."""
    found = {topic: one.topic_id for topic, one in context.metadata.items()}
    for topic in {ssp.stream for ssp in context.assigned}:
        if found.get(topic) is None and topic not in context.recreated:
            found[topic] = context.start.topics.get(topic)
    return {topic: found[topic] for topic in sorted(found)}


def _assignment(context: BatchContext, rules: BatchRules) -> TaskAssignment:
    previous = inherit(context.start.assignment, rules.stored)
    with explain_recreated(context):
        assignment = rules.grouping.group(previous, context.assigned)
    for topic in sorted(context.recreated & context.metadata.keys()):
        assignment = assignment.restarted(SystemStream(system=SYSTEM, stream=topic))
    return assignment


@contextmanager
def explain_recreated(context: BatchContext) -> Iterator[None]:
    """Name the recreated topics in a PartitionCountError that their new counts cause."""
    counts = context.start.assignment.counts
    try:
        yield
    except PartitionCountError as error:
        others = [
            topic
            for topic in sorted(context.recreated & context.metadata.keys())
            if len(context.metadata[topic].partitions)
            % counts.get(SystemStream(system=SYSTEM, stream=topic), (1,))[-1]
        ]
        if not others:
            raise
        raise PartitionCountError(
            error.subject,
            found=f"{error.found}; deleted and created again since: {', '.join(others)}",
            expected=error.expected,
            next_step=REGROUP_OR_AFRESH,
        ) from error


def _is_unchanged(start: Offset, end: Offset, starts: StartPositions) -> bool:
    """Return whether the end equals the start, except for `explicit_starts` and `split`, which
    concern only the batch before an offset."""
    return (
        not starts.explicit_starts
        and start.positions == end.positions
        and start.topics == end.topics
        and start.assignment == end.assignment
    )


def unread_in(context: BatchContext) -> Unread:
    """Return the unread offsets of the partitions that have some."""
    return {
        ssp: range(position, offsets_of(context.metadata, ssp).end)
        for ssp, position in context.start_positions.positions.items()
        if offsets_of(context.metadata, ssp).end > position
    }


def count_unread(unread: Unread) -> Lags:
    """Return the number of unread offsets of each partition."""
    return {ssp: len(offsets) for ssp, offsets in unread.items()}


# --- Generation by generation ---------------------------------------------------------------------

GenerationLags = dict[SystemStreamPartition, int]
"""The partitions of one generation with unread offsets, and their number."""


def _grant_offsets(
    lags: Lags, assignment: TaskAssignment, limits: ReadLimits
) -> dict[SystemStreamPartition, int]:
    """Return the number of offsets that each partition advances by. For each task and topic the
    oldest unread generation is first; one that is not read to its end holds back the newer ones."""
    queues = _generations(lags, assignment)
    granted: dict[SystemStreamPartition, int] = {}
    while queues and not limits.exhausted:
        generation: GenerationLags = {ssp: lag for queue in queues for ssp, lag in queue[0].items()}
        shares = limits.split({ssp: generation[ssp] for ssp in sorted(generation)})
        granted.update(shares)
        limits = limits.without(shares)
        queues = [
            queue[1:]
            for queue in queues
            if len(queue) > 1 and all(shares[ssp] == lag for ssp, lag in queue[0].items())
        ]
    return granted


def _generations(lags: Lags, assignment: TaskAssignment) -> list[list[GenerationLags]]:
    """Return the unread generations of each task and topic, oldest first."""
    owners = assignment.owners()
    queues: dict[tuple[TaskName, StreamName], dict[int, GenerationLags]] = {}
    for ssp, lag in lags.items():
        generations = queues.setdefault((owners[ssp], ssp.stream), {})
        generations.setdefault(assignment.generation(ssp), {})[ssp] = lag
    return [
        [generations[generation] for generation in sorted(generations)]
        for _, generations in sorted(queues.items(), key=lambda queue: queue[0])
    ]


# --- The grouper ----------------------------------------------------------------------------------

_WORKER: Final = WorkerId("0")
"""The worker in the name of the task of grouper=single, "Task-0": a query is one worker, on any
host."""


def create_grouping(options: KafkaOptions, label: str = "") -> FixedTasks:
    """Return the grouper for these options. `label` is the label of the grouper that made the tasks
    in the checkpoint, empty for a new query.

    A query without an option about tasks behaves as with Spark's own source: each partition is a
    task, and any partition count is accepted (`ssp`, `regroup`). Any such option means that the
    query relies on its tasks: partitions are grouped by their number, and tasks are kept
    (`partition`, `keep`). The checkpoint decides if the options do not, so that a query keeps its
    tasks. Raises IncompatibleStateError if it has fixed tasks, and the options split partitions.
    """
    name = _grouper_name(options, label)
    if create_split(options) is not None and name is not GrouperName.SSP:
        raise IncompatibleStateError(
            "the tasks in the checkpoint",
            found=f"fixed tasks, by the grouper {label}",
            expected="a task for each partition, since minPartitions or maxRecordsPerPartition "
            "splits partitions",
            next_step=f"remove these options, or start with {NEW_CHECKPOINT}",
        )
    return FixedTasks(
        grouper=_grouper(name, options),
        expansion=_expansion(options),
        on_count_change=_on_count_change(options, name),
    )


def create_split(options: KafkaOptions) -> Split | None:
    """Return the split of partitions that these options request."""
    if options.min_partitions is None and options.max_records_per_partition is None:
        return None
    return Split(min_tasks=options.min_partitions, max_offsets=options.max_records_per_partition)


def _grouper_name(options: KafkaOptions, label: str) -> GrouperName:
    if options.grouper is not None:
        return options.grouper
    if options.tasks is not None:
        return GrouperName.PARTITION
    if label:
        # With any other label the grouping fails: the query had an option that is now missing.
        by_ssp = label == GroupBySystemStreamPartition().label
        return GrouperName.SSP if by_ssp else GrouperName.PARTITION
    return GrouperName.PARTITION if options.relies_on_tasks else GrouperName.SSP


def _on_count_change(options: KafkaOptions, name: GrouperName) -> OnPartitionCountChange:
    if options.on_partition_count_change is not None:
        return options.on_partition_count_change
    if options.relies_on_tasks or name is not GrouperName.SSP:
        return OnPartitionCountChange.KEEP
    return OnPartitionCountChange.REGROUP


def _grouper(name: GrouperName, options: KafkaOptions) -> Grouper:
    match name:
        case GrouperName.PARTITION:
            return GroupByPartition(tasks=options.tasks)
        case GrouperName.SSP:
            return GroupBySystemStreamPartition()
        case GrouperName.SINGLE:
            return AllSspToSingleTask(worker=_WORKER)


def _expansion(options: KafkaOptions) -> PartitionExpansionAlgorithm:
    if options.expansion_algorithm is None:
        return ModuloExpansion()
    return load_expansion_algorithm(options.expansion_algorithm)


# --- Partition counts between two fetches -------------------------------------------------------

_CHANCE: Final = 1 / 1_000
"""The largest probability of a false alarm at which a warning is logged."""
_MOST_SUSPECTED: Final = 8
"""Counts for which the brokers are asked, by two requests each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """A topic whose partition count was `old` and is now `new`."""

    stream: SystemStream
    old: int
    new: int

    def may_hide_counts(self) -> bool:
        """Return whether a count between the two is no multiple of `old`."""
        return self.new > self.old + 1 and self.old > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectedCount:
    """A count that the topic may have had: partitions `old` to `count` have older records than all
    later ones, whose oldest record has the time `until_ms`; None if they are empty. From `from_ms`
    on, each of the early partitions has a record."""

    expansion: Expansion
    count: int
    from_ms: int
    until_ms: int | None

    @property
    def early(self) -> range:
        """The partitions that may have existed before the others."""
        return range(self.expansion.old, self.count)

    def is_likely(self, records: Mapping[int, int]) -> bool:
        """Return whether this number of records in each of `early`, from `from_ms` to `until_ms`,
        is unlikely to be chance: evenly spread keys would rarely miss all other partitions of the
        next multiple, the smallest count that needs no warning. Older records do not count: they
        may be of a count before."""
        old, new = self.expansion.old, self.expansion.new
        harmless = min(new, -(-self.count // old) * old)
        share = len(self.early) / (harmless - old)
        return sum(records.values()) * math.log(share) <= math.log(_CHANCE)

    def warning(self) -> str:
        """Return the text of a warning."""
        topic, old, new = self.expansion.stream.stream, self.expansion.old, self.expansion.new
        return (
            f"topic {topic} grew from {old} to {new} partitions since the last metadata fetch, "
            f"and the records in its partitions {old} to {self.count - 1} are older than all in "
            f"{self.count} to {new - 1}; if it had {self.count} partitions in between, which is no "
            f"multiple of {old}, records written then may be read by other tasks than those of "
            "their keys: expand to multiples only, or while producers are stopped"
        )


def find_expansions(before: TaskAssignment, now: TaskAssignment) -> tuple[Expansion, ...]:
    """Return the topics that kept their tasks through a larger count, sorted, if a count that is no
    multiple may have been in between. A topic that was grouped again has one generation."""
    found = (
        Expansion(stream=stream, old=before.counts[stream][-1], new=now.counts[stream][-1])
        for stream in sorted(before.counts.keys() & now.counts.keys())
        if len(now.counts[stream]) > len(before.counts[stream])
    )
    return tuple(expansion for expansion in found if expansion.may_hide_counts())


def count_expansions(before: TaskAssignment, now: TaskAssignment) -> int:
    """Return the number of topics that have more partitions than before."""
    both = before.counts.keys() & now.counts.keys()
    return sum(now.counts[stream][-1] > before.counts[stream][-1] for stream in both)


def suspected_counts(
    expansion: Expansion,
    first_times: Mapping[int, int | None],
    *,
    trimmed: Collection[int] = (),
) -> tuple[SuspectedCount, ...]:
    """Return the counts in between that the times of the oldest records suggest: those with the
    longest time before later partitions were written to, and last the one after which all are
    empty. `first_times` has the time of the oldest record of each partition; None if it has none.
    `trimmed` are partitions whose first records are gone: the time that they began is unknown.

    A topic that grows from 4 to 8 partitions between two fetches of its metadata may have had 6.
    Records written then are distributed by `hash(key) mod 6`, so some are in partitions of other
    tasks than those of their keys. Kafka does not record when a partition was created. But if there
    were 6, partitions 4 and 5 were written to before 6 and 7 existed. The times are set by
    producers, and keys may be few: the result is a suspicion, for a warning.
    """
    oldest_times = _oldest_from(expansion, first_times)
    last_trimmed = max(trimmed, default=0)
    found: list[SuspectedCount] = []
    last: list[SuspectedCount] = []
    latest = -1
    for count in range(expansion.old + 1, expansion.new):
        time = first_times.get(count - 1)
        if time is None:
            break  # The age of an empty partition is unknown.
        latest = max(latest, time)
        until = oldest_times[count]
        if count % expansion.old == 0 or count <= last_trimmed:
            continue
        one = SuspectedCount(expansion=expansion, count=count, from_ms=latest, until_ms=until)
        if until is None:
            last = last or [one]
        elif until > latest:
            found.append(one)
    found.sort(key=lambda one: one.from_ms - (one.until_ms or 0))
    return (*found[:_MOST_SUSPECTED], *last)


def _oldest_from(
    expansion: Expansion, first_times: Mapping[int, int | None]
) -> dict[int, int | None]:
    """Return, by partition, the oldest time in it or in any with a higher number."""
    oldest: dict[int, int | None] = {}
    until: int | None = None
    for partition in range(expansion.new - 1, expansion.old, -1):
        time = first_times.get(partition)
        until = time if until is None else until if time is None else min(time, until)
        oldest[partition] = until
    return oldest
