"""The readers that Spark calls. `batch_planner`, `planning` and `batch_read` make the decisions.

Spark builds the stream reader twice: in the driver's long-lived process, which plans offsets, and
once more only to pickle it for the executors, which call `read`. So building does no I/O and starts
nothing, and the pickle contains only the options.

Each of these is another process, and every start of a query waits for its imports. So this module
imports what all of them need; the client, planning and reading are imported by the methods that use
them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
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
from spark_ssp.common.spark.gc_freeze import (
    collect_rarely,
    freeze_after_task,
    freeze_imports,
    without_collections,
)
from spark_ssp.common.spark.pyspark_api import (
    PYSPARK_WITHOUT_LIMITS,
    PlanningStreamReader,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from spark_ssp.common.spark.schema_check import requested_columns
from spark_ssp.common.versioned_json import OffsetCache
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kinesis_source.model.ranges import SlotRange
from spark_ssp.kinesis_source.options.values import KinesisOptions, QueryKind

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ssp.kinesis_source.batch_planner import BatchPlanner
    from spark_ssp.kinesis_source.leases.lease_worker import LeaseWorker
    from spark_ssp.kinesis_source.probing.batch_limits import Limits
    from spark_ssp.kinesis_source.reader_activity import ReaderActivity
    from spark_ssp.kinesis_source.reading.fan_out import FanOut

_NO_LIMIT: Final = (1 << 63) - 1
_BATCHES: Final = BatchSource(
    format="kinesis-ssp",
    condition="sequenceNumber IS NOT NULL",
    end_option="endingPosition to a time that has passed",
)


class SlotPartition(InputPartition):
    """One slot's part of a batch: one Spark task."""

    def __init__(self, value: SlotRange) -> None:
        super().__init__(value)
        self.value: SlotRange = value


class KinesisStreamReader(PlanningStreamReader):
    """Reads one query's streams. `raw_options` are Spark's, already checked at load; `schema` has
    the columns that Spark requests, by default all. Raises InvalidOptionsError or
    UnsupportedError."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType | None = None) -> None:
        from spark_ssp.kinesis_source.options.parse import parse_options  # not loaded by executors

        self._options = parse_options(raw_options, pyspark_without_limits=PYSPARK_WITHOUT_LIMITS)
        self._columns = _requested(schema, self._options)
        super().__init__(is_triggered_by_time=self._options.is_triggered_by_time)
        self._offsets = OffsetCache(encode, decode)
        self._interval = TriggerInterval(time.time)
        self._planner: BatchPlanner | None = None
        self._activity: ReaderActivity | None = None
        self._worker: LeaseWorker | None = None
        self._fan_out: FanOut | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_options": self._options,
            "_columns": self._columns,
            "_offsets": OffsetCache(encode, decode),
            "_interval": TriggerInterval(time.time),
            "_planner": None,
            "_activity": None,
            "_worker": None,
            "_fan_out": None,
        }

    # --- Called on the driver --------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes back to `latestOffset`, except with Trigger.Once. It
        passes only one, so any limit means all the options that limit a batch."""
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_bytes_per_shard:
            return ReadMaxBytes(self._options.max_bytes_per_shard)
        return ReadMaxBytes(_NO_LIMIT)

    def initialOffset(self) -> dict[str, Any]:
        """Return the empty offset: the end of the first batch contains its start."""
        return encode(BEFORE_FIRST_BATCH)

    def plan_end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; the unchanged `start` if there is none."""
        if isinstance(limit, ReadAllAvailable) and self._options.leases is None:
            return self.plan_end_of_all(start)  # Trigger.Once
        begin = self._offsets.decode(start)
        return self._planned(start, begin, self._plan().next_offset(begin, self._limits(limit)))

    def plan_end_of_all(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the end of a batch of all records that can be read at once."""
        begin = self._offsets.decode(start)
        return self._planned(start, begin, self._plan().next_offset_of_all(begin))

    def prepareForTriggerAvailableNow(self) -> None:
        """Read the records that exist now and then stop."""
        self._plan().stop_at_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the status for the query's progress, under `latestOffset`: the lag, the counts of
        `ReaderActivity`, and the drain token."""
        from spark_ssp.kinesis_source.probing.shard_lag import progress_entry

        if self._planner is None or self._activity is None:
            return None
        return {
            stream: {
                **progress_entry(shards),
                **({"retentionMillis": self._planner.retention_ms(stream)} if shards else {}),
                **self._activity.entry(StreamName(stream), shards.keys()),
                **self._worker_entry(),
                **({} if self._fan_out is None else self._fan_out.entry(StreamName(stream))),
            }
            for stream, shards in self._planner.lag().items()
        }

    def plan_partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Return one partition for each slot that has records to read."""
        from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges, without_removed

        streams = {ref.name: ref for ref in self._options.streams}
        begin, planned = self._offsets.decode(start), self._offsets.decode(end)
        until = without_removed(
            planned,
            streams.keys(),
            self._options.drop_streams,
            fail=self._options.fail_on_data_loss,
        )
        reshard = begin.states and begin.states.keys() != until.states.keys()
        if reshard and self._options.leases is None:
            self._plan().check_replay(begin, until)
        # Unknown in a replay, which precedes all planning.
        hash_ranges = self._planner.hash_ranges(until) if self._planner else {}
        expected = self._planner.expected_sizes(until) if self._planner else {}
        iterators = self._planner.start_iterators(begin) if self._planner else {}
        ranges = plan_ranges(
            begin,
            planned,
            streams,
            hash_ranges,
            expected,
            iterators,
            removed=planned.streams.keys() - until.streams.keys(),
        )
        if self._options.fan_out is not None:
            self._plan()
        if self._fan_out is not None:
            ranges = self._fan_out.assign(ranges)
        return [SlotPartition(slot_range) for slot_range in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's own log is the source of truth."""

    def close(self) -> None:
        """Stop the driver's threads."""
        if self._planner is not None:
            self._planner.close()
        if self._worker is not None:
            self._worker.close()
        if self._fan_out is not None:
            self._fan_out.close()

    def _planned(self, start: dict[str, Any], begin: Offset, end: Offset | None) -> dict[str, Any]:
        if end is None:
            return start
        if self._activity is not None:
            self._activity.record_batch(begin, end)
        return self._offsets.encode(end)

    def _worker_entry(self) -> dict[str, str]:
        if self._worker is None:
            return {}
        from spark_ssp.kinesis_source.leases.drain import DRAIN_TOKEN

        return {"worker": self._worker.id, DRAIN_TOKEN: self._worker.drain_signal.token}

    def _limits(self, limit: ReadLimit) -> Limits:
        from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits

        if isinstance(limit, ReadAllAvailable):
            return UNLIMITED  # Trigger.Once with leases: other workers have the other shards
        limits = Limits(
            max_records=self._options.max_records_per_trigger,
            max_bytes=self._options.max_bytes_per_trigger,
            max_shard_bytes=self._options.max_bytes_per_shard or None,
        )
        return limits.for_interval(self._interval.begin())

    def _plan(self) -> BatchPlanner:
        if self._planner is None:
            with without_collections():
                planner = self._start()
                freeze_imports()
            collect_rarely()
            return planner
        return self._planner

    def _start(self) -> BatchPlanner:
        from spark_ssp.kinesis_source.batch_planner import BatchPlanner
        from spark_ssp.kinesis_source.client.boto3_client import connect
        from spark_ssp.kinesis_source.reader_activity import ReaderActivity

        show_logs()
        if self._options.leases is not None:
            from spark_ssp.kinesis_source.leases.lease_worker import lease_worker

            self._worker = lease_worker(self._options)
        service = connect(self._options.connection)
        self._planner = planner = BatchPlanner(
            self._options,
            service,
            monotonic=time.monotonic,
            sleep=time.sleep,
            worker=self._worker,
        )
        self._activity = ReaderActivity(planner, service, self._worker, monotonic=time.monotonic)
        if self._options.fan_out is not None:
            from spark_ssp.kinesis_source.reading.fan_out import open_fan_out

            self._fan_out = open_fan_out(self._options, service)
        return planner

    # --- Run on executors ------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of one slot as Arrow record batches."""
        return _read(partition, self._options, self._columns)


class KinesisBatchReader(DataSourceReader):
    """Reads streams between two positions, once. `schema` is as in KinesisStreamReader."""

    def __init__(self, raw_options: Mapping[str, str], schema: StructType | None = None) -> None:
        from spark_ssp.kinesis_source.options.parse import parse_options  # not loaded by executors

        self._options = parse_options(raw_options, QueryKind.BATCH)
        self._columns = _requested(schema, self._options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each task with records to read."""
        from spark_ssp.kinesis_source.batch_read import has_fixed_end, plan_read
        from spark_ssp.kinesis_source.client.boto3_client import connect
        from spark_ssp.kinesis_source.reading.fan_out import open_fan_out

        show_logs()
        service = connect(self._options.connection)
        plan = BatchPlan(
            id=str(uuid.uuid4()),
            planned_at_ms=round(time.time() * 1000),
            has_fixed_end=has_fixed_end(self._options.ending_position),
        )
        ranges = plan_read(self._options, service, monotonic=time.monotonic, sleep=time.sleep)
        fan_out = open_fan_out(self._options, service)
        if fan_out is not None:
            ranges = fan_out.assign(ranges)
        return with_plan([SlotPartition(slot_range) for slot_range in ranges], plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of one task as Arrow record batches."""
        return read_planned(
            partition, _BATCHES, lambda part: _read(part, self._options, self._columns)
        )


def _requested(schema: StructType | None, options: KinesisOptions) -> tuple[Column, ...] | None:
    if schema is None:
        return None
    source = spark_schema(include_repeat_keys=options.include_repeat_keys)
    return requested_columns(schema, source, "repeatKey with includeRepeatKeys")


def _read(
    partition: InputPartition, options: KinesisOptions, columns: Sequence[Column] | None
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SlotPartition):
        raise TypeError(f"a SlotPartition is expected, not a {type(partition).__name__}")
    from spark_ssp.kinesis_source.client.boto3_client import connect
    from spark_ssp.kinesis_source.client.subscriptions import open_subscriber
    from spark_ssp.kinesis_source.reading.process_wide import READ_RATES
    from spark_ssp.kinesis_source.reading.task_reader import read_slot

    show_logs()
    service = connect(options.connection)
    rows = read_slot(
        partition.value,
        options,
        service,
        rates=READ_RATES,
        columns=columns,
        open_subscriber=lambda window: open_subscriber(options.connection, window=window),
    )
    return freeze_after_task(rows)


# --- The interval of triggers ---------------------------------------------------------------------

LATE_MS: Final = 2000
"""The maximum delay of the call in a trigger: Spark calls one source after the other."""
LATE_SHARE: Final = 50
"""At most 1/50 of the interval, or short batches would often count as an interval."""
_SECOND_MS: Final = 1000


class TriggerInterval:
    """The interval of a query's trigger, which Spark does not pass to a source, derived from the
    starts of triggers. `time` is in seconds since the epoch, by the clock of the driver's machine.

    A source only sees the start of a trigger: Spark calls it once before a batch and not after it.
    So the time between two starts is either the interval or the duration of a batch. Spark starts
    the triggers of an interval at multiples of it since the epoch, and a batch ends at any time.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._began: int | None = None
        self._supposed: int | None = None
        self._known_ms = 0

    def begin(self) -> int:
        """Record the start of a trigger; return the interval in milliseconds, 0 while it is
        unknown. Two successive times must agree, in whole seconds: one batch in hundreds ends at
        such a time by chance. A trigger that was delayed by its batch is ignored."""
        now = round(self._time() * 1000)
        before, self._began = self._began, now
        supposed = None if before is None else _multiple_of(now - before, now)
        if supposed is not None and supposed == self._supposed:
            self._known_ms = supposed
        self._supposed = supposed
        return self._known_ms


def _multiple_of(passed_ms: int, now_ms: int) -> int | None:
    """Return `passed_ms` in whole seconds if triggers of that interval start now."""
    interval_ms = round(passed_ms / _SECOND_MS) * _SECOND_MS
    late_ms = min(LATE_MS, interval_ms // LATE_SHARE)
    return interval_ms if interval_ms and now_ms % interval_ms <= late_ms else None


# --- Schema ---------------------------------------------------------------------------------------

_COLUMNS: Final = (
    StructField("partitionKey", StringType()),
    StructField("data", BinaryType()),
    StructField("stream", StringType()),
    StructField("shardId", StringType()),
    StructField("sequenceNumber", StringType()),
    StructField("subSequenceNumber", LongType()),
    StructField("approximateArrivalTimestamp", TimestampType()),
    StructField("ssp", IntegerType()),
)
_REPEAT_KEY: Final = StructField("repeatKey", StringType())


def spark_schema(*, include_repeat_keys: bool) -> StructType:
    """Return the schema for the option `includeRepeatKeys`. `arrow_batches` builds each column for
    Arrow, and PySpark compares its schema with this one field by field, in this order.

    `partitionKey` is null if the producer gave none, which the record distribution strategy AUTO
    allows; `subSequenceNumber` counts the user records within an aggregated record and is 0 for any
    other; `approximateArrivalTimestamp` is the service's, in milliseconds; `ssp` is the slot that
    read it. `repeatKey` is equal in rows that the sink wrote twice, and never null.
    """
    return StructType([*_COLUMNS, *((_REPEAT_KEY,) if include_repeat_keys else ())])
