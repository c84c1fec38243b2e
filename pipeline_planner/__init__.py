"""Pipelines of several stages: their graph, the partition counts that joins ask for, the plan, and
running it on Spark."""

from pipeline_planner.admin import StreamAdmin
from pipeline_planner.applying import Applied
from pipeline_planner.builder import Pipeline, Stream, Table
from pipeline_planner.plan import Plan
from pipeline_planner.plan_files import PlanConflictError
from pipeline_planner.plan_folders import PlanStoreError
from pipeline_planner.planned import PlannedPipeline
from pipeline_planner.planning import PlanSettings
from pipeline_planner.problems import (
    InvalidPipelineError,
    PartitionCountError,
    PlanContradictionError,
)
from pipeline_planner.services import Services, SparkFormat, StreamExistsError, System

__all__ = [
    "Applied",
    "InvalidPipelineError",
    "PartitionCountError",
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
