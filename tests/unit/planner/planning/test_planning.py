"""Streams whose partitions multiplied: linked streams have equal tasks."""

from __future__ import annotations

import pytest

from spark_ssp.planner import PartitionCountConflictError, Pipeline, Plan
from spark_ssp.planner.planning.partition_counts import Count, Origin
from spark_ssp.planner.planning.plan import from_text, to_text
from spark_ssp.planner.planning.planning import find_contradictions, find_doubts
from tests.support.pipelines.examples import both, planned, stream_id, topics


def _tied(*more: str) -> Pipeline:
    """Input `a` is joined with an intermediate stream, and then with `more` inputs."""
    pipeline = Pipeline("p")
    a, b = topics(pipeline, "a", "b")
    a.join(b.partition_by("k", name="made"), both).output("kafka", "out")
    for name in more:
        a.join(pipeline.input("kafka", name), both).output("kafka", f"out-{name}")
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
    with pytest.raises(PartitionCountConflictError, match="8 and 4 partitions"):
        planned(_tied(), counts)


def test_a_stream_that_multiplied_is_shown_with_its_tasks_where_it_disagrees() -> None:
    first = planned(_tied(), {"a": 4, "b": 2}).plan
    with pytest.raises(PartitionCountConflictError) as caught:
        planned(_tied("c"), {"a": 8, "b": 2, "p-made": 4, "c": 8}, recorded=first)
    (problem,) = caught.value.problems
    assert problem.subject == "kafka/a and kafka/c"
    assert problem.found.startswith("8 in 4 tasks and 8 partitions, linked by kafka/a (8 in 4 ")
    assert problem.found.endswith(" -- kafka/c (8)")


@pytest.mark.parametrize("now", [None, 8, 16])
@pytest.mark.parametrize("expanded", [True, False])
def test_an_intermediate_stream_that_is_gone_has_no_count(expanded: bool, now: int | None) -> None:
    """Its count is inferred again, from tasks if its partitions had multiplied."""
    gone = {"a": 8, "b": 2}
    recorded = planned(_tied(), gone).plan
    if expanded:
        recorded = planned(_tied(), {"a": 16, "b": 2, "p-made": 16}, recorded=recorded).plan
    counts = gone if now is None else {**gone, "p-made": now}
    if expanded:
        counts["a"] = 16
    plan = planned(_tied(), counts, recorded=recorded).plan
    found = [(p.subject, p.found) for p in find_contradictions(recorded, plan)]
    doubts = [note.subject for note in find_doubts(recorded, plan)]
    lost = now is None
    wrong = "no such stream" if lost else "8 partitions"
    assert found == ([("stream kafka/p-made", wrong)] if expanded and now != 16 else [])
    assert doubts == (["stream kafka/p-made"] if lost else [])


def _unlinked(wish: int | None = None) -> Pipeline:
    pipeline = Pipeline("p")
    (a,) = topics(pipeline, "a")
    a.partition_by("k", name="made", partitions=wish).output("kafka", "out")
    return pipeline


@pytest.mark.parametrize("created", [True, False])
@pytest.mark.parametrize(
    ("counts", "default"), [({"a": 8, "out": 1}, None), ({"a": 4, "out": 9}, None), ({"a": 4}, 12)]
)
def test_an_intermediate_stream_that_is_gone_is_created_again_as_it_was(
    counts: dict[str, int], default: int | None, created: bool
) -> None:
    """Regardless of the counts that others have now."""
    recorded = planned(_unlinked(), {"a": 4}).plan
    if created:
        recorded = planned(_unlinked(), {"a": 4, "p-made": 4}, recorded=recorded).plan
    plan = planned(_unlinked(), counts, default=default, recorded=recorded).plan
    made = stream_id("p-made")
    assert plan.stream(made).count == Count(partitions=4, origin=Origin.GIVEN, like=made)
    assert find_contradictions(recorded, plan) == ()
    assert [note.subject for note in find_doubts(recorded, plan)] == ["stream kafka/p-made"]
    assert from_text(to_text(plan)) == plan

    (problem,) = find_contradictions(
        recorded, planned(_unlinked(6), counts, recorded=recorded).plan
    )
    assert (problem.subject, problem.found) == ("stream kafka/p-made", "no such stream")
    assert problem.next_step.startswith("leave partitions= out")


def test_streams_that_are_gone_disagree_by_the_counts_that_they_had() -> None:
    def pipeline(*wishes: int, joined: bool) -> Pipeline:
        pipeline = Pipeline("p")
        (a,) = topics(pipeline, "a")
        one, two = (
            a.partition_by("k", name=name, partitions=wish)
            for name, wish in zip(("one", "two"), wishes or (None, None), strict=True)
        )
        one.output("kafka", "out")
        two.output("kafka", "out-two")
        if joined:
            one.join(two, both).output("kafka", "joined")
        return pipeline

    recorded = planned(pipeline(4, 6, joined=False), {"a": 4}).plan
    with pytest.raises(PartitionCountConflictError, match="4 and 6 partitions") as caught:
        planned(pipeline(joined=True), {"a": 4}, recorded=recorded)
    (problem,) = caught.value.problems
    assert problem.next_step.startswith("break the link")


def test_a_new_stream_takes_the_tasks_of_one_that_multiplied(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "a").output("kafka", "out")
    first = planned(pipeline, {"a": 4}).plan
    second = planned(_tied(), {"a": 8, "b": 2}, recorded=first).plan
    assert second.stream(stream_id("p-made")).partitions == 4


def test_a_stream_that_grew_otherwise_has_as_many_tasks_as_partitions() -> None:
    first = planned(_tied(), {"a": 4, "b": 2}).plan
    second = planned(_tied(), {"a": 6, "b": 2}, recorded=first).plan
    assert second.stream(stream_id("a")).tasks == 6


def test_kinesis_and_outputs_have_no_fixed_tasks(pipeline: Pipeline) -> None:
    pipeline.input("kinesis", "flights").partition_by("k", name="made").output("kafka", "out")
    plan = planned(pipeline, {"kinesis/flights": 3, "out": 5}).plan
    tasks = {str(stream.stream): stream.tasks for stream in plan.streams}
    assert tasks == {"kinesis/flights": None, "kafka/out": None, "kafka/p-made": 5}


def _differing(counts: dict[str, int], *, recorded: Plan | None = None) -> str:
    """Return the next step for different counts of two inputs, and of a third."""
    pipeline = Pipeline("p")
    a, b, c = topics(pipeline, "a", "b", "c")
    a.join(b, both, name="one").join(c, both, name="two").output("kafka", "out")
    with pytest.raises(PartitionCountConflictError) as caught:
        planned(pipeline, counts, recorded=recorded)
    (problem,) = caught.value.problems
    return problem.next_step


CUT = "break the link by .partition_by(<the key's columns>) after kafka/a"
ADVISE = (
    'plan with settings=PlanSettings(agreement="advise"), if only joins and tables of this '
    "pipeline rely on the counts"
)


@pytest.mark.parametrize(
    ("counts", "recorded", "grow"),
    [
        # The smaller one may grow to a multiple, the larger one cannot shrink.
        ((4, 8, 8), False, "expand kafka/a to 8 partitions, provided it is empty"),
        ((16, 8, 8), False, "expand kafka/b and kafka/c to 16 partitions, provided they are empty"),
        # Readers with fixed tasks refuse what is no multiple.
        ((8, 12, 12), False, None),
        ((12, 8, 8), False, None),
        # It would keep its tasks, and disagree as before.
        ((4, 8, 8), True, "kafka/a was planned before, and would keep its tasks if it grew"),
    ],
)
def test_streams_that_differ_are_advised_to_grow_only_where_that_helps(
    counts: tuple[int, int, int], recorded: bool, grow: str | None
) -> None:
    pipeline = Pipeline("p")
    pipeline.input("kafka", "a").output("kafka", "out")
    before = planned(pipeline, {"a": 4}).plan if recorded else None
    step = _differing(dict(zip("abc", counts, strict=True)), recorded=before)
    advice = f"{CUT}; or {ADVISE}"
    assert step.startswith(advice)
    if grow is None:
        assert step == advice
    else:
        assert grow in step


@pytest.mark.parametrize(("now", "grow"), [(9, "expand it to 12 partitions"), (3, None)])
def test_a_stream_that_grew_is_advised_to_grow_to_the_next_multiple(
    now: int, grow: str | None
) -> None:
    """One that shrank was created again: its new records have other offsets, so no count would
    do."""
    pipeline = Pipeline("p")
    pipeline.input("kafka", "orders").output("kafka", "out")
    recorded = planned(pipeline, {"orders": 4}).plan
    (problem,) = find_contradictions(recorded, planned(pipeline, {"orders": now}).plan)
    afresh = "start the pipeline under a new checkpoint root and with other intermediate streams"
    assert problem.next_step.startswith(afresh)
    assert (problem.next_step == afresh) if grow is None else (grow in problem.next_step)
    assert find_contradictions(recorded, planned(pipeline, {"orders": 12}).plan) == ()
