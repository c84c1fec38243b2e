"""Divides `maxRecordsPerTrigger` and `maxBytesPerTrigger` among shards.

Both count Kinesis records, before de-aggregation. In an aligned batch (`alignment.py`) the records
that arrived first are admitted, and a shard's share of what is read follows its rate. Otherwise the
shares are even; the unused rest of a share goes to the other shards, and the remainder to the
shards that are farthest behind. So none starves. At least one record is admitted if there is one,
or a record above the limit would never be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import EpochMillis
from spark_ssp.kinesis_source.probing.intake_rate import INTAKE_BYTES_PER_MS
from spark_ssp.kinesis_source.probing.limited_end_probe import (
    EXACT_BYTES,
    EXACT_RECORDS,
    MANY_RECORDS,
    LimitShare,
    end_by_time,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    PAGE_RECORDS,
    ProbeResult,
    RecordRef,
    ShardCursor,
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one trigger; None means no limit. `max_shard_bytes` applies to each shard, and
    bounds the batches of a shard that is far behind if there is no other limit."""

    max_records: int | None = None
    max_bytes: int | None = None
    max_shard_bytes: int | None = None
    interval_ms: int = 0
    """The trigger interval; 0 if there is none, or it is unknown."""

    @property
    def is_bounded(self) -> bool:
        return self.max_records is not None or self.max_bytes is not None

    def for_interval(self, interval_ms: int) -> Limits:
        """Return the limits for this trigger interval: within those of the query, even a shard
        with the largest intake catches up."""
        limits = replace(self, interval_ms=interval_ms)
        if self.max_shard_bytes is None:
            return limits
        taken_in = int(limits.least_ms * INTAKE_BYTES_PER_MS)
        return replace(limits, max_shard_bytes=max(self.max_shard_bytes, taken_in))

    @property
    def least_ms(self) -> int:
        """Return the time that a batch spans at least, within the limits."""
        return int(CATCH_UP * self.interval_ms)

    @property
    def far_ms(self) -> int | None:
        """Return the lag below which a shard contains no more than `max_shard_bytes`."""
        if self.max_shard_bytes is None or self.is_bounded:
            return None
        return int(self.max_shard_bytes / INTAKE_BYTES_PER_MS)


CATCH_UP = 1.5
"""The time of the smallest batch, in trigger intervals."""
UNLIMITED = Limits()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one shard that could be read next: their sizes in bytes, in order."""

    sizes: Sequence[int]
    millis_behind: int


def admit(candidates: Mapping[ShardKey, Candidate], limits: Limits) -> dict[ShardKey, int]:
    """Return the number of records of each shard in the batch, the shard farthest behind first.
    Never more than the limits, except that the first record of the shard farthest behind is
    admitted at any size; so no shard waits for ever behind others that need less."""
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


def admit_by_arrival(
    rows: Mapping[ShardKey, Sequence[RecordRef]], limits: Limits
) -> dict[ShardKey, int]:
    """Return the number of records of each shard in the batch, those that arrived first. Never more
    than the limits, except that the first of all is admitted at any size."""
    arrivals = {
        key: list(accumulate((row.arrival for row in of_shard), max))
        for key, of_shard in sorted(rows.items())
        if of_shard
    }
    sums = {key: [0, *accumulate(row.size_bytes for row in rows[key])] for key in arrivals}

    def until(time: int) -> dict[ShardKey, int]:
        return {key: bisect_right(times, time) for key, times in arrivals.items()}

    def fits(counts: Mapping[ShardKey, int]) -> bool:
        size = sum(sums[key][count] for key, count in counts.items())
        return (limits.max_records is None or sum(counts.values()) <= limits.max_records) and (
            limits.max_bytes is None or size <= limits.max_bytes
        )

    if not arrivals:
        return dict.fromkeys(rows, 0)
    low: int = min(times[0] for times in arrivals.values()) - 1
    high: int = max(times[-1] for times in arrivals.values())
    counts = until(high)
    if not fits(counts):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(until(middle)) else (low, middle)
        counts, together = until(low), until(high)
        if not any(counts.values()):
            counts[min(arrivals, key=lambda key: (arrivals[key][0], key))] = 1
        # Of the records that arrived together at the end, as many as fit.
        _top_up({key: sums[key][: together[key] + 1] for key in sums}, counts, limits)
    return {key: counts.get(key, 0) for key in rows}


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


KEPT_RECORDS: Final = 200_000
"""The records beyond their shares that all shards keep together for the next batches: 50 MB."""
FEWEST_AHEAD: Final = 20
"""The records of a shard among them, however many shards there are."""
LONGEST_DEBT: Final = 9
"""The most batches that are smaller because of one before them."""
_ONLY: Final = ShardKey(stream=StreamName(""), shard=ShardId(""))
LOOKAHEAD_BYTES: Final = 32 * 1024 * 1024
"""The bytes that all shards together read beyond small shares, for the next batches."""
FAR_EXCESS: Final = 4
"""The largest batch of a shard that is far behind, in units of `maxBytesPerShard`."""


def to_candidate(result: ProbeResult) -> Candidate:
    """Return the candidate of a result. Its need is the age of its first waiting record, or steady
    streams could starve it."""
    waiting = result.time - result.records[0].arrival if result.records else 0
    return Candidate(
        sizes=[row.size_bytes for row in result.records],
        millis_behind=max(result.millis_behind, waiting),
    )


def even_shares(keys: Collection[ShardKey], limits: Limits) -> dict[ShardKey, LimitShare]:
    """Return each shard's even share of the limits, at least one record."""
    count = max(1, len(keys))
    records = MANY_RECORDS if limits.max_records is None else -(-limits.max_records // count)
    size = None if limits.max_bytes is None else -(-limits.max_bytes // count)
    ahead = max(FEWEST_AHEAD, min(KEPT_RECORDS // count, PAGE_RECORDS))
    share = LimitShare(
        records=max(1, records),
        size_bytes=size,
        least_ms=limits.least_ms,
        kept=max(EXACT_RECORDS, ahead),
        ahead=ahead,
        lookahead_bytes=max(
            min(size or 0, EXACT_BYTES), min(EXACT_BYTES // 2, LOOKAHEAD_BYTES // count)
        ),
    )
    return dict.fromkeys(keys, share)


def rated_shares(
    keys: Collection[ShardKey],
    limits: Limits,
    cursors: Mapping[ShardKey, ShardCursor],
    left_behind: Collection[ShardKey] = (),
) -> dict[ShardKey, LimitShare]:
    """Return each shard's share of the limits in an aligned batch; shards that are `left_behind`
    hold no other back.

    The shares follow the rates; a shard whose rate is unknown counts with the mean. Ends that are
    found by the time of the quota divide theirs evenly, so that they span the same time, and none
    of them is searched beyond the first of these ends.
    """
    shares = even_shares(keys, limits)
    shares |= _by_rate(keys, limits, cursors, shares)
    by_time = _leveled(
        {
            key: share
            for key, share in shares.items()
            if end_by_time(cursors[key], share) is not None
        }
    )
    shares |= by_time
    ends = {key: end_by_time(cursors[key], share) for key, share in by_time.items()}
    goals = [
        end
        for key, end in ends.items()
        if end is not None and key not in left_behind and _is_ahead(end, cursors[key])
    ]
    goal = min(goals, default=None)
    return {key: replace(share, until=goal) for key, share in shares.items()} if goal else shares


def _leveled(shares: Mapping[ShardKey, LimitShare]) -> dict[ShardKey, LimitShare]:
    """Divide the sum of shares evenly; not if the rates determine the time of their ends."""
    if not shares:
        return {}
    records = sum(share.records for share in shares.values()) // len(shares)
    sizes = [share.size_bytes for share in shares.values() if share.size_bytes is not None]
    size = sum(sizes) // len(shares) if sizes else None
    leveled = {
        key: replace(share, records=records, size_bytes=size) for key, share in shares.items()
    }
    return leveled if all(one.is_kept_at_quota for one in leveled.values()) else dict(shares)


def until_first_end(share: LimitShare, cursors: Mapping[ShardKey, ShardCursor]) -> LimitShare:
    """Return the share of each of these shards in an aligned batch, whose ends are not searched
    beyond the first that is found by time."""
    ends = ((end_by_time(cursor, share), cursor) for cursor in cursors.values())
    goals = (end for end, cursor in ends if end is not None and _is_ahead(end, cursor))
    return replace(share, until=min(goals, default=None))


def _is_ahead(end: EpochMillis, cursor: ShardCursor) -> bool:
    """Return whether a shard may be read up to a time: it is not at its latest record, and has not
    passed the time."""
    cached, known = cursor.cached_iterator, cursor.lookahead
    if cached is not None and cached.at_latest:
        return False
    reached = known.records[0].arrival if known is not None else cursor.reached_ms
    return reached is not None and end > reached


def _by_rate(
    keys: Collection[ShardKey],
    limits: Limits,
    cursors: Mapping[ShardKey, ShardCursor],
    even: Mapping[ShardKey, LimitShare],
) -> dict[ShardKey, LimitShare]:
    """Divide the shares of these shards among them by their rates."""
    rates: dict[ShardKey, float] = {}
    for key in keys:
        if (intake := cursors[key].intake) is not None:
            amount = intake.size_bytes if limits.max_records is None else intake.records
            rates[key] = amount / intake.millis
    if not rates:
        return {}
    mean = sum(rates.values()) / len(rates)
    parts = {key: rates.get(key, mean) * len(keys) for key in keys}
    total = sum(parts.values())
    return {
        key: replace(
            even[key],
            records=even[key].records
            if limits.max_records is None
            else max(1, int(even[key].records * parts[key] * len(keys) / total)),
            size_bytes=None
            if (size := even[key].size_bytes) is None
            else max(1, int(size * parts[key] * len(keys) / total)),
        )
        for key in keys
    }


def admit_results(
    results: Mapping[ShardKey, ProbeResult],
    shares: Mapping[ShardKey, LimitShare],
    limits: Limits,
    *,
    aligned: bool = False,
) -> dict[ShardKey, int]:
    """Return the number of records of each result in the batch. An end that was found by time is
    admitted as it is, and uses its share; the others are cut to what is left of the limits."""
    by_time = {key: len(result.records) for key, result in results.items() if result.found_by_time}
    records, size = limits.max_records, limits.max_bytes
    for key in by_time:
        records = None if records is None else records - shares[key].records
        size = None if size is None else size - (shares[key].size_bytes or 0)
    rest = replace(limits, max_records=records, max_bytes=size)
    counted = results.keys() - by_time.keys()
    if aligned:
        return by_time | admit_by_arrival({key: results[key].records for key in counted}, rest)
    return by_time | admit({key: to_candidate(results[key]) for key in counted}, rest)


def reduce_by_debt(limits: Limits, debt: int) -> Limits:
    """Return the limits of the next batch: a batch that had to exceed its limit, since its first
    record does, makes the next ones smaller."""
    if limits.max_bytes is None or debt == 0:
        return limits
    return replace(limits, max_bytes=max(1, limits.max_bytes - debt))


def next_debt(
    debt: int, results: Mapping[ShardKey, ProbeResult], counts: Mapping[ShardKey, int], limit: int
) -> int:
    """Return the bytes by which the batches up to this one exceed their limits; `limit` is that of
    one batch, without debt. Ends found by time do not count."""
    if not any(counts.values()):
        return debt
    size = sum(
        row.size_bytes
        for key, admitted in counts.items()
        if not results[key].found_by_time
        for row in results[key].records[:admitted]
    )
    return min(max(0, debt + size - limit), LONGEST_DEBT * limit)


def admit_share(result: ProbeResult, size_bytes: int | None) -> int:
    """Return the number of records of the result of one shard that are within its own limit."""
    if result.found_by_time:
        return len(result.records)
    return admit({_ONLY: to_candidate(result)}, Limits(max_bytes=size_bytes))[_ONLY]


def second_shares(
    results: Mapping[ShardKey, ProbeResult], shares: Mapping[ShardKey, LimitShare], limits: Limits
) -> dict[ShardKey, LimitShare]:
    """Return the rest of the limits, for the shards that had more than their share."""
    unsatisfied = [
        key
        for key in sorted(shares)
        if key in results
        and results[key].records
        and not results[key].found_by_time
        and results[key].has_more
        and not shares[key].is_exceeded_by(results[key].records)
    ]
    if not unsatisfied or len(unsatisfied) == len(results):
        return {}
    records, size = limits.max_records, limits.max_bytes
    for key, result in results.items():
        used = shares[key] if result.found_by_time else _used(result)
        records = None if records is None else records - used.records
        size = None if size is None else size - (used.size_bytes or 0)
    count = len(unsatisfied)
    if (records is not None and records < count) or (size is not None and size <= 0):
        return {}
    return {
        key: replace(
            shares[key],
            records=MANY_RECORDS if records is None else shares[key].records + records // count,
            size_bytes=None if size is None else (shares[key].size_bytes or 0) + size // count,
            until=None,
        )
        for key in unsatisfied
    }


def _used(result: ProbeResult) -> LimitShare:
    size = sum(record.size_bytes for record in result.records)
    return LimitShare(records=len(result.records), size_bytes=size)
