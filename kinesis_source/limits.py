"""Sharing `maxRecordsPerTrigger` and `maxBytesPerTrigger` out among shards.

Both count Kinesis records, before de-aggregation. The share is even; what a shard does not need
goes to the others; the remainder goes to the shards that are farthest behind, so none starves. At
least one record is admitted whenever there is one, or a record above the limit would never be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from task_grouping.identifiers import ShardKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one trigger may admit; None: without limit."""

    records: int | None = None
    size: int | None = None

    @property
    def bounded(self) -> bool:
        return self.records is not None or self.size is not None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The records of one shard that could be read next: their sizes in bytes, in order."""

    sizes: Sequence[int]
    millis_behind: int


def admit(candidates: Mapping[ShardKey, Candidate], limits: Limits) -> dict[ShardKey, int]:
    """How many records of each shard belong to the batch. Never more than the limits, except that
    the first record of the shard farthest behind is admitted whatever its size."""
    neediest_first = sorted(candidates, key=lambda key: (-candidates[key].millis_behind, key))
    counts = {key: len(candidates[key].sizes) for key in neediest_first}
    if limits.records is not None:
        counts = _share(counts, max(1, limits.records))
    if limits.size is not None:
        counts = _share_bytes(candidates, counts, limits.size)
    if not any(counts.values()):
        for key in neediest_first:
            if candidates[key].sizes:
                counts[key] = 1
                break
    return counts


def _share(wants: Mapping[ShardKey, int], total: int) -> dict[ShardKey, int]:
    """Even shares of whole units, none above its want; the remainder in the order of `wants`."""
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


def _share_bytes(
    candidates: Mapping[ShardKey, Candidate], counts: Mapping[ShardKey, int], total: int
) -> dict[ShardKey, int]:
    """The longest prefix of each shard that fits its even share, then the rest by need."""
    sums = {key: list(accumulate(candidates[key].sizes[:count])) for key, count in counts.items()}
    wanted = {key: prefix[-1] if prefix else 0 for key, prefix in sums.items()}
    granted: dict[ShardKey, int] = dict.fromkeys(counts, 0)
    left = total
    smallest_first = sorted(wanted, key=lambda key: wanted[key])
    for index, key in enumerate(smallest_first):
        share = left // (len(smallest_first) - index)
        granted[key] = _fitting(sums[key], share)
        left -= _used(sums[key], granted[key])
    for key in counts:
        used = _used(sums[key], granted[key])
        granted[key] = _fitting(sums[key], used + left)
        left -= _used(sums[key], granted[key]) - used
    return granted


def _fitting(prefix_sums: Sequence[int], budget: int) -> int:
    """How many leading records fit `budget` bytes."""
    return bisect_right(prefix_sums, budget)


def _used(prefix_sums: Sequence[int], count: int) -> int:
    return prefix_sums[count - 1] if count else 0
