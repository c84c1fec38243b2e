"""Divides the limits of a trigger among the shards that are probed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.planning.admission_control import Candidate, Limits, admit
from spark_ssp.kinesis_source.probing.limited_end_probe import (
    EXACT_BYTES,
    EXACT_RECORDS,
    MANY_RECORDS,
    LimitShare,
)
from spark_ssp.kinesis_source.probing.probe_protocol import PAGE_RECORDS, ProbeResult

KEPT_RECORDS: Final = 200_000
"""The records that up to 200 shards keep together, to be cut and for the next batches: 50 MB."""
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
    share = LimitShare(
        records=max(1, records),
        size_bytes=size,
        kept=max(EXACT_RECORDS, min(KEPT_RECORDS // count, PAGE_RECORDS)),
        lookahead_bytes=max(
            min(size or 0, EXACT_BYTES), min(EXACT_BYTES // 2, LOOKAHEAD_BYTES // count)
        ),
    )
    return dict.fromkeys(keys, share)


def admit_results(
    results: Mapping[ShardKey, ProbeResult], shares: Mapping[ShardKey, LimitShare], limits: Limits
) -> dict[ShardKey, int]:
    """Return the number of records of each result in the batch. An end that was found by time is
    admitted as it is, and uses its share; the others are cut to what is left of the limits."""
    by_time = {key: len(result.records) for key, result in results.items() if result.found_by_time}
    counted = {key: to_candidate(results[key]) for key in results.keys() - by_time.keys()}
    records, size = limits.max_records, limits.max_bytes
    for key in by_time:
        records = None if records is None else records - shares[key].records
        size = None if size is None else size - (shares[key].size_bytes or 0)
    return by_time | admit(counted, replace(limits, max_records=records, max_bytes=size))


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
        key: LimitShare(
            records=MANY_RECORDS if records is None else shares[key].records + records // count,
            size_bytes=None if size is None else (shares[key].size_bytes or 0) + size // count,
            kept=shares[key].kept,
            lookahead_bytes=shares[key].lookahead_bytes,
        )
        for key in unsatisfied
    }


def _used(result: ProbeResult) -> LimitShare:
    size = sum(record.size_bytes for record in result.records)
    return LimitShare(records=len(result.records), size_bytes=size)
