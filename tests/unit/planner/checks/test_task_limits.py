"""Positions where a function may keep state by task, and the errors elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_ssp.planner import InvalidPipelineError, Pipeline, Stream
from spark_ssp.planner.checks.task_limits import find_task_problems
from spark_ssp.planner.checks.validation import find_graph_problems
from tests.support.pipelines.examples import both, same, topics


def test_state_by_task_may_stand_on_the_line_of_an_input_from_kafka() -> None:
    pipeline = Pipeline("p")
    line = pipeline.input("kafka", "orders", bootstrap=True).filter("x").transform(same)
    bound = line.transform(same, state="task").filter("y").transform(same, state="task")
    # What becomes of its rows is another matter.
    bound.merge(line).transform(same, state="shuffled").output("kafka", "out")
    assert find_task_problems(pipeline.build()) == ()


def _a_table(pipeline: Pipeline, line: Stream) -> Stream:
    table = pipeline.table("t", key="k")
    line.send_to_table(table)
    return line.join_table(table, name="end")


ENDS: dict[str, tuple[Callable[[Pipeline, Stream], Stream], str, str]] = {
    "a stream in between": (
        lambda p, s: s.partition_by("k", name="end"),
        "partition_by end",
        "whose stream is read back without the tasks of its records",
    ),
    "a merge": (
        lambda p, s: s.merge(p.input("kafka", "more"), name="end"),
        "merge end",
        "which reads each of its lines in separate tasks",
    ),
    "a merge with itself": (
        lambda p, s: s.merge(s, name="end"),
        "merge end",
        "which reads each of its lines in separate tasks",
    ),
    "a join": (
        lambda p, s: s.join(p.input("kafka", "more"), both, name="end"),
        "join end",
        "for which Spark shuffles records by key",
    ),
    "a table": (_a_table, "join_table end", "for which Spark shuffles records by key"),
    "a function that groups": (
        lambda p, s: s.transform(same, state="shuffled", name="end"),
        "transform end",
        "for which Spark shuffles records by key",
    ),
    "a broadcast stream": (
        lambda p, s: p.input("kafka", "rates", broadcast=True, name="end"),
        "input end",
        "a broadcast stream, whose tasks are not fixed",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_state_by_task_is_refused_behind_what_moves_rows(case: str) -> None:
    end, subject, why = ENDS[case]
    pipeline = Pipeline("p")
    (orders,) = topics(pipeline, "orders")
    orders.output("kafka", "all")
    line = end(pipeline, orders).filter("x").transform(same)
    line.transform(same, state="task", name="count").output("kafka", "out")
    with pytest.raises(InvalidPipelineError) as caught:
        pipeline.build()
    (problem,) = caught.value.problems
    assert problem.subject == "transform count"
    assert problem.place is not None
    assert problem.found.startswith(f"state='task' after {subject} (")
    assert problem.found.endswith(f"), {why}")
    assert "test_task_limits.py:" in problem.found
    assert problem.expected.startswith("the line of one input from Kafka")
    assert "pass state='shuffled'; or" in problem.next_step


def test_the_nearest_is_named_and_a_second_function_too() -> None:
    pipeline = Pipeline("p")
    (orders,) = topics(pipeline, "orders")
    made = orders.merge(orders, name="all").partition_by("k", name="made")
    first = made.transform(same, state="task", name="first")
    first.transform(same, state="task", name="second").output("kafka", "out")
    found = [(p.subject, p.found.split()[3]) for p in find_task_problems(pipeline.graph)]
    assert found == [("transform first", "made"), ("transform second", "made")]


def test_a_function_on_kinesis_is_refused_once() -> None:
    pipeline = Pipeline("p")
    merged = pipeline.input("kinesis", "flights").merge(pipeline.input("kafka", "more"))
    merged.transform(same, state="task", name="count").output("kafka", "out")
    (problem,) = find_graph_problems(pipeline.graph)
    assert problem.found == "kinesis/flights of Kinesis, with no repartition in between"
    assert find_task_problems(pipeline.graph) != ()
