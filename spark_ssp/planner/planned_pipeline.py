"""A pipeline with its plan, to display, to apply, to record and to run.

Applying creates the missing intermediate streams. Existing streams are not altered, and none is
created when a stream conflicts with the plan. Inputs and outputs are not created: their other
readers and writers determine their counts. So a plan with a missing input or output is rejected
there, rather than by the first batch of a query (or created by a broker with its own default
count).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ssp.planner.explain import count_source, explain
from spark_ssp.planner.figure import mermaid
from spark_ssp.planner.graph.errors import (
    InvalidPipelineError,
    PartitionCountConflictError,
    PlanContradictionError,
    Problem,
)
from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    Output,
    PartitionBy,
    StreamId,
    SystemKind,
)
from spark_ssp.planner.graph.systems import Services, StreamExistsError, StreamUse, observe
from spark_ssp.planner.page import page
from spark_ssp.planner.planning.co_partitioning import uses
from spark_ssp.planner.planning.partition_counts import Origin
from spark_ssp.planner.planning.plan import Plan, Role, StreamPlan
from spark_ssp.planner.planning.plan_history import RecordedPlan, newest, record
from spark_ssp.planner.planning.planning import (
    PlanSettings,
    conflicting_counts,
    find_contradictions,
    find_doubts,
    found_streams,
    make_plan,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ssp.planner.running import RunningPipeline

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """A valid graph and its plan. `root` is the folder of checkpoints and plans, if given;
    `recorded` is the newest plan found there, which this one may follow."""

    graph: Graph
    plan: Plan
    root: str | None = None
    recorded: RecordedPlan | None = None

    def explain(self) -> str:
        """Return the plan as tables of text that end with a line break."""
        return explain(self.graph, self.plan)

    def mermaid(self) -> str:
        """Return the figure as Mermaid text."""
        return mermaid(self.graph, self.plan)

    def page(self) -> str:
        """Return the plan as an HTML page: a figure, a legend, and the tables of `explain`. It
        needs neither scripts nor network access."""
        return page(self.graph, self.plan)

    def save_page(self, path: str | Path) -> None:
        """Write `page` to a file, which is overwritten."""
        Path(path).write_text(self.page(), encoding="utf-8")

    def apply(self, services: Services) -> Applied:
        """Create the missing intermediate streams, then record the plan under the root, if there is
        one. Idempotent, also when run concurrently.

        Raises InvalidPipelineError when a system is missing, PartitionCountConflictError with every
        conflict (before any creation), or when a created stream has another count than planned; and
        the errors of the systems.
        """
        applied = apply(self.graph, self.plan, services)
        if self.root is not None:
            self._warn_of_found(applied, self.root)
        self.record()
        return applied

    def _warn_of_found(self, applied: Applied, root: str) -> None:
        """Log a warning of the streams that another process has created since this was planned,
        unless it has recorded its plan under the same root."""
        planned = {s.stream for s in self.plan.streams if s.count.origin is Origin.FOUND}
        since = {*applied.found} - planned
        if since:
            now = newest(root)
            for note in found_streams(None if now is None else now.plan, self.plan, since):
                _log.warning("%s.", note)

    def run(
        self,
        spark: SparkSession,
        services: Services,
        *,
        processing_time: str | None = None,
        available_now: bool = False,
        output_modes: Mapping[str, str] | None = None,
    ) -> RunningPipeline:
        """Start one streaming query for each stage, its checkpoint at `<root>/stages/<stage>`.

        `processing_time`: the trigger interval (`10 seconds`), by default each batch starts when
        the previous one is done. `available_now`: read all available records, stage by stage, and
        end. `output_modes`: by stage; other stages append where Spark allows it, else they update.

        All checks that do not start a query come first; then missing streams are created and the
        plan is recorded, as by `apply`. So if Spark rejects a query, the plan stays recorded, and
        the next plan must follow it or use another root. Raises InvalidPipelineError,
        InvalidOptionsError or SessionSettingError when the pipeline cannot run, PipelineStageError
        when a query does not start, and as `apply` does.
        """
        # Describing and planning need no Spark.
        from spark_ssp.planner.running.start import RunSettings, prepare

        settings = RunSettings(
            processing_time=processing_time,
            available_now=available_now,
            output_modes=output_modes,
        )
        running = prepare(self.graph, spark, services, root=self._given_root(), settings=settings)
        self.apply(services)
        return running.launch()

    def _given_root(self) -> str:
        if self.root is None:
            problem = Problem(
                subject="run",
                found="a plan without a root",
                expected="a folder for the checkpoints and the plan",
                next_step="plan it with plan(services, root=…)",
            )
            raise InvalidPipelineError(self.graph.pipeline, [problem])
        return self.root

    def record(self) -> None:
        """Record the plan under the root, if there is one and its newest plan differs. Raises
        PlanConflictError when another run has recorded another plan since."""
        if self.root is not None:
            record(self.root, self.plan, after=self.recorded)


def follow(
    graph: Graph,
    observed: Mapping[StreamId, int | None],
    recorded: Plan | None,
    *,
    settings: PlanSettings | None = None,
) -> Plan:
    """Return the plan of `graph` that continues `recorded`, the newest under its root, None for a
    new root (see `planning.make_plan`). Raises PlanContradictionError when no plan can, also if
    counts conflict because one of them has changed."""
    try:
        plan = make_plan(graph, observed, settings=settings, recorded=recorded)
    except PartitionCountConflictError:
        if recorded is not None:
            _refuse(graph, PlanContradictionError, conflicting_counts(recorded, observed))
        raise
    if recorded is not None:
        _refuse(graph, PlanContradictionError, find_contradictions(recorded, plan))
    for note in find_doubts(recorded, plan):
        _log.warning("%s.", note)
    return plan


def _refuse(graph: Graph, error: type[InvalidPipelineError], problems: Sequence[Problem]) -> None:
    if problems:
        raise error(graph.pipeline, problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A plan's intermediate streams, each in one of two sorted parts."""

    created: tuple[StreamId, ...]
    """Created by this call."""
    found: tuple[StreamId, ...]
    """Already existing, or created concurrently by another process."""


def apply(graph: Graph, plan: Plan, services: Services) -> Applied:
    """Create the missing intermediate streams of `plan`, and check all of their counts (see
    `PlannedPipeline.apply`)."""
    services.raise_missing(graph)
    before = observe(graph, services)
    conflicts = (_obstacle(graph, stream, before[stream.stream]) for stream in plan.streams)
    _refuse(graph, PartitionCountConflictError, [one for one in conflicts if one is not None])
    wanted = [stream for stream in plan.streams if stream.role is Role.INTERMEDIATE]
    use = uses(graph)
    created = [
        s.stream for s in wanted if before[s.stream] is None and _create(s, use[s.stream], services)
    ]
    after = {s: services.partition_count(s.stream.system, s.stream.stream) for s in wanted}
    others = [_other_count(graph, s, after[s]) for s in wanted if after[s] != s.partitions]
    _refuse(graph, PartitionCountConflictError, others)
    return Applied(
        created=tuple(created),
        found=tuple(s.stream for s in wanted if s.stream not in created),
    )


def _obstacle(graph: Graph, stream: StreamPlan, now: int | None) -> Problem | None:
    if now is None and stream.role is not Role.INTERMEDIATE:
        return _missing(graph, stream)
    if now is None or now == stream.partitions:
        return None
    if stream.role is Role.INTERMEDIATE:
        return _other_count(graph, stream, now)
    # Kinesis may be resharded, and outputs and broadcast streams are not linked to others.
    follows = stream.kind is SystemKind.KAFKA and not stream.broadcast
    if stream.role is Role.OUTPUT or not follows:
        return None
    return _problem(
        graph,
        stream,
        _partitions(now),
        f"{stream.partitions}, as when it was planned",
        "plan again: other counts may depend on this one",
    )


def _missing(graph: Graph, stream: StreamPlan) -> Problem:
    create = f"services[{str(stream.stream.system)!r}].create({stream.stream.stream!r}, …)"
    return _problem(
        graph,
        stream,
        "no such stream",
        f"an existing {stream.role}: a pipeline creates only intermediate streams",
        "correct its name or its system"
        if stream.role is Role.INPUT
        else f"create it with the count that its readers need, for example by {create}",
    )


def _other_count(graph: Graph, stream: StreamPlan, now: int | None) -> Problem:
    return _problem(
        graph,
        stream,
        "no such stream" if now is None else _partitions(now),
        f"{stream.partitions} ({count_source(stream.count)}): an existing stream is not altered",
        "plan again with the count of the stream; or, if no stage has run with it and no other "
        "program uses it, delete it, so that it is created, or give the intermediate stream "
        "another name with stream=",
    )


def _problem(
    graph: Graph, stream: StreamPlan, found: str, expected: str, next_step: str
) -> Problem:
    """Return a problem of a stream, with the source location of its first operator."""
    return Problem(
        subject=f"stream {stream.stream}",
        found=found,
        expected=expected,
        next_step=next_step,
        place=next(
            o.place
            for o in graph.operators
            if isinstance(o, Input | PartitionBy | Output) and o.stream == stream.stream
        ),
    )


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _create(stream: StreamPlan, use: StreamUse, services: Services) -> bool:
    """Create a stream; return False if another process has created it concurrently."""
    assert stream.partitions is not None, "a plan has the counts of intermediate streams"
    try:
        system = services[stream.stream.system]
        system.create(stream.stream.stream, stream.partitions, use=use)
    except StreamExistsError:
        _log.info("stream %s was created concurrently by another process", stream.stream)
        return False
    _log.info("created stream %s with %d partitions", stream.stream, stream.partitions)
    return True
