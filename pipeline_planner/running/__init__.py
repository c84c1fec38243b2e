"""Running a planned pipeline on Spark: one streaming query for each stage."""

from pipeline_planner.running.faults import PipelineStageError, SessionSettingError
from pipeline_planner.running.supervision import RunningPipeline, StageState, StageStatus

__all__ = [
    "PipelineStageError",
    "RunningPipeline",
    "SessionSettingError",
    "StageState",
    "StageStatus",
]
