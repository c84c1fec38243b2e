"""Plans a batch query (`spark.read`): resolves its start and end to offsets once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from spark_ssp.checkpoint.assignments.store import AssignmentStore
from spark_ssp.checkpoint.assignments.sync import with_store_uri
from spark_ssp.common.errors import IncompatibleStateError, InvalidOptionsError, OptionProblem
from spark_ssp.common.logs import abbreviate, count_of, versions
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, restrict_to, up_to
from spark_ssp.grouping.fixed_tasks import PartitionCountError
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.batch_planner import describe_topics
from spark_ssp.kafka_source.client.api import KafkaService
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kafka_source.model.ranges import TaskRange, plan_ranges
from spark_ssp.kafka_source.model.topic import (
    AtOffsets,
    AtTime,
    AtTimes,
    Bound,
    LogicalOffset,
    kafka_name,
)
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.data_loss import DataLoss, report_data_loss
from spark_ssp.kafka_source.planning.offset_bounds import (
    bounds_by_partition,
    check_names_exactly,
    describe_bound,
    option_name,
)
from spark_ssp.kafka_source.planning.offset_fetcher import OffsetFetcher
from spark_ssp.kafka_source.planning.plan_batch import create_grouping, create_split
from spark_ssp.kafka_source.planning.topic_metadata import BatchContext, offsets_of

_log = logging.getLogger(__name__)

Ends = Mapping[SystemStreamPartition, int]


def plan_read(
    options: KafkaOptions,
    service: KafkaService,
    *,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    store: AssignmentStore | None = None,
) -> tuple[TaskRange, ...]:
    """Return one range for each task with records to read. Tasks are those of `store` for topics
    that it contains; it is not written to.

    Raises the errors of `OffsetFetcher.fetch` and `FixedTasks.group`, InvalidOptionsError for a
    start after its end, and DataLossError for bounds outside the logs unless that is tolerated.
    """
    stored = None if store is None else store.read()
    known = NO_ASSIGNMENT if stored is None else stored.assignment
    fetcher = OffsetFetcher(options, service, monotonic=monotonic, sleep=sleep)
    snapshot = fetcher.fetch(BEFORE_FIRST_BATCH, known)
    context = BatchContext(
        start=BEFORE_FIRST_BATCH,
        metadata=snapshot.metadata,
        initial_positions=snapshot.initial_positions,
    )
    positions = context.start_positions.positions
    ends, end_losses = _ends(options.end or LogicalOffset.LATEST, context, fetcher)
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
    _log.info("%s", _describe(options, context, ranges))
    return ranges


def has_fixed_end(end: Bound | None, now_ms: int) -> bool:
    """Return whether a plan made later ends at the same records: `end` has neither the latest
    offset nor a time after `now_ms`, which means the latest offset until it has passed."""
    match end:
        case AtOffsets(offsets=offsets):
            return LogicalOffset.LATEST not in offsets.values()
        case AtTime(time_ms=time_ms):
            return time_ms <= now_ms
        case AtTimes(times_ms=times_ms):
            return max(times_ms.values(), default=now_ms) <= now_ms
        case _:
            return False


def _describe(options: KafkaOptions, context: BatchContext, tasks: Sequence[TaskRange]) -> str:
    """Return the line for the plan."""
    begin = describe_bound(options.start)
    end = describe_bound(options.end or LogicalOffset.LATEST, "ending")
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
        option=option_name(options.end or LogicalOffset.LATEST, "ending"),
        found=abbreviate(wrong),
        expected="an end that is not before its start",
        next_step="choose a later end or an earlier start",
    )
    raise InvalidOptionsError("kafka-ssp", [problem])


def _ends(
    bound: Bound, context: BatchContext, fetcher: OffsetFetcher
) -> tuple[Ends, list[DataLoss]]:
    """Return the first offset that is not read in each partition, and the losses. A time later than
    every record's means the latest offset."""
    partitions = context.partitions
    check_names_exactly(option_name(bound, "ending"), bound, partitions)
    bounds = bounds_by_partition(bound, partitions)
    answers = fetcher.fetch_bounds(bounds)
    ends: dict[SystemStreamPartition, int] = {}
    losses: list[DataLoss] = []
    for ssp in partitions:
        point, latest = bounds[ssp], offsets_of(context.metadata, ssp).end
        if isinstance(point, int) and point > latest:
            losses.append(
                DataLoss(
                    subject=f"partition {kafka_name(ssp)}",
                    found=f"an end at {latest}, before the requested end {point}",
                    expected="endingOffsets within the partitions",
                )
            )
        requested = point if isinstance(point, int) else answers.get(ssp)
        ends[ssp] = latest if requested is None else min(requested, latest)
    return ends, losses
