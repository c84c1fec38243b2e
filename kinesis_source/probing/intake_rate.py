"""Estimates how fast a shard took in records, as counted in pages that planning read.

Kinesis returns no count of the records between two positions of a shard. Under a limit above a
small page, planning therefore counts the records of a page from time to time, and finds the ends of
the batches in between by time: a batch ends with the first record that arrived when, at the rate
counted, the limit was reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Protocol

from kinesis_source.model.shard import EpochMillis

AGREEMENT: Final = 1.25
"""Two counts agree if their rates differ by no more than this factor."""
FIRST_TRUST: Final = 2
LONGEST_TRUST: Final = 32
"""The most batches that may end by time between two counts."""
_FADING: Final = 0.5
"""The weight of an earlier count relative to the next one."""


class Counted(Protocol):
    """The fields of a record that counting needs."""

    @property
    def arrival(self) -> EpochMillis: ...

    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Records and bytes that a shard took in within `millis`, and for how many batches that is
    used."""

    records: float
    size_bytes: float
    millis: float
    clump: float = 1.0
    """The most records that arrived at one instant. The end of a batch found by time is the first
    record of an instant or the next, so a batch may exceed its aim by this number."""
    trust: int = FIRST_TRUST
    """The number of batches that may end by time before records are counted again."""
    used: int = 0
    """The number of batches that have ended by time."""

    @property
    def is_trusted(self) -> bool:
        return self.used < self.trust

    def span_ms(self, records: int, size: int | None) -> int:
        """Return how long the shard needs to take in this number of records, or of bytes if that is
        shorter.

        The aim is half a clump less, so that batches are as often below a limit as above it.
        """
        wanted = float(records)
        if size is not None:
            wanted = min(wanted, size * self.records / self.size_bytes)
        wanted = max(wanted / 2, wanted - self.clump / 2)
        return int(wanted * self.millis / self.records)

    def within(self, millis: int) -> tuple[int, int]:
        """Return how many records and bytes the shard takes in within `millis`."""
        share = max(0, millis) / self.millis
        return round(self.records * share), round(self.size_bytes * share)

    def record_use(self) -> Intake:
        """Note that one more batch has ended by time."""
        return replace(self, used=self.used + 1)


def count(rows: Sequence[Counted], before: Intake | None) -> Intake | None:
    """Return the intake after counting `rows`, which follow each other in a shard.

    A page that begins or ends in the middle of records that arrived together holds fewer of them
    than came; so those of the first instant or those of the last are left out, whichever are fewer.
    Where all arrived at once, nothing is learned.
    """
    if not rows:
        return before
    first, last = rows[0].arrival, rows[-1].arrival
    millis = last - first
    if millis <= 0:
        return before
    edge = min(sum(row.arrival == first for row in rows), sum(row.arrival == last for row in rows))
    share = (len(rows) - edge) / len(rows)
    records, size = len(rows) * share, max(1, sum(row.size_bytes for row in rows)) * share
    if records <= 0:
        return before
    clump = float(
        max(sum(1 for _ in together) for _, together in groupby(row.arrival for row in rows))
    )
    fresh = Intake(records=records, size_bytes=size, millis=millis, clump=clump)
    if before is None:
        return fresh
    ratio = (size / millis) / (before.size_bytes / before.millis)
    agree = 1 / AGREEMENT <= ratio <= AGREEMENT
    if not agree:
        return fresh
    return Intake(
        records=before.records * _FADING + records,
        size_bytes=before.size_bytes * _FADING + size,
        millis=before.millis * _FADING + millis,
        clump=max(before.clump * _FADING, clump),
        trust=min(2 * before.trust, LONGEST_TRUST),
    )
