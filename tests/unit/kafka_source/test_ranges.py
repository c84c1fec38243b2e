"""What a task's range says beside offsets: its number, and the generations of its partitions."""

from __future__ import annotations

from dataclasses import replace

from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.groupers import GroupBySystemStreamPartition
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH
from tests.support.kafka.planning import RULES, found, planned


def test_the_number_of_a_partitions_task_is_the_partitions() -> None:
    plan = planned(BEFORE_FIRST_BATCH, found({"a": [5, 0, 5], "b": [5, 5, 5, 5]}), RULES)
    numbers = {one.task: one.number for one in plan.ranges}
    assert numbers == {f"Partition {number}": number for number in range(4)}
    idle = planned(BEFORE_FIRST_BATCH, found({"a": [0, 0, 5]}), RULES)
    assert [(one.task, one.number) for one in idle.ranges] == [("Partition 2", 2)]


def test_tasks_of_other_names_are_numbered_in_order_idle_ones_too() -> None:
    rules = replace(RULES, grouping=FixedTasks(grouper=GroupBySystemStreamPartition()))
    plan = planned(BEFORE_FIRST_BATCH, found({"a": [0, 5], "b": [5]}), rules)
    assert [one.number for one in plan.ranges] == [1, 2]


def test_generations_count_expansions() -> None:
    first = planned(BEFORE_FIRST_BATCH, found({"a": [5, 5]}), RULES)
    second = planned(first.end, found({"a": [6, 6, 3, 3]}), RULES)
    assert [
        [(part.ssp.partition, part.generation) for part in one.partitions] for one in second.ranges
    ] == [[(0, 0), (2, 1)], [(1, 0), (3, 1)]]
