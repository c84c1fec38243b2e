"""Conversions of rows for PySpark 4.0: to Arrow record batches for writers to which it passes only
rows, and from pandas frames for a stateful processor of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

BATCH_ROWS: Final = 1_000
"""Rows of a batch: the records of a sink have at most a few MB each."""


def record_batches(
    rows: Iterable[Row], schema: StructType, used: Collection[int]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows, with the columns of `schema` at their positions. Columns whose
    index is not in `used` contain only nulls: their types need no counterpart in Arrow."""
    names = [field.name for field in schema.fields]
    types = {index: to_arrow_type(schema.fields[index].dataType) for index in used}
    remaining = iter(rows)
    while chunk := list(islice(remaining, BATCH_ROWS)):
        arrays = [
            pa.array([_plain(row[index]) for row in chunk], types[index])
            if index in types
            else pa.nulls(len(chunk))
            for index in range(len(names))
        ]
        yield pa.RecordBatch.from_arrays(arrays, names)


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
