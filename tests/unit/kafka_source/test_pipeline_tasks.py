"""The tasks of a pipeline's topics: those of the plan, for new queries and on the checkpoints of
0.1.0, which read every topic with grouper=partition unless the options named another grouper."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, TaskAssignment
from spark_ssp.grouping.fixed_tasks import PartitionCountError
from spark_ssp.grouping.identifiers import StreamName, SystemName, SystemStreamPartition
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.pipeline_system import KafkaSystem
from spark_ssp.kafka_source.planning.plan_batch import create_grouping

LOCAL = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def _partitions(count: int) -> list[SystemStreamPartition]:
    return [
        SystemStreamPartition(
            system=SystemName("kafka"), stream=StreamName("orders"), partition=number
        )
        for number in range(count)
    ]


def _group(
    options: Mapping[str, str], count: int, before: TaskAssignment = NO_ASSIGNMENT
) -> TaskAssignment:
    parsed = parse_options(options)
    return create_grouping(parsed, before.grouper).group(before, _partitions(count))


def _started_by_0_1_0(grouper: str, count: int) -> TaskAssignment:
    return _group({**LOCAL, "subscribe": "orders", "grouper": grouper}, count)


GROUPERS = ["partition", "ssp", "single"]


@pytest.mark.parametrize("grouper", [None, *GROUPERS])
def test_keys_stay_in_their_tasks_with_any_grouper(grouper: str | None) -> None:
    reader = {} if grouper is None else {"grouper": grouper}
    options = KafkaSystem(LOCAL, reader=reader).reader_format("orders").options
    first = _group(options, 4)
    owners = _group(options, 8, first).owners()
    four, eight = _partitions(4), _partitions(8)
    assert [owners[one] for one in eight] == [first.owners()[one] for one in four] * 2


@pytest.mark.parametrize("grouper", GROUPERS)
@pytest.mark.parametrize("named", [True, False])
def test_a_query_of_0_1_0_keeps_its_tasks(grouper: str, named: bool) -> None:
    """Also if the option was removed, but for a single task, which needs it."""
    reader = {"grouper": grouper} if named or grouper == "single" else {}
    options = KafkaSystem(LOCAL, reader=reader).reader_format("orders").options
    before = _started_by_0_1_0(grouper, 4)
    assert _group(options, 4, before) == before
    assert len(_group(options, 8, before).tasks) == len(before.tasks)


@pytest.mark.parametrize("count", [3, 6, 8])
@pytest.mark.parametrize("grouper", [None, "partition", "ssp"])
def test_a_broadcast_topic_may_have_any_count(grouper: str | None, count: int) -> None:
    system = KafkaSystem(LOCAL)
    options = system.reader_format("orders", keep_tasks=False).options
    before = _group(options, 4) if grouper is None else _started_by_0_1_0(grouper, 4)
    assert _group(options, 4, before) == before
    assert len(_group(options, count, before).tasks) == count
    if count != 8:
        with pytest.raises(PartitionCountError):
            _group(system.reader_format("orders").options, count, before)


@pytest.mark.parametrize("name", ["onPartitionCountChange", "ONPARTITIONCOUNTCHANGE"])
def test_options_that_move_keys_are_refused(name: str) -> None:
    for options, reader in (({name: "regroup"}, {}), ({}, {name: " Regroup"})):
        with pytest.raises(InvalidOptionsError) as caught:
            KafkaSystem({**LOCAL, **options}, reader=reader)
        assert [problem.option for problem in caught.value.problems] == [name]
    kept = KafkaSystem({**LOCAL, name: "Keep"}).reader_format("orders", keep_tasks=False)
    assert parse_options(kept.options).on_partition_count_change == "regroup"
