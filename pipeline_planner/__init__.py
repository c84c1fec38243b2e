"""Pipelines of several stages: their graph, the partition counts that joins ask for, the plan, and
running it on Spark."""

from pipeline_planner.dsl.builder import Pipeline, Stream, Table
from pipeline_planner.dsl.planned_pipeline import PlannedPipeline
from pipeline_planner.graph.errors import (
    InvalidPipelineError,
    PartitionCountConflictError,
    PlanContradictionError,
)
from pipeline_planner.planning.plan import Plan
from pipeline_planner.planning.planning import PlanSettings
from pipeline_planner.running.apply import Applied
from pipeline_planner.services.admin import StreamAdmin
from pipeline_planner.services.systems import Services, SparkFormat, StreamExistsError, System
from pipeline_planner.storage.plan_history import PlanConflictError
from pipeline_planner.storage.plan_storage import PlanStoreError

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
