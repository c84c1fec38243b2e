"""Readers and writers as PySpark 4.0 and 4.1 call them, without Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_ssp.common.errors import InvalidRowsError, UnsupportedError
from spark_ssp.common.spark.pyspark_api import (
    BATCH_ROWS,
    PlanningStreamReader,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    RowsInPandas,
    check_state_in_pandas,
    record_batches,
)
from spark_ssp.kafka_source.sink.columns import rows_of
from spark_ssp.kafka_source.sink.table_sink import resolve_columns

# --- The start and the limit of a batch -----------------------------------------------------------

Offset = dict[str, Any]
LIMIT = 3


def at(number: int) -> Offset:
    return {"at": number}


class Log:
    """A source with one log, and the starts and limits by which its batches were planned."""

    def __init__(self) -> None:
        self.records = 0
        self.planned: list[tuple[Offset, ReadLimit]] = []

    def reader(self, *, is_triggered_by_time: bool = False) -> LogReader:
        return LogReader(self, is_triggered_by_time=is_triggered_by_time)


class LogReader(PlanningStreamReader):
    def __init__(self, log: Log, *, is_triggered_by_time: bool) -> None:
        super().__init__(is_triggered_by_time=is_triggered_by_time)
        self._log = log

    def initialOffset(self) -> Offset:
        return at(0)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        raise NotImplementedError

    def plan_end(self, start: Offset, limit: ReadLimit) -> Offset:
        self._log.planned.append((start, limit))
        end = self._log.records
        return at(min(end, start["at"] + LIMIT) if isinstance(limit, ReadMaxRows) else end)

    def plan_end_of_all(self, start: Offset) -> Offset:
        return self.plan_end(start, ReadAllAvailable())

    def plan_partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [InputPartition(range(start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        raise NotImplementedError


class OldSpark:
    """`MicroBatchExecution` of PySpark 4.0 and 4.1: the offset log, and one run after the other."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.offsets: list[Offset] = []
        self._committed = 0
        self._reader: LogReader | None = None
        self._planned: list[tuple[Offset, Offset]] = []
        self.read: list[int] = []

    def trigger(self, fails: str | None) -> None:
        """Run a trigger, in a new run if the one before has ended. A query `fails` before or after
        it has stored the end of the batch, or after it has read the records."""
        if self._reader is None:
            self._reader = self._log.reader()
            if self.offsets:
                self._partitions(self.offsets[-1], self.offsets[-1])
        if self._committed == len(self.offsets):
            start = self.start()
            end = json.loads(json.dumps(self._reader.latestOffset()))
            assert self._log.planned[-1][0] == start, "the start that PySpark 4.2 would pass"
            if fails == "before the end is stored":
                self.stop()
                return
            if end == start:
                return
            self.offsets.append(end)
        if fails == "before the batch is read":
            self.stop()
            return
        self._planned.append((self.start(-1), self.offsets[-1]))
        batch = self._partitions(*self._planned[-1])
        if fails == "before the batch is committed":
            self.stop()
            return
        self.read += [record for part in batch for record in part.value]
        self._committed = len(self.offsets)

    def start(self, newest: int | None = None) -> Offset:
        """Return the start of the next batch, or of the newest one."""
        offsets = self.offsets[:newest]
        return offsets[-1] if offsets else at(0)

    def stop(self) -> None:
        self._reader = None
        self._planned.clear()

    def repeat(self, ago: int) -> None:
        """Plan the partitions of a batch of this run again, as for a plan that is explained."""
        if self._planned:
            self._partitions(*self._planned[-1 - min(ago, len(self._planned) - 1)])

    def _partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        assert self._reader is not None
        return self._reader.partitions(dict(start), dict(end))


STEPS = st.one_of(
    st.tuples(st.just("records"), st.integers(1, 10)),
    st.tuples(st.just("trigger"), st.none()),
    st.tuples(
        st.just("trigger"),
        st.sampled_from(
            [
                "before the end is stored",
                "before the batch is read",
                "before the batch is committed",
            ]
        ),
    ),
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("repeat"), st.integers(0, 2)),
)


@given(st.lists(STEPS, max_size=40))
@example([("records", 2), ("trigger", None)] * 2 + [("repeat", 1)])
def test_the_tracked_start_is_the_one_that_later_versions_pass(
    steps: list[tuple[str, Any]],
) -> None:
    log = Log()
    spark = OldSpark(log)
    for step, value in steps:
        match step:
            case "records":
                log.records += value
            case "trigger":
                spark.trigger(value)
            case "stop":
                spark.stop()
            case "repeat":
                spark.repeat(value)
    for _ in range(log.records + 1):
        spark.trigger(None)
    assert spark.read == list(range(log.records)), "every record once, in order"


def test_only_a_first_batch_without_a_known_trigger_ignores_the_limit() -> None:
    log = Log()
    log.records = 20
    reader = log.reader()
    assert [reader.latestOffset(), reader.latestOffset()] == [at(20), at(20)]
    assert [type(limit) for _, limit in log.planned] == [ReadAllAvailable, ReadMaxRows]

    declared = log.reader(is_triggered_by_time=True)
    assert [declared.latestOffset(), declared.latestOffset()] == [at(3), at(6)]

    resumed = log.reader()
    resumed.partitions(at(5), at(5))
    assert resumed.latestOffset() == at(20)

    # availableNow and once end after the batch that is repeated.
    replaying = log.reader()
    replaying.partitions(at(5), at(5))
    replaying.partitions(at(2), at(5))
    assert replaying.latestOffset() == at(8)


def test_the_start_and_the_limit_that_spark_passes_are_used() -> None:
    log = Log()
    log.records = 20
    reader = log.reader()
    for start, limit in ((at(4), ReadMaxRows(LIMIT)), (at(2), ReadAllAvailable())):
        reader.latestOffset(start, limit)
        assert log.planned[-1] == (start, limit)


def test_an_end_planned_before_the_start_is_passed_is_refused() -> None:
    """With triggerAvailableNowWrapper, PySpark 4.0 and 4.1 request the end first."""
    log = Log()
    log.records = 20
    reader = log.reader()
    reader.latestOffset()
    with pytest.raises(UnsupportedError, match=r"triggerAvailableNowWrapper\.enabled=true"):
        reader.partitions(at(5), at(5))


def test_grouped_rows_without_state_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Spark Connect: found PySpark .*PySpark 4\.1"):
        check_state_in_pandas(object())


def test_a_protobuf_that_pysparks_state_rejects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Grouped:
        transformWithStateInPandas = None

    check_state_in_pandas(Grouped())
    monkeypatch.delitem(sys.modules, "pyspark.sql.streaming.proto.StateMessage_pb2")
    monkeypatch.setattr("google.protobuf.runtime_version.MAJOR", 4)
    with pytest.raises(UnsupportedError, match=r"protobuf: found .*newer protobuf"):
        check_state_in_pandas(Grouped())


def test_a_processor_of_rows_runs_on_frames() -> None:
    class Twice(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None: ...

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in rows:
                yield Row(line=row.value, held=None)
                yield Row(line=key[0], held=row.value)

        def close(self) -> None: ...

    frames = [
        pd.DataFrame({"number": [1, 2], "value": ["a", None]}),
        pd.DataFrame({"number": range(600), "value": ["b"] * 600}),
    ]
    processor = RowsInPandas(Twice(), ["line", "held"])
    found = list(processor.handleInputRows(("k",), iter(frames), None))
    assert [len(frame) for frame in found] == [1000, 204]
    rows = [tuple(row) for frame in found for row in frame.itertuples(index=False)]
    assert rows[:4] == [("a", None), ("k", "a"), (None, None), ("k", None)]
    assert rows[4:] == [("b", None), ("k", "b")] * 600


# --- Rows of a stream writer ----------------------------------------------------------------------

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("note", MapType(StringType(), TimestampType())),
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
        StructField("at", TimestampType()),
        StructField("headers", ArrayType(HEADER)),
        StructField("topic", StringType()),
    ]
)


def test_rows_become_the_record_batches_that_later_versions_pass() -> None:
    headers = [Row(key="trace", value=b"\x00"), Row(key="trace", value=None)]
    row = Row(*SCHEMA.names)
    rows = [
        row({"a": None}, "k", b"\xff", 3, 1, headers, "t"),
        row(None, None, None, None, None, None, "u"),
        row(None, "", b"", 0, None, [], "t"),
    ]
    columns = resolve_columns(SCHEMA, topic_given=False)
    (batch,) = record_batches(iter(rows), SCHEMA, columns.indices())
    assert list(rows_of(batch, columns, None)) == [
        ("t", b"k", b"\xff", 3, [("trace", b"\x00"), ("trace", None)]),
        ("u", None, None, None, ()),
        ("t", b"", b"", 0, []),
    ]
    assert {name: batch.schema.field(name).type for name in ("key", "value", "partition")} == {
        "key": pa.string(),
        "value": pa.binary(),
        "partition": pa.int32(),
    }


def test_rows_are_passed_on_in_batches_and_not_ahead() -> None:
    taken: list[int] = []

    def rows() -> Any:
        for number in range(2 * BATCH_ROWS + 1):
            taken.append(number)
            yield Row(value=b"%d" % number)

    batches = record_batches(rows(), StructType([StructField("value", BinaryType())]), {0})
    assert [next(batches).num_rows, len(taken)] == [BATCH_ROWS, BATCH_ROWS]
    assert [batch.num_rows for batch in batches] == [BATCH_ROWS, 1]
    assert list(record_batches(iter(()), SCHEMA, {1})) == []


def test_rows_whose_text_spark_cannot_decode_are_invalid() -> None:
    """The error of the codec quotes the bytes."""

    def rows() -> Iterator[Row]:
        yield Row(value=b"1")
        b"secret \xff".decode()

    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(InvalidRowsError) as caught:
        list(record_batches(rows(), schema, {0}))
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
