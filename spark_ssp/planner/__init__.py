"""Pipelines of several stages: their graph, the partition counts that joins ask for, the plan, and
running it on Spark."""

from spark_ssp.planner.builder import Pipeline, Stream, Table
from spark_ssp.planner.graph.errors import (
    InvalidPipelineError,
    PartitionCountConflictError,
    PlanContradictionError,
)
from spark_ssp.planner.graph.systems import (
    Services,
    SparkFormat,
    StreamAdmin,
    StreamExistsError,
    System,
)
from spark_ssp.planner.planned_pipeline import Applied, PlannedPipeline
from spark_ssp.planner.planning.plan import Plan
from spark_ssp.planner.planning.plan_history import PlanConflictError, PlanStoreError
from spark_ssp.planner.planning.planning import PlanSettings

__all__ = [
    "Applied",
    "InvalidPipelineError",
    "PartitionCountConflictError",
    "Pipeline",
    "Plan",
    "PlanConflictError",
    "PlanContradictionError",
    "PlanSettings",
    "PlanStoreError",
    "PlannedPipeline",
    "Services",
    "SparkFormat",
    "Stream",
    "StreamAdmin",
    "StreamExistsError",
    "System",
    "Table",
]
