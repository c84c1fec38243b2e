"""Counts that may differ: those of side inputs, and all if agreement is only advised."""

from __future__ import annotations

import pytest

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.planner import PartitionCountConflictError, Pipeline
from spark_ssp.planner.storage.plan_json import from_text, to_text
from tests.support.pipelines.examples import both, partitions, planned, same, stream_id, topics


@pytest.mark.parametrize(("aside", "expected"), [(True, 8), (False, 100)])
def test_a_side_input_decides_on_no_other_count(aside: bool, expected: int) -> None:
    """As in Samza. What is read as a stream as well counts."""
    pipeline = Pipeline("p")
    s1, s2, s3 = topics(pipeline, "s1", "s2", "s3")
    table = pipeline.table("t", key="k")
    table.side_input(s3.filter("k is not null").transform(same))
    s2.partition_by("k", name="tied").join_table(table).output("kafka", "joined")
    s1.merge(s2).partition_by("k", name="made").output("kafka", "out")
    if not aside:
        s3.merge(s1).output("kafka", "more")
    counts = {"s1": 8, "s2": 4, "s3": 100}
    assert partitions(pipeline, counts) == {"made": expected, "tied": 100}


def test_each_remedy_for_counts_that_differ_makes_a_plan() -> None:
    def joined(*, cut: bool = False) -> Pipeline:
        pipeline = Pipeline("p")
        a, b = topics(pipeline, "a", "b")
        (a.partition_by("k") if cut else a).join(b, both).output("kafka", "out")
        return pipeline

    counts = {"a": 4, "b": 8, "out": 1}
    with pytest.raises(PartitionCountConflictError):
        planned(joined(), counts)
    assert planned(joined(cut=True), counts).plan.stream(stream_id("p-a-by-k")).partitions == 8
    planned(joined(), {**counts, "a": 8})
    advised = planned(joined(), counts, agreement="advise")
    assert "kafka/a, kafka/b: 4, 8, which do not agree (all defined)" in advised.explain()
    assert "- kafka/a, kafka/b: counts of 4, 8, which do not agree. " in advised.explain()
    assert "4, 8, which do not agree" in advised.page()
    assert to_text(from_text(to_text(advised.plan))) == to_text(advised.plan)


def test_advised_an_undefined_stream_takes_the_count_of_the_nearest() -> None:
    pipeline = Pipeline("p")
    a, b, c = topics(pipeline, "a", "b", "c")
    near = a.partition_by("k", name="made").join(b, both, name="one")
    near.join(c, both, name="two").output("kafka", "out")
    plan = planned(pipeline, {"a": 2, "b": 6, "c": 5, "out": 1}, agreement="advise").plan
    assert plan.stream(stream_id("p-made")).partitions == 6
    with pytest.raises(InvalidOptionsError, match="agreement: found 'maybe'"):
        planned(pipeline, {}, agreement="maybe")
