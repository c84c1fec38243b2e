"""The limits of a batch: `maxOffsetsPerTrigger`, `maxBytesPerTrigger`, `minOffsetsPerTrigger`.

The first two are divided as in Spark's source (`KafkaMicroBatchStream.rateLimit`): each partition
gets a part of the limit in proportion to its backlog, rounded down, but at least one offset, so
that small partitions never starve. The remainder of rounding is not distributed. Offsets are
counted, not records: compacted records and transaction markers count as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition

Lags = Mapping[SystemStreamPartition, int]
"""The number of offsets to read in each partition, 1 or more."""

DEFAULT_BYTES_PER_OFFSET: Final = 1024
"""The assumed bytes per offset of a topic that has not been sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """The limits of one batch; None means unlimited. `bytes_per_offset` is the estimate for each
    sampled topic, 1 or more."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    bytes_per_offset: Mapping[StreamName, int] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        """True if no more may be read."""
        return (self.max_offsets is not None and self.max_offsets <= 0) or (
            self.max_bytes is not None and self.max_bytes <= 0
        )

    def without(self, granted: Lags) -> ReadLimits:
        """Return the limits that remain after `granted` is read."""
        max_offsets, max_bytes = self.max_offsets, self.max_bytes
        return replace(
            self,
            max_offsets=None if max_offsets is None else max_offsets - sum(granted.values()),
            max_bytes=None if max_bytes is None else max_bytes - self._bytes(granted),
        )

    def split(self, lags: Lags) -> dict[SystemStreamPartition, int]:
        """Return the number of offsets that each partition reads of its backlog, at least 1."""
        part, whole = self._part(lags)
        if part >= whole:
            return dict(lags)
        return {ssp: max(1, lag * part // whole) for ssp, lag in lags.items()}

    def _part(self, lags: Lags) -> tuple[int, int]:
        """Return the stricter limit as a fraction of the backlog: numerator and denominator."""
        part, whole = 1, 1
        if self.max_offsets is not None:
            part, whole = self.max_offsets, sum(lags.values())
        if self.max_bytes is not None:
            total = self._bytes(lags)
            if self.max_bytes * whole < part * total:
                part, whole = self.max_bytes, total
        return part, whole

    def _bytes(self, offsets: Lags) -> int:
        return sum(
            number * self.bytes_per_offset.get(ssp.stream, DEFAULT_BYTES_PER_OFFSET)
            for ssp, number in offsets.items()
        )


UNLIMITED: Final = ReadLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerDelay:
    """`minOffsetsPerTrigger`, `maxTriggerDelay`, and the time that the query has waited.

    `waited_ms` is the time since a batch was last planned without delay; None before the first one,
    which is never delayed.
    """

    min_offsets: int
    max_delay_ms: int
    waited_ms: int | None

    def should_delay(self, backlog: int) -> bool:
        """Return whether to wait for more than `backlog` offsets."""
        if self.waited_ms is None or self.waited_ms >= self.max_delay_ms:
            return False
        return backlog < self.min_offsets
