"""Pipelines of several stages: their graph, the partition counts that joins ask for, and the plan.

Groundwork: a pipeline can be described, checked and planned here; nothing runs one yet.
"""

from pipeline_planner.builder import Pipeline, Stream, Table

__all__ = ["Pipeline", "Stream", "Table"]
