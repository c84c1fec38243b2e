"""A plan as text: its tables, its notes, and the figure as Mermaid."""

from __future__ import annotations

import re

import pytest

from spark_ssp.planner import Pipeline
from spark_ssp.planner.explain import MAX_COLUMN_WIDTH, aligned, notes
from tests.support.pipelines.examples import both, planned, same, topics


def _delays() -> Pipeline:
    pipeline = Pipeline("delays")
    carriers = pipeline.table("carriers", key="carrier")
    carriers.side_input(pipeline.input("kafka", "carriers"), name="fill")
    flights = pipeline.input("kinesis", "flights").transform(same, name="parse")
    by_carrier = flights.partition_by("carrier")
    counted = by_carrier.join_table(carriers, name="name").transform(same, state="shuffled")
    counted.output("kafka", "delay-per-carrier")
    return pipeline


EXPLAINED = """\
Pipeline delays: 2 stages, 4 streams, 1 table

STREAM                           ROLE          PARTITIONS  COUNT
kafka/carriers                   input         8           found
kafka/delay-per-carrier          output        ?           unknown
kafka/delays-flights-by-carrier  intermediate  8           inferred: as kafka/carriers, through \
table carriers
kinesis/flights                  input         4           found

STAGE                 READS                            WRITES                           KEY      \
TABLES
flights-by-carrier    kinesis/flights                  kafka/delays-flights-by-carrier  carrier  -
to-delay-per-carrier  kafka/delays-flights-by-carrier  kafka/delay-per-carrier          -        \
carriers

TABLE     KEY      FILLED BY       READ BY
carriers  carrier  kafka/carriers  to-delay-per-carrier

MUST AGREE
kafka/carriers, kafka/delays-flights-by-carrier: 8 (mixed)
  table carriers [side_input fill (here); join_table name (here)]

NOTES
- kafka/delay-per-carrier: does not exist yet; the pipeline does not create outputs
"""


def test_a_plan_is_explained_in_tables() -> None:
    shown = planned(_delays(), {"kinesis/flights": 4, "carriers": 8}).explain()
    assert re.sub(r"[\w/]+\.py:\d+", "here", shown) == EXPLAINED


def test_a_small_plan_has_no_empty_sections(pipeline: Pipeline) -> None:
    (a,) = topics(pipeline, "a")
    a.join(a, both).output("kafka", "out")
    shown = planned(pipeline, {"a": 1, "out": 2}).explain()
    assert shown.startswith("Pipeline p: 1 stage, 2 streams, 0 tables\n\nSTREAM")
    assert "FILLED BY" not in shown
    assert "MUST AGREE" not in shown
    assert "NOTES" not in shown


def test_a_very_wide_cell_makes_no_other_line_longer() -> None:
    wide = "x" * (MAX_COLUMN_WIDTH + 1)
    table = aligned(("a", "b"), [("ones", "1"), (wide, "2"), ("z" * MAX_COLUMN_WIDTH, "3")])
    assert table.splitlines() == [
        f"{'A':{MAX_COLUMN_WIDTH}}  B",
        f"{'ones':{MAX_COLUMN_WIDTH}}  1",
        f"{wide}  2",
        f"{'z' * MAX_COLUMN_WIDTH}  3",
    ]


def test_columns_are_aligned_and_nothing_trails() -> None:
    assert aligned(("a", "b"), [("long", "x"), ("y", "")]) == "A     B\nlong  x\ny"


@pytest.mark.parametrize(
    ("counts", "default", "wish", "shown"),
    [
        ({"a": 4}, None, None, "4           inferred: the largest of inputs and outputs, kafka/a"),
        ({"a": 400}, None, None, "256         inferred: the cap, since kafka/a has more"),
        ({"a": 4}, 12, None, "12          inferred: default_intermediate_partitions"),
        ({"a": 4, "p-made": 7}, None, None, "7           found"),
        ({}, None, 3, "3           given by partitions="),
    ],
)
def test_a_count_says_where_it_comes_from(
    counts: dict[str, int], default: int | None, wish: int | None, shown: str
) -> None:
    pipeline = Pipeline("p")
    made = pipeline.input("kafka", "a").partition_by("k", name="made", partitions=wish)
    made.output("kafka", "out")
    assert shown in planned(pipeline, counts, default=default).explain()


def test_tasks_are_shown_where_they_differ(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "a").output("kafka", "out")
    first = planned(pipeline, {"a": 4}).plan
    assert "8 in 4 tasks" in planned(pipeline, {"a": 8}, recorded=first).explain()
    assert "tasks" not in planned(pipeline, {"a": 4}, recorded=first).explain()


def test_notes_tell_what_is_right_and_worth_knowing(pipeline: Pipeline) -> None:
    flights = pipeline.input("kinesis", "flights")
    table = pipeline.table("elsewhere", key="k")
    shuffled = flights.transform(same, state="shuffled", name="count").join_table(table)
    shuffled.partition_by("k", name="made").output("kafka", "out")
    pipeline.input("kafka", "lost").output("kafka", "out", name="aside")
    made = planned(pipeline, {"kinesis/flights": 300})
    assert [(n.subject, n.text.partition(";")[0]) for n in notes(made.graph, made.plan)] == [
        ("transform count", "directly on kinesis/flights of Kinesis"),
        (
            "table elsewhere",
            (
                "the pipeline does not fill it, so its readers need not agree, and its rows must "
                "come from elsewhere"
            ),
        ),
        ("kafka/lost", "does not exist yet, or its service does not report its partitions"),
        ("kafka/out", "does not exist yet"),
        ("kafka/p-made", "256 partitions are the cap of inferred counts"),
    ]
    assert re.search(r"- transform count \(\S*test_explain\.py:", made.explain())


def test_a_stream_of_kinesis_that_would_be_written_is_noted(pipeline: Pipeline) -> None:
    made = pipeline.input("kafka", "a").partition_by("k", name="made", system="kinesis")
    made.output("kinesis", "out", name="end")
    shown = planned(pipeline, {"a": 3, "kinesis/out": 2})
    first, second = notes(shown.graph, shown.plan)
    assert (first.subject, second.subject) == ("partition_by made", "output end")
    assert first.text == (
        "pipelines do not write to Kinesis: kinesis/p-made is planned, and created by apply, which "
        "AWS bills, but run refuses the pipeline; to run it, name a Kafka system here"
    )
    assert second.text.startswith("pipelines do not write to Kinesis: kinesis/out is planned,")
    assert first.text in shown.explain()
    assert first.text in shown.page()


# --- Mermaid -------------------------------------------------------------------------------------


def test_the_figure_is_written_as_mermaid() -> None:
    drawn = planned(_delays(), {"kinesis/flights": 4, "carriers": 8}).mermaid()
    lines = [line.strip() for line in drawn.splitlines() if "classDef" not in line]
    assert lines == [
        "flowchart LR",
        'n0(["kinesis · input<br/>flights<br/>4 shards<br/>found"]):::stream',
        'n1["flights-by-carrier<br/>partition by carrier<br/>parse: transform"]:::stage',
        (
            'n2(["kafka · intermediate<br/>delays-flights-by-carrier<br/>8 partitions'
            '<br/>inferred: as kafka/carriers"]):::intermediate'
        ),
        'n3[("table<br/>carriers<br/>key carrier")]:::table',
        (
            'n4["to-delay-per-carrier<br/>output to delay-per-carrier<br/>'
            "name: join_table · carriers<br/>"
            'flights-by-carrier-transform: transform · state shuffled"]:::stage'
        ),
        'n5(["kafka · output<br/>delay-per-carrier<br/>does not exist yet"]):::stream',
        'n6(["kafka · input<br/>carriers<br/>8 partitions<br/>found"]):::stream',
        "n0 --> n1",
        "n1 --> n2",
        "n2 --> n4",
        "n3 -.-> n4",
        "n4 --> n5",
        "n6 --> n3",
    ]


def test_names_of_columns_cannot_break_mermaid(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "a").partition_by('x"]<b>&#\n', name="made").output("kafka", "out")
    drawn = planned(pipeline, {"a": 1}).mermaid()
    assert "by x#quot;]#lt;b#gt;#amp;#35;" in drawn
