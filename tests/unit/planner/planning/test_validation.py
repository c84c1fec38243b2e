"""Invalid graphs with their errors, the operators allowed on Kinesis, and state by task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_ssp.planner import InvalidPipelineError, Pipeline, Stream
from spark_ssp.planner.graph.operators import (
    Graph,
)
from spark_ssp.planner.planning.validation import (
    find_graph_problems,
    find_kinesis_notes,
    find_task_problems,
    operators_in_order,
)
from tests.support.pipelines.examples import both, planned, same, topics


def _found(pipeline: Pipeline) -> list[str]:
    """Return the problems as `subject: found`."""
    return [f"{p.subject}: {p.found}" for p in find_graph_problems(pipeline.graph)]


def _good() -> Graph:
    pipeline = Pipeline("p")
    (orders,) = topics(pipeline, "orders")
    orders.filter("x", name="clean").output("kafka", "out")
    return pipeline.build()


# --- Parts without effect ------------------------------------------------------------------------


def test_a_pipeline_needs_an_output(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "orders").filter("x")
    assert _found(pipeline) == ["output: none"]
    assert _found(Pipeline("p")) == ["output: none"]


def test_the_end_of_a_line_that_leads_nowhere_is_named(pipeline: Pipeline) -> None:
    orders, spare = topics(pipeline, "orders", "spare")
    orders.output("kafka", "out")
    spare.filter("x", name="a").transform(same, name="b")
    orders.partition_by("id", name="c")
    assert _found(pipeline) == [
        "transform b: rows without a consumer",
        "partition_by c: rows without a consumer",
    ]


def test_an_input_that_nobody_reads_is_named(pipeline: Pipeline) -> None:
    orders, _ = topics(pipeline, "orders", "spare")
    orders.output("kafka", "out")
    assert _found(pipeline) == ["input spare: rows without a consumer"]


def test_a_table_that_leads_nowhere_is_named(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    orders.output("kafka", "out")
    orders.send_to_table(pipeline.table("t", key="k"), name="send")
    pipeline.table("unused", key="k")
    assert _found(pipeline) == [
        "send_to_table send: table t, whose rows reach no output",
        "table unused: no operator that fills or reads it",
    ]


def test_a_loop_of_tables_without_an_output_is_of_no_use(pipeline: Pipeline) -> None:
    orders, other = topics(pipeline, "orders", "other")
    table = pipeline.table("t", key="k")
    orders.join_table(table).send_to_table(table, name="send")
    other.output("kafka", "out")
    assert _found(pipeline) == [
        (
            "join_table orders-join-t: table t, which depends on its own rows within one query: "
            "orders-join-t -> send -> orders-join-t"
        ),
        "send_to_table send: table t, whose rows reach no output",
    ]


def test_what_fills_a_table_that_is_read_is_of_use(pipeline: Pipeline) -> None:
    orders, prices = topics(pipeline, "orders", "prices")
    table = pipeline.table("t", key="k")
    prices.filter("x").send_to_table(table)
    orders.join_table(table).output("kafka", "out")
    assert _found(pipeline) == []


# --- Cycles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("filled", [True, False])
def test_a_join_may_be_sent_back_to_its_own_table(
    pipeline: Pipeline, through: bool, filled: bool
) -> None:
    """Through a stream, if another line fills the table too."""
    orders, prices = topics(pipeline, "orders", "prices")
    table = pipeline.table("t", key="k")
    joined = orders.join_table(table, name="join")
    (joined.partition_by("k") if through else joined).send_to_table(table, name="send")
    joined.merge(prices).output("kafka", "out")
    if filled:
        prices.send_to_table(table)
    at_once = "which depends on its own rows within one query: join -> send -> join"
    why = "which is filled only with rows joined with it" if through else at_once
    assert _found(pipeline) == ([] if filled and through else [f"join_table join: table t, {why}"])


@pytest.mark.parametrize("through", [True, False])
def test_tables_that_only_fill_each_other_are_refused(pipeline: Pipeline, through: bool) -> None:
    a, b = topics(pipeline, "a", "b")
    t, u = (pipeline.table(name, key="k") for name in "tu")
    for line, joined, filled in ((a, t, u), (b, u, t)):
        line = line.join_table(joined, name=f"join-{joined.name}")
        (line.partition_by("k") if through else line).send_to_table(filled)
        line.output("kafka", f"out-{joined.name}")
    tables = {problem.partition(":")[0] for problem in _found(pipeline)}
    # A cycle within one query is reported once.
    assert tables == (
        {"join_table join-t", "join_table join-u"} if through else {"join_table join-t"}
    )


def test_records_must_not_go_round_through_a_stream(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    orders.filter("x", name="clean").output("kafka", "orders", name="back")
    with pytest.raises(InvalidPipelineError, match="circulate forever"):
        pipeline.build()
    assert _found(pipeline) == [
        "output back: kafka/orders, the source of its rows: orders -> clean -> back"
    ]


def test_records_must_not_go_round_through_a_table_and_a_stream(pipeline: Pipeline) -> None:
    orders, prices = topics(pipeline, "orders", "prices")
    table = pipeline.table("t", key="k")
    prices.send_to_table(table, name="send")
    orders.join_table(table, name="join").output("kafka", "prices", name="back")
    assert _found(pipeline) == [
        "output back: kafka/prices, the source of its rows: prices -> send -> join -> back"
    ]


def test_an_output_into_a_stream_that_is_read_elsewhere_is_a_repartition_in_disguise() -> None:
    pipeline = Pipeline("p")
    orders, prices = topics(pipeline, "orders", "prices")
    orders.output("kafka", "prices", name="aside")
    prices.output("kafka", "out")
    with pytest.raises(InvalidPipelineError, match="pass the rows with partition_by"):
        pipeline.build()
    assert _found(pipeline) == ["output aside: kafka/prices, which input prices reads"]


def test_an_intermediate_stream_must_not_be_an_output_as_well(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    made = orders.partition_by("id", stream="made", name="made")
    made.output("kafka", "out")
    orders.output("kafka", "made", name="too")
    assert _found(pipeline) == ["output too: kafka/made, which partition_by made reads"]


def test_two_outputs_may_write_one_stream(pipeline: Pipeline) -> None:
    one, two = topics(pipeline, "one", "two")
    one.output("kafka", "out", name="a")
    two.output("kafka", "out", name="b")
    assert _found(pipeline) == []
    assert planned(pipeline, {"one": 1, "two": 2}).plan.stages[1].name == "b"


# --- The whole graph ------------------------------------------------------------------------------


def test_operators_are_ordered_by_their_rows() -> None:
    good = _good()
    backwards = replace(good, operators=good.operators[::-1])
    assert [o.name for o in operators_in_order(backwards)] == ["orders", "clean", "to-out"]


def test_all_that_is_wrong_is_reported_at_once_with_its_line(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "orders").output("kafka", "orders", name="back")
    pipeline.input("kafka", "spare")
    with pytest.raises(InvalidPipelineError) as caught:
        pipeline.build()
    first, *lines = str(caught.value).splitlines()
    assert first == "[invalid-pipeline] pipeline p: 2 problems:"
    assert [line.split(" (")[0] for line in lines] == [
        "  1. output back",
        "  2. input spare",
    ]


# --- Kinesis -------------------------------------------------------------------------------------


def _kinesis(use: Callable[[Pipeline, Stream, Stream], object]) -> Pipeline:
    """A pipeline that uses a stream of Kinesis, and one of Kafka."""
    pipeline = Pipeline("p")
    flights = pipeline.input("kinesis", "flights")
    carriers = pipeline.input("kafka", "carriers")
    use(pipeline, flights.filter("x").transform(same), carriers)
    flights.merge(carriers).output("kafka", "all")
    return pipeline


def _join_kinesis_table(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
    table = pipeline.table("t", key="k")
    carriers.send_to_table(table)
    flights.join_table(table, name="on-kinesis").output("kafka", "out")


def _fill(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
    table = pipeline.table("t", key="k")
    flights.send_to_table(table, name="on-kinesis")
    carriers.join_table(table).output("kafka", "out")


def _side_input(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
    table = pipeline.table("t", key="k").side_input(flights, name="on-kinesis")
    carriers.join_table(table).output("kafka", "out")


REFUSED: dict[str, tuple[Callable[[Pipeline, Stream, Stream], object], str]] = {
    "join": (
        lambda p, f, c: f.join(c, both, name="on-kinesis").output("kafka", "out"),
        "streams whose partitions of one key are read by one task",
    ),
    "join, as the right one": (
        lambda p, f, c: c.join(f, both, name="on-kinesis").output("kafka", "out"),
        "streams whose partitions of one key are read by one task",
    ),
    "join after a merge": (
        lambda p, f, c: c.merge(f).join(c, both, name="on-kinesis").output("kafka", "out"),
        "streams whose partitions of one key are read by one task",
    ),
    "join_table": (_join_kinesis_table, "tasks that own the keys of their part of the table"),
    "send_to_table": (_fill, "tasks that own the keys of their part of the table"),
    "side_input": (_side_input, "tasks that own the keys of their part of the table"),
    "state in tasks": (
        lambda p, f, c: f.transform(same, state="task", name="on-kinesis").output("kafka", "out"),
        "tasks that keep their keys, and with them the state",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_relies_on_tasks_cannot_stand_on_kinesis(case: str) -> None:
    use, expected = REFUSED[case]
    (problem,) = find_graph_problems(_kinesis(use).graph)
    assert problem.subject.endswith(" on-kinesis")
    assert problem.found == "kinesis/flights of Kinesis, with no repartition in between"
    assert problem.expected.startswith(f"{expected}: shards split and merge")
    assert problem.next_step.startswith(
        "keep the state by key (groupBy, transformWithState) and pass state='shuffled'; or, to "
        "keep it by task, repartition in a separate pipeline"
        if case == "state in tasks"
        else f"put .partition_by(<the key's columns>) before {problem.subject}"
    )
    assert problem.place is not None


def test_a_repartition_to_kafka_makes_it_right() -> None:
    def use(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
        made = flights.partition_by("carrier")
        table = pipeline.table("t", key="k")
        made.send_to_table(table)
        made.join(carriers, both).join_table(table).output("kafka", "out")

    assert find_graph_problems(_kinesis(use).graph) == ()


def test_a_repartition_to_kinesis_does_not() -> None:
    def use(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
        made = flights.partition_by("carrier", system="kinesis", name="made")
        made.join(carriers, both, name="join").output("kafka", "out")

    (problem,) = find_graph_problems(_kinesis(use).graph)
    assert problem.found == "kinesis/p-made of Kinesis, with no repartition in between"


def test_only_the_first_on_a_line_is_named() -> None:
    def use(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
        first = flights.join(carriers, both, name="first")
        first.join(carriers, both, name="second").output("kafka", "out")

    assert [p.subject for p in find_graph_problems(_kinesis(use).graph)] == ["join first"]


def test_every_stream_of_kinesis_behind_an_operator_is_named(pipeline: Pipeline) -> None:
    one, two = pipeline.input("kinesis", "one"), pipeline.input("kinesis", "two")
    one.join(two, both, name="join").output("kafka", "out")
    (problem,) = find_graph_problems(pipeline.graph)
    assert problem.found.startswith("kinesis/one, kinesis/two of Kinesis")


def test_what_spark_shuffles_may_stand_on_kinesis_with_a_hint() -> None:
    def use(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
        flights.transform(same, state="shuffled", name="per-carrier").output("kafka", "out")

    graph = _kinesis(use).build()
    (note,) = find_kinesis_notes(graph)
    assert note.subject == "transform per-carrier"
    assert note.text.startswith("directly on kinesis/flights of Kinesis; right because Spark")
    assert note.place is not None


def test_a_shuffle_is_no_repartition() -> None:
    def use(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
        shuffled = flights.transform(same, state="shuffled")
        shuffled.join(carriers, both, name="join").output("kafka", "out")

    assert [p.subject for p in find_graph_problems(_kinesis(use).graph)] == ["join join"]


def test_a_table_that_is_whole_in_every_task_may_be_joined_on_kinesis() -> None:
    def use(pipeline: Pipeline, flights: Stream, carriers: Stream) -> None:
        airports = pipeline.input("kafka", "airports", broadcast=True)
        whole = pipeline.table("whole", key="k").side_input(airports)
        elsewhere = pipeline.table("elsewhere", key="k")
        flights.join_table(whole).join_table(elsewhere).output("kafka", "out")

    graph = _kinesis(use).build()
    assert find_kinesis_notes(graph) == ()


def test_what_stands_on_kafka_gets_no_hint(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "a").transform(same, state="shuffled").output("kafka", "out")
    assert find_kinesis_notes(pipeline.build()) == ()


def test_state_by_task_may_stand_on_the_line_of_an_input_from_kafka(pipeline: Pipeline) -> None:
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
    assert "test_validation.py:" in problem.found
    assert problem.expected.startswith("the line of one input from Kafka")
    assert "pass state='shuffled'; or" in problem.next_step


def test_the_nearest_is_named_and_a_second_function_too(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    made = orders.merge(orders, name="all").partition_by("k", name="made")
    first = made.transform(same, state="task", name="first")
    first.transform(same, state="task", name="second").output("kafka", "out")
    found = [(p.subject, p.found.split()[3]) for p in find_task_problems(pipeline.graph)]
    assert found == [("transform first", "made"), ("transform second", "made")]


def test_a_function_on_kinesis_is_refused_once(pipeline: Pipeline) -> None:
    merged = pipeline.input("kinesis", "flights").merge(pipeline.input("kafka", "more"))
    merged.transform(same, state="task", name="count").output("kafka", "out")
    (problem,) = find_graph_problems(pipeline.graph)
    assert problem.found == "kinesis/flights of Kinesis, with no repartition in between"
    assert find_task_problems(pipeline.graph) != ()
