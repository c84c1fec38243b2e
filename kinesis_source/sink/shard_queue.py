"""The queue of one shard: the records of a task that are not sent yet, or were refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kinesis_source.model.shard import Entry
from kinesis_source.sink.pacing import ShardPacer

FirstEntry = tuple[Entry, int, float | None]
"""An entry, its size (bytes of data and key) and the time of its first refusal, if any."""


@dataclass(slots=True)
class ShardQueue:
    """The records that wait for one shard."""

    pacer: ShardPacer
    first: deque[FirstEntry] = field(default_factory=deque)
    """Entries to send before the others: refused ones, and those that may follow in their key's
    order."""
    fresh: list[Entry] = field(default_factory=list)
    """From `begin`; those before have been taken. Slices of a list cost less than a deque."""
    sizes: list[int] = field(default_factory=list)
    """Those of `fresh`; a tuple for each entry would cost as much as sending it."""
    begin: int = 0
    failures: int = 0
    """Refusals in a row."""
    not_before: float = 0.0

    def size(self) -> int:
        """Return the number of entries."""
        return len(self.first) + len(self.fresh) - self.begin

    def take_fresh(self, count: int) -> tuple[list[Entry], list[int]]:
        """Remove the next entries of `fresh`, up to `count`, and their sizes."""
        # Removing a part of a list moves the rest, so it is done once for several parts.
        begin, end = self.begin, min(self.begin + count, len(self.fresh))
        chunk, sizes = self.fresh[begin:end], self.sizes[begin:end]
        self.begin = end
        if 2 * end >= len(self.fresh):
            del self.fresh[:end], self.sizes[:end]
            self.begin = 0
        return chunk, sizes

    def put_back(self, entries: Sequence[Entry], sizes: Sequence[int]) -> None:
        """Queue entries before all others of `fresh`."""
        self.fresh[self.begin : self.begin] = entries
        self.sizes[self.begin : self.begin] = sizes
