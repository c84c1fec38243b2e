"""Sorts the rows of one partition by offset within bounded memory.

This is an external merge sort: rows beyond a limit of bytes are sorted and written to a temporary
file, which has no name and is deleted with the process. If rows arrive nearly in order, as they do
from Spark, merging needs little more memory than one chunk of the file.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MEMORY_BYTES: Final = 32 << 20
"""Bytes of rows held in memory before they are written. Sorting takes the same amount again."""
CHUNK_BYTES: Final = 256 << 10
"""Approximate bytes of the file read at a time; at least one row."""
CHUNK_ROWS: Final = 10_000

_TEMP_FOLDERS: Final = "SPARK_LOCAL_DIRS"
"""The variable with the folders in which Spark's Python workers keep temporary files."""


def sort_by_offset(
    tables: Iterable[pa.Table],
    column: str,
    *,
    memory_bytes: int = MEMORY_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[pa.Table]:
    """Return all rows sorted by `column`, whose values are distinct. Tables have at most
    `chunk_rows` rows if all rows fit into memory; else about `chunk_bytes` for each overlapping
    part of the input."""
    buffered: list[pa.Table] = []
    size = 0
    spill: _Spill | None = None
    try:
        for table in tables:
            buffered.append(table)
            size += table.nbytes
            if size >= memory_bytes:
                spill = spill or _Spill(column, chunk_bytes, chunk_rows)
                spill.write(_sort(buffered, column))
                buffered, size = [], 0
        rest = _sort(buffered, column) if buffered else None
        buffered = []
        if spill is not None:
            if rest is not None:
                spill.write(rest)
            rest = None
            yield from spill.merge()
        elif rest is not None:
            yield from _slices(rest, chunk_rows)
    finally:
        if spill is not None:
            spill.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Rows in the file: their position in bytes, and their first and last offsets."""

    at: int
    size: int
    first: int
    last: int


class _Spill:
    """Sorted runs of rows in a temporary file."""

    def __init__(self, column: str, chunk_bytes: int, chunk_rows: int) -> None:
        self._column = column
        self._chunk_bytes = chunk_bytes
        self._chunk_rows = chunk_rows
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=_temp_folder())  # noqa: SIM115 (close)
        self._runs: list[_Run] = []

    def write(self, table: pa.Table) -> None:
        """Add a sorted run."""
        rows = max(1, min(self._chunk_rows, table.num_rows * self._chunk_bytes // table.nbytes))
        chunks: deque[_Chunk] = deque()
        for piece in _slices(table, rows):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, piece.schema) as writer:
                writer.write_table(piece)
            content = sink.getvalue()
            offsets = _offsets(piece, self._column)
            chunks.append(
                _Chunk(
                    at=self._file.tell(),
                    size=content.size,
                    first=int(offsets[0]),
                    last=int(offsets[-1]),
                )
            )
            self._file.write(content)
        self._runs.append(_Run(self, chunks))

    def read(self, chunk: _Chunk) -> pa.Table:
        """Return the rows of a chunk."""
        self._file.seek(chunk.at)
        return pa.ipc.open_stream(self._file.read(chunk.size)).read_all()

    def merge(self) -> Iterator[pa.Table]:
        """Return the rows of all runs in order, each once."""
        runs = self._runs
        while runs:
            # Up to this offset, all runs have their rows in their first chunks.
            bound = min(run.last for run in runs)
            parts = [
                part for run in runs if (part := run.take_up_to(bound, self._column)) is not None
            ]
            yield _sort(parts, self._column)
            runs = [run for run in runs if not run.done]

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class _Run:
    """Sorted rows, some of which may have been returned already."""

    def __init__(self, spill: _Spill, chunks: deque[_Chunk]) -> None:
        self._spill = spill
        self._chunks = chunks
        self._rest: pa.Table | None = None
        """The rows of the first chunk, once it was read."""

    @property
    def done(self) -> bool:
        return not self._chunks

    @property
    def last(self) -> int:
        """The last offset of the first chunk."""
        return self._chunks[0].last

    def take_up_to(self, bound: int, column: str) -> pa.Table | None:
        """Take the rows of the first chunk up to an offset, or None if there are none."""
        chunk = self._chunks[0]
        if chunk.first > bound:
            return None
        rest = self._spill.read(chunk) if self._rest is None else self._rest
        count = int(np.searchsorted(_offsets(rest, column), bound, side="right"))
        if count == rest.num_rows:
            self._rest = None
            self._chunks.popleft()
        else:
            self._rest = rest.slice(count)
        return rest.slice(0, count)


def _temp_folder() -> str | None:
    """Return one of Spark's folders for temporary files, or None for the system's."""
    folders = [name for name in os.environ.get(_TEMP_FOLDERS, "").split(",") if os.path.isdir(name)]
    return folders[os.getpid() % len(folders)] if folders else None


def _sort(tables: Sequence[pa.Table], column: str) -> pa.Table:
    # Columns without any value have another type than the same columns of other tables.
    whole = pa.concat_tables(tables, promote_options="default")
    offsets = _offsets(whole, column)
    if (offsets[1:] > offsets[:-1]).all():
        return whole
    return whole.take(pa.array(np.argsort(offsets)))


def _offsets(table: pa.Table, column: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = table.column(column).to_numpy()
    return found


def _slices(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    for begin in range(0, table.num_rows, rows):
        yield table.slice(begin, rows)
