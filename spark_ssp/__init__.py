"""The public API of spark-ssp: everything that user code imports. Names are imported on first use,
so that `import spark_ssp` costs nothing on an executor and needs no optional dependency. All other
packages are internal and may change in any release."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from spark_ssp.common import __version__ as __version__

if TYPE_CHECKING:
    from spark_ssp.checkpoint.assignments.store import (
        AssignmentConflictError as AssignmentConflictError,
    )
    from spark_ssp.checkpoint.assignments.store import (
        AssignmentContradictionError as AssignmentContradictionError,
    )
    from spark_ssp.checkpoint.assignments.store import AssignmentStoreError as AssignmentStoreError
    from spark_ssp.checkpoint.leases.lease import LeaseTableError as LeaseTableError
    from spark_ssp.checkpoint.leases.lease import MalformedLeaseError as MalformedLeaseError
    from spark_ssp.checkpoint.worker_identity import HostAndQueryGenerator as HostAndQueryGenerator
    from spark_ssp.checkpoint.worker_identity import ProcessorIdGenerator as ProcessorIdGenerator
    from spark_ssp.checkpoint.worker_identity import Query as Query
    from spark_ssp.checkpoint.worker_identity import UuidGenerator as UuidGenerator
    from spark_ssp.common.errors import AccessError as AccessError
    from spark_ssp.common.errors import DataLossError as DataLossError
    from spark_ssp.common.errors import IncompatibleStateError as IncompatibleStateError
    from spark_ssp.common.errors import InvalidOptionsError as InvalidOptionsError
    from spark_ssp.common.errors import InvalidRequestError as InvalidRequestError
    from spark_ssp.common.errors import InvalidRowsError as InvalidRowsError
    from spark_ssp.common.errors import ServiceUnavailableError as ServiceUnavailableError
    from spark_ssp.common.errors import SspError as SspError
    from spark_ssp.common.errors import StreamNotFoundError as StreamNotFoundError
    from spark_ssp.common.errors import UnsupportedError as UnsupportedError
    from spark_ssp.common.spark.reader_status import query_lag as query_lag
    from spark_ssp.grouping.fixed_tasks import ModuloExpansion as ModuloExpansion
    from spark_ssp.grouping.fixed_tasks import PartitionCountError as PartitionCountError
    from spark_ssp.grouping.fixed_tasks import (
        PartitionExpansionAlgorithm as PartitionExpansionAlgorithm,
    )
    from spark_ssp.grouping.fixed_tasks import PartitionExpansionError as PartitionExpansionError
    from spark_ssp.kafka_source.client.admin_client import disconnect_kafka as disconnect_kafka
    from spark_ssp.kafka_source.dedup.deduplicate import drop_duplicates as drop_duplicates
    from spark_ssp.kafka_source.pipeline_system import KafkaSystem as KafkaSystem
    from spark_ssp.kinesis_source.client.api import ExpiredIteratorError as ExpiredIteratorError
    from spark_ssp.kinesis_source.client.api import InvalidPositionError as InvalidPositionError
    from spark_ssp.kinesis_source.client.api import ShardNotFoundError as ShardNotFoundError
    from spark_ssp.kinesis_source.client.api import StreamInUseError as StreamInUseError
    from spark_ssp.kinesis_source.client.api import ThrottledError as ThrottledError
    from spark_ssp.kinesis_source.client.api import UnreachableError as UnreachableError
    from spark_ssp.kinesis_source.leases.drain import stop_gracefully as stop_gracefully
    from spark_ssp.kinesis_source.pipeline_system import KinesisSystem as KinesisSystem
    from spark_ssp.operations.live_page.serve import LivePage as LivePage
    from spark_ssp.operations.live_page.serve import serve_live_page as serve_live_page
    from spark_ssp.operations.metrics.publish import PublishedMetrics as PublishedMetrics
    from spark_ssp.operations.metrics.publish import publish_metrics as publish_metrics
    from spark_ssp.planner import Applied as Applied
    from spark_ssp.planner import InvalidPipelineError as InvalidPipelineError
    from spark_ssp.planner import Pipeline as Pipeline
    from spark_ssp.planner import Plan as Plan
    from spark_ssp.planner import PlanConflictError as PlanConflictError
    from spark_ssp.planner import PlanContradictionError as PlanContradictionError
    from spark_ssp.planner import PlannedPipeline as PlannedPipeline
    from spark_ssp.planner import PlanSettings as PlanSettings
    from spark_ssp.planner import PlanStoreError as PlanStoreError
    from spark_ssp.planner import Services as Services
    from spark_ssp.planner import SparkFormat as SparkFormat
    from spark_ssp.planner import Stream as Stream
    from spark_ssp.planner import StreamAdmin as StreamAdmin
    from spark_ssp.planner import StreamExistsError as StreamExistsError
    from spark_ssp.planner import System as System
    from spark_ssp.planner import Table as Table
    from spark_ssp.planner.graph.errors import (
        PartitionCountConflictError as PartitionCountConflictError,
    )
    from spark_ssp.planner.running import PipelineStageError as PipelineStageError
    from spark_ssp.planner.running import RunningPipeline as RunningPipeline
    from spark_ssp.planner.running import SessionSettingError as SessionSettingError
    from spark_ssp.planner.running import StageState as StageState
    from spark_ssp.planner.running import StageStatus as StageStatus
    from spark_ssp.registration import register as register
    from spark_ssp.testing.kafka import LocalKafka as LocalKafka
    from spark_ssp.testing.kinesis import Clock as Clock
    from spark_ssp.testing.kinesis import Delays as Delays
    from spark_ssp.testing.kinesis import Distribution as Distribution
    from spark_ssp.testing.kinesis import EmbeddedKinesis as EmbeddedKinesis
    from spark_ssp.testing.kinesis import KinesisError as KinesisError
    from spark_ssp.testing.kinesis import KinesisState as KinesisState
    from spark_ssp.testing.kinesis import Limits as Limits
    from spark_ssp.testing.kinesis import ManualClock as ManualClock
    from spark_ssp.testing.kinesis import StreamMode as StreamMode
    from spark_ssp.testing.kinesis import SystemClock as SystemClock
    from spark_ssp.testing.kinesis import UnusualAnswers as UnusualAnswers
    from spark_ssp.testing.kinesis.service import ClientSettings as ClientSettings
    from spark_ssp.testing.kinesis.state.faults import AccessDenied as AccessDenied
    from spark_ssp.testing.kinesis.state.faults import (
        CutSubscription as CutSubscription,
    )
    from spark_ssp.testing.kinesis.state.faults import DelayVisibility as DelayVisibility
    from spark_ssp.testing.kinesis.state.faults import DropConnection as DropConnection
    from spark_ssp.testing.kinesis.state.faults import EmptyEvents as EmptyEvents
    from spark_ssp.testing.kinesis.state.faults import EmptyPage as EmptyPage
    from spark_ssp.testing.kinesis.state.faults import (
        EndSubscription as EndSubscription,
    )
    from spark_ssp.testing.kinesis.state.faults import ExpiredIterator as ExpiredIterator
    from spark_ssp.testing.kinesis.state.faults import (
        FailSubscription as FailSubscription,
    )
    from spark_ssp.testing.kinesis.state.faults import InternalFailure as InternalFailure
    from spark_ssp.testing.kinesis.state.faults import LateShardEnd as LateShardEnd
    from spark_ssp.testing.kinesis.state.faults import LostReply as LostReply
    from spark_ssp.testing.kinesis.state.faults import Refusal as Refusal
    from spark_ssp.testing.kinesis.state.faults import RejectRecords as RejectRecords
    from spark_ssp.testing.kinesis.state.faults import ShiftArrival as ShiftArrival
    from spark_ssp.testing.kinesis.state.faults import (
        SilenceSubscription as SilenceSubscription,
    )
    from spark_ssp.testing.kinesis.state.faults import Throttle as Throttle
    from spark_ssp.testing.kinesis.state.faults import Timeout as Timeout
    from spark_ssp.testing.kinesis.state.faults import TrimRecords as TrimRecords
    from spark_ssp.testing.kinesis.state.faults import by_chance as by_chance

_NAMES: Final = {
    "spark_ssp.checkpoint.assignments.store": (
        "AssignmentConflictError AssignmentContradictionError AssignmentStoreError"
    ),
    "spark_ssp.checkpoint.leases.lease": "LeaseTableError MalformedLeaseError",
    "spark_ssp.checkpoint.worker_identity": (
        "HostAndQueryGenerator ProcessorIdGenerator Query UuidGenerator"
    ),
    "spark_ssp.testing.kinesis": (
        "Clock Delays Distribution EmbeddedKinesis KinesisError KinesisState Limits "
        "ManualClock StreamMode SystemClock UnusualAnswers"
    ),
    "spark_ssp.testing.kinesis.state.faults": (
        "AccessDenied CutSubscription DelayVisibility DropConnection EmptyEvents EmptyPage "
        "EndSubscription ExpiredIterator FailSubscription InternalFailure LateShardEnd LostReply "
        "Refusal RejectRecords ShiftArrival SilenceSubscription Throttle Timeout TrimRecords "
        "by_chance"
    ),
    "spark_ssp.testing.kinesis.service": "ClientSettings",
    "spark_ssp.kafka_source.client.admin_client": "disconnect_kafka",
    "spark_ssp.kafka_source.dedup.deduplicate": "drop_duplicates",
    "spark_ssp.kafka_source.pipeline_system": "KafkaSystem",
    "spark_ssp.kinesis_source.client.api": (
        "ExpiredIteratorError InvalidPositionError ShardNotFoundError StreamInUseError "
        "ThrottledError UnreachableError"
    ),
    "spark_ssp.kinesis_source.leases.drain": "stop_gracefully",
    "spark_ssp.kinesis_source.pipeline_system": "KinesisSystem",
    "spark_ssp.testing.kafka": "LocalKafka",
    "spark_ssp.operations.live_page.serve": "LivePage serve_live_page",
    "spark_ssp.operations.metrics.publish": "PublishedMetrics publish_metrics",
    "spark_ssp.planner": (
        "Applied InvalidPipelineError Pipeline Plan PlanConflictError PlanContradictionError "
        "PlanSettings PlanStoreError PlannedPipeline Services SparkFormat Stream StreamAdmin "
        "StreamExistsError System Table"
    ),
    "spark_ssp.planner.graph.errors": "PartitionCountConflictError",
    "spark_ssp.planner.running": (
        "PipelineStageError RunningPipeline SessionSettingError StageState StageStatus"
    ),
    "spark_ssp.registration": "register",
    "spark_ssp.common.errors": (
        "AccessError DataLossError IncompatibleStateError InvalidOptionsError "
        "InvalidRequestError InvalidRowsError ServiceUnavailableError SspError "
        "StreamNotFoundError UnsupportedError"
    ),
    "spark_ssp.common.spark.reader_status": "query_lag",
    "spark_ssp.grouping.fixed_tasks": "ModuloExpansion PartitionCountError"
    " PartitionExpansionAlgorithm PartitionExpansionError",
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
        from spark_ssp.common.spark.requirement import pyspark_error

        raise pyspark_error() from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*_MODULES, "__version__"])
