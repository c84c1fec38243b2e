"""The recorded plan: its text of version 1, and what contradicts it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.planner import Pipeline, Plan, PlanContradictionError, Stream, Table
from spark_ssp.planner.graph.operators import TableName
from spark_ssp.planner.planned_pipeline import follow
from spark_ssp.planner.planning.plan import from_text, is_equivalent, to_text
from spark_ssp.planner.planning.planning import find_contradictions
from spark_ssp.planner.planning.stages import MOST_SOURCES, fillers_of, stages_of
from tests.support.pipelines.examples import both, planned, same, stream_id, topics

GOLDEN = Path(__file__).resolve().parents[3] / "golden"

COUNTS = {
    "kinesis/flights": 4,
    "carriers": 6,
    "airports": 3,
    "weather": 6,
    "rates": 2,
    "delays": 300,
}


def _flights() -> Pipeline:
    """Every kind of stream, table and count."""
    pipeline = Pipeline("flights")
    carriers = pipeline.table("carriers", key="carrier")
    carriers.side_input(pipeline.input("kafka", "carriers", bootstrap=True).filter("name != ''"))
    airports = pipeline.table("airports", key=("faa", "größe"))
    pipeline.input("kafka", "airports", broadcast=True).join_table(carriers).send_to_table(airports)
    flights = pipeline.input("kinesis", "flights").transform(same)
    named = (
        flights.partition_by("carrier")
        .join_table(carriers)
        .join_table(airports, on=("origin", "größe"), how="left")
    )
    named.join(pipeline.input("kafka", "weather"), both).output("kafka", "delays")
    flights.partition_by("tail number", name="tails", partitions=9).output("kafka", "tails")
    rates = pipeline.input("kafka", "rates")
    rates.partition_by("day", name="days").output("kinesis", "days", name="to-days")
    pipeline.input("kafka", "lost").output("kafka", "found")
    return pipeline


def _plan() -> Plan:
    return planned(_flights(), COUNTS).plan


def test_the_golden_plan_is_what_is_written_and_read() -> None:
    text = (GOLDEN / "plan_v1_flights_shapes.json").read_text(encoding="utf-8")
    assert to_text(_plan()) == text
    assert from_text(text) == _plan()


@pytest.mark.parametrize(
    ("name", "left_out"),
    [("plan_v1_flights", ("sources", "shape")), ("plan_v1_flights_sources", ("shape",))],
)
def test_a_plan_recorded_by_an_earlier_build_is_read_as_it_was(
    name: str, left_out: tuple[str, ...]
) -> None:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert from_text(text) == _without(_plan(), *left_out)
    assert to_text(from_text(text)) == text
    assert find_contradictions(from_text(text), _plan()) == ()


def _without(plan: Plan, *fields: str) -> Plan:
    changes: Any = dict.fromkeys(fields)
    return replace(plan, stages=tuple(replace(stage, **changes) for stage in plan.stages))


def test_the_golden_plan_has_every_kind_of_count_that_a_plan_can_have() -> None:
    origins = {stream.count.origin.value for stream in _plan().streams}
    assert origins == {"found", "given", "joined", "capped", "unknown"}
    configured = planned(_flights(), COUNTS, default=5).plan
    largest = planned(_flights(), {**COUNTS, "delays": 8}).plan
    for plan, origin in ((configured, "configured"), (largest, "largest")):
        assert from_text(to_text(plan)) == plan
        assert f'"from": "{origin}"' in to_text(plan)


def test_equal_plans_are_equal_text_wherever_the_lines_stand() -> None:
    assert to_text(_plan()) == to_text(_plan())
    assert ".py" not in to_text(_plan())


def _changed(change: Callable[[Any], object]) -> str:
    document = json.loads(to_text(_plan()))
    change(document)
    return json.dumps(document)


UNREADABLE: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "found text that is not JSON"),
    "a list": ("[]", "found no version"),
    "no version": (_changed(lambda d: d.pop("v")), "found no version"),
    "a later version": (_changed(lambda d: d.update(v=2)), "found plan version 2"),
    "truth as a version": (_changed(lambda d: d.update(v=True)), "found plan version True"),
    "a missing part": (_changed(lambda d: d.pop("stages")), "found a plan without 'stages'"),
    "no count": (
        _changed(lambda d: d["streams"][0]["count"].update(partitions=0)),
        "0 is not a partition count",
    ),
    "an unknown word": (
        _changed(lambda d: d["streams"][0].update(role="sink")),
        "'sink' is not a valid Role",
    ),
    "no stream": (_changed(lambda d: d["stages"][0].update(writes="a")), "'a' is not a stream"),
    "no text": (_changed(lambda d: d.update(pipeline=3)), "3 is not a string"),
    "no list": (_changed(lambda d: d["stages"][0].update(reads="a/b")), "'a/b' is not a list"),
    "something added": (
        _changed(lambda d: d["streams"][0].update(extra=1)),
        "found a plan with the unknown key 'extra' in streams / 0",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_was_not_written_so_is_refused(case: str) -> None:
    text, message = UNREADABLE[case]
    with pytest.raises(IncompatibleStateError) as caught:
        from_text(text)
    assert message in str(caught.value)
    assert "the spark-ssp version that recorded the plan" in caught.value.next_step


# --- Contradictions ------------------------------------------------------------------------------


def _simple(
    *,
    pipeline: str = "p",
    stage: str = "made",
    stream: str | None = "made",
    key: str = "id",
    output: str = "out",
    table: str | None = "t",
    table_key: str = "id",
    filler: str = "prices",
    broadcast: bool = False,
) -> Pipeline:
    flow = Pipeline(pipeline)
    orders = flow.input("kafka", "orders")
    prices = flow.input("kafka", filler, name="filler", broadcast=broadcast)
    made = orders.partition_by(key, name=stage, stream=stream)
    if table is not None:
        kept = flow.table(table, key=table_key)
        prices.send_to_table(kept)
        made = made.join_table(kept, on=key)
    else:
        prices.output("kafka", "prices-out", name="aside")
    made.output("kafka", output, name="end")
    return flow


SIMPLE = {"orders": 4, "prices": 6, "costs": 6, "out": 2}


def _contradictions(now: Pipeline, counts: dict[str, int] | None = None) -> list[str]:
    recorded = planned(_simple(), SIMPLE).plan
    plan = planned(now, counts or SIMPLE, recorded=recorded).plan
    return [
        f"{p.subject}: {p.found}, was {p.expected}" for p in find_contradictions(recorded, plan)
    ]


CONTRADICTIONS: dict[str, tuple[Pipeline, list[str]]] = {
    "nothing": (_simple(), []),
    "another pipeline": (_simple(pipeline="q"), ["pipeline: the name q, was p"]),
    "a stage renamed": (
        _simple(stage="other"),
        [
            (
                "stage made: stage other, which does the same, was stage made, whose checkpoint "
                "has the positions in kafka/orders"
            )
        ],
    ),
    "a stage renamed, and its stream": (
        _simple(stage="other", stream=None),
        [
            (
                "stage made: stage other, which does the same, was stage made, whose checkpoint "
                "has the positions in kafka/orders"
            ),
            "stage end: reads kafka/p-other, was reads kafka/made",
        ],
    ),
    "another key": (_simple(key="day"), ["stage made: partitions by day, was partitions by id"]),
    "another output": (
        _simple(output="elsewhere"),
        ["stage end: writes kafka/elsewhere, was writes kafka/out"],
    ),
    "a table renamed": (
        _simple(table="t2"),
        [
            "stage end: joins with tables t2, was joins with tables t",
            "table t: no such table, was table t, whose rows are kept",
        ],
    ),
    "a table gone": (
        _simple(table=None),
        [
            "stage end: joins with tables nothing, was joins with tables t",
            "table t: no such table, was table t, whose rows are kept",
        ],
    ),
    "another key of a table": (_simple(table_key="day"), ["table t: key day, was key id"]),
    "another stream in a table": (
        _simple(filler="costs"),
        ["table t: filled by kafka/costs, was filled by kafka/prices"],
    ),
    "another kind of input": (
        _simple(broadcast=True),
        ["stream kafka/prices: broadcast input of kafka, was input of kafka"],
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_what_checkpoints_cannot_follow_is_listed(case: str) -> None:
    now, expected = CONTRADICTIONS[case]
    assert _contradictions(now) == expected


def _branches(names: tuple[str, str], *, outputs: bool, streams: bool = False) -> Plan:
    """Two stages that read the same, and write two outputs or two intermediate streams."""
    pipeline = Pipeline("p")
    (orders,) = topics(pipeline, "orders")
    for name, target in zip(names, ("small", "large"), strict=True):
        line = orders.filter(f"{target} > 0")
        if outputs:
            line.output("kafka", target, name=name)
        else:
            made = line.partition_by("k", name=name, stream=target if streams else None)
            made.output("kafka", f"out-{target}")
    return planned(pipeline, {"orders": 4}).plan


@pytest.mark.parametrize(
    ("names", "outputs", "streams", "found"),
    [
        (("a", "d"), True, False, {"b": "d"}),
        (("c", "d"), True, False, {"a": "c", "b": "d"}),
        (("d", "c"), True, False, {"a": "d", "b": "c"}),
        (("a", "d"), False, False, {"b": "d"}),
        # The two cannot be distinguished.
        (("c", "d"), False, False, {"a": None, "b": None}),
        (("d", "c"), False, True, {"a": "d", "b": "c"}),
    ],
)
def test_a_renamed_stage_is_named_if_it_can_be_no_other(
    names: tuple[str, str], outputs: bool, streams: bool, found: dict[str, str | None]
) -> None:
    recorded = _branches(("a", "b"), outputs=outputs, streams=streams)
    problems = find_contradictions(recorded, _branches(names, outputs=outputs, streams=streams))
    by_stage = {p.subject: p for p in problems if p.subject in {"stage a", "stage b"}}
    assert {subject: problem.found for subject, problem in by_stage.items()} == {
        f"stage {name}": "no such stage" if now is None else f"stage {now}, which does the same"
        for name, now in found.items()
    }
    for name, now in found.items():
        assert (f"name it {name} again" in by_stage[f"stage {name}"].next_step) == (now is not None)


@pytest.mark.parametrize(
    ("name", "count", "found"),
    [
        ("prices", 12, None),
        ("prices", 60, None),
        ("prices", 6, None),
        ("out", 1, None),
        (
            "prices",
            9,
            "9 partitions, was 6 or a multiple of it: otherwise keys would move to other tasks",
        ),
        ("orders", 6, "6 partitions, was 4 or a multiple"),
        ("orders", 2, "2 partitions, was 4 or a multiple"),
    ],
)
def test_a_count_may_multiply_and_change_in_no_other_way(
    name: str, count: int, found: str | None
) -> None:
    # Nobody need agree with prices here, so that only its own past speaks.
    def flow() -> Pipeline:
        pipeline = Pipeline("p")
        pipeline.input("kafka", "orders").merge(pipeline.input("kafka", "prices")).output(
            "kafka", "out"
        )
        return pipeline

    recorded = planned(flow(), SIMPLE).plan
    plan = planned(flow(), {**SIMPLE, name: count}, recorded=recorded).plan
    listed = [f"{p.found}, was {p.expected}" for p in find_contradictions(recorded, plan)]
    if found is None:
        assert listed == []
    else:
        (one,) = listed
        assert one.startswith(found)


@pytest.mark.parametrize("kinds", [("kinesis", "kafka"), ("kafka", "kinesis")])
@pytest.mark.parametrize("role", ["input", "output"])
def test_a_stream_of_another_kind_of_service_contradicts(kinds: tuple[str, str], role: str) -> None:
    def plan(kind: str, count: int) -> Plan:
        pipeline = Pipeline("p", systems={"s": kind, "kafka": "kafka"})
        ends = ("s", "kafka") if role == "input" else ("kafka", "s")
        pipeline.input(ends[0], "a").output(ends[1], "out")
        return planned(pipeline, {"s/a": count, "a": 2}).plan

    recorded, now = (plan(kind, count) for kind, count in zip(kinds, (4, 3), strict=True))
    stream = "s/a" if role == "input" else "s/out"
    assert [(p.subject, p.found, p.expected) for p in find_contradictions(recorded, now)] == [
        (f"stream {stream}", f"{role} of {kinds[1]}", f"{role} of {kinds[0]}")
    ]


def test_a_stream_that_is_gone_is_a_contradiction(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "orders").output("kafka", "out")
    recorded = planned(pipeline, {"orders": 4}).plan
    (problem,) = find_contradictions(recorded, planned(pipeline, {}).plan)
    assert (problem.found, problem.expected) == ("no such stream", "4 partitions")
    assert find_contradictions(planned(pipeline, {}).plan, recorded) == ()


def test_shards_of_kinesis_may_come_and_go(pipeline: Pipeline) -> None:
    flights = pipeline.input("kinesis", "flights")
    flights.partition_by("k", name="made", system="kinesis", partitions=4).output("kafka", "out")
    recorded = planned(pipeline, {"kinesis/flights": 4}).plan
    counts = {"kinesis/flights": 3, "kinesis/p-made": 3}
    assert find_contradictions(recorded, planned(pipeline, counts).plan) == ()


def test_a_broadcast_stream_may_change_its_count(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "rates", broadcast=True).output("kafka", "out")
    recorded = planned(pipeline, {"rates": 3}).plan
    assert find_contradictions(recorded, planned(pipeline, {"rates": 4}).plan) == ()


def test_new_stages_tables_and_streams_contradict_nothing() -> None:
    more = _simple()
    other = more.input("kafka", "other")
    table = more.table("t2", key="k").side_input(other)
    other.partition_by("k").join_table(table).output("kafka", "more")
    assert _contradictions(more, {**SIMPLE, "other": 5}) == []


def test_a_stage_that_reads_in_another_order_is_another_stage() -> None:
    def flow(*, turned: bool) -> Pipeline:
        pipeline = Pipeline("p")
        first, second = pipeline.input("kafka", "a"), pipeline.input("kafka", "b")
        merged = second.merge(first) if turned else first.merge(second)
        merged.output("kafka", "out")
        return pipeline

    recorded = planned(flow(turned=False), {}).plan
    (problem,) = find_contradictions(recorded, planned(flow(turned=True), {}).plan)
    assert (problem.found, problem.expected) == (
        "reads kafka/b, kafka/a",
        "reads kafka/a, kafka/b",
    )


def _joined(*order: str, twice: bool = False) -> Plan:
    pipeline = Pipeline("p")
    codes = pipeline.input("kafka", "codes")
    tables = {name: pipeline.table(name, key="k").side_input(codes) for name in ("t1", "t2")}
    line = pipeline.input("kafka", "rows")
    for name in order:
        line = line.join_table(tables[name])
    if twice:
        line = line.merge(line.join_table(tables["t1"]))
    line.output("kafka", "out", name="end")
    return planned(pipeline, {"codes": 4, "rows": 4}).plan


def test_joins_with_tables_that_were_turned_round_contradict() -> None:
    """Spark numbers states by their place in the query, so it would read one table's as another's,
    though `joins with tables` says the same tables as before."""
    recorded = _joined("t1", "t2")
    assert find_contradictions(recorded, _joined("t1", "t2")) == ()
    (problem,) = find_contradictions(recorded, _joined("t2", "t1"))
    assert problem.subject == "stage end"
    assert problem.found == "joins with tables t2, t1"
    assert problem.expected == "joins with tables t1, t2"
    (problem,) = find_contradictions(recorded, _joined("t1", "t2", twice=True))
    assert problem.found == "joins with tables t1, t2, t1"
    assert from_text(to_text(recorded)) == recorded


def _with_table(side: str, *, codes: str = "codes", beside: str = "beside") -> Plan:
    """Two lines that are joined, one of them with a table before, or both together after it."""
    pipeline = Pipeline("p")
    table = pipeline.table("t", key="k").side_input(pipeline.input("kafka", codes, name="codes"))
    left, right = pipeline.input("kafka", "left"), pipeline.input("kafka", "right")
    right.output("kafka", "right-out", name=beside)
    if side == "left":
        left = left.filter("x > 0").join_table(table)
    if side == "right":
        right = right.join_table(table).filter("x > 0")
    left.join(right, both).output("kafka", "out", name="end")
    return planned(pipeline, dict.fromkeys((codes, "left", "right"), 4)).plan


def test_a_join_with_a_table_that_moves_to_the_other_side_contradicts() -> None:
    """Spark numbers the sources of a query, so it would read from one stream where it had stopped
    in another, though the stage reads and joins the same as before."""
    recorded = _with_table("left")
    assert find_contradictions(recorded, _with_table("left")) == ()
    (problem,) = find_contradictions(recorded, _with_table("right"))
    assert str(problem) == (
        "stage end: found a query that reads kafka/left, kafka/codes, kafka/right, in this order; "
        "expected kafka/codes, kafka/left, kafka/right: its checkpoint has positions by number. "
        "Next step: restore the positions and sides of merges, joins and joins with tables, "
        "or start the pipeline under a new checkpoint root and with other intermediate "
        "streams"
    )
    # What explains the order is told alone.
    (problem,) = find_contradictions(recorded, _with_table("left", codes="c"))
    assert problem.subject == "table t"
    both_wrong = find_contradictions(recorded, _with_table("right", beside="renamed"))
    assert [p.subject for p in both_wrong] == ["stage beside", "stage end"]


def test_a_plan_without_sources_contradicts_none_and_is_followed_by_one_with_them() -> None:
    recorded = _without(_with_table("left"), "sources", "shape")
    for now in (_with_table("left"), _with_table("right")):
        assert find_contradictions(recorded, now) == ()
        assert not is_equivalent(recorded, now)


def _of(*names: str) -> tuple[Pipeline, list[Stream], Table]:
    pipeline = Pipeline("p")
    table = pipeline.table("t", key="k").side_input(pipeline.input("kafka", "codes"))
    return pipeline, topics(pipeline, *names), table


def _out(pipeline: Pipeline, line: Stream) -> Plan:
    line.output("kafka", "out", name="end")
    return planned(pipeline, dict.fromkeys(("a", "b", "c", "codes"), 4)).plan


Combine = Callable[[Stream, Stream, Stream, Table], Stream]


def _shaped(combine: Combine) -> Plan:
    pipeline, (a, b, c), table = _of("a", "b", "c")
    for number, line in enumerate((a, b, c)):
        line.join_table(table).output("kafka", f"rest-{number}")
    return _out(pipeline, combine(a, b, c, table))


RESHAPED: dict[str, tuple[Combine, Combine, str, str]] = {
    "joins that are nested otherwise": (
        lambda a, b, c, t: a.join(b, both).join(c, both),
        lambda a, b, c, t: a.join(b.join(c, both), both),
        "join(join(kafka/a, kafka/b), kafka/c)",
        "join(kafka/a, join(kafka/b, kafka/c))",
    ),
    "a table that is joined before another join": (
        lambda a, b, c, t: a.join(b, both).join_table(t),
        lambda a, b, c, t: a.join_table(t).join(b, both),
        "join_table(t(kafka/codes), join(kafka/a, kafka/b))",
        "join(join_table(t(kafka/codes), kafka/a), kafka/b)",
    ),
    "a merge in place of a join": (
        lambda a, b, c, t: a.join(b, both).filter("x"),
        lambda a, b, c, t: a.merge(b),
        "join(kafka/a, kafka/b)",
        "merge(kafka/a, kafka/b)",
    ),
    "a line that is merged after a join": (
        lambda a, b, c, t: a.merge(b).join(c, both),
        lambda a, b, c, t: a.merge(b.join(c, both)),
        "join(merge(kafka/a, kafka/b), kafka/c)",
        "merge(kafka/a, join(kafka/b, kafka/c))",
    ),
}


@pytest.mark.parametrize("case", RESHAPED)
def test_a_query_that_combines_the_same_streams_otherwise_contradicts(case: str) -> None:
    """Spark numbers states by their place in the query, so it would read one operator's as
    another's, though the stage reads the same streams in the same order."""
    before, now, was, is_now = RESHAPED[case]
    recorded, plan = _shaped(before), _shaped(now)
    assert [(s.shape, s.sources) for s in recorded.stages if s.name == "end"] == [
        (was, next(s.sources for s in plan.stages if s.name == "end"))
    ]
    (problem,) = find_contradictions(recorded, plan)
    assert (problem.subject, problem.found) == ("stage end", f"a query that computes {is_now}")
    assert problem.expected.startswith(f"{was}: ")
    assert not is_equivalent(recorded, plan)
    assert from_text(to_text(recorded)) == recorded
    # An earlier build did not record it.
    old = _without(recorded, "shape")
    assert find_contradictions(old, plan) == ()
    assert not is_equivalent(old, recorded)


SAME_SHAPE: dict[str, tuple[Combine, Combine, str]] = {
    "merges that are nested otherwise": (
        lambda a, b, c, t: a.merge(b).merge(c),
        lambda a, b, c, t: a.merge(b.filter("x").merge(c)).transform(same),
        "merge(kafka/a, kafka/b, kafka/c)",
    ),
    "sides of one stream that are swapped": (
        lambda a, b, c, t: a.filter("x").join(a.filter("y"), both),
        lambda a, b, c, t: a.filter("y").join(a.filter("x"), both),
        "join(kafka/a, kafka/a)",
    ),
}


@pytest.mark.parametrize("case", SAME_SHAPE)
def test_a_query_that_combines_its_streams_as_before_contradicts_nothing(case: str) -> None:
    before, now, shape = SAME_SHAPE[case]
    recorded, plan = _shaped(before), _shaped(now)
    assert {s.shape for s in (*recorded.stages, *plan.stages) if s.name == "end"} == {shape}
    assert find_contradictions(recorded, plan) == ()


def test_lines_that_fill_a_table_are_united_like_merged_ones() -> None:
    def plan(*, merged: bool) -> Plan:
        pipeline, (a, b, c), table = _of("a", "b", "c")
        for line in [a.merge(b)] if merged else [a, b]:
            line.send_to_table(table)
        return _out(pipeline, c.join_table(table))

    one, two = plan(merged=False), plan(merged=True)
    assert one.stages == two.stages
    assert one.stages[0].shape == "join_table(t(kafka/a, kafka/b, kafka/codes), kafka/c)"


def test_the_shape_of_a_query_of_one_source_is_not_recorded() -> None:
    """So that builds without shapes read these plans."""
    pipeline, (a, _, _), _ = _of("a", "b", "c")
    a.filter("x").output("kafka", "out", name="end")
    (stage,) = stages_of(pipeline.graph)
    assert (stage.sources, stage.shape) == ((stream_id("a"),), None)


def test_a_stage_of_more_sources_than_can_be_read_has_none_recorded() -> None:
    pipeline = Pipeline("p")
    line = pipeline.input("kafka", "rows")
    for _ in range(60):
        line = line.join(line, both)
    line.output("kafka", "out")
    assert planned(pipeline, {}).plan.stages[0].sources is None
    for times in (MOST_SOURCES, MOST_SOURCES + 1):
        pipeline = Pipeline("p")
        rows = pipeline.input("kafka", "rows")
        rows.merge(*[rows] * (times - 1)).output("kafka", "out")
        (stage,) = planned(pipeline, {}).plan.stages
        assert (stage.shape is None) == (stage.sources is None)
        assert stage.sources == ((stream_id("rows"),) * times if times == MOST_SOURCES else None)


def _filled(names: tuple[str, str], *, merged: tuple[str, str] | None = None) -> Pipeline:
    pipeline = Pipeline("p")
    table = pipeline.table("t", key="k")
    for stream, name in zip("xy", names, strict=True):
        pipeline.input("kafka", stream, name=f"in-{stream}").send_to_table(table, name=name)
    if merged is not None:
        first, second = (pipeline.input("kafka", stream) for stream in merged)
        first.merge(second).send_to_table(table, name="merged")
    pipeline.input("kafka", "rows").join_table(table).output("kafka", "out")
    return pipeline


FILLED = {"x": 4, "y": 4, "v": 4, "w": 4, "rows": 4}


def test_names_of_what_fills_a_table_do_not_order_it() -> None:
    """They are only shown, so a query must not number its sources by them."""
    for names in (("f1", "f2"), ("f2", "f1")):
        graph = _filled(names).build()
        assert [str(filler.name) for filler in fillers_of(graph)[TableName("t")]] == [*names]
    before = planned(_filled(("f1", "f2")), FILLED).plan
    assert find_contradictions(before, planned(_filled(("f2", "f1")), FILLED).plan) == ()


def test_a_line_that_fills_a_table_from_streams_in_another_order_contradicts() -> None:
    recorded = planned(_filled(("f1", "f2"), merged=("v", "w")), FILLED).plan
    turned = planned(_filled(("f1", "f2"), merged=("w", "v")), FILLED).plan
    (problem,) = find_contradictions(recorded, turned)
    assert problem.found == "filled by kafka/w, kafka/v, kafka/x, kafka/y"
    assert problem.expected == "filled by kafka/v, kafka/w, kafka/x, kafka/y"


def test_a_plan_that_contradicts_is_refused_with_every_difference() -> None:
    recorded = planned(_simple(), SIMPLE).plan
    observed = {stream_id(name): count for name, count in SIMPLE.items()}
    assert follow(_simple().build(), observed, recorded) == recorded
    other = _simple(key="day", output="elsewhere").build()
    with pytest.raises(PlanContradictionError) as caught:
        follow(other, observed, recorded)
    assert str(caught.value).startswith("[plan-contradiction] pipeline p: 2 problems:")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
