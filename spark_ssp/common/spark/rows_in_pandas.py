"""Runs a stateful processor of rows where PySpark passes only pandas frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

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
