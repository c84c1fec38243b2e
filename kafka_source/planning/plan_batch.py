"""Planning a batch: from the start offset and what was found, the end offset. Pure.

Order through an expansion: a key that moved has its older records in the partition that had it
before. So of each topic, a task's partitions advance generation by generation: a newer one only
once the older ones have reached the ends found for them in this batch, limits included. Ends of
newer partitions are listed first (`found.Found`), so whatever a producer put into the older
partition before it moved on to the newer one is read first. The ranges of a batch are in the same
order within a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from kafka_source.model.ranges import TaskRange, plan_ranges
from kafka_source.model.topic import SYSTEM
from kafka_source.planning.rate_limit import UNLIMITED, ReadLimits, TriggerDelay
from kafka_source.planning.topic_metadata import (
    DataLoss,
    Metadata,
    StartPositions,
    find_start_positions,
    offsets_of,
    partitions_of,
    raise_data_loss,
    recreated_topics,
    topic_losses,
)
from task_grouping.assignment import NO_ASSIGNMENT, TaskAssignment
from task_grouping.fixed_tasks import REGROUP_OR_AFRESH, FixedTasks, PartitionCountError
from task_grouping.identifiers import StreamName, SystemStream, SystemStreamPartition, TaskName
from task_grouping.merging import inherit


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """What the options say of every batch, and what is known of its like.

    `starts`: where the partitions of a new query begin, resolved to offsets; of no effect later.
    `previous`: what an assignment store has: the tasks of streams that the start does not know.
    """

    grouping: FixedTasks
    fail_on_data_loss: bool = True
    limits: ReadLimits = UNLIMITED
    trigger_delay: TriggerDelay | None = None
    initial_positions: Positions = field(default_factory=dict)
    previous: TaskAssignment = NO_ASSIGNMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A batch: its end, which is the start itself when there is nothing to do, what its tasks
    read, and the losses that failOnDataLoss=false tolerates, to be warned of."""

    end: Offset
    ranges: tuple[TaskRange, ...] = ()
    losses: tuple[DataLoss, ...] = ()
    delayed: bool = False
    """Whether minOffsetsPerTrigger made it wait."""


def plan_batch(start: Offset, metadata: Metadata, rules: BatchRules) -> BatchPlan:
    """The next batch after `start`.

    Raises DataLossError where records are lost and that is not tolerated, PartitionCountError where
    a topic's count changed so that keys could not stay with their tasks, and IncompatibleStateError
    where tasks were made by another grouper.
    """
    whole_topics = tuple(topic_losses(start, metadata))
    if rules.fail_on_data_loss:
        raise_data_loss(whole_topics)
    assignment = _assignment(start, metadata, rules)
    beginnings = find_start_positions(
        start, metadata, rules.initial_positions if start == BEFORE_FIRST_BATCH else {}
    )
    if rules.fail_on_data_loss:
        raise_data_loss(beginnings.losses)
    lags = _lags(beginnings.positions, metadata)
    if rules.trigger_delay is not None and rules.trigger_delay.should_delay(sum(lags.values())):
        return BatchPlan(end=start, delayed=True)
    granted = _advance(lags, assignment, rules.limits)
    end = Offset(
        topics={topic: metadata[topic].topic_id for topic in sorted(metadata)},
        positions={
            ssp: position + granted.get(ssp, 0) for ssp, position in beginnings.positions.items()
        },
        explicit_starts=beginnings.explicit_starts,
        assignment=assignment,
    )
    if _same_place(start, end, beginnings):
        return BatchPlan(end=start, losses=(*whole_topics, *beginnings.losses))
    return BatchPlan(
        end=end,
        ranges=plan_ranges(start, end),
        losses=(*whole_topics, *beginnings.losses),
    )


def _assignment(start: Offset, metadata: Metadata, rules: BatchRules) -> TaskAssignment:
    previous = inherit(start.assignment, rules.previous)
    with explain_recreated(start, metadata):
        assignment = rules.grouping.group(previous, partitions_of(metadata))
    for topic in sorted(recreated_topics(start, metadata)):
        assignment = assignment.restarted(SystemStream(system=SYSTEM, stream=topic))
    return assignment


@contextmanager
def explain_recreated(start: Offset, metadata: Metadata) -> Iterator[None]:
    """A PartitionCountError says, if so, that topics with such a count are not those of before."""
    try:
        yield
    except PartitionCountError as error:
        others = [
            topic
            for topic in sorted(recreated_topics(start, metadata))
            if len(metadata[topic].partitions)
            % start.assignment.counts.get(SystemStream(system=SYSTEM, stream=topic), (1,))[-1]
        ]
        if not others:
            raise
        raise PartitionCountError(
            error.subject,
            found=f"{error.found}; deleted and created again since: {', '.join(others)}",
            expected=error.expected,
            next_step=REGROUP_OR_AFRESH,
        ) from error


def _same_place(start: Offset, end: Offset, beginnings: StartPositions) -> bool:
    """Whether an end says nothing new: it may lack the start's `begins` alone."""
    return (
        not beginnings.explicit_starts
        and start.positions == end.positions
        and start.topics == end.topics
        and start.assignment == end.assignment
    )


def _lags(positions: Positions, metadata: Metadata) -> dict[SystemStreamPartition, int]:
    """The partitions with something to read, and how much."""
    return {
        ssp: offsets_of(metadata, ssp).end - position
        for ssp, position in positions.items()
        if offsets_of(metadata, ssp).end > position
    }


# --- Generation by generation ---------------------------------------------------------------------

GenerationLags = dict[SystemStreamPartition, int]
"""Partitions of one generation with something to read, and how much."""


def _advance(
    lags: Mapping[SystemStreamPartition, int], assignment: TaskAssignment, limits: ReadLimits
) -> dict[SystemStreamPartition, int]:
    """How far each partition advances. Of each task and topic the oldest generation that has
    something to read goes first; those that could not be read to their end hold back the newer."""
    queues = _generations(lags, assignment)
    granted: dict[SystemStreamPartition, int] = {}
    while queues and not limits.exhausted:
        wave: GenerationLags = {ssp: lag for queue in queues for ssp, lag in queue[0].items()}
        shares = limits.split({ssp: wave[ssp] for ssp in sorted(wave)})
        granted.update(shares)
        limits = limits.without(shares)
        queues = [
            queue[1:]
            for queue in queues
            if len(queue) > 1 and all(shares[ssp] == lag for ssp, lag in queue[0].items())
        ]
    return granted


def _generations(
    lags: Mapping[SystemStreamPartition, int], assignment: TaskAssignment
) -> list[list[GenerationLags]]:
    """For each task and topic, its generations that have something to read, oldest first."""
    owners = assignment.owners()
    queues: dict[tuple[TaskName, StreamName], dict[int, GenerationLags]] = {}
    for ssp, lag in lags.items():
        generations = queues.setdefault((owners[ssp], ssp.stream), {})
        generations.setdefault(assignment.generation(ssp), {})[ssp] = lag
    return [
        [generations[generation] for generation in sorted(generations)]
        for _, generations in sorted(queues.items(), key=lambda queue: queue[0])
    ]
