"""The order in which stages are built and run to their ends."""

from __future__ import annotations

import time

from spark_ssp.planner import Pipeline
from spark_ssp.planner.planning.stages import bootstrap_stages, order_stages
from tests.support.pipelines.examples import same, topics

_CPU_S = 5.0
"""Far more than is needed, and far less than what grows with the cube of the stages takes."""


def test_a_stage_comes_after_those_that_write_what_it_reads(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    orders.partition_by("a", name="one").partition_by("b", name="two").output("kafka", "out")
    assert order_stages(pipeline.build()) == ("one", "two", "to-out")


def test_a_stage_comes_after_those_that_fill_its_tables(pipeline: Pipeline) -> None:
    orders, people = topics(pipeline, "orders", "people")
    table = pipeline.table("people", key="id")
    orders.join_table(table).output("kafka", "out")
    people.partition_by("id", name="by-id").send_to_table(table)
    assert order_stages(pipeline.build()) == ("by-id", "to-out")


def test_tables_that_are_filled_through_tables_count_too(pipeline: Pipeline) -> None:
    orders, people, towns = topics(pipeline, "orders", "people", "towns")
    known_towns = pipeline.table("towns", key="town")
    known_people = pipeline.table("people", key="id")
    orders.join_table(known_people).output("kafka", "out")
    towns.partition_by("town", name="by-town").send_to_table(known_towns)
    people.join_table(known_towns).send_to_table(known_people)
    assert order_stages(pipeline.build()) == ("by-town", "to-out")


def test_a_stage_does_not_wait_for_what_comes_back_to_its_own_table(pipeline: Pipeline) -> None:
    orders, first = topics(pipeline, "orders", "first")
    table = pipeline.table("sums", key="id").side_input(first)
    joined = orders.join_table(table)
    joined.output("kafka", "out")
    back = joined.partition_by("id", name="back")
    back.send_to_table(table)
    assert order_stages(pipeline.build()) == ("back", "to-out")


def test_of_stages_that_fill_each_others_tables_one_with_another_filler_comes_first() -> None:
    pipeline = Pipeline("p")
    orders, people, towns = topics(pipeline, "orders", "people", "towns")
    t, u = pipeline.table("t", key="id"), pipeline.table("u", key="id").side_input(towns)
    one = orders.join_table(t).partition_by("id", name="one")
    two = people.join_table(u).partition_by("id", name="two")
    one.send_to_table(u)
    two.send_to_table(t)
    one.merge(two).output("kafka", "out")
    assert order_stages(pipeline.build()) == ("two", "one", "to-out")


def test_the_order_of_a_thousand_stages_is_soon_found(pipeline: Pipeline) -> None:
    (line,) = topics(pipeline, "orders")
    for number in range(1_000):
        line = line.partition_by("id", name=f"made-{number}")
    line.output("kafka", "out")
    graph = pipeline.build()
    begun = time.process_time()
    order = order_stages(graph)
    assert time.process_time() - begun < _CPU_S
    assert order == (*(f"made-{number}" for number in range(1_000)), "to-out")


def test_nothing_goes_before_all_when_side_inputs_are_read_at_once(pipeline: Pipeline) -> None:
    orders, people = topics(pipeline, "orders", "people")
    orders.join_table(pipeline.table("people", key="id").side_input(people)).output("kafka", "out")
    assert bootstrap_stages(pipeline.build()) == ()


def test_what_writes_a_side_input_goes_before_all(pipeline: Pipeline) -> None:
    orders, people, towns = topics(pipeline, "orders", "people", "towns")
    by_town = towns.partition_by("town", name="by-town")
    table = pipeline.table("people", key="id")
    by_id = people.partition_by("town", name="to-town").join(by_town, same_pair)
    table.side_input(by_id.partition_by("id", name="by-id"))
    orders.partition_by("id", name="orders-by-id").join_table(table).output("kafka", "out")
    assert bootstrap_stages(pipeline.build()) == ("by-town", "to-town", "by-id")


def test_a_bootstrap_input_that_comes_to_a_table_through_a_stream_goes_before_all() -> None:
    pipeline = Pipeline("p")
    (orders,) = topics(pipeline, "orders")
    people = pipeline.input("kafka", "people", bootstrap=True)
    table = pipeline.table("people", key="id")
    people.transform(same).partition_by("id", name="by-id").send_to_table(table)
    orders.partition_by("id", name="orders-by-id").join_table(table).output("kafka", "out")
    assert bootstrap_stages(pipeline.build()) == ("by-id",)


def test_a_table_that_is_filled_while_it_is_read_goes_before_nothing(pipeline: Pipeline) -> None:
    orders, people = topics(pipeline, "orders", "people")
    table = pipeline.table("people", key="id")
    people.partition_by("id", name="by-id").send_to_table(table)
    orders.join_table(table).output("kafka", "out")
    assert bootstrap_stages(pipeline.build()) == ()


def same_pair(left: object, right: object) -> object:
    raise AssertionError(f"an order must not call {left!r}, {right!r}")
