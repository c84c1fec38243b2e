"""Estimates how fast a shard took in records, as counted in pages that planning read. The estimate
decides whether the end of a batch under a limit is counted or found by time, and how much a task
fetches at once. It does not bound a batch: the quotas of the service do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final, Protocol

import msgspec

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import EpochMillis

INTAKE_BYTES_PER_MS: Final = (1 << 20) / 1000
"""The largest intake of a shard: 1 MB a second (Kinesis quotas)."""
INTAKE_RECORDS_PER_MS: Final = 1.0
"""The same in records: 1,000 a second."""
AGREEMENT: Final = 2.0
"""Two counts are averaged if their rates differ by no more than this factor."""
FIRST_TRUST: Final = 2
LONGEST_TRUST: Final = 32
"""The most batches that may end by time between two counts."""
FADING: Final = 0.8
"""The weight of the largest record that was counted before."""
MARGIN: Final = 1.01
"""A task requests the estimate times this, plus its square root, as for random arrivals: a second
call for the rest costs more."""
QUOTA_TOLERANCE: Final = 1.5
"""A rate above the quota by this factor shows a service that does not enforce it."""


class Counted(Protocol):
    """The fields of a record that counting needs."""

    @property
    def arrival(self) -> EpochMillis: ...

    @property
    def size_bytes(self) -> int: ...


class Intake(msgspec.Struct, frozen=True, kw_only=True):
    """Records and bytes that a shard took in within `millis`; the number of batches that may end by
    time before records are counted again (`trust`), and that have (`used`)."""

    records: float
    size_bytes: float
    millis: float
    largest: float = 0.0
    """The size of the largest record; less if it was counted long ago."""
    clump: float = 1.0
    """The most records that arrived at one instant."""
    trust: int = FIRST_TRUST
    used: int = 0

    @property
    def is_trusted(self) -> bool:
        return self.used < self.trust

    @property
    def exceeds_quota(self) -> bool:
        """Return whether more was written than the service accepts, so that time bounds nothing."""
        return (
            self.size_bytes > QUOTA_TOLERANCE * INTAKE_BYTES_PER_MS * self.millis
            or self.records > QUOTA_TOLERANCE * INTAKE_RECORDS_PER_MS * self.millis
        )

    def span_ms(
        self, records: int, size: int | None, *, excess: float = 1, least_ms: int = 0
    ) -> int:
        """Return a time in which the shard takes in no more than this number of records and bytes,
        even if its rate rises to the quota. With an `excess` above 1 it takes in as much at the
        counted rate, and at most `excess` times as much at the quota. Up to `least_ms`, only the
        counted rate bounds the time."""
        quota_ms = max(at_quota_ms(records, size, excess), least_ms)
        spans = [quota_ms, records * self.millis / self.records]
        if size is not None:
            spans.append(size * self.millis / self.size_bytes)
        return int(min(spans))

    @property
    def gap_ms(self) -> int:
        """Return the longest usual time between two instants at which records arrived."""
        return math.ceil(self.clump * self.millis / self.records)

    def within(self, millis: int) -> tuple[int, int]:
        """Return how many records and bytes the shard takes in within `millis`."""
        share = max(0, millis) / self.millis
        return round(self.records * share), round(self.size_bytes * share)

    def expected(self, millis: int, counted: ExpectedSize) -> ExpectedSize:
        """Return the size of a range for its task: what was `counted`, plus the intake of `millis`
        after that."""
        records, size = self.within(millis)
        margin = MARGIN + 1 / math.sqrt(max(1, records))
        return ExpectedSize(
            records=counted.records + math.ceil(records * margin) + 1,
            size_bytes=(counted.size_bytes or 0) + math.ceil(size * margin),
        )

    def record_end(self, size: int) -> Intake:
        """Note that one more batch has ended by time, with a record of this size. If it is larger
        than those counted, the rest may be as well, and is counted."""
        if size > self.largest:
            return replace(self, largest=size, used=self.trust)
        return replace(self, used=self.used + 1)


def at_quota_ms(records: int, size: int | None, excess: float) -> float:
    """Return the time in which a shard at the quota takes in `excess` times this number of records
    or bytes, whichever it reaches first."""
    times = [excess * records / INTAKE_RECORDS_PER_MS]
    if size is not None:
        times.append(excess * size / INTAKE_BYTES_PER_MS)
    return min(times)


def count(
    rows: Sequence[Counted], since: EpochMillis | None, before: Intake | None
) -> Intake | None:
    """Return the intake after counting `rows`, which follow each other in a shard. `since` is the
    arrival of the record before them; None if it is unknown, and then the first row is that record.

    A page that begins or ends in the middle of records that arrived together has fewer of them than
    came; so those of the first instant or those of the last are left out, whichever are fewer.
    Where all arrived at once, nothing is learned.
    """
    if since is None and rows:
        since, rows = rows[0].arrival, rows[1:]
    if since is None or not rows:
        return before
    last = rows[-1].arrival
    edge = min(sum(row.arrival == since for row in rows), sum(row.arrival == last for row in rows))
    millis = float(last - since)
    if millis <= 0 or edge == len(rows):
        return before
    share = (len(rows) - edge) / len(rows)
    size = max(1, sum(row.size_bytes for row in rows)) * share
    clump = max(sum(1 for _ in together) for _, together in groupby(row.arrival for row in rows))
    largest = float(max(row.size_bytes for row in rows))
    if before is not None:
        largest = max(largest, before.largest * FADING)
    fresh = Intake(
        records=len(rows) * share, size_bytes=size, millis=millis, largest=largest, clump=clump
    )
    if before is None:
        return fresh
    ratio = (size / millis) / (before.size_bytes / before.millis)
    if not 1 / AGREEMENT <= ratio <= AGREEMENT:
        return fresh
    return Intake(
        records=before.records / 2 + fresh.records,
        size_bytes=before.size_bytes / 2 + size,
        millis=before.millis / 2 + millis,
        largest=largest,
        clump=max(before.clump / 2, clump),
        trust=min(2 * before.trust, LONGEST_TRUST),
    )
