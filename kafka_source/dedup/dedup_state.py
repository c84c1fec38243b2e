"""The state with which a streaming query recognises repeats in one partition: a Spark `MapState`.

An entry is a chunk of the rows of one batch, so that a small batch of the reader does not rewrite
the state of a large batch of the writer. A source's newest batch has the chunks 0, 1, 2 and so on,
the one before it -1, -2, -3. Earlier versions had only the newest batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from kafka_source.dedup.dedup_filter import ID_SIZE, Known, Learnt, RepeatFilter, RowId

KEY_SCHEMA: Final = "source STRING, chunk INT"
VALUE_SCHEMA: Final = "batch BIGINT, made BIGINT, rows BINARY"

_CHUNK: Final = 8_192
"""Rows in one entry of the state, which is rewritten when a row is added."""

Key = tuple[str, int]
Chunk = tuple[int, int, bytes]
"""The batch, the time when it was made, and its rows."""


class Entries(Protocol):
    """The part of Spark's `MapState` that is used here."""

    def getValue(self, key: Key) -> Chunk | None: ...
    def updateValue(self, key: Key, value: Chunk) -> None: ...
    def containsKey(self, key: Key) -> bool: ...
    def removeKey(self, key: Key) -> None: ...
    def iterator(self) -> Iterator[tuple[Key, Chunk]]: ...


@dataclass(slots=True)
class _Place:
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

    def known(self) -> Known | None:
        """Return the stored batch."""
        first = self.entries.getValue(self._key(0))
        return None if first is None else Known(batch=first[0], made=first[1], rows=self.rows)

    def rows(self) -> set[RowId]:
        """Return all stored rows."""
        if self._rows is None:
            self._rows = set()
            while (chunk := self.entries.getValue(self._key(self.count))) is not None:
                self.last = bytes(chunk[2])
                self.count += 1
                self._rows.update(_split(self.last, ID_SIZE))
        return self._rows

    def write(self, learnt: Learnt) -> None:
        """Store an update."""
        size = _CHUNK * ID_SIZE
        rows = b"".join(sorted(learnt.rows))
        at = 0
        if learnt.beside:
            self.rows()
            last = self.last or b""
            at = self.count - 1 if len(last) < size else self.count
            rows = last + rows if at < self.count else rows
            if at > 0:
                # The time when it was made is read from the first chunk.
                first = self.entries.getValue(self._key(0))
                assert first is not None
                self.entries.updateValue(self._key(0), (first[0], learnt.made, bytes(first[2])))
        for part in _split(rows, size) or [b""]:
            self.entries.updateValue(self._key(at), (learnt.batch, learnt.made, part))
            at += 1
        if not learnt.beside:
            self.clear(at)

    def clear(self, at: int = 0) -> None:
        """Remove the chunks from this one on."""
        while self.entries.containsKey(self._key(at)):
            self.entries.removeKey(self._key(at))
            at += 1

    def _key(self, at: int) -> Key:
        return self.source, at if self.step > 0 else -1 - at


@dataclass(slots=True)
class _Open:
    """A source that has written rows: its filter, and the chunks of its two batches."""

    filter: RepeatFilter
    places: tuple[_Place, _Place]
    fresh: bool
    """Return whether nothing is stored about the source."""


@dataclass(slots=True)
class RepeatState:
    """The sources of one partition, for one batch of the reader. At most `most` are held in memory
    and stored.

    A stored batch with a time after `latest` counts as unknown: earlier versions accepted any time
    from a header, and with one far ahead all later rows would count as repeats.
    """

    entries: Entries
    forget_after_ms: int
    most: int
    latest: int
    """In milliseconds since 1970."""
    _open: dict[str, _Open] = field(default_factory=dict)
    """In the order of their last rows."""

    def of(self, source: str) -> RepeatFilter:
        """The filter of a source."""
        found = self._open.pop(source, None) or self._load(source)
        self._open[source] = found
        if len(self._open) > self.most:
            oldest = next(iter(self._open))
            gone = self._open.pop(oldest)
            # Of more new sources than can be stored, the first ones are forgotten at once: their
            # repeats stay, and no row is lost.
            if not gone.fresh:
                self._save(gone)
        return found.filter

    def save(self) -> None:
        """Store all updates; remove sources that are too old or too many."""
        made = [learnt.made for one in self._open.values() if (learnt := self._save(one))]
        if made and any(one.fresh for one in self._open.values()):
            self._forget(max(made))

    def _load(self, source: str) -> _Open:
        places = _Place(self.entries, source, 1), _Place(self.entries, source, -1)
        newest = places[0].known()
        if newest is not None and newest.made > self.latest:
            newest = None
        before = None if newest is None else places[1].known()
        return _Open(RepeatFilter(newest, before), places, newest is None)

    def _save(self, source: _Open) -> Learnt | None:
        """The newest batch, if it has changed."""
        learnt = source.filter.learnt()
        for place, one in zip(source.places, learnt, strict=True):
            if one is not None:
                place.write(one)
        return learnt[0]

    def _forget(self, now: int) -> None:
        """Remove sources that have been silent for too long, and the oldest of too many."""
        made = {
            source: made if made <= self.latest else 0
            for (source, chunk), (_, made, _) in self.entries.iterator()
            if chunk == 0
        }
        silent = sorted((at, source) for source, at in made.items() if source not in self._open)
        old = sum(at < now - self.forget_after_ms for at, _ in silent)
        for _, source in silent[: max(old, len(made) - self.most)]:
            for step in (1, -1):
                _Place(self.entries, source, step).clear()


def _split(rows: bytes, size: int) -> list[bytes]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
