"""The counts that a plan infers, by the shape of the pipeline; conflicts; permitted differences."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.planner import PartitionCountConflictError, Pipeline, PlanSettings
from spark_ssp.planner.planning.partition_counts import Case, Count, Origin
from spark_ssp.planner.planning.plan import Plan, from_text, to_text
from tests.support.pipelines.examples import (
    KnownCounts,
    both,
    partitions,
    planned,
    same,
    stream_id,
    topics,
)


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


def test_advised_an_undefined_stream_takes_the_count_of_the_nearest(pipeline: Pipeline) -> None:
    a, b, c = topics(pipeline, "a", "b", "c")
    near = a.partition_by("k", name="made").join(b, both, name="one")
    near.join(c, both, name="two").output("kafka", "out")
    plan = planned(pipeline, {"a": 2, "b": 6, "c": 5, "out": 1}, agreement="advise").plan
    assert plan.stream(stream_id("p-made")).partitions == 6
    with pytest.raises(InvalidOptionsError, match="agreement: found 'maybe'"):
        planned(pipeline, {}, agreement="maybe")


def _problems(pipeline: Pipeline, counts: dict[str, int]) -> list[str]:
    """Return the conflicts of counts as `subject: found`."""
    with pytest.raises(PartitionCountConflictError) as caught:
        planned(pipeline, counts)
    return [f"{p.subject}: {p.found}" for p in caught.value.problems]


def _count(plan: Plan, stream: str) -> Count:
    return plan.stream(stream_id(stream)).count


# --- Shapes --------------------------------------------------------------------------------------


def _chain(length: int, *, backwards: bool) -> Pipeline:
    """`s` is joined with the first of some intermediate streams, each of these with the next."""
    pipeline = Pipeline("p")
    raw = pipeline.input("kafka", "raw")
    made = [raw.partition_by("id", name=f"m{n}") for n in range(length)]
    links = [pipeline.input("kafka", "s"), *made]
    pairs = list(pairwise(links))
    for number, (left, right) in enumerate(reversed(pairs) if backwards else pairs):
        left.join(right, both, name=f"j{number}").output("kafka", f"out-{number}")
    return pipeline


@pytest.mark.parametrize(("length", "backwards"), [(6, False), (6, True), (150, True)])
def test_a_count_goes_along_a_chain_of_joins_in_whatever_order_they_were_made(
    length: int, backwards: bool
) -> None:
    counts = partitions(_chain(length, backwards=backwards), {"raw": 3, "s": 5})
    assert set(counts.values()) == {5}
    assert len(counts) == length


def test_a_count_has_its_path_along_a_chain() -> None:
    plan = planned(_chain(2, backwards=False), {"raw": 3, "s": 5}).plan
    assert _count(plan, "p-m1") == Count(
        partitions=5,
        origin=Origin.JOINED,
        like=stream_id("s"),
        through=("join j0", "kafka/p-m0", "join j1"),
    )


def test_a_count_is_that_of_the_nearest_stream(pipeline: Pipeline) -> None:
    a, b, raw = topics(pipeline, "a", "b", "raw")
    made = [raw.partition_by("id", name=f"m{number}") for number in range(3)]
    links = [a, *made, b]
    for number, (left, right) in enumerate(pairwise(links)):
        left.join(right, both).output("kafka", f"out-{number}")
    plan = planned(pipeline, {"a": 5, "b": 5, "raw": 1}).plan
    assert [str(_count(plan, f"p-m{n}").like) for n in range(3)] == [
        "kafka/a",
        "kafka/a",
        "kafka/b",
    ]


def test_a_self_join_needs_no_one_to_agree(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    orders.join(orders, both).output("kafka", "out")
    plan = planned(pipeline, {"orders": 6}).plan
    assert [(s.streams, s.case) for s in plan.sets] == [((stream_id("orders"),), Case.ALL_DEFINED)]
    planned(pipeline, {})  # not even a count


def test_a_join_sent_back_to_its_own_table_ends_and_agrees(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    table = pipeline.table("t", key="id")
    made = orders.partition_by("id", name="made")
    made.send_to_table(table)
    joined = made.join_table(table)
    joined.partition_by("id", name="back").send_to_table(table)
    joined.output("kafka", "out")
    assert partitions(pipeline, {"orders": 6}) == {"made": 6, "back": 6}
    assert _count(planned(pipeline, {"orders": 6}).plan, "p-made").origin is Origin.LARGEST


def test_merged_inputs_agree_once_they_are_joined(pipeline: Pipeline) -> None:
    a, b, c = topics(pipeline, "a", "b", "c")
    a.merge(b).join(c.partition_by("k", name="c2"), both).output("kafka", "out")
    assert partitions(pipeline, {"a": 4, "b": 4, "c": 9}) == {"c2": 4}
    assert _problems(pipeline, {"a": 4, "b": 8, "c": 9})[0].startswith(
        "kafka/a and kafka/b: 4 and 8 partitions, linked by kafka/a (4) -- join "
    )


def test_a_table_that_nobody_fills_ties_nobody(pipeline: Pipeline) -> None:
    a, b = topics(pipeline, "a", "b")
    table = pipeline.table("t", key="k")
    a.join_table(table).output("kafka", "out-a")
    b.join_table(table).output("kafka", "out-b")
    assert planned(pipeline, {"a": 4, "b": 8}).plan.sets == ()


def test_a_repartition_cuts_a_set(pipeline: Pipeline) -> None:
    a, b, c = topics(pipeline, "a", "b", "c")
    joined = a.join(b, both, name="first")
    made = joined.partition_by("k2", name="made")
    made.join(c, both, name="second").output("kafka", "out")
    assert partitions(pipeline, {"a": 4, "b": 4, "c": 9}) == {"made": 9}
    plan = planned(pipeline, {"a": 4, "b": 4, "c": 9}).plan
    assert [len(group.streams) for group in plan.sets] == [2, 2]


# --- Broadcast streams and unknown counts --------------------------------------------------------


def test_a_broadcast_stream_agrees_with_any_count(pipeline: Pipeline) -> None:
    a, b = topics(pipeline, "a", "b")
    rates = pipeline.input("kafka", "rates", broadcast=True)
    table = pipeline.table("t", key="k").side_input(rates)
    a.join(rates, both).join_table(table).output("kafka", "out-a")
    b.join_table(table).output("kafka", "out-b")
    plan = planned(pipeline, {"a": 4, "b": 8, "rates": 3}).plan
    assert [group.streams for group in plan.sets] == [(stream_id("a"),)]
    assert plan.stream(stream_id("rates")).tasks is None


def test_an_unknown_count_is_refused_where_others_must_agree_with_it(pipeline: Pipeline) -> None:
    a, b, c = topics(pipeline, "a", "b", "c")
    a.join(b, both).output("kafka", "out")
    c.output("kafka", "out", name="aside")
    assert _problems(pipeline, {"a": 4, "c": 1}) == [
        "input b: no count of partitions for kafka/b",
    ]
    with pytest.raises(PartitionCountConflictError, match="with the same count as kafka/a"):
        planned(pipeline, {"a": 4})
    plan = planned(pipeline, {"a": 4, "b": 4}).plan
    assert _count(plan, "c") == _count(plan, "out") == Count(partitions=None, origin=Origin.UNKNOWN)


def test_known_counts_disagree_also_through_an_unknown_one(pipeline: Pipeline) -> None:
    a, b, c = topics(pipeline, "a", "b", "c")
    a.join(b, both, name="one").output("kafka", "out-1")
    b.join(c, both, name="two").output("kafka", "out-2")
    found = _problems(pipeline, {"a": 4, "c": 8})
    assert "kafka/b (undefined)" in found[0]
    assert [text.partition(":")[0] for text in found] == ["kafka/a and kafka/c", "input b"]


def test_only_the_disagreement_is_said_of_a_set_that_has_one(pipeline: Pipeline) -> None:
    (a,) = topics(pipeline, "a")
    made = [a.partition_by("k", name=name, partitions=n) for name, n in (("x", 2), ("y", 3))]
    free = a.partition_by("k", name="free")
    made[0].join(free, both).join(made[1], both).output("kafka", "out")
    (found,) = _problems(pipeline, {})
    assert found.startswith("kafka/p-x and kafka/p-y: 2 and 3 partitions")


def test_an_unknown_count_stays_unknown_whatever_is_configured(pipeline: Pipeline) -> None:
    (a,) = topics(pipeline, "a")
    a.join(a, both).output("kafka", "out")
    plan = planned(pipeline, {}, default=5).plan
    assert [(s.case, s.partitions) for s in plan.sets] == [(Case.NONE_DEFINED, None)]
    assert _count(plan, "a").partitions is None


# --- Fallback, cap, wishes -----------------------------------------------------------------------


def _untied(**keywords: int) -> Pipeline:
    pipeline = Pipeline("p")
    a, b = topics(pipeline, "a", "b")
    a.merge(b).partition_by("k", name="made", **keywords).output("kafka", "out")  # type: ignore[arg-type]
    return pipeline


@pytest.mark.parametrize(
    ("counts", "default", "expected"),
    [
        ({"a": 4, "b": 6, "out": 2}, None, (6, Origin.LARGEST, "b")),
        ({"a": 4, "b": 4, "out": 9}, None, (9, Origin.LARGEST, "out")),
        ({"a": 4, "b": 4}, None, (4, Origin.LARGEST, "a")),
        ({"a": 256, "b": 1}, None, (256, Origin.LARGEST, "a")),
        ({"a": 257, "b": 1}, None, (256, Origin.CAPPED, "a")),
        ({"a": 4, "b": 6, "out": 1000}, None, (256, Origin.CAPPED, "out")),
        ({"a": 4, "b": 6}, 2, (2, Origin.CONFIGURED, None)),
        ({"a": 4, "b": 6}, 1000, (1000, Origin.CONFIGURED, None)),
    ],
)
def test_an_untied_stream_takes_what_is_configured_or_the_largest_up_to_the_cap(
    counts: dict[str, int], default: int | None, expected: tuple[int, Origin, str | None]
) -> None:
    count = _count(planned(_untied(), counts, default=default).plan, "p-made")
    number, origin, like = expected
    assert count == Count(partitions=number, origin=origin, like=stream_id(like) if like else None)


def test_intermediate_streams_are_no_inputs_or_outputs(pipeline: Pipeline) -> None:
    (a,) = topics(pipeline, "a")
    for name, wish in (("there", None), ("wished", 70), ("made", None)):
        a.partition_by("k", name=name, partitions=wish).output("kafka", f"out-{name}")
    assert partitions(pipeline, {"a": 4, "p-there": 50}) == {
        "there": 50,
        "wished": 70,
        "made": 4,
    }


def test_a_joined_count_is_never_cut(pipeline: Pipeline) -> None:
    a, b = topics(pipeline, "a", "b")
    a.join(b.partition_by("k", name="made"), both).output("kafka", "out")
    assert partitions(pipeline, {"a": 1000, "b": 1}) == {"made": 1000}
    assert partitions(pipeline, {"a": 1000, "b": 1}, default=12) == {"made": 1000}


def test_a_wish_is_obeyed_never_cut_and_counts_for_others() -> None:
    plan = planned(_untied(partitions=300), {"a": 4, "b": 6}).plan
    assert _count(plan, "p-made") == Count(partitions=300, origin=Origin.GIVEN)
    pipeline = Pipeline("p")
    a, b = topics(pipeline, "a", "b")
    wished = a.partition_by("k", name="a2", partitions=5)
    wished.join(b.partition_by("k", name="b2"), both).output("kafka", "out")
    assert partitions(pipeline, {"a": 1, "b": 1}) == {"a2": 5, "b2": 5}


def test_a_wish_against_an_existing_stream_names_it() -> None:
    assert _problems(_untied(partitions=5), {"a": 4, "b": 6, "p-made": 3}) == [
        "partition_by made: kafka/p-made with 3 partitions"
    ]


def test_nothing_to_infer_from_is_reported(pipeline: Pipeline) -> None:
    (a,) = topics(pipeline, "a")
    a.partition_by("k", name="made").output("kafka", "out")
    assert _problems(pipeline, {}) == [
        "partition_by made: no known count of an input or output to infer its count from"
    ]
    assert partitions(pipeline, {}, default=3) == {"made": 3}


@pytest.mark.parametrize("count", [0, -1, True, 1.5, 2**31])
def test_a_configured_count_is_checked(count: float) -> None:
    with pytest.raises(InvalidOptionsError, match="default_intermediate_partitions: found"):
        PlanSettings(default_intermediate_partitions=count)  # type: ignore[arg-type]


# --- Everything at once --------------------------------------------------------------------------


def test_every_disagreement_is_reported_at_once(pipeline: Pipeline) -> None:
    a, b, c, d, e = topics(pipeline, "a", "b", "c", "d", "e")
    a.join(b, both, name="one").join(c, both, name="two").output("kafka", "out-1")
    d.join(e, both, name="three").output("kafka", "out-2")
    found = _problems(pipeline, {"a": 4, "b": 8, "c": 8, "d": 1, "e": 2})
    assert [text.partition(",")[0] for text in found] == [
        "kafka/b and kafka/a: 8 and 4 partitions",
        "kafka/d and kafka/e: 1 and 2 partitions",
    ]


def _way(found: str) -> list[str]:
    """The path that a disagreement tells, without places."""
    return re.sub(r" \([\w/]+\.py:\d+\)", "", found).partition("linked by ")[2].split(" -- ")


def test_a_path_through_a_table_names_who_fills_and_who_reads_it(pipeline: Pipeline) -> None:
    a, b = topics(pipeline, "a", "b")
    table = pipeline.table("t", key="k")
    a.filter("x").send_to_table(table, name="send")
    b.join_table(table, name="join").output("kafka", "out")
    (found,) = _problems(pipeline, {"a": 4, "b": 8})
    assert _way(found) == [
        "kafka/a (4)",
        "send_to_table send",
        "table t",
        "join_table join",
        "kafka/b (8)",
    ]
    assert re.search(r"send_to_table send \(\S*test_partition_counts\.py:", found)


def test_a_path_names_the_tables_on_the_way_to_a_join(pipeline: Pipeline) -> None:
    a, b, c = topics(pipeline, "a", "b", "c")
    table = pipeline.table("t", key="k").side_input(a, name="side")
    joined = b.partition_by("k").join_table(table, name="look-up").transform(same)
    joined.join(c, both, name="join").output("kafka", "out")
    (found,) = _problems(pipeline, {"a": 4, "b": 1, "c": 8})
    way = ["kafka/a (4)", "side_input side", "table t", "join_table look-up", "join join"]
    assert _way(found) == [*way, "kafka/c (8)"]


def test_each_stream_is_asked_for_once(pipeline: Pipeline) -> None:
    a, b = topics(pipeline, "b", "a")
    made = a.partition_by("k", name="made")
    made.join(b, both).output("kafka", "out")
    made.join(a, both, name="again").output("kafka", "out", name="again-out")
    admin = KnownCounts({"a": 4, "b": 4})
    pipeline.plan(admin)
    assert admin.asked == [stream_id(name) for name in ("a", "b", "out", "p-made")]


def test_a_count_that_no_service_gives_is_no_count(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "a").output("kafka", "out")
    with pytest.raises(PartitionCountConflictError) as caught:
        pipeline.plan(KnownCounts({"a": 0}))
    (problem,) = caught.value.problems
    assert (problem.subject, problem.found) == ("stream kafka/a", "0 partitions")
