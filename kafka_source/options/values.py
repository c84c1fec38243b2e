"""The options of the Kafka source, parsed: frozen values that executors receive by pickle.

This module stays cheap to import, since every executor imports it: it does not load the parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.fixed_tasks import OnPartitionCountChange
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.model.topic import Bound, IsolationLevel, NoMatch, Selection, TopicId
from spark_ssp.kafka_source.properties.translation import ClientProperties

__all__ = [
    "ClientProperties",
    "GrouperName",
    "InvalidOptionsError",
    "KafkaOptions",
    "QueryKind",
]


class QueryKind(StrEnum):
    """The kind of query: `readStream` or `read`."""

    STREAM = "stream"
    BATCH = "batch"


class GrouperName(StrEnum):
    """The option `grouper`."""

    PARTITION = "partition"
    SSP = "ssp"
    SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """All options of a query. Times in milliseconds, sizes in bytes.

    None means: `end`, a streaming query; the limits, no limit; `tasks`, the largest number of
    partitions at the start; `expansion_algorithm` (a dotted path), modulo; `assignment_store` (a
    URI), only the offset; `commit_offsets_to_group`, no commits; `grouper` and
    `on_partition_count_change`, the defaults of `planning.plan_batch.create_grouping`.
    """

    selection: Selection
    start: Bound
    end: Bound | None = None
    no_match: NoMatch = NoMatch.ERROR
    fail_on_data_loss: bool = True
    drop_topics: tuple[StreamName, ...] = ()
    accept_topic_ids: Mapping[StreamName, TopicId] = field(default_factory=dict)
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    max_bytes_per_trigger: int | None = None
    is_triggered_by_time: bool = False
    """The trigger is declared to be neither availableNow nor once."""
    include_headers: bool = False
    include_task: bool = False
    group_id_prefix: str = "spark-kafka-source"
    commit_offsets_to_group: str | None = None
    fetch_offset_attempts: int = 3
    fetch_offset_retry_interval_ms: int = 1_000
    poll_timeout_ms: int = 120_000
    partition_discovery_interval_ms: int = 10_000
    relies_on_tasks: bool = False
    """An option is set that makes the query rely on its tasks."""
    grouper: GrouperName | None = None
    tasks: int | None = None
    expansion_algorithm: str | None = None
    on_partition_count_change: OnPartitionCountChange | None = None
    assignment_store: str | None = None
    store_connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    """For an assignment store in S3 or DynamoDB."""
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    client: ClientProperties
