"""Each next step that a refused pipeline is given is followed, and makes a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from spark_ssp.planner import Pipeline, PlanSettings, Services
from spark_ssp.planner.graph.errors import (
    InvalidPipelineError,
    PartitionCountConflictError,
    PlanContradictionError,
)
from spark_ssp.planner.graph.operators import SystemKind
from spark_ssp.planner.graph.systems import UnknownSystemError
from tests.support.fakes.pipeline_services import MemorySystem
from tests.support.pipelines.examples import both, planned, same, topics

COUNTS = {"a": 4, "b": 8, "out": 1, "kinesis/s": 3}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`build` gets whether the step was followed; `mended` are counts for that."""

    step: str
    build: Callable[[Pipeline, bool], object]
    counts: Mapping[str, int] = field(default_factory=lambda: COUNTS)
    mended: Mapping[str, int] | None = None


def _no_output(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    if followed:
        a.output("kafka", "out")


def _dead_end(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    a.output("kafka", "out")
    end = a.transform(same)
    if followed:
        end.partition_by("k").output("kafka", "more")


def _unused_table(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    table = p.table("t", key="k")
    (a.join_table(table) if followed else a).output("kafka", "out")


def _table_to_nowhere(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    table = p.table("t", key="k")
    a.send_to_table(table)
    (a.join_table(table) if followed else a).output("kafka", "out")


def _round_trip(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    a.output("kafka", "out" if followed else "a")


def _in_disguise(p: Pipeline, followed: bool) -> None:
    a, b = topics(p, "a", "b")
    if followed:
        a.partition_by("k").output("kafka", "out")
        b.output("kafka", "out", name="of-b")
    else:
        a.output("kafka", "b")
        b.output("kafka", "out")


def _join_on_kinesis(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    shards = p.input("kinesis", "s")
    a.join(shards.partition_by("k") if followed else shards, both).output("kafka", "out")


def _state_by_task(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    state = "shuffled" if followed else "task"
    a.partition_by("k").transform(same, state=state).output("kafka", "out")


def _wish(p: Pipeline, followed: bool) -> None:
    a, b = topics(p, "a", "b")
    made = a.partition_by("k", name="made", partitions=None if followed else 6)
    made.join(b, both).output("kafka", "out")


def _wish_and_fact(p: Pipeline, followed: bool) -> None:
    a, b = topics(p, "a", "b")
    made = (
        a.partition_by("k", name="made", stream="other")
        if followed
        else a.partition_by("k", name="made", partitions=6)
    )
    made.join(b, both).output("kafka", "out")


def _wish_against_fact(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    a.partition_by("k", name="made", partitions=None if followed else 5).output("kafka", "out")


def _wish_with_a_new_name(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    named = {"stream": "new"} if followed else {}
    a.partition_by("k", name="made", partitions=5, **named).output("kafka", "out")


def _unknown(p: Pipeline, followed: bool) -> None:
    a, b = topics(p, "a", "b")
    a.join(b, both).output("kafka", "out")


def _undecided(p: Pipeline, followed: bool) -> None:
    (a,) = topics(p, "a")
    a.partition_by("k", partitions=2 if followed else None).output("kafka", "out")


CASES = (
    Case(step="end a line with output(system, stream)", build=_no_output),
    Case(step="end it with output, send_to_table or partition_by, or remove it", build=_dead_end),
    Case(step="join with it, or remove it", build=_unused_table),
    Case(step="join with table t on the way to an output", build=_table_to_nowhere),
    Case(step="write another stream", build=_round_trip),
    Case(step="pass the rows with partition_by", build=_in_disguise),
    Case(step="put .partition_by(<the key's columns>) before", build=_join_on_kinesis),
    Case(step="state='shuffled'", build=_state_by_task),
    Case(step="leave out partitions=6 of partition_by made; or break the link", build=_wish),
    Case(
        step="name another stream for partition_by made with stream=, and leave out partitions=6",
        build=_wish_and_fact,
        counts={**COUNTS, "p-made": 6},
    ),
    Case(step="leave partitions= out", build=_wish_against_fact, counts={**COUNTS, "p-made": 6}),
    Case(
        step="or name a new stream with stream=",
        build=_wish_with_a_new_name,
        counts={**COUNTS, "p-made": 6},
    ),
    Case(step="create the stream", build=_unknown, counts={"a": 4}, mended={"a": 4, "b": 4}),
    Case(step="pass partitions=", build=_undecided, counts={}),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.build.__name__.strip("_"))
def test_a_next_step_makes_a_plan(case: Case) -> None:
    wrong = Pipeline("p")
    case.build(wrong, False)
    with pytest.raises(InvalidPipelineError) as caught:
        planned(wrong, case.counts)
    assert any(case.step in problem.next_step for problem in caught.value.problems), str(
        caught.value
    )
    pipeline = Pipeline("p")
    case.build(pipeline, True)
    planned(pipeline, case.counts if case.mended is None else case.mended)


def test_the_default_that_is_advised_for_an_undecided_stream(pipeline: Pipeline) -> None:
    _undecided(pipeline, False)
    assert planned(pipeline, {}, default=3).plan.streams


def _services(**streams: int) -> Services:
    return Services({"kafka": MemorySystem(streams=streams)})


def _made() -> Pipeline:
    pipeline = Pipeline("p")
    topics(pipeline, "a")[0].partition_by("k", name="made").output("kafka", "out")
    return pipeline


def test_a_missing_output_is_created_as_advised() -> None:
    services = _services(a=4)
    plan = _made().plan(services)
    with pytest.raises(InvalidPipelineError, match="create it with the count") as caught:
        plan.apply(services)
    (call,) = re.findall(r"services\['kafka'\]\.create\('(\w+)', …\)", str(caught.value))
    services["kafka"].create(call, 2)
    plan.apply(services)


def test_a_stream_that_came_meanwhile_is_planned_again() -> None:
    services = _services(a=4, out=1)
    plan = _made().plan(services)
    services["kafka"].create("p-made", 3)
    with pytest.raises(InvalidPipelineError, match="plan again with the count of the stream"):
        plan.apply(services)
    _made().plan(services).apply(services)


def test_a_stream_that_grew_since_it_was_planned_is_planned_again(tmp_path: Path) -> None:
    """Deleting it would lose its records, and its stage could not write another one."""
    services, root = _services(a=4, out=1), str(tmp_path / "root")
    plan = _made().plan(services, root=root)
    plan.apply(services)
    cast(MemorySystem, services["kafka"]).streams["p-made"] = 8
    with pytest.raises(InvalidPipelineError) as caught:
        plan.apply(services)
    (problem,) = caught.value.problems
    first, _, otherwise = problem.next_step.partition("; or, ")
    assert first == "plan again with the count of the stream"
    assert otherwise.startswith("if no stage has run with it")
    _made().plan(services, root=root).apply(services)


@pytest.mark.parametrize("wish", [None, 5])
def test_a_stage_that_was_planned_before_is_not_advised_to_write_another_stream(
    wish: int | None, tmp_path: Path
) -> None:
    def pipeline(
        wish: int | None, *, joined: bool = True, cut: bool = False, stream: str | None = None
    ) -> Pipeline:
        pipeline = Pipeline("p")
        a, b = topics(pipeline, "a", "b")
        made = a.partition_by("k", name="made", partitions=wish, stream=stream)
        made.output("kafka", "out")
        b.output("kafka", "out-b")
        if joined:
            there = made.partition_by("k", name="again") if cut else made
            there.join(b, both).output("kafka", "joined")
        return pipeline

    services, root = _services(**{"a": 4, "b": 8, "out": 1, "out-b": 1}), str(tmp_path / "root")
    pipeline(6, joined=False).plan(services, root=root).apply(services)
    with pytest.raises(PartitionCountConflictError) as caught:
        pipeline(wish).plan(services, root=root)
    steps = " ".join(problem.next_step for problem in caught.value.problems)
    assert "stream=" not in steps
    with pytest.raises(PlanContradictionError):
        pipeline(None, stream="new").plan(services, root=root)
    assert ("leave partitions= out" in steps) == (wish is not None)
    assert "break the link" in steps
    pipeline(None, cut=True).plan(services, root=root)
    assert "agreement=" in steps
    advise = PlanSettings(agreement="advise")
    pipeline(None).plan(services, root=root, settings=advise)


def test_a_system_that_is_missing_is_given_an_entry() -> None:
    with pytest.raises(InvalidPipelineError, match="add a kafka system named kafka to Services"):
        _made().plan(Services({}))
    with pytest.raises(UnknownSystemError, match="add an entry named kafka to Services"):
        Services({})["kafka"]
    _made().plan(_services(a=4))


def test_a_stage_gets_its_name_back(tmp_path: Path) -> None:
    services, root = _services(a=4, out=1), str(tmp_path / "root")
    _made().plan(services, root=root).apply(services)

    def renamed(name: str) -> Pipeline:
        pipeline = Pipeline("p")
        made = topics(pipeline, "a")[0].partition_by("k", name=name, stream="p-made")
        made.output("kafka", "out")
        return pipeline

    with pytest.raises(InvalidPipelineError, match="name it made again with name="):
        renamed("other").plan(services, root=root)
    renamed("made").plan(services, root=root)
    renamed("other").plan(services, root=str(tmp_path / "afresh"))


def test_the_kind_of_a_system_is_named() -> None:
    kinesis = Services({"kafka": MemorySystem(streams={"a": 1}, kind=SystemKind.KINESIS)})
    with pytest.raises(InvalidPipelineError, match=r"correct its kind in Pipeline\(systems="):
        _made().plan(kinesis)
    pipeline = Pipeline("p", systems={"kafka": "kinesis"}, intermediate_system="kafka")
    pipeline.input("kafka", "a").output("kafka", "out")
    pipeline.plan(kinesis, settings=PlanSettings())
