"""Running a planned pipeline on Spark: one streaming query for each stage."""

from pipeline_planner.running.errors import PipelineStageError, SessionSettingError
from pipeline_planner.running.supervisor import RunningPipeline, StageState, StageStatus

__all__ = [
    "PipelineStageError",
    "RunningPipeline",
    "SessionSettingError",
    "StageState",
    "StageStatus",
]
