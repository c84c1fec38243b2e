"""Divides `maxRecordsPerTrigger` and `maxBytesPerTrigger` among shards.

Both count Kinesis records, before de-aggregation. The shares are even; the unused rest of a share
goes to the other shards, and the remainder to the shards that are farthest behind, so none starves.
At least one record is admitted if there is one, or a record above the limit would never be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from spark_ssp.grouping.identifiers import ShardKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one trigger; None means no limit.

    `max_shard_bytes` applies to each shard, and bounds the batches of a shard that is far behind if
    there is no other limit.
    """

    max_records: int | None = None
    max_bytes: int | None = None
    max_shard_bytes: int | None = None

    @property
    def is_bounded(self) -> bool:
        return self.max_records is not None or self.max_bytes is not None

    def for_interval(self, interval_ms: int) -> Limits:
        """Return the limits for this trigger interval: even a shard with the largest intake catches
        up, however long the interval."""
        if self.max_shard_bytes is None:
            return self
        taken_in = int(CATCH_UP * interval_ms * INTAKE_BYTES_PER_MS)
        return replace(self, max_shard_bytes=max(self.max_shard_bytes, taken_in))

    @property
    def far_ms(self) -> int | None:
        """Return the lag below which a shard contains no more than `max_shard_bytes`."""
        if self.max_shard_bytes is None or self.is_bounded:
            return None
        return int(self.max_shard_bytes / INTAKE_BYTES_PER_MS)


INTAKE_BYTES_PER_MS = (1 << 20) / 1000
"""The largest intake of a shard: 1 MB a second (Kinesis quotas)."""
INTAKE_RECORDS_PER_MS = 1.0
"""The same in records: 1,000 a second."""
CATCH_UP = 1.5
"""The factor by which a batch in each interval exceeds that."""
UNLIMITED = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The records of one shard that could be read next: their sizes in bytes, in order."""

    sizes: Sequence[int]
    millis_behind: int


def admit(candidates: Mapping[ShardKey, Candidate], limits: Limits) -> dict[ShardKey, int]:
    """Return the number of records of each shard in the batch, the shard farthest behind first.

    Never more than the limits, except that the first record of the shard farthest behind is
    admitted at any size; so no shard waits for ever behind others that need less.
    """
    neediest_first = sorted(
        (key for key in candidates if candidates[key].sizes),
        key=lambda key: (-candidates[key].millis_behind, key),
    )
    sums = {key: [0, *accumulate(candidates[key].sizes)] for key in neediest_first}
    counts = {key: len(candidates[key].sizes) for key in neediest_first}
    if limits.max_records is not None:
        counts = _share(counts, max(1, limits.max_records))
    if limits.max_bytes is not None:
        counts = _cut_to_size(sums, counts, limits.max_bytes)
    _top_up(sums, counts, limits)
    return {key: counts.get(key, 0) for key in candidates}


def _share(wants: Mapping[ShardKey, int], total: int) -> dict[ShardKey, int]:
    """Return even shares of whole units, none above its want; the remainder in the order of
    `wants`."""
    level, left = 0, total
    ascending = sorted(wants.values())
    for index, want in enumerate(ascending):
        raised = min(want - level, left // (len(ascending) - index))
        level += raised
        left -= raised * (len(ascending) - index)
        if level < want:
            break
    granted = {key: min(want, level) for key, want in wants.items()}
    for key, want in wants.items():
        if left > 0 and granted[key] < want:
            granted[key] += 1
            left -= 1
    return granted


def _cut_to_size(
    sums: Mapping[ShardKey, Sequence[int]], counts: Mapping[ShardKey, int], total: int
) -> dict[ShardKey, int]:
    """Return the longest prefix of each shard that fits its even share of the bytes. The first
    record of the first shard is set aside before the bytes are divided."""
    granted = dict.fromkeys(counts, 0)
    left = total
    first = next(iter(counts), None)
    if first is not None:
        granted[first] = 1
        left -= sums[first][1]
    by_want = sorted(counts, key=lambda key: sums[key][counts[key]])
    for index, key in enumerate(by_want):
        used = sums[key][granted[key]]
        share = max(0, left) // (len(by_want) - index)
        granted[key] = max(granted[key], _fitting(sums[key], used + share, counts[key]))
        left -= sums[key][granted[key]] - used
    return granted


def _top_up(
    sums: Mapping[ShardKey, Sequence[int]], counts: dict[ShardKey, int], limits: Limits
) -> None:
    """Distribute the rest of both limits, in the order of `counts`."""
    records = (
        None if limits.max_records is None else max(1, limits.max_records) - sum(counts.values())
    )
    size = None
    if limits.max_bytes is not None:
        size = limits.max_bytes - sum(sums[key][count] for key, count in counts.items())
    for key, count in counts.items():
        most = len(sums[key]) - 1
        if records is not None:
            most = min(most, count + records)
        if size is not None:
            most = max(count, _fitting(sums[key], sums[key][count] + size, most))
        counts[key] = most
        if records is not None:
            records -= most - count
        if size is not None:
            size -= sums[key][most] - sums[key][count]


def _fitting(sums: Sequence[int], budget: int, most: int) -> int:
    """Return how many leading records fit `budget` bytes; `sums[n]` are the bytes of the first
    n."""
    return max(0, bisect_right(sums, budget, 0, most + 1) - 1)
