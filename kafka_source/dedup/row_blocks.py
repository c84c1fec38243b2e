"""Blocks of rows: rows of one partition of a topic as one binary value, in the order of offsets.

PySpark's `transformWithStateInPandas` spends several microseconds of Python on each row and each
column. So rows pass through it in blocks, up to 1 MiB each, and leave it as Arrow columns
that pandas does not convert. A block is the message of an Arrow record batch: the position of each
row (see `dedup_headers`), parsed, and the columns of the rows. Their types are those that PySpark
passes on without converting single values.

Blocks are sorted within bounded memory by an external merge sort: rows beyond a limit of bytes are
sorted and written to a temporary file, which has no name and is deleted with the process. If rows
arrive nearly in order, as they do from Spark, merging needs little more memory than one chunk of
the file.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_ssp.kafka_source.dedup.dedup_headers import NUMBER_PATTERN, ROW_PATTERN
from spark_ssp.kafka_source.dedup.dedup_state import ROW_ID_BYTES, RowId, hash_row

if TYPE_CHECKING:
    import pandas as pd

BLOCK_BYTES: Final = 1 << 20
"""Approximate bytes of a block; at least one row. PySpark spends tens of microseconds on each
column of each block."""
_OUTPUT_BYTES: Final = 1 << 20
"""Bytes of blocks that are passed to Spark together."""

_PART_BYTES: Final = 4 << 20
"""Approximate bytes of blocks that are copied at a time."""

TYPES: Final[Mapping[str, pa.DataType]] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
}
"""The types of columns in a block, by Spark's names."""

_POSITION_FIELDS: Final = (
    pa.field("source", pa.string()),
    pa.field("batch", pa.int64()),
    pa.field("attempt_ms", pa.int64()),
    pa.field("row", pa.binary(ROW_ID_BYTES)),
    pa.field("offset", pa.int64()),
)


def block_schema(types: Sequence[str]) -> pa.Schema:
    """Return the schema of a block of rows whose columns have these types."""
    columns = [pa.field(f"column{place}", TYPES[kind]) for place, kind in enumerate(types)]
    return pa.schema([*_POSITION_FIELDS, *columns])


# --- From rows to blocks --------------------------------------------------------------------------


BLOCKS_SCHEMA: Final = "topic string, partition int, first bigint, last bigint, rows binary"
_BLOCKS: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "first": pa.int64(),
        "last": pa.int64(),
        "rows": pa.binary(),
    }
)
_Block = tuple[str, int, int, int, bytes]
"""One of these rows."""
_MARK: Final = (
    f"^(?P<source>[^/]*)/(?P<batch>{NUMBER_PATTERN}):(?P<attempt_ms>{NUMBER_PATTERN}):"
    f"(?P<row>{ROW_PATTERN})$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWriter:
    """Makes blocks of the rows of a task. The last column of its input, after those of the rows, is
    `<source>/<position>` (see `dedup_headers`), or null for a row without valid ones."""

    types: tuple[str, ...]
    """The types of the columns of the rows, of `TYPES`."""
    keys: tuple[int, int, int]
    """The indices of topic, partition and offset."""
    max_bytes: int
    """The approximate size of a block."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return rows of the schema `BLOCKS_SCHEMA`, one for each block."""
        for batch in batches:
            waiting: list[_Block] = []
            size = 0
            for part in self._partitions(batch):
                count = max(1, part.num_rows * self.max_bytes // max(1, part.nbytes))
                for begin in range(0, part.num_rows, count):
                    block = self._block(part.slice(begin, count))
                    waiting.append(block)
                    size += len(block[-1])
                    if size >= _OUTPUT_BYTES:
                        yield _output(waiting)
                        waiting, size = [], 0
            if waiting:
                yield _output(waiting)

    def _partitions(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return the rows of each partition by offset."""
        if batch.num_rows == 0:
            return
        topic, partition, offset = (batch.column(key) for key in self.keys)
        topics = topic.dictionary_encode().indices.to_numpy()
        partitions = partition.to_numpy()
        order = np.lexsort((offset.to_numpy(), partitions, topics))
        if (order[1:] < order[:-1]).any():
            batch = batch.take(pa.array(order))
            topics, partitions = topics[order], partitions[order]
        yield from (batch.slice(begin, end - begin) for begin, end in _runs(topics, partitions))

    def _block(self, rows: pa.RecordBatch) -> _Block:
        topic, partition, offset = (rows.column(key) for key in self.keys)
        found = [*_positions(rows.columns[-1]), offset, *rows.columns[:-1]]
        schema = block_schema(self.types)
        # A session may use Arrow's large types of text and bytes.
        arrays = [one.cast(field.type) for one, field in zip(found, schema, strict=True)]
        block = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return (
            topic[0].as_py(),
            partition[0].as_py(),
            offset[0].as_py(),
            offset[-1].as_py(),
            block.serialize().to_pybytes(),
        )


def _output(blocks: list[_Block]) -> pa.RecordBatch:
    columns = zip(*blocks, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(one, field.type) for one, field in zip(columns, _BLOCKS, strict=True)],
        schema=_BLOCKS,
    )


def _positions(marks: pa.Array) -> list[pa.Array]:
    """Return source, batch, time of the attempt, and row id of each row, all null if it has no
    valid position."""
    parts = pc.extract_regex(marks, _MARK)
    source, batch, attempt_ms, row = (pc.struct_field(parts, place) for place in range(4))
    rows = row.cast(pa.binary()).to_pylist()
    ids = [None if one is None else hash_row(one) for one in rows]
    found = [source, batch, attempt_ms, pa.array(ids, pa.binary(ROW_ID_BYTES))]
    return [one.cast(field.type) for one, field in zip(found, _POSITION_FIELDS, strict=False)]


# --- From blocks to rows --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive rows of one attempt at one batch; `source` is None for rows without a valid
    position."""

    begin: int
    count: int
    source: str | None
    batch: int
    attempt_ms: int


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of a block."""

    rows: pa.RecordBatch

    def runs(self) -> Iterator[Run]:
        """Return the runs of rows, in order."""
        encoded = self.rows.column("source").dictionary_encode()
        sources = [*encoded.dictionary.to_pylist(), None]
        codes = pc.fill_null(encoded.indices, -1).to_numpy()
        batches, attempts = (
            pc.fill_null(self.rows.column(name), 0).to_numpy() for name in ("batch", "attempt_ms")
        )
        for begin, end in _runs(codes, batches, attempts):
            yield Run(
                begin=begin,
                count=end - begin,
                source=sources[codes[begin]],
                batch=int(batches[begin]),
                attempt_ms=int(attempts[begin]),
            )

    def row_ids(self, run: Run) -> list[RowId]:
        """Return the ids of the rows of a run."""
        column = self.rows.column("row")
        begin = (column.offset + run.begin) * ROW_ID_BYTES
        end = begin + run.count * ROW_ID_BYTES
        ids = column.buffers()[1][begin:end].to_pybytes()
        return [ids[at : at + ROW_ID_BYTES] for at in range(0, len(ids), ROW_ID_BYTES)]

    def frame(self, kept: Sequence[bool]) -> pd.DataFrame:
        """Return the columns of these rows as a pandas data frame of Arrow columns, which PySpark
        passes on unchanged. `kept` has a value for each row."""
        import pandas as pd  # Only streaming queries need it.

        rows = self.rows if all(kept) else self.rows.filter(pa.array(kept))
        names = rows.schema.names[len(_POSITION_FIELDS) :]
        columns = {name: pd.arrays.ArrowExtensionArray(rows.column(name)) for name in names}
        return pd.DataFrame(columns, copy=False)


def read_blocks(frames: Iterable[pd.DataFrame], types: Sequence[str]) -> Iterator[Block]:
    """Return the rows of the blocks of one partition, in the order of their offsets. `frames` have
    the columns `first`, `last` and `rows` of `BLOCKS_SCHEMA`, in any order.

    Blocks overlap only if the rows of the partition reached `BlockWriter` in another order than
    that of the source. Then as many rows are held in memory as the overlapping blocks have.
    """
    schema = block_schema(types)
    tables = (
        pa.Table.from_pandas(part, preserve_index=False)
        for frame in frames
        for part in _slices(frame)
    )
    rest: pa.RecordBatch | None = None
    last = -1
    for table in sort_by_offset(tables, "first"):
        for first, end, serialized in zip(
            table["first"].to_pylist(), table["last"].to_pylist(), table["rows"], strict=True
        ):
            rows = pa.ipc.read_record_batch(serialized.as_buffer(), schema)
            if rest is not None and first < last:
                count = int(np.searchsorted(rest.column("offset").to_numpy(), first))
                if count:
                    yield Block(rest.slice(0, count))
                rows, end = _merge(rest.slice(count), rows), max(last, end)
            elif rest is not None:
                yield Block(rest)
            rest, last = rows, end
    if rest is not None:
        yield Block(rest)


def _slices(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Return the blocks of a frame by a few MiB: Spark passes up to 64 MiB, to be copied in parts
    so that they can be sorted and written in parts."""
    size = sum(map(len, frame["rows"]))
    count = max(1, _PART_BYTES * len(frame) // max(1, size))
    return (frame.iloc[begin : begin + count] for begin in range(0, len(frame), count))


def _merge(one: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches([one, other]).combine_chunks().to_batches()
    return whole.take(pc.sort_indices(whole.column("offset")))


def _runs(*columns: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Return begin and end of all runs of rows that are equal in each column."""
    changes = np.zeros(len(columns[0]) - 1, dtype=bool)
    for column in columns:
        changes |= column[1:] != column[:-1]
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(columns[0])]
    return pairwise(bounds)


# --- The order of offsets -------------------------------------------------------------------------

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
            yield from _chunks(rest, chunk_rows)
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
        self._runs: list[_SortedRun] = []

    def write(self, table: pa.Table) -> None:
        """Add a sorted run."""
        rows = max(1, min(self._chunk_rows, table.num_rows * self._chunk_bytes // table.nbytes))
        chunks: deque[_Chunk] = deque()
        for piece in _chunks(table, rows):
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
        self._runs.append(_SortedRun(self, chunks))

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


class _SortedRun:
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


def _chunks(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    for begin in range(0, table.num_rows, rows):
        yield table.slice(begin, rows)
