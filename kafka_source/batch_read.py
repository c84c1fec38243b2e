"""What a batch query (`spark.read`) reads: both bounds become offsets when it is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from checkpoint.assignments.store import AssignmentStore
from checkpoint.assignments.sync import with_store_uri
from kafka_source.batch_planner import WORKER
from kafka_source.client.api import KafkaService
from kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from kafka_source.model.ranges import TaskRange, plan_ranges
from kafka_source.model.topic import Bound, Edge, kafka_name
from kafka_source.options.values import KafkaOptions
from kafka_source.planning.data_loss import warn_of
from kafka_source.planning.grouper_factory import fixed_tasks
from kafka_source.planning.offset_bounds import check_names_all, option_of, points_of
from kafka_source.planning.offset_fetcher import Finder, Sight
from kafka_source.planning.topic_metadata import (
    Found,
    Loss,
    fail_for,
    find_beginnings,
    log_of,
    partitions_of,
)
from ssp_common.errors import IncompatibleStateError, InvalidOptionsError, OptionProblem
from ssp_common.logs import some_of
from task_grouping.assignment import NO_ASSIGNMENT
from task_grouping.fixed_tasks import PartitionCountError
from task_grouping.identifiers import SystemStreamPartition
from task_grouping.merging import as_far_as, restricted

Ends = Mapping[SystemStreamPartition, int]


def plan_read(
    options: KafkaOptions,
    service: KafkaService,
    *,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    store: AssignmentStore | None = None,
) -> tuple[TaskRange, ...]:
    """One range for each task with something to read. Tasks are those of `store`, where it knows
    the topics; nothing is written to it.

    Raises what `Finder.find` raises, InvalidOptionsError for a start behind its end, DataLossError
    for bounds outside of what the logs hold unless that is tolerated, and what `FixedTasks.group`
    raises.
    """
    stored = None if store is None else store.read()
    known = NO_ASSIGNMENT if stored is None else stored.assignment
    finder = Finder(options, service, monotonic=monotonic, sleep=sleep)
    sight = finder.find(BEFORE_FIRST_BATCH, known)
    beginnings = find_beginnings(BEFORE_FIRST_BATCH, sight.found, sight.starts)
    ends, cut = _ends(options.end or Edge.LATEST, sight.found, finder)
    losses = (*beginnings.losses, *cut)
    if options.fail_on_data_loss:
        fail_for(losses, "choose a start and an end within the partitions")
    warn_of(losses)
    partitions = partitions_of(sight.found)
    known = as_far_as(restricted(known, {ssp.system_stream for ssp in partitions}), partitions)
    try:
        tasks = fixed_tasks(options, WORKER).group(known, partitions)
    except (PartitionCountError, IncompatibleStateError) as error:
        raise error if store is None else with_store_uri(error, store) from error
    _check_order(options, sight, beginnings.positions, ends)
    # Behind a gap that is tolerated there may be nothing left to read.
    begins = {ssp: min(at, ends[ssp]) for ssp, at in beginnings.positions.items()}
    end = Offset(
        topics={topic: sight.found[topic].topic_id for topic in sight.found},
        positions=ends,
        begins=begins,
        assignment=tasks,
    )
    return plan_ranges(BEFORE_FIRST_BATCH, end)


def _check_order(options: KafkaOptions, sight: Sight, begins: Positions, ends: Ends) -> None:
    """Raise InvalidOptionsError, as Spark fails, where a start lies behind its end, unless it is
    there because of a loss that is tolerated."""
    wrong = [
        f"{kafka_name(ssp)} to {ends[ssp]}, which starts at {begin}"
        for ssp, begin in sorted(begins.items())
        if begin > ends[ssp] and begin == sight.starts.get(ssp, log_of(sight.found, ssp).earliest)
    ]
    if not wrong:
        return
    problem = OptionProblem(
        option=option_of(options.end or Edge.LATEST, "ending"),
        found=some_of(wrong),
        expected="an end that is not before its start",
        next_step="choose a later end or an earlier start",
    )
    raise InvalidOptionsError("kafka-ssp", [problem])


def _ends(bound: Bound, found: Found, finder: Finder) -> tuple[Ends, list[Loss]]:
    """The first offset that is not read in each partition; a time later than every record's is
    the latest."""
    partitions = partitions_of(found)
    check_names_all(option_of(bound, "ending"), bound, partitions)
    points = points_of(bound, partitions)
    answers = finder.ask(points)
    ends: dict[SystemStreamPartition, int] = {}
    losses: list[Loss] = []
    for ssp in partitions:
        point, latest = points[ssp], log_of(found, ssp).end
        if isinstance(point, int) and point > latest:
            losses.append(
                Loss(
                    subject=f"partition {kafka_name(ssp)}",
                    found=f"an end at {latest}, before the end {point} of what is to be read",
                    expected="endingOffsets within the partitions",
                )
            )
        asked = point if isinstance(point, int) else answers.get(ssp)
        ends[ssp] = latest if asked is None else min(asked, latest)
    return ends, losses
