"""The state by which a streaming query recognises repeats in one partition: a map of Spark's.

An entry is a chunk of the rows of one batch, so that a small batch of the reader does not write a
large one of the writer again. A source's newest batch has the chunks 0, 1, 2 and so on, the one
before it -1, -2, -3. Earlier versions had the former only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from kafka_source.repeat_filter import ID_SIZE, Known, Learnt, RepeatFilter, RowId

KEY_SCHEMA: Final = "source STRING, chunk INT"
VALUE_SCHEMA: Final = "batch BIGINT, made BIGINT, rows BINARY"

_CHUNK: Final = 8_192
"""Rows in one entry of the state, which is written again when one row is added."""

Key = tuple[str, int]
Chunk = tuple[int, int, bytes]
"""Batch, when it was made, and rows."""


class Entries(Protocol):
    """Spark's `MapState`, as far as it is used."""

    def getValue(self, key: Key) -> Chunk | None: ...
    def updateValue(self, key: Key, value: Chunk) -> None: ...
    def containsKey(self, key: Key) -> bool: ...
    def removeKey(self, key: Key) -> None: ...
    def iterator(self) -> Iterator[tuple[Key, Chunk]]: ...


@dataclass(slots=True)
class _Place:
    """Where one of the two batches of a source is kept."""

    entries: Entries
    source: str
    step: int
    """1 for the newest batch, -1 for the one before."""
    last: bytes | None = None
    """The last chunk; None before the rows were read."""
    count: int = 0
    """Chunks, once the rows were read."""
    _rows: set[RowId] | None = None

    def known(self) -> Known | None:
        """What is kept there."""
        first = self.entries.getValue(self._key(0))
        return None if first is None else Known(batch=first[0], made=first[1], rows=self.rows)

    def rows(self) -> set[RowId]:
        """All rows kept there."""
        if self._rows is None:
            self._rows = set()
            while (chunk := self.entries.getValue(self._key(self.count))) is not None:
                self.last = bytes(chunk[2])
                self.count += 1
                self._rows.update(_split(self.last, ID_SIZE))
        return self._rows

    def write(self, learnt: Learnt) -> None:
        """Keep what was learnt."""
        size = _CHUNK * ID_SIZE
        rows = b"".join(sorted(learnt.rows))
        at = 0
        if learnt.beside:
            self.rows()
            last = self.last or b""
            at = self.count - 1 if len(last) < size else self.count
            rows = last + rows if at < self.count else rows
            if at > 0:
                # When it was made is read from the first chunk.
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
    """A source that was met: its filter, and where its two batches are kept."""

    filter: RepeatFilter
    places: tuple[_Place, _Place]
    fresh: bool
    """Whether nothing was known of it."""


@dataclass(slots=True)
class RepeatState:
    """The sources of one partition, for one batch of the reader. `most` is how many are held in
    memory, and how many are remembered.

    A batch that is remembered with a time after `latest` counts as unknown: earlier versions took
    any time from a header, and one that is far ahead would make all that follows pass for repeats.
    """

    entries: Entries
    forget_after_ms: int
    most: int
    latest: int
    """In milliseconds since 1970."""
    _open: dict[str, _Open] = field(default_factory=dict)
    """The source that was met last comes last."""

    def of(self, source: str) -> RepeatFilter:
        """The filter of a source."""
        found = self._open.pop(source, None) or self._load(source)
        self._open[source] = found
        if len(self._open) > self.most:
            oldest = next(iter(self._open))
            gone = self._open.pop(oldest)
            # Of more new sources than are remembered, the first ones are forgotten at once: their
            # repeats stay, and nothing is lost.
            if not gone.fresh:
                self._save(gone)
        return found.filter

    def save(self) -> None:
        """Remember all that was met; forget sources that are too old, or too many."""
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
        """When a source comes: those that have long been silent go, and the oldest of too many."""
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
