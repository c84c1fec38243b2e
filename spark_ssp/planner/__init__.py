"""Pipelines of several stages: their graph, the partition counts that joins ask for, the plan, and
running it on Spark."""

from spark_ssp.planner.dsl.builder import Pipeline, Stream, Table
from spark_ssp.planner.dsl.planned_pipeline import PlannedPipeline
from spark_ssp.planner.graph.errors import (
    InvalidPipelineError,
    PartitionCountConflictError,
    PlanContradictionError,
)
from spark_ssp.planner.planning.plan import Plan
from spark_ssp.planner.planning.planning import PlanSettings
from spark_ssp.planner.running.apply import Applied
from spark_ssp.planner.services.admin import StreamAdmin
from spark_ssp.planner.services.systems import Services, SparkFormat, StreamExistsError, System
from spark_ssp.planner.storage.plan_history import PlanConflictError
from spark_ssp.planner.storage.plan_storage import PlanStoreError

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
