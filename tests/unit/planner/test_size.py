"""Large pipelines: the calls of planning grow linearly with their size."""

from __future__ import annotations

import pytest

from benchmarks.planning.pipeline_planning import GRAPHS, steps
from spark_ssp.planner import Pipeline
from spark_ssp.planner.graph.operators import StreamId, SystemName
from spark_ssp.planner.planning.partition_counts import Origin
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
