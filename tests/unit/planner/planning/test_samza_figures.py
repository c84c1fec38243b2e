"""The figures and the table of constraints of the design that the planner follows (Samza's
execution planner and the agreement of partition counts), one test each."""

from __future__ import annotations

import re

import pytest

from spark_ssp.planner import PartitionCountConflictError, Pipeline, Stream
from spark_ssp.planner.graph.operators import Input, Join, Output
from spark_ssp.planner.planning.co_partitioning import JoinLink, table_links
from tests.support.pipelines.examples import both, partitions, planned, same, stream_id, topics
from tests.support.pipelines.random_pipelines import links


def _pipeline() -> Pipeline:
    return Pipeline("p")


# --- Figures 1 and 2 (listing 1): a stream joined with a filtered one ----------------------------


def _figure_1() -> Pipeline:
    pipeline = _pipeline()
    s1, s2 = topics(pipeline, "S1", "S2")
    s1.filter("amount > 0", name="filter").join(s2, both, name="join").output("kafka", "S3")
    return pipeline


def test_figure_2_the_graph_of_a_stream_stream_join() -> None:
    graph = _figure_1().build()
    kinds = [type(operator).__name__ for operator in graph.operators]
    assert kinds == ["Input", "Input", "Filter", "Join", "Output"]
    streams = [o.stream for o in graph.operators if isinstance(o, Input | Output)]
    assert streams == [stream_id("S1"), stream_id("S2"), stream_id("S3")]
    (join,) = (o for o in graph.operators if isinstance(o, Join))
    assert (join.left, join.right) == ("filter", "S2")
    assert links(graph) == {JoinLink(join=join.name): {stream_id("S1"), stream_id("S2")}}


# --- Figure 3: accepted when the counts are equal, rejected when they are not --------------------


def test_figure_3_left_equal_counts_are_accepted() -> None:
    plan = planned(_figure_1(), {"S1": 16, "S2": 16, "S3": 4}).plan
    assert [(s.partitions, s.count.origin) for s in plan.streams] == [
        (16, "found"),
        (16, "found"),
        (4, "found"),
    ]


def test_figure_3_right_different_counts_are_rejected() -> None:
    with pytest.raises(PartitionCountConflictError, match="16 and 8 partitions"):
        planned(_figure_1(), {"S1": 16, "S2": 8, "S3": 4})


# --- Figure 4: an intermediate stream takes the count of the input it is joined with -------------


def test_figure_4_an_intermediate_stream_takes_the_joined_inputs_count() -> None:
    pipeline = _pipeline()
    s1, s2 = topics(pipeline, "S1", "S2")
    s1.join(s2.partition_by("key", name="S2-prime"), both).output("kafka", "S3")
    counts = {"S1": 16, "S2": 32, "S3": 64}
    assert partitions(pipeline, counts) == {"S2-prime": 16}
    assert partitions(pipeline, counts, default=7) == {"S2-prime": 16}


# --- Figure 5: joined with two inputs that differ, none will do ----------------------------------


def test_figure_5_an_intermediate_stream_between_two_different_inputs_is_rejected() -> None:
    pipeline = _pipeline()
    s1, s2, s4 = topics(pipeline, "S1", "S2", "S4")
    s2_prime = s2.partition_by("key", name="S2-prime")
    s1.join(s2_prime, both, name="one").output("kafka", "S3")
    s4.join(s2_prime, both, name="two").output("kafka", "S5")
    with pytest.raises(PartitionCountConflictError) as caught:
        planned(pipeline, {"S1": 16, "S2": 16, "S4": 32})
    (problem,) = caught.value.problems
    assert problem.subject == "kafka/S1 and kafka/S4"
    assert "16 and 32 partitions" in problem.found
    way = re.sub(r" \([\w/]+\.py:\d+\)", "", problem.found).partition("linked by ")[2].split(" -- ")
    assert way == [
        "kafka/S1 (16)",
        "join one",
        "kafka/p-S2-prime (undefined)",
        "join two",
        "kafka/S4 (32)",
    ]


# --- Figures 6 and 7 (listings 2 and 3): through a table -----------------------------------------


def test_figure_6_a_repartitioned_stream_behind_a_table_takes_the_readers_count() -> None:
    pipeline = _pipeline()
    s1, s2 = topics(pipeline, "S1", "S2")
    table = pipeline.table("T", key="key")
    s1.partition_by("key", name="S1-prime").send_to_table(table)
    s2.join_table(table).output("kafka", "S3")
    assert partitions(pipeline, {"S1": 32, "S2": 16, "S3": 4}) == {"S1-prime": 16}


def _figure_7() -> Pipeline:
    pipeline = _pipeline()
    table = pipeline.table("T", key="key")
    pipeline.input("kafka", "S1").filter("x > 0").send_to_table(table, name="send")
    pipeline.input("kafka", "S2").join_table(table, name="join").output("kafka", "S3")
    return pipeline


def test_figure_7_the_two_halves_of_the_graph_hang_together_by_the_table() -> None:
    graph = _figure_7().build()
    assert table_links(graph) == {"send": ("join",)}
    (tie,) = links(graph)
    assert str(tie) == "table T"
    assert links(graph)[tie] == {stream_id("S1"), stream_id("S2")}


# --- Figure 8: one table joined with two streams -------------------------------------------------


def _figure_8() -> Pipeline:
    pipeline = _pipeline()
    s1, s2, s3 = topics(pipeline, "S1", "S2", "S3")
    table = pipeline.table("T", key="key")
    s1.filter("x > 0").send_to_table(table, name="send")
    s2.join_table(table, name="first").output("kafka", "O1")
    s3.join_table(table, name="second").output("kafka", "O2")
    return pipeline


def test_figure_8_a_writer_is_linked_with_every_reader_of_its_table() -> None:
    graph = _figure_8().build()
    assert table_links(graph) == {"send": ("first", "second")}
    assert list(links(graph).values()) == [{stream_id("S1"), stream_id("S2"), stream_id("S3")}]
    planned(_figure_8(), {"S1": 8, "S2": 8, "S3": 8})
    with pytest.raises(PartitionCountConflictError, match="kafka/S1 and kafka/S3"):
        planned(_figure_8(), {"S1": 8, "S2": 8, "S3": 16})


# --- The table of constraints: S1 fills the table, S2 is joined with it --------------------------


def _constraint(*, first_made: bool, second_made: bool, third: bool = False) -> Pipeline:
    """`made`: an intermediate stream, of an input of its own, in the place of an input."""
    pipeline = _pipeline()

    def stream(name: str, made: bool) -> Stream:
        if not made:
            return pipeline.input("kafka", name)
        return pipeline.input("kafka", f"{name}-raw").partition_by("key", name=name)

    table = pipeline.table("T", key="key")
    stream("S1", first_made).send_to_table(table)
    joined = stream("S2", second_made).join_table(table)
    if third:
        joined = joined.join(pipeline.input("kafka", "S3"), both)
    joined.transform(same).output("kafka", "out")
    return pipeline


RAW = {"S1-raw": 3, "S2-raw": 5, "out": 100}


def test_constraint_1_two_inputs_must_be_equal() -> None:
    pipeline = _constraint(first_made=False, second_made=False)
    assert partitions(pipeline, {"S1": 8, "S2": 8}) == {}
    with pytest.raises(PartitionCountConflictError, match="8 and 9 partitions"):
        planned(pipeline, {"S1": 8, "S2": 9})


def test_constraint_2_an_intermediate_reader_is_set_to_the_inputs_count() -> None:
    pipeline = _constraint(first_made=False, second_made=True)
    assert partitions(pipeline, {**RAW, "S1": 8}) == {"S2": 8}


def test_constraint_3_an_intermediate_writer_is_set_to_the_inputs_count() -> None:
    pipeline = _constraint(first_made=True, second_made=False)
    assert partitions(pipeline, {**RAW, "S2": 8}) == {"S1": 8}


def test_constraint_4_two_intermediate_streams_are_set_to_what_is_joined_later() -> None:
    pipeline = _constraint(first_made=True, second_made=True, third=True)
    assert partitions(pipeline, {**RAW, "S3": 8}) == {"S1": 8, "S2": 8}


def test_constraint_4_without_a_third_both_take_the_default() -> None:
    pipeline = _constraint(first_made=True, second_made=True)
    assert partitions(pipeline, RAW) == {"S1": 100, "S2": 100}
    assert partitions(pipeline, RAW, default=12) == {"S1": 12, "S2": 12}
