"""Running a planned pipeline on Spark: one streaming query for each stage."""

from spark_ssp.planner.graph.errors import PipelineStageError, SessionSettingError
from spark_ssp.planner.running.supervisor import RunningPipeline, StageState, StageStatus

__all__ = [
    "PipelineStageError",
    "RunningPipeline",
    "SessionSettingError",
    "StageState",
    "StageStatus",
]
