"""Finds the end of a batch without a limit in one shard, without reading the data twice.

`probe` starts with a page from the start, a few records wide. If it is empty at the latest record,
the shard is quiet, and its iterator is kept, so that the next trigger costs one call. If it reaches
the latest record, the last record seen is the end. Otherwise `search_near_latest` searches by time
for a record near the latest one.

Ends are never before the start. Any record found exists in the shard, which is the only requirement
for an end. Generators, as `probe_protocol.py` describes them; no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import msgspec

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.client.api import ExpiredIteratorError, ThrottledError
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    SequenceNumber,
    ShardState,
    sequence_order,
)
from spark_ssp.kinesis_source.planning.data_loss import Evidence, Verdict, judge
from spark_ssp.kinesis_source.probing.probe_protocol import (
    MIN_WINDOW_MS,
    PAGE_RECORDS,
    PROBE_RECORDS,
    Lookahead,
    PageView,
    ProbeResult,
    ProbeSteps,
    QuietPeriod,
    RecordRef,
    Request,
    Response,
    ShardCursor,
    cached_iterator_after,
    follow_iterator,
    open_iterator,
)

PEEK_BYTES = 64 * 1024
"""The most that a page from the start may fetch, as estimated from earlier records."""
PEEK_RECORDS = 500
REST_BYTES = 2 * 1024 * 1024
"""The most that the driver fetches if no probe by time gets further: the bytes that a shard returns
in a second (Kinesis quotas)."""
REST_MS = 3000
"""The longest gap between the last record found and the quiet period after it that is read instead
of halved."""
NEAR_MS = 1000
"""An end at most this far from the latest record is near enough."""
MAX_TIME_PROBES = 3
"""The most probes by time in one trigger; a later one continues. With the page from the start and
the rest they are the five GetRecords that a shard answers in a second (Kinesis API reference); a
second page from the start is a sixth, and so is a check of an old quiet period."""
QUIET_MS = 5000
"""The time that a quiet period is assumed to last before it is checked for new records."""
WIDE_GAP_MS = 5 * 60 * 1000
"""A gap above this is halved on a logarithmic scale: the latest record is more likely near its
end."""
MAX_PAGES_TO_SHARD_END = 3
"""The most further pages requested from a closed shard that shows neither a record nor its end,
because of the same five GetRecords; the next probe continues there."""
ITERATOR_LIFE_MS = 4 * 60 * 1000
"""Iterators live five minutes (GetShardIterator); a minute is left for the call itself."""


def fetch_from_start(
    start: ShardState,
    cursor: ShardCursor,
    limit: int,
    now: EpochMillis,
    *,
    persistent: bool = False,
) -> Generator[Request, Response, tuple[PageView, ShardCursor]]:
    """Fetch the first page after the start, by the cached iterator if it is still valid."""
    cached = cursor.cached_iterator
    usable = (
        cached is not None
        and cursor.position == start.position
        and 0 <= now - cached.issued < ITERATOR_LIFE_MS
    )
    if usable and cached is not None:
        try:
            page = yield from follow_iterator(
                cached.iterator, limit, record_bytes=cursor.record_bytes, persistent=persistent
            )
        except ExpiredIteratorError:
            pass  # the service's clock decides, not ours: open another
        else:
            return page, cursor
    inclusive = isinstance(start.position, AfterRecord)
    iterator = yield from open_iterator(start.position, inclusive=inclusive)
    room = limit + 1 if inclusive else limit
    page = yield from follow_iterator(
        iterator, room, record_bytes=cursor.record_bytes, persistent=persistent
    )
    return page, replace(cursor, proven=False)


def known_records(
    start: ShardState, cursor: ShardCursor, now: EpochMillis, kept_ms: int
) -> Lookahead | None:
    """Return the records after the start that an earlier page had and a batch left out; None if the
    first of them may be trimmed by now."""
    known = cursor.lookahead
    if known is None or known.position != start.position:
        return None
    return known if known.records[0].arrival > now - kept_ms else None


def read_on(
    start: ShardState, cursor: ShardCursor, known: Lookahead, now: EpochMillis, limit: int
) -> ProbeSteps:
    """Read the page after the records that are known, up to `limit` records together."""
    page = yield from _page_after(
        known, max(1, limit - len(known.records)), now, cursor.record_bytes
    )
    head = FirstPage(page=page, records=known.records + page.records, lost=False, first=None)
    return to_result(start, cursor, head)


def _page_after(
    known: Lookahead, limit: int, now: EpochMillis, record_bytes: float | None
) -> Generator[Request, Response, PageView]:
    cached = known.cached_iterator
    if cached is not None and 0 <= now - cached.issued < ITERATOR_LIFE_MS:
        try:
            return (yield from follow_iterator(cached.iterator, limit, record_bytes=record_bytes))
        except ExpiredIteratorError:
            pass  # the service's clock decides, not ours: open another
    iterator = yield from open_iterator(known.records[-1].position)
    return (yield from follow_iterator(iterator, limit, record_bytes=record_bytes))


def _peek_limit(cursor: ShardCursor) -> int:
    """Return the limit of the first page: a few records, or more if only a short gap before a
    silence is left."""
    quiet, reached = cursor.quiet, cursor.reached_ms
    if quiet is not None and reached is not None and 0 < quiet.since - reached <= REST_MS:
        return records_of(cursor, REST_BYTES)
    return min(PEEK_RECORDS, records_of(cursor, PEEK_BYTES))


def records_of(cursor: ShardCursor, size: int) -> int:
    """Return the number of records that make about `size` bytes; one while their size is
    unknown."""
    if cursor.record_bytes is None:
        return 1
    return max(1, min(PAGE_RECORDS, int(size / max(cursor.record_bytes, 1.0))))


def _mean_size(cursor: ShardCursor, page: PageView) -> float | None:
    if not page.records:
        return cursor.record_bytes
    mean = page.size_bytes / len(page.records)
    return mean if cursor.record_bytes is None else 0.7 * cursor.record_bytes + 0.3 * mean


# --- The start -----------------------------------------------------------------------------------


class FirstPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first page, without the start record."""

    page: PageView
    records: tuple[RecordRef, ...]
    lost: bool
    first: SequenceNumber | None


def check_first_page(
    start: ShardState, cursor: ShardCursor, page: PageView, kept_ms: int
) -> FirstPage:
    """Drop the start record, and judge whether the records after the start are still in the
    shard."""
    position = start.position
    result = page.records[0].sequence_number if page.records else None
    # An empty page before the latest record proves nothing: the caller probes again.
    undecided = not page.records and page.millis_behind > 0
    evidence = Evidence(found=result, time=page.time, kept_ms=kept_ms)
    lost = not cursor.proven and not undecided and judge(start, evidence) is Verdict.LOST
    if not isinstance(position, AfterRecord):
        return FirstPage(page=page, records=page.records, lost=lost, first=result)
    rows = page.records
    if not cursor.proven and rows and rows[0].order == sequence_order(position.sequence_number):
        rows = rows if rows[0].last_sub > position.sub else rows[1:]
    return FirstPage(page=page, records=rows, lost=lost, first=None)


def to_result(start: ShardState, cursor: ShardCursor, head: FirstPage) -> ProbeResult:
    """Return the result of the first page."""
    page = head.page
    undecided = not page.records and page.millis_behind > 0 and page.next_iterator is not None
    end = head.records[-1] if head.records else None
    # Not by `replace`, which would be the slowest step: this runs for every shard and probe.
    remembered = ShardCursor(
        position=end.position if end else start.position,
        cached_iterator=cached_iterator_after(page),
        window_ms=cursor.window_ms,
        record_bytes=_mean_size(cursor, page),
        proven=cursor.proven or not undecided,
        reached_ms=end.arrival if end else cursor.reached_ms,
        quiet=cursor.quiet,
        intake=cursor.intake,
    )
    return ProbeResult(
        records=head.records,
        end=end,
        at_latest=page.at_latest,
        closed=page.next_iterator is None,
        millis_behind=page.lag,
        time=page.time,
        start_lost=head.lost,
        first=head.first,
        cursor=remembered,
    )


# --- The end of an ordinary trigger --------------------------------------------------------------


def probe(start: ShardState, cursor: ShardCursor, now: EpochMillis, kept_ms: int) -> ProbeSteps:
    """Find an end near the latest record with at most MAX_TIME_PROBES + 3 pages, usually one or
    two."""
    known = known_records(start, cursor, now, kept_ms)
    if known is not None:
        result = yield from read_on(start, cursor, known, now, _peek_limit(cursor))
    else:
        page, cursor = yield from fetch_from_start(start, cursor, _peek_limit(cursor), now)
        result = to_result(start, cursor, check_first_page(start, cursor, page, kept_ms))
        if page.records and (result.end is None or cursor.record_bytes is None):
            result = yield from fetch_second_page(start, result, _peek_limit(result.cursor))
    if result.end is None or result.start_lost or not result.has_more:
        return result
    try:
        return (yield from search_near_latest(start, result))
    except ThrottledError:
        return result  # the first page is still valid


def probe_starved(
    start: ShardState, cursor: ShardCursor, now: EpochMillis, kept_ms: int
) -> ProbeSteps:
    """Find an end near the latest record with one page if possible, for a shard whose pages other
    readers use up.

    The page is of a time shortly before `now`; if it shows nothing after the start, the shard is
    probed from there, as is one that was quiet at its last probe. The task that reads the range
    checks that the records at its start are there.
    """
    position = start.position
    if not isinstance(position, AfterRecord) or _was_quiet(position, cursor):
        return (yield from probe(start, cursor, now, kept_ms))
    known = ProbeResult(time=now, cursor=cursor)
    found = yield from find_by_time(known, EpochMillis(now - cursor.window_ms))
    if found is not None and found.end is not None:
        end, begin = found.end, (sequence_order(position.sequence_number), position.sub)
        if (end.order, end.last_sub) > begin:
            return found
        if end.order == begin[0] and found.at_latest:
            cursor = replace(found.cursor, position=position)
            return replace(found, end=None, found_by_time=False, cursor=cursor)
    return (yield from probe(start, cursor, now, kept_ms))


def _was_quiet(position: AfterRecord, cursor: ShardCursor) -> bool:
    """Return whether the last probe found that nothing had followed `position` for some time. One
    page from there then has all later records, or there are too many for a quiet shard."""
    cached = cursor.cached_iterator
    if cached is None or not cached.at_latest or cursor.position != position:
        return False
    return cursor.reached_ms is None or cached.issued - cursor.reached_ms > NEAR_MS


def fetch_second_page(start: ShardState, result: ProbeResult, limit: int) -> ProbeSteps:
    """Fetch a second page, if the first was one record wide or contained only the start record."""
    cached = result.cursor.cached_iterator
    if cached is None or not result.has_more or result.start_lost:
        return result
    try:
        page = yield from follow_iterator(
            cached.iterator, limit, record_bytes=result.cursor.record_bytes
        )
    except ThrottledError:
        return result
    head = FirstPage(
        page=page, records=result.records + page.records, lost=False, first=result.first
    )
    return to_result(start, result.cursor, head)


def find_first_record(
    start: ShardState,
    cursor: ShardCursor,
    now: EpochMillis,
    kept_ms: int,
    *,
    closed: bool = False,
) -> ProbeSteps:
    """Find the first record to read, if the end is known without a probe. `closed`: the shard is to
    be read to its end, so pages are followed until one has a record or the shard ends."""
    page, cursor = yield from fetch_from_start(start, cursor, 1, now, persistent=True)
    result = to_result(start, cursor, check_first_page(start, cursor, page, kept_ms))
    if closed and result.end is None:
        result = yield from probe_to_shard_end(start, result, 1)
    return result


def find_oldest(state: ShardState, cursor: ShardCursor, now: EpochMillis) -> ProbeSteps:
    """Find the first record at a position: `end`, if there is one. After many empty pages the next
    probe continues where this one ends."""
    page, cursor = yield from fetch_from_start(state, cursor, 1, now)
    return ProbeResult(
        end=page.records[0] if page.records else None,
        at_latest=page.at_latest,
        closed=not page.records and page.next_iterator is None,
        time=max(now, page.time),
        cursor=replace(
            cursor, position=state.position, cached_iterator=cached_iterator_after(page)
        ),
    )


def probe_to_shard_end(start: ShardState, result: ProbeResult, limit: int) -> ProbeSteps:
    """Fetch further pages of a closed shard, which has no latest record but an end.

    Its last records may come with an iterator, as if more could follow, and only the page after
    them shows the end. Until then more may follow: records that were put shortly before the shard
    was closed may become visible later.
    """
    for _ in range(MAX_PAGES_TO_SHARD_END):
        cached = result.cursor.cached_iterator
        if not result.at_latest or cached is None:
            break
        try:
            page = yield from follow_iterator(cached.iterator, limit, persistent=True)
        except ThrottledError:
            break
        found = page.records[0].sequence_number if page.records else None
        head = FirstPage(
            page=page,
            records=result.records + page.records,
            lost=result.start_lost,
            first=result.first or found,
        )
        result = to_result(start, result.cursor, head)
    return result


def search_near_latest(
    start: ShardState, result: ProbeResult, most: int = PAGE_RECORDS
) -> ProbeSteps:
    """Move the end from an older record to one near the latest.

    Narrows the gap between the last record found and the time after which none was found. In an
    active shard, the first probe, `window_ms` before now, finds a record. In one that has become
    quiet the gap is kept, halved further in the next trigger, and read once it is short, up to
    `most` records.
    """
    if result.end is None or result.time - result.end.arrival <= MIN_WINDOW_MS:
        return result
    gap = _Gap(result)
    probes = 0
    while probes < MAX_TIME_PROBES and gap.best.has_more and not gap.is_narrow:
        try:
            gap.record((yield from find_by_time(gap.best, gap.next_target())))
        except ThrottledError:
            if gap.best is result:
                raise
            break
        probes += not gap.is_confirmed
    best = gap.result()
    if not best.has_more or (best.found_by_time and not gap.is_quiet) or gap.is_wide:
        return best
    limit = min(most, records_of(best.cursor, REST_BYTES))
    return (yield from _read_rest(start, best, limit))


class _Gap:
    """The time from the last record found (`low`) to that after which none was found (`high`)."""

    def __init__(self, result: ProbeResult) -> None:
        self.best = self._found = result
        self._time = result.time
        self._low = _arrival(result)
        self._window = result.cursor.window_ms
        quiet = result.cursor.quiet
        self._quiet = quiet if quiet is not None and quiet.since > self._low else None
        self._high = result.time if self._quiet is None else self._quiet.since
        self._probes = 0
        self._target = self._time
        self.is_confirmed = False
        """True if the last probe showed that an old quiet period lasts, so it narrowed nothing."""

    @property
    def is_quiet(self) -> bool:
        """Return whether a probe found no recent records."""
        return self._quiet is not None

    @property
    def is_narrow(self) -> bool:
        """Return whether no probe by time gets further."""
        known = self._quiet is not None or self.best is not self._found
        return self._high - self._low <= (NEAR_MS if known else MIN_WINDOW_MS)

    @property
    def is_wide(self) -> bool:
        """Return whether a record was found by time and too many records follow it to read here."""
        return self.best.found_by_time and self._high - self._low > REST_MS

    def next_target(self) -> EpochMillis:
        """Return the time of the next probe."""
        target = self._next()
        if not self._low < target < self._high:
            target = EpochMillis((self._low + self._high) // 2)
        self._target = target
        self._probes += 1
        return target

    def _next(self) -> EpochMillis:
        if self._quiet is not None and self._is_old(self._quiet):
            self._high = self._time
            return self._quiet.at  # it may have ended since
        youngest, oldest = self._time - self._high, self._time - self._low
        if self._quiet is None and self._probes == 0:
            return EpochMillis(self._time - self._window)
        if oldest > WIDE_GAP_MS and oldest > 16 * youngest:
            return EpochMillis(self._time - math.isqrt(max(1, youngest) * oldest))
        return EpochMillis((self._low + self._high) // 2)

    def _is_old(self, quiet: QuietPeriod) -> bool:
        return self._time - quiet.at > QUIET_MS

    def record(self, later: ProbeResult | None) -> None:
        """Record the result of the probe at the last target."""
        self.is_confirmed = later is None and self._quiet is not None and self._is_old(self._quiet)
        if later is None:
            since = self._target if self._quiet is None else min(self._target, self._quiet.since)
            self._quiet = QuietPeriod(since=since, at=self._time)
            self._high = since
            return
        if self._quiet is not None and self._target >= self._quiet.since:
            # The quiet period has ended: the next probe is near the present again.
            self._quiet, self._probes = None, 0
        if later is self.best:
            self._low = self._target
            return
        if self._probes == 1 and self._quiet is None:
            self._window //= 2  # One probe was enough: start closer to now the next time.
        elif self._probes == 2 and self._quiet is not None:
            self._window = min(2 * self._window, self._time - self._target)
        self.best = later
        self._low = max(self._target, _arrival(later))

    def result(self) -> ProbeResult:
        """Return the best end, with the cursor for the next trigger."""
        cursor = replace(
            self.best.cursor,
            window_ms=max(MIN_WINDOW_MS, self._window),
            quiet=self._quiet,
        )
        return replace(self.best, cursor=cursor)


def _arrival(result: ProbeResult) -> EpochMillis:
    return result.time if result.end is None else result.end.arrival


def _read_rest(start: ShardState, result: ProbeResult, limit: int) -> ProbeSteps:
    """Move the end to that of the page that follows it. `records` is left unchanged: the page may
    have thousands, for each of many shards."""
    longer = yield from fetch_second_page(start, replace(result, records=()), limit)
    if not longer.records:
        cursor = replace(
            longer.cursor, position=result.cursor.position, reached_ms=result.cursor.reached_ms
        )
        return replace(
            longer,
            end=result.end,
            records=result.records,
            found_by_time=result.found_by_time,
            cursor=cursor,
        )
    expected = None
    if not result.found_by_time:
        read = result.records + longer.records
        expected = ExpectedSize(records=len(read), size_bytes=sum(row.size_bytes for row in read))
    return replace(longer, records=result.records, found_by_time=True, expected=expected)


def find_by_time(
    result: ProbeResult, target: EpochMillis, limit: int = PROBE_RECORDS
) -> Generator[Request, Response, ProbeResult | None]:
    """Find the last of the first `limit` records at `target` or later; None if there is none.

    Returns the same result if that record precedes the known end.
    """
    iterator = yield from open_iterator(AtTimestamp(millis=target))
    page = yield from follow_iterator(iterator, limit, record_bytes=result.cursor.record_bytes)
    if not page.records:
        return None
    row = page.records[-1]
    if result.end is not None and row.order <= result.end.order:
        return result
    return replace(
        result,
        end=row,
        found_by_time=True,
        expected=None,
        at_latest=page.at_latest,
        closed=page.next_iterator is None,
        millis_behind=page.lag,
        time=page.time,
        cursor=replace(
            result.cursor,
            position=row.position,
            cached_iterator=cached_iterator_after(page),
            proven=True,
            reached_ms=row.arrival,
        ),
    )
