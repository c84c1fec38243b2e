"""From the options to the grouper of a query."""

from __future__ import annotations

from kafka_source.options import GrouperName, KafkaOptions
from task_grouping.expansion import (
    ModuloExpansion,
    PartitionExpansionAlgorithm,
    load_expansion_algorithm,
)
from task_grouping.fixed_tasks import FixedTasks
from task_grouping.groupers import (
    AllSspToSingleTask,
    GroupByPartition,
    GroupBySystemStreamPartition,
    Grouper,
)
from task_grouping.identifiers import WorkerId


def fixed_tasks(options: KafkaOptions, worker: WorkerId) -> FixedTasks:
    """The grouper that the options describe. `worker` names the task of `grouper=single`."""
    return FixedTasks(
        grouper=_grouper(options, worker),
        expansion=_expansion(options),
        on_count_change=options.on_partition_count_change,
    )


def _grouper(options: KafkaOptions, worker: WorkerId) -> Grouper:
    match options.grouper:
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
