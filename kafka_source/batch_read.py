"""What a batch query (`spark.read`) reads: both bounds become offsets when it is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from checkpoint.assignments.store import AssignmentStore
from checkpoint.assignments.sync import with_store_uri
from kafka_source.batch_planner import WORKER
from kafka_source.client.api import KafkaService
from kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from kafka_source.model.ranges import TaskRange, plan_ranges
from kafka_source.model.topic import Bound, LogicalOffset, kafka_name
from kafka_source.options.values import KafkaOptions
from kafka_source.planning.data_loss import log_data_loss
from kafka_source.planning.grouper_factory import create_grouping
from kafka_source.planning.offset_bounds import (
    bounds_by_partition,
    check_names_exactly,
    option_name,
)
from kafka_source.planning.offset_fetcher import MetadataSnapshot, OffsetFetcher
from kafka_source.planning.topic_metadata import (
    DataLoss,
    Metadata,
    find_start_positions,
    offsets_of,
    partitions_of,
    raise_data_loss,
)
from ssp_common.errors import IncompatibleStateError, InvalidOptionsError, OptionProblem
from ssp_common.logs import abbreviate
from task_grouping.assignment import NO_ASSIGNMENT
from task_grouping.fixed_tasks import PartitionCountError
from task_grouping.identifiers import SystemStreamPartition
from task_grouping.merging import restrict_to, up_to

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

    Raises the errors of `OffsetFetcher.fetch` and `FixedTasks.group`, InvalidOptionsError for a
    start after its end, and DataLossError for bounds outside the logs unless that is tolerated.
    """
    stored = None if store is None else store.read()
    known = NO_ASSIGNMENT if stored is None else stored.assignment
    fetcher = OffsetFetcher(options, service, monotonic=monotonic, sleep=sleep)
    snapshot = fetcher.fetch(BEFORE_FIRST_BATCH, known)
    beginnings = find_start_positions(
        BEFORE_FIRST_BATCH, snapshot.metadata, snapshot.initial_positions
    )
    ends, cut = _ends(options.end or LogicalOffset.LATEST, snapshot.metadata, fetcher)
    losses = (*beginnings.losses, *cut)
    if options.fail_on_data_loss:
        raise_data_loss(losses, "choose a start and an end within the partitions")
    log_data_loss(losses)
    partitions = partitions_of(snapshot.metadata)
    known = up_to(restrict_to(known, {ssp.system_stream for ssp in partitions}), partitions)
    try:
        tasks = create_grouping(options, WORKER).group(known, partitions)
    except (PartitionCountError, IncompatibleStateError) as error:
        raise error if store is None else with_store_uri(error, store) from error
    _check_order(options, snapshot, beginnings.positions, ends)
    # Behind a gap that is tolerated there may be nothing left to read.
    explicit_starts = {ssp: min(at, ends[ssp]) for ssp, at in beginnings.positions.items()}
    end = Offset(
        topics={topic: snapshot.metadata[topic].topic_id for topic in snapshot.metadata},
        positions=ends,
        explicit_starts=explicit_starts,
        assignment=tasks,
    )
    return plan_ranges(BEFORE_FIRST_BATCH, end)


def _check_order(
    options: KafkaOptions, snapshot: MetadataSnapshot, explicit_starts: Positions, ends: Ends
) -> None:
    """Raise InvalidOptionsError, as Spark fails, where a start lies behind its end, unless it is
    there because of a loss that is tolerated."""
    wrong = [
        f"{kafka_name(ssp)} to {ends[ssp]}, which starts at {begin}"
        for ssp, begin in sorted(explicit_starts.items())
        if begin > ends[ssp]
        and begin
        == snapshot.initial_positions.get(ssp, offsets_of(snapshot.metadata, ssp).earliest)
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


def _ends(bound: Bound, metadata: Metadata, fetcher: OffsetFetcher) -> tuple[Ends, list[DataLoss]]:
    """The first offset that is not read in each partition; a time later than every record's is
    the latest."""
    partitions = partitions_of(metadata)
    check_names_exactly(option_name(bound, "ending"), bound, partitions)
    bounds = bounds_by_partition(bound, partitions)
    answers = fetcher.fetch_bounds(bounds)
    ends: dict[SystemStreamPartition, int] = {}
    losses: list[DataLoss] = []
    for ssp in partitions:
        point, latest = bounds[ssp], offsets_of(metadata, ssp).end
        if isinstance(point, int) and point > latest:
            losses.append(
                DataLoss(
                    subject=f"partition {kafka_name(ssp)}",
                    found=f"an end at {latest}, before the end {point} of what is to be read",
                    expected="endingOffsets within the partitions",
                )
            )
        asked = point if isinstance(point, int) else answers.get(ssp)
        ends[ssp] = latest if asked is None else min(asked, latest)
    return ends, losses
