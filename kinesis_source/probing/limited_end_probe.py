"""Finds the end of a batch under a limit in one shard.

A limit of up to 2 MiB is met exactly: the driver reads the records' sizes, and the caller cuts
them. That costs half of the shard's read rate, since the tasks read the same records again. So if
the shard's records are many, or the limit is larger, the end is found by time: a batch that spans
no more time than the shard needs to take in the limit at the highest rate that the service
accepts is within the limit, whatever the sizes of its records. Such an end costs one record. Where
that time is shorter than the trigger interval, the rate is counted before each end instead.
Generators, as `probe_protocol.py` describes them; no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Sequence
from itertools import accumulate

import msgspec

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.client.api import MAX_PAGE_BYTES, ThrottledError
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import AfterRecord, EpochMillis, ShardState
from spark_ssp.kinesis_source.probing.batch_end_probe import (
    NEAR_MS,
    check_first_page,
    fetch_from_start,
    fetch_second_page,
    find_by_time,
    known_records,
    probe_to_shard_end,
    read_on,
    records_of,
    search_near_latest,
    to_result,
)
from spark_ssp.kinesis_source.probing.intake_rate import Intake, at_quota_ms, count
from spark_ssp.kinesis_source.probing.probe_protocol import (
    Lookahead,
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
EXACT_BYTES = 2 * 1024 * 1024
"""The largest part of a limit per shard that is read on the driver and met exactly: the bytes that
a shard returns in a second (Kinesis quotas)."""
EXACT_RECORDS = 1000
"""The number of records that are kept of any shard, to be cut exactly."""
FIRST_RECORDS = 100
"""The records read while their size is unknown, if the limit counts records."""
COUNT_BYTES = 512 * 1024
"""The bytes read to count records where ends are found by time: the intake of a shard in half a
second (Kinesis quotas)."""
BATCH_BYTES = 700 * 1024
"""The expected size above which a batch ends by time. A smaller one takes as many calls as one that
is read on the driver, and those bound both."""
PROBE_PART = 8
"""Ends are found by time if the largest record is at most this part of the batch. Otherwise the
number of records would be too uncertain: a task that requests too many reads megabytes in vain."""
ENOUGH = 0.75
"""If the records read contain this part of the limit, the batch ends with them."""
BURST_MS = 1000
"""A shard accepts at once what it did not take in during the second before (Kinesis quotas)."""
EXCESS = 1.1
"""The largest batch, in units of its limit, if the rate of the shard rises: with a burst it is
1.25, in the mean of ten batches."""


NOTHING = ExpectedSize(records=0, size_bytes=0)


class LimitShare(msgspec.Struct, frozen=True, kw_only=True):
    """A shard's share of the limits of a batch; `size_bytes` is None if unlimited."""

    records: int = MANY_RECORDS
    size_bytes: int | None = None
    excess: float = EXCESS
    """The largest batch, in units of the limit, if the shard's intake rises to its quota."""
    least_ms: int = 0
    """A time that the batch spans if it is within the limit at the counted rate, though it may be
    above `excess` at the quota: in less, a query with a long trigger interval falls behind."""
    kept: int = EXACT_RECORDS
    """The most records to keep, to be cut exactly."""
    ahead: int = EXACT_RECORDS
    """The most records of a page that is larger than the share, for the next batches."""
    lookahead_bytes: int = 0
    """The bytes to read beyond the share for the next batches, while the share is met exactly."""
    until: EpochMillis | None = None
    """The latest time at which an end is searched by time: that of the other shards."""

    @property
    def is_kept_at_quota(self) -> bool:
        """Return whether a batch is within `excess` at any rate, so that old counts do no harm."""
        return at_quota_ms(self.records, self.size_bytes, self.excess) >= self.least_ms

    def span_ms(self, intake: Intake, counted: ExpectedSize = NOTHING) -> int:
        """Return the time of the rest of the limit after the records `counted`."""
        left = self.size_bytes
        if left is not None:
            left -= counted.size_bytes or 0
        records = self.records - counted.records
        return intake.span_ms(records, left, excess=self.excess, least_ms=self.least_ms)

    def is_reached_by(self, rows: Sequence[RecordRef]) -> bool:
        """Return whether the limit leaves no room after these records."""
        size = sum(row.size_bytes for row in rows)
        return len(rows) >= self.records or (
            self.size_bytes is not None and size >= self.size_bytes
        )

    def is_exceeded_by(self, rows: Sequence[RecordRef]) -> bool:
        """Return whether the limit leaves some of these records out."""
        size = sum(row.size_bytes for row in rows)
        return len(rows) > self.records or (self.size_bytes is not None and size > self.size_bytes)


def scan_ahead(
    start: ShardState,
    cursor: ShardCursor,
    now: EpochMillis,
    kept_ms: int,
    share: LimitShare,
    *,
    closed: bool = False,
    persistent: bool = False,
) -> ProbeSteps:
    """Find the records that follow the start, up to the share of the limits or farther. A `closed`
    shard is probed until it shows its end. `persistent`: pages are fetched until one has a record,
    or is at the latest.

    The records are returned for the caller to cut exactly, unless the end is `found_by_time`:
    that is within the share, as described above.
    """
    known = known_records(start, cursor, now, kept_ms)
    if known and share.is_reached_by(known.records):
        return _from_memory(cursor, known, now)
    if _can_skip_count(start, cursor, share):
        estimated = yield from _by_time(start, cursor, now, share)
        if isinstance(estimated, ProbeResult):
            return estimated
        cursor = estimated
    since = cursor.reached_ms if cursor.position == start.position else None
    if known:
        since = known.records[-1].arrival
        result = yield from read_on(start, cursor, known, now, _page_limit(cursor, share))
    else:
        page, cursor = yield from fetch_from_start(
            start, cursor, _page_limit(cursor, share), now, persistent=persistent
        )
        result = to_result(start, cursor, check_first_page(start, cursor, page, kept_ms))
        if page.records and (result.end is None or cursor.record_bytes is None):
            result = yield from _fetch_second_page(start, result, share)
    if closed:
        result = yield from probe_to_shard_end(start, result, _page_limit(result.cursor, share))
    if result.end is None or result.start_lost:
        return result
    fresh = result.records[len(known.records) if known else 0 :]
    result = _cut(replace(result, cursor=_learn(result.cursor, fresh, since)), share)
    if not result.has_more or not _continues_by_time(result, share):
        return result
    try:
        return (yield from _continue_by_time(start, result, share))
    except ThrottledError:
        return result


# --- How much ------------------------------------------------------------------------------------


def _size_of(cursor: ShardCursor, share: LimitShare) -> float:
    """Return the limit in bytes; one of records is converted by the size of the records seen."""
    of_records = share.records * (cursor.record_bytes or MAX_PAGE_BYTES)
    return of_records if share.size_bytes is None else min(share.size_bytes, of_records)


def _ends_by_time(cursor: ShardCursor, share: LimitShare) -> bool:
    """Return whether ends are found by time at the rate counted, with counts in between."""
    intake = cursor.intake
    if intake is None or cursor.record_bytes is None or intake.exceeds_quota:
        return False
    _, size = intake.within(share.span_ms(intake))
    return size >= max(BATCH_BYTES, PROBE_PART * intake.largest)


def _page_limit(cursor: ShardCursor, share: LimitShare) -> int:
    """Return the limit of the page from the start."""
    if cursor.record_bytes is None:
        return min(share.records, FIRST_RECORDS) if share.size_bytes is None else 1
    size = _size_of(cursor, share)
    if _ends_by_time(cursor, share):
        return min(share.records, records_of(cursor, min(COUNT_BYTES, int(size))))
    fast = cursor.intake is not None and cursor.intake.exceeds_quota
    wanted = int(min(size, MAX_PAGE_BYTES if fast else EXACT_BYTES))
    limit = min(share.records, 1 + records_of(cursor, wanted))
    further = records_of(cursor, wanted + share.lookahead_bytes) if share.lookahead_bytes else 0
    return max(limit, min(further, share.ahead))


def _fetch_second_page(start: ShardState, result: ProbeResult, share: LimitShare) -> ProbeSteps:
    """Read a second page if the first was small or contained only the start record."""
    limit = _page_limit(result.cursor, share)
    if result.end is not None and share.is_reached_by(result.records):
        return result
    return (yield from fetch_second_page(start, result, max(1, limit - len(result.records))))


def _cut(result: ProbeResult, share: LimitShare) -> ProbeResult:
    """Cut a large page by the shard's part of the limit, and keep few of its records."""
    if len(result.records) <= share.kept:
        return result
    sizes = list(accumulate(row.size_bytes for row in result.records))
    fitting = len(sizes)
    if share.size_bytes is not None:
        fitting = bisect_right(sizes, share.size_bytes)
    fitting = max(share.kept, min(fitting, share.records))
    kept = replace(result, records=result.records[: share.kept], end=result.records[fitting - 1])
    if fitting > share.kept:
        size = ExpectedSize(records=fitting, size_bytes=sizes[fitting - 1])
        kept = replace(kept, found_by_time=True, expected=size)
    if fitting == len(sizes):
        return kept
    end = result.records[fitting - 1]
    cursor = replace(
        result.cursor, position=end.position, reached_ms=end.arrival, cached_iterator=None
    )
    behind = max(result.millis_behind, result.time - result.records[fitting].arrival, 1)
    return replace(kept, at_latest=False, closed=False, millis_behind=behind, cursor=cursor)


def _learn(
    cursor: ShardCursor, rows: Sequence[RecordRef], since: EpochMillis | None
) -> ShardCursor:
    """Return the cursor with the rate and the size of `rows`, which follow a record of `since`. The
    size rises at once: a page that is larger than wanted costs more than one that is smaller."""
    if not rows:
        return cursor
    mean = sum(row.size_bytes for row in rows) / len(rows)
    return replace(
        cursor,
        intake=count(rows, since, cursor.intake),
        record_bytes=max(mean, cursor.record_bytes or 0.0),
    )


def _counted(result: ProbeResult) -> ExpectedSize:
    return result.expected or ExpectedSize(
        records=len(result.records), size_bytes=sum(row.size_bytes for row in result.records)
    )


# --- Records that an earlier page had ------------------------------------------------------------


def _from_memory(cursor: ShardCursor, known: Lookahead, now: EpochMillis) -> ProbeResult:
    """Return the result without a call."""
    end = known.records[-1]
    return ProbeResult(
        records=known.records,
        end=end,
        millis_behind=max(1, now - end.arrival),
        time=now,
        fetches=0,
        cursor=replace(
            cursor,
            position=end.position,
            cached_iterator=known.cached_iterator,
            reached_ms=end.arrival,
            lookahead=None,
        ),
    )


# --- By time -------------------------------------------------------------------------------------


def _can_skip_count(start: ShardState, cursor: ShardCursor, share: LimitShare) -> bool:
    """Return whether the end is searched by time immediately, without a page from the start. False
    if the start was the latest record: the page from there is one call while the shard is quiet."""
    at_latest = cursor.cached_iterator is not None and cursor.cached_iterator.at_latest
    return (
        cursor.proven
        and not at_latest
        and cursor.position == start.position
        and isinstance(start.position, AfterRecord)
        and _begin_ms(cursor) is not None
        and cursor.intake is not None
        and cursor.intake.is_trusted
        and share.is_kept_at_quota
        and _ends_by_time(cursor, share)
    )


def _by_time(
    start: ShardState, cursor: ShardCursor, now: EpochMillis, share: LimitShare
) -> Generator[Request, Response, ProbeResult | ShardCursor]:
    """Find the first record at the end of the batch's time. If that is near the latest record or
    finds nothing, return the cursor: a page from the start is needed."""
    position, reached = start.position, _begin_ms(cursor)
    if not isinstance(position, AfterRecord) or reached is None:
        return cursor
    target = end_by_time(cursor, share)
    if target is None or not reached < target < now - NEAR_MS:
        return cursor
    start_record = RecordRef(
        sequence_number=position.sequence_number,
        last_sub=position.sub,
        arrival=reached,
        size_bytes=0,
    )
    at_start = ProbeResult(end=start_record, time=now, cursor=cursor)
    later = yield from find_by_time(at_start, target, limit=1)
    if later is None:
        return replace(cursor, quiet=QuietPeriod(since=target, at=now))
    if later is at_start:
        return cursor
    return _estimated(later, reached, target, NOTHING)


def end_by_time(cursor: ShardCursor, share: LimitShare) -> EpochMillis | None:
    """Return the time at which a batch ends that is found by time; None if its end is not. The time
    begins where that of the batch before had to end, up to a second before the start: a shard may
    take in at once what it did not take in meanwhile."""
    reached, intake = _begin_ms(cursor), cursor.intake
    if reached is None or intake is None or not _ends_by_time(cursor, share):
        return None
    begin = max(cursor.window_end_ms or reached, reached - BURST_MS)
    return _until(EpochMillis(begin + share.span_ms(intake)), share)


def _begin_ms(cursor: ShardCursor) -> EpochMillis | None:
    """Return the arrival of the record at the cursor's position, or of the one that follows it if
    only that is known; None if neither is."""
    if cursor.reached_ms is None and cursor.lookahead is not None:
        return cursor.lookahead.records[0].arrival
    return cursor.reached_ms


def _until(time: EpochMillis, share: LimitShare) -> EpochMillis:
    return time if share.until is None else min(time, share.until)


def _continues_by_time(result: ProbeResult, share: LimitShare) -> bool:
    """Return whether the batch continues by time after the records that were read."""
    cursor, counted = result.cursor, _counted(result)
    if cursor.intake is None or cursor.intake.exceeds_quota:
        page = MAX_PAGE_BYTES
    elif _ends_by_time(cursor, share):
        page = 0
    else:
        page = EXACT_BYTES
    if _size_of(cursor, share) <= page:
        return False
    if counted.records >= ENOUGH * share.records:
        return False
    return share.size_bytes is None or (counted.size_bytes or 0) < ENOUGH * share.size_bytes


def _continue_by_time(start: ShardState, result: ProbeResult, share: LimitShare) -> ProbeSteps:
    """Continue from the counted records for the time of the rest of the limit."""
    intake = result.cursor.intake
    if result.end is None or intake is None:
        return result
    counted = _counted(result)
    span = share.span_ms(intake, counted)
    reached = result.end.arrival
    target = _until(EpochMillis(reached + span), share)
    if target <= reached:
        return result
    quiet = result.cursor.quiet
    is_quiet = (
        quiet is not None
        and reached < quiet.since
        and quiet.since - reached + result.time - quiet.at <= span
    )
    if not is_quiet and target < result.time:
        if span < 1:
            return result
        later = yield from find_by_time(result, target, limit=1)
        if later is result:
            return result
        if later is not None:
            return _estimated(later, reached, target, counted)
        cursor = replace(result.cursor, quiet=QuietPeriod(since=target, at=result.time))
        result = replace(result, cursor=cursor)
    most = share.records - counted.records
    later = yield from search_near_latest(start, result, most=most)
    if later.end is None or later.expected is not None or not later.found_by_time:
        return later
    millis = max(0, later.end.arrival - reached)
    return replace(later, expected=intake.expected(millis, counted))


def _estimated(
    result: ProbeResult, since: EpochMillis, target: EpochMillis, counted: ExpectedSize
) -> ProbeResult:
    """Return the finding with the expected size up to its end: `counted`, plus the intake from
    `since`. An unusual gap after `target` is not counted as if it had records."""
    intake = result.cursor.intake
    if intake is None or result.end is None:
        return result
    millis = min(result.end.arrival, target + intake.gap_ms) - since
    cursor = replace(
        result.cursor, intake=intake.record_end(result.end.size_bytes), window_end_ms=target
    )
    return replace(result, expected=intake.expected(millis, counted), cursor=cursor)
