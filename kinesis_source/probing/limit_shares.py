"""Divides the limits of a trigger among the shards that are looked at."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kinesis_source.planning.admission_control import Candidate, Limits
from kinesis_source.probing import limited_end_probe as limited_ends
from kinesis_source.probing.probe_protocol import ProbeResult
from task_grouping.identifiers import ShardKey


def to_candidate(finding: ProbeResult) -> Candidate:
    """Its need is the age of its first waiting record, or steady streams could starve it."""
    waiting = finding.time - finding.rows[0].arrival if finding.rows else 0
    return Candidate(
        sizes=[row.size for row in finding.rows],
        millis_behind=max(finding.millis_behind, waiting),
    )


LimitShare = tuple[int, int | None]


def even_shares(keys: Collection[ShardKey], limits: Limits) -> dict[ShardKey, LimitShare]:
    """Return each shard's even share of the limits, in records and bytes, at least one record."""
    count = max(1, len(keys))
    records = limited_ends.MANY_RECORDS if limits.records is None else -(-limits.records // count)
    size = None if limits.size is None else -(-limits.size // count)
    return dict.fromkeys(keys, (max(1, records), size))


def second_shares(
    found: Mapping[ShardKey, ProbeResult], asked: Mapping[ShardKey, LimitShare], limits: Limits
) -> dict[ShardKey, LimitShare]:
    """Return the rest of the limits, for the shards that had more than their share."""
    hungry = [
        key
        for key in sorted(asked)
        if key in found and found[key].rows and not found[key].found_by_time and found[key].has_more
    ]
    if not hungry or len(hungry) == len(found):
        return {}
    records, size = limits.records, limits.size
    for key, finding in found.items():
        used = asked[key] if finding.found_by_time else _used(finding)
        records = None if records is None else records - used[0]
        size = None if size is None else size - (used[1] or 0)
    if (records is not None and records < len(hungry)) or (size is not None and size <= 0):
        return {}
    return {
        key: (
            limited_ends.MANY_RECORDS
            if records is None
            else asked[key][0] + records // len(hungry),
            None if size is None else (asked[key][1] or 0) + size // len(hungry),
        )
        for key in hungry
    }


def _used(finding: ProbeResult) -> LimitShare:
    return len(finding.rows), sum(row.size for row in finding.rows)
