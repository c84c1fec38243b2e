"""Creates the grouper of a query from its options and its checkpoint.

A query without an option about tasks behaves as with Spark's own source: each partition is a task,
and any partition count is accepted (`ssp`, `regroup`). Any such option means that the query relies
on its tasks: partitions are grouped by their number, and tasks are kept (`partition`, `keep`). The
checkpoint decides if the options do not, so that a query keeps its tasks.
"""

from __future__ import annotations

from spark_ssp.grouping.expansion import (
    ModuloExpansion,
    PartitionExpansionAlgorithm,
    load_expansion_algorithm,
)
from spark_ssp.grouping.fixed_tasks import FixedTasks, OnPartitionCountChange
from spark_ssp.grouping.groupers import (
    AllSspToSingleTask,
    GroupByPartition,
    GroupBySystemStreamPartition,
    Grouper,
)
from spark_ssp.grouping.identifiers import WorkerId
from spark_ssp.kafka_source.options.values import GrouperName, KafkaOptions


def create_grouping(options: KafkaOptions, worker: WorkerId, label: str = "") -> FixedTasks:
    """Return the grouper for these options. `worker` names the task of `grouper=single`; `label` is
    the label of the grouper that made the tasks in the checkpoint, empty for a new query."""
    name = _name(options, label)
    return FixedTasks(
        grouper=_grouper(name, options, worker),
        expansion=_expansion(options),
        on_count_change=_on_count_change(options, name),
    )


def _name(options: KafkaOptions, label: str) -> GrouperName:
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


def _grouper(name: GrouperName, options: KafkaOptions, worker: WorkerId) -> Grouper:
    match name:
        case GrouperName.PARTITION:
            return GroupByPartition(tasks=options.tasks)
        case GrouperName.SSP:
            return GroupBySystemStreamPartition()
        case GrouperName.SINGLE:
            return AllSspToSingleTask(worker=worker)


def _expansion(options: KafkaOptions) -> PartitionExpansionAlgorithm:
    if options.expansion_algorithm is None:
        return ModuloExpansion()
    return load_expansion_algorithm(options.expansion_algorithm)
