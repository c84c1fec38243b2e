"""A pipeline with its plan, to display, to record and to run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ssp.planner.graph.errors import (
    InvalidPipelineError,
    PartitionCountConflictError,
    PlanContradictionError,
    Problem,
)
from spark_ssp.planner.graph.names import StreamId
from spark_ssp.planner.graph.operators import Graph
from spark_ssp.planner.planning.plan import Plan
from spark_ssp.planner.planning.plan_compatibility import (
    conflicting_counts,
    find_contradictions,
    find_late_tables,
)
from spark_ssp.planner.planning.planning import PlanSettings, make_plan
from spark_ssp.planner.render.explain import explain
from spark_ssp.planner.render.mermaid import mermaid
from spark_ssp.planner.render.page import page
from spark_ssp.planner.running.apply import Applied, apply
from spark_ssp.planner.services.systems import Services
from spark_ssp.planner.storage.plan_history import RecordedPlan, record

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ssp.planner.running import RunningPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """A valid graph and its plan.

    `root` is the folder of checkpoints and plans, if given; `recorded` is the newest plan found
    there, which this one may follow.
    """

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
        self.record()
        return applied

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
    recorded: Plan,
    *,
    settings: PlanSettings | None = None,
) -> Plan:
    """Return the plan of `graph` that continues `recorded` (see `planning.make_plan`).

    Raises PlanContradictionError when no plan can, also if counts conflict because one of them has
    changed.
    """
    try:
        plan = make_plan(graph, observed, settings=settings, recorded=recorded)
    except PartitionCountConflictError:
        _refuse(graph, conflicting_counts(recorded, observed))
        raise
    _refuse(graph, find_contradictions(recorded, plan))
    for note in find_late_tables(recorded, plan):
        _log.warning("%s.", note)
    return plan


def _refuse(graph: Graph, found: Sequence[Problem]) -> None:
    if found:
        raise PlanContradictionError(graph.pipeline, found)
