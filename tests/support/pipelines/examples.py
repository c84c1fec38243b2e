"""Pipelines for tests: functions of frames that are never called, an admin with given counts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spark_ssp.planner import (
    Pipeline,
    Plan,
    PlanConflictError,
    PlannedPipeline,
    PlanSettings,
    Stream,
)
from spark_ssp.planner.graph.operators import StreamId, SystemName
from spark_ssp.planner.planning.plan_history import RecordedPlan, record


def same(frame: Any) -> Any:
    """A transform."""
    raise AssertionError(f"a plan must not call {frame!r}")


def both(left: Any, right: Any) -> Any:
    """A join."""
    raise AssertionError(f"a plan must not call {left!r}, {right!r}")


def stream_id(text: str) -> StreamId:
    """Return the id of `system/name`, or of a Kafka topic by its name only."""
    system, slash, name = text.partition("/")
    return StreamId(system=SystemName(system), stream=name) if slash else stream_id(f"kafka/{text}")


class KnownCounts:
    """An admin with the given counts, by `stream_id`'s text; other streams do not exist. Records
    the streams it was asked for."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = {stream_id(text): count for text, count in counts.items()}
        self.asked: list[StreamId] = []

    def partition_count(self, system: SystemName, stream: str) -> int | None:
        self.asked.append(StreamId(system=system, stream=stream))
        return self._counts.get(self.asked[-1])


def topics(pipeline: Pipeline, *names: str) -> list[Stream]:
    """Inputs from Kafka."""
    return [pipeline.input("kafka", name) for name in names]


def planned(
    pipeline: Pipeline,
    counts: Mapping[str, int],
    *,
    default: int | None = None,
    recorded: Plan | None = None,
    agreement: str = "require",
) -> PlannedPipeline:
    """The pipeline with its plan, for the counts given."""
    settings = PlanSettings(default_intermediate_partitions=default, agreement=agreement)
    return pipeline.plan(KnownCounts(counts), settings=settings, recorded=recorded)


def partitions(
    pipeline: Pipeline, counts: Mapping[str, int], *, default: int | None = None
) -> dict[str, int | None]:
    """Return the planned count of each intermediate stream, by the name of the operator that writes
    it."""
    plan = planned(pipeline, counts, default=default).plan
    opening = f"{pipeline.name}-"
    return {
        stream.stream.stream.removeprefix(opening): stream.partitions
        for stream in plan.streams
        if stream.role == "intermediate"
    }


def made_pipeline(*, name: str = "made", transformed: bool = False) -> Pipeline:
    """Return a pipeline of a and b, b repartitioned through an intermediate stream, with one joined
    output."""
    pipeline = Pipeline("p")
    a = pipeline.input("kafka", "a")
    if transformed:
        a = a.transform(same)
    a.join(pipeline.input("kafka", "b").partition_by("k", name=name), both).output("kafka", "out")
    return pipeline


def made_plan(a: int = 4) -> Plan:
    """Return its plan where input a has `a` partitions."""
    return planned(made_pipeline(), {"a": a, "b": 3}).plan


def recorded_at_once(root: str, many: int) -> list[RecordedPlan | PlanConflictError]:
    """Return the results of `many` runs that record different plans at the same moment."""
    barrier = threading.Barrier(many)

    def run(number: int) -> RecordedPlan | PlanConflictError:
        plan = made_plan(number)
        barrier.wait(timeout=60)
        try:
            return record(root, plan, after=None)
        except PlanConflictError as error:
            return error

    with ThreadPoolExecutor(many) as pool:
        return list(pool.map(run, range(1, many + 1)))
