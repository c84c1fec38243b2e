"""Divides the limits of a trigger among the shards that are probed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kinesis_source.planning.admission_control import Candidate, Limits
from kinesis_source.probing.limited_end_probe import MANY_RECORDS, LimitShare
from kinesis_source.probing.probe_protocol import ProbeResult
from task_grouping.identifiers import ShardKey


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
    return dict.fromkeys(keys, LimitShare(records=max(1, records), size_bytes=size))


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
        )
        for key in unsatisfied
    }


def _used(result: ProbeResult) -> LimitShare:
    size = sum(record.size_bytes for record in result.records)
    return LimitShare(records=len(result.records), size_bytes=size)
