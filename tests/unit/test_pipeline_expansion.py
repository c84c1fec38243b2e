"""Streams whose partitions multiplied: tied streams agree on tasks."""

from __future__ import annotations

import pytest

from pipeline_planner import PartitionCountError, Pipeline
from tests.support.pipelines import both, planned, stream_id, topics


def _tied() -> Pipeline:
    pipeline = Pipeline("p")
    a, b = topics(pipeline, "a", "b")
    a.join(b.partition_by("k", name="made"), both).output("kafka", "out")
    return pipeline


def test_a_stream_that_multiplied_still_agrees_with_those_that_did_not() -> None:
    first = planned(_tied(), {"a": 4, "b": 2}).plan
    counts = {"a": 8, "b": 2, "p-made": 4}
    second = planned(_tied(), counts, recorded=first).plan
    now = second.stream(stream_id("a"))
    assert (now.partitions, now.tasks) == (8, 4)
    third = planned(_tied(), {**counts, "a": 24}, recorded=second).plan
    now = third.stream(stream_id("a"))
    assert (now.partitions, now.tasks) == (24, 4)
    with pytest.raises(PartitionCountError, match="8 and 4 partitions"):
        planned(_tied(), counts)


def test_a_new_stream_takes_the_tasks_of_one_that_multiplied() -> None:
    pipeline = Pipeline("p")
    pipeline.input("kafka", "a").output("kafka", "out")
    first = planned(pipeline, {"a": 4}).plan
    second = planned(_tied(), {"a": 8, "b": 2}, recorded=first).plan
    assert second.stream(stream_id("p-made")).partitions == 4


def test_a_stream_that_grew_otherwise_has_as_many_tasks_as_partitions() -> None:
    first = planned(_tied(), {"a": 4, "b": 2}).plan
    second = planned(_tied(), {"a": 6, "b": 2}, recorded=first).plan
    assert second.stream(stream_id("a")).tasks == 6


def test_kinesis_and_outputs_have_no_fixed_tasks() -> None:
    pipeline = Pipeline("p")
    pipeline.input("kinesis", "flights").partition_by("k", name="made").output("kafka", "out")
    plan = planned(pipeline, {"kinesis/flights": 3, "out": 5}).plan
    tasks = {str(stream.stream): stream.tasks for stream in plan.streams}
    assert tasks == {"kinesis/flights": None, "kafka/out": None, "kafka/p-made": 5}
