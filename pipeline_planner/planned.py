"""A pipeline with its plan: what can be shown, and compared with what an earlier run recorded."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_planner.contradictions import contradictions
from pipeline_planner.explain import explain
from pipeline_planner.mermaid import mermaid
from pipeline_planner.operators import Graph
from pipeline_planner.plan import Plan
from pipeline_planner.problems import PlanContradictionError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """A graph that is right and the plan of it."""

    graph: Graph
    plan: Plan

    def explain(self) -> str:
        """The plan in tables of text."""
        return explain(self.graph, self.plan)

    def mermaid(self) -> str:
        """The picture, as Mermaid text."""
        return mermaid(self.graph, self.plan)

    def refuse_contradictions(self, recorded: Plan) -> None:
        """Raise PlanContradictionError with every difference that checkpoints made under `recorded`
        cannot follow; nothing when they can."""
        found = contradictions(recorded, self.plan)
        if found:
            raise PlanContradictionError(self.graph.pipeline, found)
