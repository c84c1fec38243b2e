"""Detects duplicates among the records that one source wrote to one partition of a topic.

The algorithm relies on this: Spark begins a batch only when the previous one is written completely.
So in each partition all rows of a batch come before any row of a later one. This holds for each
partition only, since a reader's position differs between them, and for rows that go to the same
partition in every attempt. Rows are processed in the order of their offsets.

Two batches are remembered, each with its rows: the newest one and the one seen before it. A row of
one of these is a duplicate if it is among the rows seen. A row of a batch older than both is a
duplicate, written by a task that was not stopped in time. A row of a batch between the two is new:
a duplicate would have come before the newest batch. A row of an older batch is also new if its
attempt is later than that of the newest batch: a query that was reset to an earlier batch, for
example by restoring its checkpoint from a backup, writes new rows under old batch numbers.

The second batch is remembered because of forged positions, which anyone with write access to the
topic can write. A forged record may have a batch number beyond all others; if it ended the batch
that is being written, the rest of that batch would count as duplicates. With two batches, no single
record can cause a row to be dropped that is not equal to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol

ROW_ID_BYTES: Final = 16
RowId = bytes
"""Identifies a row within a batch: a hash of 16 bytes."""

_NO_BATCH: Final = -1
"""The number of the batch before the newest one if there is only one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBatch:
    """A remembered batch: the time of its latest attempt, and its rows so far, which are loaded
    when needed. `batch` is -1 for no batch."""

    batch: int
    attempt_ms: int
    rows: Callable[[], AbstractSet[RowId]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBatchUpdate:
    """The update of a remembered batch: `rows` replace the stored ones, or are added to them
    (`append`)."""

    batch: int
    attempt_ms: int
    rows: AbstractSet[RowId]
    append: bool


@dataclass(slots=True)
class _Batch:
    number: int
    attempt_ms: int
    seen: SeenBatch | None = None
    """The stored batch, if there is one."""
    rows: set[RowId] = field(default_factory=set)
    """The rows added since."""

    def add(self, attempt_ms: int, rows: Sequence[RowId]) -> list[bool]:
        """Add rows; return for each whether it is new."""
        self.attempt_ms = max(self.attempt_ms, attempt_ms)
        seen = frozenset[RowId]() if self.seen is None else self.seen.rows()
        distinct = set(rows)
        if (
            len(distinct) == len(rows)
            and distinct.isdisjoint(self.rows)
            and distinct.isdisjoint(seen)
        ):
            self.rows |= distinct
            return [True] * len(rows)
        found = []
        for row in rows:
            found.append(row not in self.rows and row not in seen)
            if found[-1]:
                self.rows.add(row)
        return found

    def update(self, seen: SeenBatch | None) -> SeenBatchUpdate | None:
        """Return the update of `seen`, or None if nothing has changed."""
        if seen is not None and seen is self.seen:
            if not self.rows and self.attempt_ms == seen.attempt_ms:
                return None
            return SeenBatchUpdate(
                batch=self.number, attempt_ms=self.attempt_ms, rows=self.rows, append=True
            )
        rows = self.rows if self.seen is None else self.rows | self.seen.rows()
        return SeenBatchUpdate(
            batch=self.number, attempt_ms=self.attempt_ms, rows=rows, append=False
        )


class DedupFilter:
    """Separates new rows from duplicates. `newest` and `before` are the remembered batches, both
    None at first."""

    def __init__(self, newest: SeenBatch | None = None, before: SeenBatch | None = None) -> None:
        self._seen = newest, before
        self._newest = _restore(newest)
        self._before = _restore(before)

    def are_new(self, batch: int, attempt_ms: int, rows: Sequence[RowId]) -> list[bool]:
        """Return for each of consecutive rows of one attempt whether it was not seen before. Called
        once for each record."""
        found = self._batch(batch, attempt_ms)
        return [False] * len(rows) if found is None else found.add(attempt_ms, rows)

    def _batch(self, batch: int, attempt_ms: int) -> _Batch | None:
        """Return the remembered batch of this number, which this row may begin; None if all of its
        rows count as seen."""
        newest, before = self._newest, self._before
        for one in (newest, before):
            if one is not None and one.number == batch:
                return one
        found = _Batch(batch, attempt_ms)
        if newest is None or before is None:
            self._newest, self._before = found, _Batch(_NO_BATCH, 0)
        elif batch > newest.number:
            self._newest, self._before = found, newest
        else:
            if batch < before.number and attempt_ms <= newest.attempt_ms:
                return None
            if attempt_ms <= newest.attempt_ms:
                self._before = found
            else:
                self._newest = found
                if batch < before.number:
                    # The query was reset: all batches older than this one count as seen.
                    self._before = _Batch(batch, attempt_ms)
        return found

    def update(self) -> tuple[SeenBatchUpdate | None, SeenBatchUpdate | None]:
        """Return the updates of the newest batch and of the one before it; None means no change."""
        newest, before = self._seen
        return (
            None if self._newest is None else self._newest.update(newest),
            None if self._before is None else self._before.update(before),
        )


def _restore(seen: SeenBatch | None) -> _Batch | None:
    return None if seen is None else _Batch(seen.batch, seen.attempt_ms, seen)


def hash_row(row: bytes) -> RowId:
    """Return the id of a row by its part of the position, `<task>:<hash>:<n>`."""
    return blake2b(row, digest_size=ROW_ID_BYTES).digest()


# --- Stored in Spark's state ----------------------------------------------------------------------
#
# An entry of a Spark `MapState` contains a chunk of the rows of one batch, so that a small batch of
# the reader does not rewrite the state of a large batch of the writer. The newest batch of a source
# has the chunks 0, 1, 2 and so on, the batch before it -1, -2, -3.

KEY_SCHEMA: Final = "source STRING, chunk INT"
VALUE_SCHEMA: Final = "batch BIGINT, made BIGINT, rows BINARY"

_CHUNK_ROWS: Final = 8_192
"""Rows in one entry of the state, which is rewritten when a row is added."""

Key = tuple[str, int]
Chunk = tuple[int, int, bytes]
"""The batch, the time of its latest attempt, and ids of its rows."""


class Entries(Protocol):
    """The methods of Spark's `MapState` that are used here."""

    def getValue(self, key: Key) -> Chunk | None: ...
    def updateValue(self, key: Key, value: Chunk) -> None: ...
    def containsKey(self, key: Key) -> bool: ...
    def removeKey(self, key: Key) -> None: ...
    def iterator(self) -> Iterator[tuple[Key, Chunk]]: ...


@dataclass(slots=True)
class _StoredBatch:
    """The chunks of one of the two batches of a source."""

    entries: Entries
    source: str
    step: int
    """1 for the newest batch, -1 for the one before."""
    last: bytes | None = None
    """The last chunk; None until the rows are read."""
    count: int = 0
    """The number of chunks, once the rows are read."""
    _rows: set[RowId] | None = None

    def load(self) -> SeenBatch | None:
        """Return the stored batch."""
        first = self.entries.getValue(self._key(0))
        return (
            None
            if first is None
            else SeenBatch(batch=first[0], attempt_ms=first[1], rows=self.rows)
        )

    def rows(self) -> set[RowId]:
        """Return all stored rows."""
        if self._rows is None:
            self._rows = set()
            while (chunk := self.entries.getValue(self._key(self.count))) is not None:
                self.last = bytes(chunk[2])
                self.count += 1
                self._rows.update(_split(self.last, ROW_ID_BYTES))
        return self._rows

    def write(self, update: SeenBatchUpdate) -> None:
        """Store an update."""
        size = _CHUNK_ROWS * ROW_ID_BYTES
        rows = b"".join(sorted(update.rows))
        at = 0
        if update.append:
            self.rows()
            last = self.last or b""
            at = self.count - 1 if len(last) < size else self.count
            rows = last + rows if at < self.count else rows
            if at > 0:
                # The time of the attempt is read from the first chunk.
                first = self.entries.getValue(self._key(0))
                assert first is not None
                self.entries.updateValue(
                    self._key(0), (first[0], update.attempt_ms, bytes(first[2]))
                )
        for part in _split(rows, size) or [b""]:
            self.entries.updateValue(self._key(at), (update.batch, update.attempt_ms, part))
            at += 1
        if not update.append:
            self.clear(at)

    def clear(self, at: int = 0) -> None:
        """Remove this chunk and all later ones."""
        while self.entries.containsKey(self._key(at)):
            self.entries.removeKey(self._key(at))
            at += 1

    def _key(self, at: int) -> Key:
        return self.source, at if self.step > 0 else -1 - at


@dataclass(slots=True)
class _ActiveSource:
    """A source that has written rows: its filter, and the chunks of its two batches."""

    filter: DedupFilter
    stored: tuple[_StoredBatch, _StoredBatch]
    is_new: bool
    """Nothing is stored about the source."""


@dataclass(slots=True)
class DedupState:
    """The sources of one partition, for one batch of the reader. At most `max_sources` are kept in
    memory and stored. A stored batch with a time after `max_attempt_ms` is ignored: the reader's
    clock was set back, and until that time all later rows would count as duplicates."""

    entries: Entries
    forget_after_ms: int
    max_sources: int
    max_attempt_ms: int
    """In milliseconds since 1970."""
    _active: dict[str, _ActiveSource] = field(default_factory=dict)
    """By source, in the order of their last rows."""

    def of(self, source: str) -> DedupFilter:
        """Return the filter of a source."""
        found = self._active.pop(source, None) or self._load(source)
        self._active[source] = found
        if len(self._active) > self.max_sources:
            oldest = next(iter(self._active))
            gone = self._active.pop(oldest)
            # If there are more new sources than can be stored, the first ones are dropped: their
            # duplicates stay, and no row is lost.
            if not gone.is_new:
                self._save(gone)
        return found.filter

    def save(self) -> None:
        """Store all updates; remove sources that are too old or too many."""
        attempt_ms = [
            update.attempt_ms for one in self._active.values() if (update := self._save(one))
        ]
        if attempt_ms and any(one.is_new for one in self._active.values()):
            self._evict(max(attempt_ms))

    def _load(self, source: str) -> _ActiveSource:
        stored = _StoredBatch(self.entries, source, 1), _StoredBatch(self.entries, source, -1)
        newest = stored[0].load()
        if newest is not None and newest.attempt_ms > self.max_attempt_ms:
            newest = None
        before = None if newest is None else stored[1].load()
        return _ActiveSource(DedupFilter(newest, before), stored, newest is None)

    def _save(self, source: _ActiveSource) -> SeenBatchUpdate | None:
        """Store the updates of a source; return that of its newest batch."""
        update = source.filter.update()
        for stored, one in zip(source.stored, update, strict=True):
            if one is not None:
                stored.write(one)
        return update[0]

    def _evict(self, now: int) -> None:
        """Remove the sources that have not written for too long, and the oldest of too many."""
        attempt_ms = {
            source: attempt_ms if attempt_ms <= self.max_attempt_ms else 0
            for (source, chunk), (_, attempt_ms, _) in self.entries.iterator()
            if chunk == 0
        }
        silent = sorted(
            (at, source) for source, at in attempt_ms.items() if source not in self._active
        )
        old = sum(at < now - self.forget_after_ms for at, _ in silent)
        for _, source in silent[: max(old, len(attempt_ms) - self.max_sources)]:
            for step in (1, -1):
                _StoredBatch(self.entries, source, step).clear()


def _split(rows: bytes, size: int) -> list[bytes]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
