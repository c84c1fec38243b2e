"""The readers that Spark calls. Planning is in `batch_planner` and `planning`.

Spark creates the stream reader twice: in the driver's long-lived process, which requests offsets,
and again only to pickle it for the executors, which call `read`. So the constructor does no I/O and
starts nothing, and the pickle contains only the options.

Each of these is another process, and every start of a query waits for its imports. So this module
imports what all of them need; the client, planning and reading are imported by the methods that use
them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_ssp.common.columns import Column
from spark_ssp.common.logs import show_logs
from spark_ssp.common.spark.batch_plan import BatchPlan, BatchSource, read_planned, with_plan
from spark_ssp.common.spark.gc_freeze import freeze_after_task, freeze_imports, without_collections
from spark_ssp.common.spark.pyspark_api import (
    PYSPARK_WITHOUT_LIMITS,
    PlanningStreamReader,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from spark_ssp.common.spark.reader_status import COUNTERS, ReaderCounters
from spark_ssp.common.spark.schema_check import requested_columns
from spark_ssp.common.versioned_json import OffsetCache
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, encode
from spark_ssp.kafka_source.options.values import KafkaOptions, QueryKind

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ssp.checkpoint.assignments.store import AssignmentStore
    from spark_ssp.kafka_source.batch_planner import BatchPlanner
    from spark_ssp.kafka_source.client.admin_client import KafkaAdminClient
    from spark_ssp.kafka_source.group_committer import GroupCommitter
    from spark_ssp.kafka_source.model.ranges import TaskRange
    from spark_ssp.kafka_source.planning.rate_limit import ReadLimits
    from spark_ssp.kafka_source.planning.spark_checkpoint import AnyOffset

_NO_LIMIT: Final = (1 << 63) - 1
_BATCHES: Final = BatchSource(
    format="kafka-ssp",
    condition="offset >= 0",
    end_option="endingTimestamp to a time that has passed",
)


class TaskPartition(InputPartition):
    """The part of a batch that one task reads. `group_id` is the consumer group for brokers."""

    def __init__(self, value: TaskRange, group_id: str) -> None:
        super().__init__(value)
        self.value: TaskRange = value
        self.group_id = group_id


class KafkaStreamReader(PlanningStreamReader):
    """Reads the topics of one query. `raw_options` are Spark's, validated when the source was
    loaded; `schema` has the columns that Spark requests, by default all. Raises InvalidOptionsError
    or UnsupportedError."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType | None = None) -> None:
        from spark_ssp.kafka_source.options.parse import parse_options  # not loaded by executors

        self._options = parse_options(raw_options, pyspark_without_limits=PYSPARK_WITHOUT_LIMITS)
        self._columns = _requested(schema, self._options)
        super().__init__(is_triggered_by_time=self._options.is_triggered_by_time)
        self._planner: BatchPlanner | None = None
        self._service: KafkaAdminClient | None = None
        self._committer: GroupCommitter | None = None
        self._group_id = _group_id(self._options)
        self._offsets = OffsetCache(encode, _decode)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_options": self._options,
            "_columns": self._columns,
            "_planner": None,
            "_service": None,
            "_committer": None,
            "_group_id": "",
            "_offsets": OffsetCache(encode, _decode),
        }

    # --- Called on the driver ---------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes back to `latestOffset`, except with Trigger.Once.
        Spark passes only one limit, so any limit means all the options that limit a batch, and
        minOffsetsPerTrigger needs one too."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMaxRows(_NO_LIMIT)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        """Return the empty offset: the end of the first batch contains its start."""
        return encode(BEFORE_FIRST_BATCH)

    def plan_end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` itself if there is none. Spark requests it
        after it has completed the batch that ends at `start`."""
        planner, begin = self._batch_planner(), self._offsets.decode(start)
        if self._committer is not None:
            self._committer.submit(begin.positions)
        end = planner.next_offset(begin, self._limits(limit))
        if end is None and planner.stops_at_latest and self._committer is not None:
            self._committer.flush()  # Spark ends this process now, without waiting for it
        return start if end is None else self._offsets.encode(end)

    def plan_end_of_all(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the end of a batch up to the latest offsets."""
        return self.plan_end(start, ReadAllAvailable())

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to the current ends, and then stop."""
        self._batch_planner().stop_at_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the lag for the query's progress, where it appears under `latestOffset`, and the
        counts of the reader."""
        from spark_ssp.kafka_source.batch_planner import lag_metrics

        if self._planner is None or self._service is None:
            return None
        lag = lag_metrics(self._planner.lag())
        counters = ReaderCounters(
            retries=self._service.retries(),
            reshards=self._planner.expansions,
            data_loss_warnings=self._planner.losses,
        )
        return None if lag is None else {**lag, COUNTERS: counters.document()}

    def plan_partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Return one partition for each task with records to read."""
        ranges = self._batch_planner().ranges(
            self._offsets.decode(start), self._offsets.decode(end)
        )
        return [TaskPartition(task_range, self._group_id) for task_range in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's own log stores the offsets, and `plan_end` commits them to a group,
        since Spark does not call this for a batch until the next one is planned."""

    def close(self) -> None:
        """Close the connections."""
        if self._committer is not None:
            self._committer.close()
        if self._planner is not None:
            self._planner.close()

    def _limits(self, limit: ReadLimit) -> ReadLimits | None:
        if isinstance(limit, ReadAllAvailable):
            return None  # No limit is set, or Trigger.Once: Spark reads all available records
        from spark_ssp.kafka_source.planning.rate_limit import ReadLimits

        return ReadLimits(
            max_offsets=self._options.max_offsets_per_trigger,
            max_bytes=self._options.max_bytes_per_trigger,
        )

    def _batch_planner(self) -> BatchPlanner:
        if self._planner is None:
            with without_collections():
                planner = self._start()
                freeze_imports()
            return planner
        return self._planner

    def _start(self) -> BatchPlanner:
        from spark_ssp.kafka_source.batch_planner import BatchPlanner
        from spark_ssp.kafka_source.client.admin_client import connect
        from spark_ssp.kafka_source.reading.pool import check_consumers

        show_logs()
        check_consumers(self._options.client, self._group_id)
        self._service = connect(self._options)
        self._planner = planner = BatchPlanner(
            self._options,
            self._service,
            monotonic=time.monotonic,
            sleep=time.sleep,
            read=self._read_task,
            store=_store(self._options),
        )
        group = self._options.commit_offsets_to_group
        if group is not None:
            from spark_ssp.kafka_source.group_committer import GroupCommitter, GroupOffsets

            self._committer = GroupCommitter(group, GroupOffsets(self._options.client, group))
            self._committer.flush_on_termination()
        return planner

    def _read_task(self, part: TaskRange) -> Iterator[pa.RecordBatch]:
        """Read a range as a task does, to estimate the size of records."""
        from spark_ssp.kafka_source.planning.rate_limit import SAMPLED_COLUMNS
        from spark_ssp.kafka_source.reading.task_reader import read_task

        names = {"headers"} if self._options.include_headers else set()
        if self._columns is not None:
            names &= {column.name for column in self._columns}
        columns = [Column(name) for name in (*SAMPLED_COLUMNS, *names)]
        return read_task(part, self._options, self._group_id, columns=columns)

    # --- Run on executors ------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task as Arrow record batches."""
        return _read(partition, self._options, self._columns)


class KafkaBatchReader(DataSourceReader):
    """Reads topics between two bounds, once. `schema` is as in KafkaStreamReader."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType | None = None) -> None:
        from spark_ssp.kafka_source.options.parse import parse_options  # not loaded by executors

        self._options = parse_options(raw_options, QueryKind.BATCH)
        self._columns = _requested(schema, self._options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each task with records to read."""
        from spark_ssp.kafka_source.batch_planner import BatchClock, plan_read
        from spark_ssp.kafka_source.client.admin_client import connect
        from spark_ssp.kafka_source.reading.pool import check_consumers

        show_logs()
        group_id = _group_id(self._options)
        check_consumers(self._options.client, group_id)
        store = _store(self._options)
        now = round(time.time() * 1000)
        clock = BatchClock(now_ms=now, monotonic=time.monotonic, sleep=time.sleep)
        try:
            planned = plan_read(self._options, connect(self._options), clock=clock, store=store)
        finally:
            if store is not None:
                store.close()
        return with_plan(
            [TaskPartition(task_range, group_id) for task_range in planned.ranges],
            BatchPlan(id=group_id, planned_at_ms=now, has_fixed_end=planned.has_fixed_end),
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task as Arrow record batches."""
        return read_planned(
            partition, _BATCHES, lambda part: _read(part, self._options, self._columns)
        )


def _group_id(options: KafkaOptions) -> str:
    """Return a group id for each run of a query, as in Spark's source: executors cache consumers by
    it."""
    return f"{options.group_id_prefix}-{uuid.uuid4()}"


def _store(options: KafkaOptions) -> AssignmentStore | None:
    if options.assignment_store is None:
        return None
    from spark_ssp.checkpoint.assignments.files import open_assignment_store

    return open_assignment_store(options.assignment_store, options.store_connection)


def _decode(document: Any) -> AnyOffset:
    from spark_ssp.kafka_source.planning.spark_checkpoint import decode_any

    return decode_any(document)


def _requested(schema: StructType | None, options: KafkaOptions) -> tuple[Column, ...] | None:
    if schema is None:
        return None
    source = spark_schema(
        include_headers=options.include_headers, include_task=options.include_task
    )
    optional = "headers with includeHeaders, task and ssp with includeTask"
    return requested_columns(schema, source, optional)


def _read(
    partition: InputPartition, options: KafkaOptions, columns: Sequence[Column] | None
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, TaskPartition):
        raise TypeError(f"a TaskPartition is expected, not a {type(partition).__name__}")
    from spark_ssp.kafka_source.reading.task_reader import read_task

    show_logs()
    return freeze_after_task(
        read_task(partition.value, options, partition.group_id, columns=columns)
    )


# --- Schema ---------------------------------------------------------------------------------------

_RECORD: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS: Final = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
_TASK: Final = (StructField("task", StringType()), StructField("ssp", IntegerType()))


def spark_schema(*, include_headers: bool, include_task: bool) -> StructType:
    """Return the schema for the options `includeHeaders` and `includeTask`: the columns of Spark's
    own Kafka source, in its order, and nullable as there. `arrow_batches` builds each column for
    Arrow, and PySpark compares its schema with this one field by field.

    `timestamp` has milliseconds. `timestampType` is 0 for the time at which the record was created,
    1 for the time at which the broker appended it, and -1 if there is no time. `headers` is null if
    there are none. `task` is the name of the task that read the row; `ssp` is
    `ranges.TaskRange.number`.
    """
    return StructType(
        [*_RECORD, *((_HEADERS,) if include_headers else ()), *(_TASK if include_task else ())]
    )
