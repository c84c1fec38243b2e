"""Large pipelines: the calls of planning grow linearly with their size."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.planning.pipeline_planning import GRAPHS, steps
from spark_ssp.planner import PartitionCountConflictError, Pipeline
from spark_ssp.planner.graph.operators import Graph, StreamId, SystemName
from spark_ssp.planner.planning.partition_counts import Origin
from spark_ssp.planner.planning.stages import bootstrap_stages, fillers_of
from tests.support.pipelines.examples import both, planned
from tests.support.spark.work import growth

STEPS = ("describe", "check", "plan", "plan again", "explain")
LINEAR = 1.1
"""A sort grows a little faster than what it sorts."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_work_grows_as_the_graph_does(graph: str, step: str) -> None:
    assert growth(lambda size: steps(GRAPHS[graph], size)[step], 40) < LINEAR


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_is_explained_grows_as_the_graph_does(graph: str) -> None:
    few, many = (len(str(steps(GRAPHS[graph], size)["explain"]())) for size in (40, 160))
    assert many < 5 * few


def _side_inputs(number: int) -> Graph:
    """A table that many streams fill, each through an intermediate stream."""
    pipeline = Pipeline("p")
    table = pipeline.table("t", key="k")
    for one in range(number):
        table.side_input(pipeline.input("kafka", f"s{one}").partition_by("k"))
    pipeline.input("kafka", "a").join_table(table).output("kafka", "out")
    return pipeline.graph


def test_work_to_find_what_fills_tables_grows_as_they_do() -> None:
    assert growth(lambda size: partial(fillers_of, _side_inputs(size)), 40) < LINEAR
    assert growth(lambda size: partial(bootstrap_stages, _side_inputs(size)), 40) < LINEAR


def _joins(number: int) -> Pipeline:
    pipeline = Pipeline("p")
    line = pipeline.input("kafka", "in-0")
    for one in range(1, number):
        line = line.join(pipeline.input("kafka", f"in-{one}"), both)
    line.output("kafka", "out")
    return pipeline


@pytest.mark.parametrize("alike", [True, False])
def test_conflicts_are_told_in_proportion_to_their_number(alike: bool) -> None:
    """All counts differ, or half of the streams have one count and the others another."""

    def told(number: int) -> int:
        counts = {f"in-{one}": 1 + (one % 2 if alike else one) for one in range(number)}
        with pytest.raises(PartitionCountConflictError) as caught:
            planned(_joins(number), counts)
        assert len(caught.value.problems) == (number // 2 if alike else number - 1)
        return len(str(caught.value))

    assert told(160) < 5 * told(40)


def test_many_inferred_counts_are_those_of_the_nearest_stream(pipeline: Pipeline) -> None:
    """The count of each of many streams is that of the one known stream, which every join has."""
    line = pipeline.input("kafka", "known")
    for number in range(300):
        line = line.join(
            pipeline.input("kafka", f"in-{number}").partition_by("key", name=f"m{number}"), both
        )
    line.output("kafka", "out")
    counts = {"known": 6, **{f"in-{number}": 4 for number in range(300)}}
    plan = planned(pipeline, counts).plan
    known = StreamId(system=SystemName("kafka"), stream="known")
    made = [s.count for s in plan.streams if s.role == "intermediate"]
    assert len(made) == 300
    assert {(c.partitions, c.origin, c.like, len(c.through)) for c in made} == {
        (6, Origin.JOINED, known, 1)
    }
