"""The public API of spark-ssp: everything that user code imports.

Names are imported on first use, so that `import spark_ssp` costs nothing on an executor and needs
no optional dependency. All other packages are internal and may change in any release.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from ssp_common.version import __version__ as __version__

if TYPE_CHECKING:
    from checkpoint.assignments.errors import AssignmentConflictError as AssignmentConflictError
    from checkpoint.assignments.errors import (
        AssignmentContradictionError as AssignmentContradictionError,
    )
    from checkpoint.assignments.errors import AssignmentStoreError as AssignmentStoreError
    from checkpoint.errors import LeaseTableError as LeaseTableError
    from checkpoint.errors import MalformedLeaseError as MalformedLeaseError
    from checkpoint.worker_identity import HostAndQueryGenerator as HostAndQueryGenerator
    from checkpoint.worker_identity import ProcessorIdGenerator as ProcessorIdGenerator
    from checkpoint.worker_identity import Query as Query
    from checkpoint.worker_identity import UuidGenerator as UuidGenerator
    from embedded_kinesis import Clock as Clock
    from embedded_kinesis import Delays as Delays
    from embedded_kinesis import Distribution as Distribution
    from embedded_kinesis import EmbeddedKinesis as EmbeddedKinesis
    from embedded_kinesis import KinesisError as KinesisError
    from embedded_kinesis import KinesisState as KinesisState
    from embedded_kinesis import Limits as Limits
    from embedded_kinesis import ManualClock as ManualClock
    from embedded_kinesis import StreamMode as StreamMode
    from embedded_kinesis import SystemClock as SystemClock
    from embedded_kinesis import UnusualAnswers as UnusualAnswers
    from embedded_kinesis.core.faults import AccessDenied as AccessDenied
    from embedded_kinesis.core.faults import DelayVisibility as DelayVisibility
    from embedded_kinesis.core.faults import DropConnection as DropConnection
    from embedded_kinesis.core.faults import EmptyPage as EmptyPage
    from embedded_kinesis.core.faults import ExpiredIterator as ExpiredIterator
    from embedded_kinesis.core.faults import InternalFailure as InternalFailure
    from embedded_kinesis.core.faults import LateShardEnd as LateShardEnd
    from embedded_kinesis.core.faults import LostReply as LostReply
    from embedded_kinesis.core.faults import Refusal as Refusal
    from embedded_kinesis.core.faults import RejectRecords as RejectRecords
    from embedded_kinesis.core.faults import ShiftArrival as ShiftArrival
    from embedded_kinesis.core.faults import Throttle as Throttle
    from embedded_kinesis.core.faults import Timeout as Timeout
    from embedded_kinesis.core.faults import TrimRecords as TrimRecords
    from embedded_kinesis.core.faults import by_chance as by_chance
    from embedded_kinesis.core.subscription_faults import CutSubscription as CutSubscription
    from embedded_kinesis.core.subscription_faults import EmptyEvents as EmptyEvents
    from embedded_kinesis.core.subscription_faults import EndSubscription as EndSubscription
    from embedded_kinesis.core.subscription_faults import FailSubscription as FailSubscription
    from embedded_kinesis.core.subscription_faults import SilenceSubscription as SilenceSubscription
    from embedded_kinesis.service import ClientSettings as ClientSettings
    from kafka_source.client.admin_client import disconnect_kafka as disconnect_kafka
    from kafka_source.dedup.deduplicate import drop_duplicates as drop_duplicates
    from kafka_source.pipeline_system import KafkaSystem as KafkaSystem
    from kinesis_source.client.api import ExpiredIteratorError as ExpiredIteratorError
    from kinesis_source.client.api import InvalidPositionError as InvalidPositionError
    from kinesis_source.client.api import ShardNotFoundError as ShardNotFoundError
    from kinesis_source.client.api import StreamInUseError as StreamInUseError
    from kinesis_source.client.api import ThrottledError as ThrottledError
    from kinesis_source.client.api import UnreachableError as UnreachableError
    from kinesis_source.graceful_stop import stop_gracefully as stop_gracefully
    from kinesis_source.pipeline_system import KinesisSystem as KinesisSystem
    from local_kafka import LocalKafka as LocalKafka
    from operations.live_page.serve import LivePage as LivePage
    from operations.live_page.serve import serve_live_page as serve_live_page
    from operations.metrics.publish import PublishedMetrics as PublishedMetrics
    from operations.metrics.publish import publish_metrics as publish_metrics
    from pipeline_planner import Applied as Applied
    from pipeline_planner import InvalidPipelineError as InvalidPipelineError
    from pipeline_planner import Pipeline as Pipeline
    from pipeline_planner import Plan as Plan
    from pipeline_planner import PlanConflictError as PlanConflictError
    from pipeline_planner import PlanContradictionError as PlanContradictionError
    from pipeline_planner import PlannedPipeline as PlannedPipeline
    from pipeline_planner import PlanSettings as PlanSettings
    from pipeline_planner import PlanStoreError as PlanStoreError
    from pipeline_planner import Services as Services
    from pipeline_planner import SparkFormat as SparkFormat
    from pipeline_planner import Stream as Stream
    from pipeline_planner import StreamAdmin as StreamAdmin
    from pipeline_planner import StreamExistsError as StreamExistsError
    from pipeline_planner import System as System
    from pipeline_planner import Table as Table
    from pipeline_planner.graph.errors import (
        PartitionCountConflictError as PartitionCountConflictError,
    )
    from pipeline_planner.running import PipelineStageError as PipelineStageError
    from pipeline_planner.running import RunningPipeline as RunningPipeline
    from pipeline_planner.running import SessionSettingError as SessionSettingError
    from pipeline_planner.running import StageState as StageState
    from pipeline_planner.running import StageStatus as StageStatus
    from spark_ssp.registration import register as register
    from ssp_common.errors import AccessError as AccessError
    from ssp_common.errors import DataLossError as DataLossError
    from ssp_common.errors import IncompatibleStateError as IncompatibleStateError
    from ssp_common.errors import InvalidOptionsError as InvalidOptionsError
    from ssp_common.errors import InvalidRequestError as InvalidRequestError
    from ssp_common.errors import InvalidRowsError as InvalidRowsError
    from ssp_common.errors import ServiceUnavailableError as ServiceUnavailableError
    from ssp_common.errors import SspError as SspError
    from ssp_common.errors import StreamNotFoundError as StreamNotFoundError
    from ssp_common.errors import UnsupportedError as UnsupportedError
    from ssp_common.spark.query_lag import query_lag as query_lag
    from task_grouping.expansion import ModuloExpansion as ModuloExpansion
    from task_grouping.expansion import PartitionExpansionAlgorithm as PartitionExpansionAlgorithm
    from task_grouping.fixed_tasks import PartitionCountError as PartitionCountError
    from task_grouping.fixed_tasks import PartitionExpansionError as PartitionExpansionError

_NAMES: Final = {
    "checkpoint.assignments.errors": (
        "AssignmentConflictError AssignmentContradictionError AssignmentStoreError"
    ),
    "checkpoint.errors": "LeaseTableError MalformedLeaseError",
    "checkpoint.worker_identity": (
        "HostAndQueryGenerator ProcessorIdGenerator Query UuidGenerator"
    ),
    "embedded_kinesis": (
        "Clock Delays Distribution EmbeddedKinesis KinesisError KinesisState Limits "
        "ManualClock StreamMode SystemClock UnusualAnswers"
    ),
    "embedded_kinesis.core.faults": (
        "AccessDenied DelayVisibility DropConnection EmptyPage ExpiredIterator "
        "InternalFailure LateShardEnd LostReply Refusal RejectRecords ShiftArrival Throttle "
        "Timeout TrimRecords by_chance"
    ),
    "embedded_kinesis.core.subscription_faults": (
        "CutSubscription EmptyEvents EndSubscription FailSubscription SilenceSubscription"
    ),
    "embedded_kinesis.service": "ClientSettings",
    "kafka_source.client.admin_client": "disconnect_kafka",
    "kafka_source.dedup.deduplicate": "drop_duplicates",
    "kafka_source.pipeline_system": "KafkaSystem",
    "kinesis_source.client.api": (
        "ExpiredIteratorError InvalidPositionError ShardNotFoundError StreamInUseError "
        "ThrottledError UnreachableError"
    ),
    "kinesis_source.graceful_stop": "stop_gracefully",
    "kinesis_source.pipeline_system": "KinesisSystem",
    "local_kafka": "LocalKafka",
    "operations.live_page.serve": "LivePage serve_live_page",
    "operations.metrics.publish": "PublishedMetrics publish_metrics",
    "pipeline_planner": (
        "Applied InvalidPipelineError Pipeline Plan PlanConflictError PlanContradictionError "
        "PlanSettings PlanStoreError PlannedPipeline Services SparkFormat Stream StreamAdmin "
        "StreamExistsError System Table"
    ),
    "pipeline_planner.graph.errors": "PartitionCountConflictError",
    "pipeline_planner.running": (
        "PipelineStageError RunningPipeline SessionSettingError StageState StageStatus"
    ),
    "spark_ssp.registration": "register",
    "ssp_common.errors": (
        "AccessError DataLossError IncompatibleStateError InvalidOptionsError "
        "InvalidRequestError InvalidRowsError ServiceUnavailableError SspError "
        "StreamNotFoundError UnsupportedError"
    ),
    "ssp_common.spark.query_lag": "query_lag",
    "task_grouping.expansion": "ModuloExpansion PartitionExpansionAlgorithm",
    "task_grouping.fixed_tasks": "PartitionCountError PartitionExpansionError",
}
"""The public names of each module, separated by spaces."""
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ImportError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        from ssp_common.spark.requirement import pyspark_error

        raise pyspark_error() from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*_MODULES, "__version__"])
