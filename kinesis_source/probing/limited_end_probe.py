"""Finds the end of a batch under a limit in one shard.

A limit of a small page is met exactly: the page is read, and its records are returned for the
caller to cut. Beyond that, reading on the driver the records that a task reads again would use up
the shard's read rate. So the records of one page are counted now and then (`intake_rate.py`), and
in between the end is the first record that arrived when, at the rate counted, the limit was
reached: one probe, two records wide. Generators, as `probe_protocol.py` describes them; no I/O.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import accumulate

from kinesis_source.client.api import MAX_PAGE_BYTES, ThrottledError
from kinesis_source.model.ranges import ExpectedSize
from kinesis_source.model.shard import AfterRecord, EpochMillis, ShardEnd, ShardState
from kinesis_source.probing.batch_end_probe import (
    NEAR_MS,
    check_first_page,
    fetch_from_start,
    fetch_second_page,
    find_by_time,
    probe_to_shard_end,
    records_of,
    search_near_latest,
    to_result,
)
from kinesis_source.probing.intake_rate import count
from kinesis_source.probing.position_advance import Target
from kinesis_source.probing.probe_protocol import (
    PROBE_RECORDS,
    ProbeResult,
    ProbeSteps,
    QuietPeriod,
    RecordRef,
    Request,
    Response,
    ShardCursor,
)

MANY_RECORDS = 1_000_000_000
"""The limit of records if only bytes are limited."""
EXACT_BYTES = 64 * 1024
"""The largest part of a limit per shard that is read on the driver and met exactly."""
EXACT_RECORDS = 1000
"""The most records of a shard that are kept to be cut exactly."""
FIRST_RECORDS = 100
"""The records read while their size is unknown, if the limit counts records."""
COUNT_BYTES = 512 * 1024
"""The bytes read to count records: the intake of a shard in half a second (Kinesis quotas)."""
ENOUGH = 0.75
"""If a page read to count contains this part of the aim, the batch ends with it."""
MARGIN = 1.01
"""A task requests the estimate times this, plus its square root, as for random arrivals: a second
call for the rest costs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitShare:
    """A shard's share of the limits of a batch; `size_bytes` is a hint, None if unlimited."""

    records: int = MANY_RECORDS
    size_bytes: int | None = None


def scan_ahead(
    start: ShardState,
    cursor: ShardCursor,
    now: EpochMillis,
    retention_ms: int,
    share: LimitShare,
    target: Target | None = None,
) -> ProbeSteps:
    """Find the records that follow the start, up to the share of the limits. With a `target`, the
    shard is probed until it shows a record, is at the latest, or, if the target is its end, ends.

    Within a small page the records are returned for the caller to cut exactly. Beyond that the end
    is the first record at a time estimated from the rate: approximate.
    """
    if _trusts_rate(start, cursor, share):
        estimated = yield from _by_rate(start, cursor, now, share)
        if isinstance(estimated, ProbeResult):
            return estimated
        cursor = estimated
    limit = _page_limit(cursor, share)
    page, cursor = yield from fetch_from_start(
        start, cursor, limit, now, persistent=target is not None
    )
    result = to_result(start, cursor, check_first_page(start, cursor, page, retention_ms))
    limit = _page_limit(result.cursor, share)
    if page.records and (result.end is None or cursor.record_bytes is None):
        result = yield from _fetch_second_page(start, result, limit)
    if isinstance(target, ShardEnd):
        result = yield from probe_to_shard_end(start, result, limit)
    wanted = _wanted(result.cursor, share)
    if result.end is None or result.start_lost or _is_exact(result.cursor, wanted):
        return result
    cursor = replace(result.cursor, intake=count(result.records, result.cursor.intake))
    result = _cut(replace(result, cursor=cursor), share)
    if not result.has_more or ENOUGH * wanted <= _rows(result):
        return result
    try:
        return (yield from _continue_by_time(start, result, share))
    except ThrottledError:
        return result


# --- How much ------------------------------------------------------------------------------------


def _wanted(cursor: ShardCursor, share: LimitShare) -> int:
    """Return the limit in records; a limit of bytes is converted by the size of the records
    seen."""
    if share.size_bytes is None:
        return share.records
    return min(
        share.records, 1 + int(share.size_bytes / max(cursor.record_bytes or MAX_PAGE_BYTES, 1.0))
    )


def _is_exact(cursor: ShardCursor, wanted: int) -> bool:
    """Return whether this number of records is read on the driver to be cut exactly."""
    if cursor.record_bytes is None or wanted <= PROBE_RECORDS:
        return True
    return wanted <= EXACT_RECORDS and wanted * cursor.record_bytes <= EXACT_BYTES


def _page_limit(cursor: ShardCursor, share: LimitShare) -> int:
    """Return the limit of the page from the start."""
    if cursor.record_bytes is None:
        return min(share.records, FIRST_RECORDS) if share.size_bytes is None else 1
    wanted = _wanted(cursor, share)
    return wanted if _is_exact(cursor, wanted) else min(wanted, records_of(cursor, COUNT_BYTES))


def _fetch_second_page(start: ShardState, result: ProbeResult, limit: int) -> ProbeSteps:
    """Read a second page if the first was small or contained only the start record."""
    if result.end is not None and len(result.records) >= limit:
        return result
    return (yield from fetch_second_page(start, result, max(1, limit - len(result.records))))


def _cut(result: ProbeResult, share: LimitShare) -> ProbeResult:
    """Cut a large page by the shard's part of the limit, and keep few of its records."""
    if len(result.records) <= EXACT_RECORDS:
        return result
    sizes = list(accumulate(row.size_bytes for row in result.records))
    fitting = len(sizes)
    if share.size_bytes is not None:
        fitting = bisect_right(sizes, share.size_bytes)
    fitting = max(1, min(fitting, share.records))
    kept = replace(
        result,
        records=result.records[:EXACT_RECORDS],
        end=result.records[fitting - 1],
        found_by_time=True,
        expected=ExpectedSize(records=fitting, size_bytes=sizes[fitting - 1]),
    )
    if fitting == len(sizes):
        return kept
    end = result.records[fitting - 1]
    cursor = replace(
        result.cursor, position=end.position, reached_ms=end.arrival, cached_iterator=None
    )
    behind = max(result.millis_behind, result.time - result.records[fitting].arrival, 1)
    return replace(kept, at_latest=False, closed=False, millis_behind=behind, cursor=cursor)


def _rows(result: ProbeResult) -> int:
    return len(result.records) if result.expected is None else result.expected.records


# --- By the rate ---------------------------------------------------------------------------------


def _trusts_rate(start: ShardState, cursor: ShardCursor, share: LimitShare) -> bool:
    """Return whether the end is searched by time immediately, without a page from the start.

    False if the start was the latest record: the page from there is one call while the shard is
    quiet.
    """
    at_latest = cursor.cached_iterator is not None and cursor.cached_iterator.at_latest
    return (
        cursor.proven
        and not at_latest
        and cursor.position == start.position
        and isinstance(start.position, AfterRecord)
        and cursor.reached_ms is not None
        and cursor.intake is not None
        and cursor.intake.is_trusted
        and not _is_exact(cursor, _wanted(cursor, share))
    )


def _by_rate(
    start: ShardState, cursor: ShardCursor, now: EpochMillis, share: LimitShare
) -> Generator[Request, Response, ProbeResult | ShardCursor]:
    """Find the first record at the time when the limit is reached. If that is near the latest
    record or finds nothing, return the cursor: a page from the start is needed."""
    position, reached, intake = start.position, cursor.reached_ms, cursor.intake
    if not isinstance(position, AfterRecord) or reached is None or intake is None:
        return cursor
    target = EpochMillis(reached + intake.span_ms(share.records, share.size_bytes))
    if target >= now - NEAR_MS:
        return cursor
    start_record = RecordRef(
        sequence_number=position.sequence_number,
        last_sub=position.sub,
        arrival=reached,
        size_bytes=0,
    )
    at_start = ProbeResult(end=start_record, time=now, cursor=cursor)
    later = yield from find_by_time(at_start, target)
    if later is None:
        return replace(cursor, quiet=QuietPeriod(since=target, at=now))
    if later is at_start:
        return cursor
    return _estimated(later, reached, target, ExpectedSize(records=0, size_bytes=0))


def _continue_by_time(start: ShardState, result: ProbeResult, share: LimitShare) -> ProbeSteps:
    """Continue from the counted records to where the rest of the limit is reached."""
    intake = result.cursor.intake
    if result.end is None or intake is None:
        return result
    counted = result.expected or ExpectedSize(
        records=len(result.records), size_bytes=sum(row.size_bytes for row in result.records)
    )
    left = share.size_bytes
    if left is not None:
        left = max(0, left - (counted.size_bytes or 0))
    rest = LimitShare(records=share.records - counted.records, size_bytes=left)
    span = intake.span_ms(rest.records, rest.size_bytes)
    target = EpochMillis(result.end.arrival + span)
    quiet = result.cursor.quiet
    most = _wanted(result.cursor, rest)
    is_quiet = quiet is not None and result.end.arrival < quiet.since <= target
    if is_quiet or target >= result.time - NEAR_MS:
        return (yield from search_near_latest(start, result, most=most))
    if span < 1:
        return result
    later = yield from find_by_time(result, target)
    if later is None:
        cursor = replace(result.cursor, quiet=QuietPeriod(since=target, at=result.time))
        no_record = replace(result, cursor=cursor)
        return (yield from search_near_latest(start, no_record, most=most))
    return result if later is result else _estimated(later, result.end.arrival, target, counted)


def _estimated(
    result: ProbeResult, since: EpochMillis, target: EpochMillis, counted: ExpectedSize
) -> ProbeResult:
    """Return the finding with the expected size up to its end: `counted`, plus the intake after
    `since`. A gap after `target` is not counted as if it had records."""
    intake = result.cursor.intake
    if intake is None or result.end is None:
        return result
    gap_ms = intake.clump * intake.millis / intake.records
    until = min(result.end.arrival, target + math.ceil(gap_ms))
    records, size = intake.within(until - since)
    margin = MARGIN + 1 / math.sqrt(max(1, records))
    expected = ExpectedSize(
        records=counted.records + math.ceil(records * margin) + PROBE_RECORDS,
        size_bytes=(counted.size_bytes or 0) + math.ceil(size * margin),
    )
    return replace(
        result, expected=expected, cursor=replace(result.cursor, intake=intake.record_use())
    )
