"""The parts of PySpark's data source API that differ between PySpark 4.0 and 4.3.

The only module that asks for the features of the installed PySpark. It asks for them and not for a
version number, since vendors add features of later versions to theirs. The differences, and the
proof that a reader can track the start of the next batch: docs/design/pyspark-versions.md.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyspark
import pyspark.sql.datasource
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from spark_ssp.common.errors import (
    IncompatibleStateError,
    InvalidRowsError,
    SspError,
    UnsupportedError,
)
from spark_ssp.common.spark.reader_status import StatusFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.datasource import Filter

__all__ = [
    "BATCH_ROWS",
    "PASSES_LIMITS",
    "PYSPARK_WITHOUT_LIMITS",
    "FailedStreamReader",
    "PlanningStreamReader",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "RecordBatchStreamWriter",
    "RowsInPandas",
    "check_state_in_pandas",
    "is_for_commit",
    "record_batches",
    "replanned",
    "transform_with_state",
]

Offset = dict[str, Any]
"""An offset as the JSON document that Spark stores."""

PASSES_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""True if Spark passes the start of a batch and its limit to `latestOffset`, prepares a reader for
availableNow, and shows its lag in the progress: since PySpark 4.2."""

WRITES_ARROW: Final = hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter")
"""True if a streaming query can pass Arrow record batches to a writer: since PySpark 4.1."""

LIMITS_STATE_BYTES: Final = WRITES_ARROW
"""True if Spark limits the bytes of the rows that it passes to a stateful operator at a time: since
PySpark 4.1."""

PYSPARK_WITHOUT_LIMITS: Final[str | None] = None if PASSES_LIMITS else pyspark.__version__
"""The version of the installed PySpark if it does not pass limits, else None."""

_PASSES_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_COMMITS: Final = "pyspark.sql.worker.python_streaming_sink_runner"
_STATE_MESSAGES: Final = "pyspark.sql.streaming.proto.StateMessage_pb2"
_WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"

if TYPE_CHECKING or PASSES_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """A limit of a batch, as in PySpark 4.2."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """A maximum of rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """A maximum of bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Marks a reader that Spark prepares for availableNow, from PySpark 4.2 on."""


if TYPE_CHECKING or WRITES_ARROW:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamWriter
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as _StreamWriter


class PlanningStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader that plans each batch from its start and a limit, with any PySpark.

    Before 4.2 PySpark passes neither to `latestOffset`. The start is then the newest offset of the
    checkpoint, which Spark passes to `partitions` before it requests another, and after the first
    request the end that this reader returned last: Spark stores every end that it has requested, or
    the query fails and starts again with a new reader. The limit is the default one, except in the
    first call: it may be the only one, since these versions run availableNow and once as one batch.
    A second call proves another trigger, as does a batch before the first call.
    """

    def __init__(self, *, is_triggered_by_time: bool) -> None:
        """`is_triggered_by_time`: the trigger is known to be neither availableNow nor once."""
        self._newest: Offset | None = None
        self._has_planned = False
        self._is_triggered_by_time = is_triggered_by_time
        self._status: StatusFile | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, which plan nothing."""
        return {
            "_newest": None,
            "_has_planned": False,
            "_is_triggered_by_time": True,
            "_status": None,
        }

    # --- Implemented by the sources ---------------------------------------------------------------

    @abstractmethod
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch."""

    @abstractmethod
    def plan_end(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the batch after `start`; the unchanged `start` if there is none."""

    @abstractmethod
    def plan_end_of_all(self, start: Offset) -> Offset:
        """Return the end of a batch of all available records; `start` if there are none."""

    @abstractmethod
    def plan_partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one partition for each task of a batch that is not empty."""

    def reportLatestOffset(self) -> Offset | None:
        """Return the status for the query's progress, where PySpark 4.2 and newer show it under
        `latestOffset`; None if there is none."""
        return None

    # --- Called by Spark --------------------------------------------------------------------------

    # From 4.2 on Spark passes both, and recognizes a reader that takes them by the signature.
    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Return the end of the next batch; the unchanged start if there is none."""
        if start is not None and limit is not None:
            return self.plan_end(start, limit)
        begin = self.initialOffset() if self._newest is None else self._newest
        if self._is_triggered_by_time:
            end = self.plan_end(begin, self.getDefaultReadLimit())
        else:
            end = self.plan_end_of_all(begin)
        self._newest, self._has_planned, self._is_triggered_by_time = end, True, True
        status = self.reportLatestOffset()
        if status is not None:
            self._status = self._status or StatusFile()
            self._status.publish(end, status)
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one partition for each task with records to read. Spark before 4.2 also passes the
        newest offset of a checkpoint, as start and end, when a query starts. Raises
        UnsupportedError if that offset comes after the first end was planned."""
        if start == end and self._has_planned and end != self._newest:
            raise UnsupportedError(
                "trigger availableNow",
                found=f"{_WRAPPER}=true with PySpark {pyspark.__version__}, which requests the end "
                "of a batch before it passes the start",
                expected="the setting false, its default, or PySpark 4.2 or newer",
                next_step="set it to false",
            )
        if not self._has_planned:  # else the batch planned last, or an earlier one
            self._newest = end
        if start == end:
            return []
        self._is_triggered_by_time = True
        return self.plan_partitions(start, end)

    def stop(self) -> None:
        """Remove the reader's status and close it. PySpark parses offsets before it passes them on,
        and stops the reader if it cannot. Raises IncompatibleStateError then, instead of the
        parser's error."""
        error = sys.exception()
        if self._status is not None:
            self._status.remove()
        self.close()
        if error is not None and _is_unreadable_offset(error):
            raise IncompatibleStateError(
                "checkpoint of the query",
                found="a file of its folder offsets whose JSON cannot be parsed, as after a write "
                "that was cut off",
                expected="the offsets that the query has written",
                next_step="run `spark-ssp checkpoint LOCATION` (extra cli) with the query's "
                "checkpointLocation, copy the folder, do what it says, and start the query again",
            ) from None

    def close(self) -> None:
        """Close connections and stop threads."""


def _is_unreadable_offset(error: BaseException) -> bool:
    """Return whether the JSON parser raised the error, called by PySpark."""
    if not isinstance(error, ValueError | RecursionError):
        return False
    modules = [
        str(frame.f_globals.get("__name__", ""))
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    callers = [name for name in modules if name.partition(".")[0] != "json"]
    # PySpark's worker runs its module as a program.
    return (
        bool(callers)
        and len(callers) < len(modules)
        and (callers[-1] == "__main__" or callers[-1].startswith("pyspark."))
    )


class FailedStreamReader(PlanningStreamReader):
    """A reader of a query that cannot be started: its first call raises `error`. A data source
    returns it instead of raising the error in `streamReader`: Spark 4.0 to 4.3 would report another
    one, since their worker calls `stop` of a reader that does not exist."""

    def __init__(self, error: SspError) -> None:
        super().__init__(is_triggered_by_time=True)
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit."""
        return ReadAllAvailable()

    def _fail(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    prepareForTriggerAvailableNow = initialOffset = _fail
    plan_end = plan_end_of_all = plan_partitions = read = _fail


class _ReplannedReader(DataSourceReader):
    """A reader that is passed filters and applies none: Spark applies them."""

    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Return all filters."""
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the reader."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read with the reader."""
        return self._reader.read(partition)


def replanned(reader: DataSourceReader) -> DataSourceReader:
    """Return `reader`, which is passed filters if Spark's worker for filters is the caller.

    PySpark 4.1 to 4.3 plan a batch DataFrame once. But with
    `spark.sql.python.filterPushdown.enabled` they start that worker for each action on a DataFrame
    with a filter, and take the partitions from it. Without the setting a reader with `pushFilters`
    is an error of Spark's, so only that worker gets one.
    """
    return _ReplannedReader(reader) if _is_called_by(_PASSES_FILTERS) else reader


def is_for_commit() -> bool:
    """Return whether Spark's worker that commits or aborts a batch of a streaming query is the
    caller. It creates another writer for that, which writes nothing."""
    return _is_called_by(_COMMITS)


def _is_called_by(worker: str) -> bool:
    """Return whether a module that Spark runs as a worker is the caller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == worker:
            return True
        frame = frame.f_back
    return False


class RecordBatchStreamWriter(_StreamWriter):
    """A writer of a streaming query that is passed Arrow record batches, with any PySpark."""

    def __init__(self, schema: StructType, used: Collection[int]) -> None:
        """`used`: the indices of the columns that are written. PySpark 4.0 passes rows; the other
        columns are then null in the record batches."""
        self._schema = schema
        self._used = frozenset(used)

    @abstractmethod
    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one task: record batches, or rows for PySpark 4.0."""
        if WRITES_ARROW:
            return self.write_batches(iterator)
        return self.write_batches(record_batches(iterator, self._schema, self._used))


def transform_with_state(
    grouped: GroupedData, processor: StatefulProcessor, columns: Mapping[str, str]
) -> DataFrame:
    """Return the rows of a stateful processor of rows, in the output mode append and without
    timers. `columns` are its output columns with their types. Raises UnsupportedError as
    `check_state_in_pandas`."""
    output = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    if hasattr(grouped, "transformWithState"):
        _check_protobuf()
        return grouped.transformWithState(processor, output, "append", "none")
    check_state_in_pandas(grouped)
    frames = RowsInPandas(processor, list(columns))
    return grouped.transformWithStateInPandas(frames, output, "append", "none")


def check_state_in_pandas(grouped: object) -> None:
    """Raise UnsupportedError if grouped rows have no `transformWithStateInPandas`, as in Spark
    Connect with PySpark 4.0, or if the installed protobuf is too old for it."""
    if not hasattr(grouped, "transformWithStateInPandas"):
        raise UnsupportedError(
            "Spark Connect",
            found=f"PySpark {pyspark.__version__}, whose client has no transformWithState",
            expected="PySpark 4.1 or newer, for tables and deduplication in a streaming query",
            next_step="upgrade PySpark, or use a session without Spark Connect",
        )
    _check_protobuf()


def _check_protobuf() -> None:
    """Raise UnsupportedError if PySpark's generated classes for state reject the installed
    protobuf: PySpark does not require a version of it, and Spark's error is that a Python worker
    crashed."""
    from google.protobuf.runtime_version import VersionError

    try:
        importlib.import_module(_STATE_MESSAGES)
    except ModuleNotFoundError as error:
        if error.name != _STATE_MESSAGES:
            raise
        # A vendor's PySpark may have it elsewhere.
    except VersionError as error:
        raise UnsupportedError(
            "protobuf",
            found=str(error),
            expected=f"a version that PySpark {pyspark.__version__} accepts, for tables and"
            " deduplication in a streaming query",
            next_step="install a newer protobuf on the driver and on the executors",
        ) from error


# --- Conversions of rows for PySpark 4.0 ----------------------------------------------------------

BATCH_ROWS: Final = 1_000
"""Rows of a batch: the records of a sink have at most a few MB each."""


def record_batches(
    rows: Iterable[Row], schema: StructType, used: Collection[int]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows, with the columns of `schema` at their positions. Columns whose
    index is not in `used` contain only nulls: their types need no counterpart in Arrow. Raises
    InvalidRowsError for text that is not UTF-8, which Spark has decoded to make the rows."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    names = [field.name for field in schema.fields]
    types = {index: to_arrow_type(schema.fields[index].dataType) for index in used}
    remaining = _decoded(rows)
    while chunk := list(islice(remaining, BATCH_ROWS)):
        arrays = [
            pa.array([_plain(row[index]) for row in chunk], types[index])
            if index in types
            else pa.nulls(len(chunk))
            for index in range(len(names))
        ]
        yield pa.RecordBatch.from_arrays(arrays, names)


def _decoded(rows: Iterable[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except UnicodeDecodeError:
        raise InvalidRowsError(
            "rows",
            found="a string column with bytes that are not UTF-8",
            expected="strings in UTF-8",
            next_step="write the bytes as BINARY, or encode them, for example by base64(...); or "
            "use PySpark 4.1 or newer, where only the columns that are written need be text",
        ) from None


def _plain(value: Any) -> Any:
    """Return a value in the form that pyarrow converts: nested rows as dicts."""
    if isinstance(value, Row):
        return {name: _plain(one) for name, one in zip(value.__fields__, value, strict=True)}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


FRAME_ROWS: Final = 1_000
"""Rows of a returned frame."""


class RowsInPandas(StatefulProcessor):
    """A processor of frames around a processor of rows, which it calls with named tuples."""

    def __init__(self, processor: StatefulProcessor, names: Sequence[str]) -> None:
        """`names` are the columns that `processor` returns."""
        self._processor = processor
        self._names = list(names)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state. Called by Spark."""
        self._processor.init(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Process the frames of one key in a batch. Called by Spark."""
        import pandas as pd

        given = (row for frame in rows for row in frame.itertuples(index=False))
        found: Any = iter(self._processor.handleInputRows(key, given, timerValues))
        while chunk := [tuple(row) for row in islice(found, FRAME_ROWS)]:
            yield pd.DataFrame(chunk, columns=self._names, dtype=object)

    def close(self) -> None:
        """Close the processor. Called by Spark."""
        self._processor.close()
