"""Where a batch without a limit ends in one shard, found without reading the data twice.

`probe` looks from the start first, a few records wide. Empty at the tip: the shard is quiet, and
the cursor that stands at the tip is kept, so that the next trigger costs one call. The tip reached:
the last record seen is the end. Otherwise `near_tip` searches by time for a record near the tip.

Ends are never before the start. Any record found exists in the shard, which is the only requirement
for an end. Generators, as `probe_protocol.py` describes them; no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

from kinesis_source.client.api import ExpiredIteratorError, ThrottledError
from kinesis_source.model.ranges import ExpectedSize
from kinesis_source.model.read_loss import Evidence, Verdict, judge
from kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    SequenceNumber,
    ShardState,
    sequence_order,
)
from kinesis_source.probing.probe_protocol import (
    MIN_WINDOW_MS,
    PAGE_RECORDS,
    PROBE_RECORDS,
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
"""How much a look from the start may fetch, as estimated from the records seen before."""
PEEK_RECORDS = 500
REST_BYTES = 2 * 1024 * 1024
"""The most that may be fetched on the driver if no look by time leads further: the bytes that a
shard returns in a second (Kinesis quotas)."""
REST_MS = 3000
"""The longest gap between the last record found and the silence after it that is read instead of
halved."""
NEAR_MS = 1000
"""An end that is known to be so near the tip, or nearer, is not looked for any closer."""
MAX_TIME_PROBES = 3
"""So many looks by time at most in one trigger; what is missed then is found in the next one. With
the look from the start and the rest they stay within the five GetRecords that a shard answers in a
second (Kinesis API reference)."""
QUIET_MS = 5000
"""How long a silence is assumed to last before it is checked for new records."""
WIDE_GAP_MS = 5 * 60 * 1000
"""A gap above this is narrowed by its logarithm: the tip is more likely near the younger end."""
MAX_PAGES_TO_SHARD_END = 3
"""So many more pages are asked of a closed shard that shows neither a record nor its end, for the
same reason; the next look goes on from there."""
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
    """The first page behind the start, by the remembered cursor if it still serves.

    Otherwise the start record is opened at, so that the page begins with it if the shard still
    has it. The memory comes back without its proof then: time may have passed, and the proof was
    about what a cursor led to.
    """
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


def _peek_limit(cursor: ShardCursor) -> int:
    """Return the limit of the first look: a few records, or more if only a short gap before a
    silence is left."""
    quiet, reached = cursor.quiet, cursor.reached_ms
    if quiet is not None and reached is not None and 0 < quiet.since - reached <= REST_MS:
        return records_of(cursor, REST_BYTES)
    return min(PEEK_RECORDS, records_of(cursor, PEEK_BYTES))


def records_of(cursor: ShardCursor, size: int) -> int:
    """How many records make about `size` bytes; one while their size is not known."""
    if cursor.record_bytes is None:
        return 1
    return max(1, min(PAGE_RECORDS, int(size / max(cursor.record_bytes, 1.0))))


def _mean_size(cursor: ShardCursor, page: PageView) -> float | None:
    if not page.records:
        return cursor.record_bytes
    mean = sum(row.size_bytes for row in page.records) / len(page.records)
    return mean if cursor.record_bytes is None else 0.7 * cursor.record_bytes + 0.3 * mean


# --- The start -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPage:
    """The first page, with the start record itself taken out."""

    page: PageView
    records: tuple[RecordRef, ...]
    lost: bool
    first: SequenceNumber | None


def check_first_page(
    start: ShardState, cursor: ShardCursor, page: PageView, retention_ms: int
) -> FirstPage:
    """Drop the start record, and judge whether the records after the start are still in the
    shard."""
    position = start.position
    result = page.records[0].sequence_number if page.records else None
    # An empty page that is not at the tip proves nothing either way: the caller looks again.
    undecided = not page.records and page.millis_behind > 0
    evidence = Evidence(found=result, time=page.time, retention_ms=retention_ms)
    lost = not cursor.proven and not undecided and judge(start, evidence) is Verdict.LOST
    if not isinstance(position, AfterRecord):
        return FirstPage(page=page, records=page.records, lost=lost, first=result)
    rows = page.records
    if not cursor.proven and rows and rows[0].order == sequence_order(position.sequence_number):
        rows = rows if rows[0].last_sub > position.sub else rows[1:]
    return FirstPage(page=page, records=rows, lost=lost, first=None)


def to_result(start: ShardState, cursor: ShardCursor, head: FirstPage) -> ProbeResult:
    """What the first page alone says."""
    page = head.page
    undecided = not page.records and page.millis_behind > 0 and page.next_iterator is not None
    end = head.records[-1] if head.records else None
    # Not by `replace`, which takes longer than all else: it is done for every shard and look.
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


def probe(
    start: ShardState, cursor: ShardCursor, now: EpochMillis, retention_ms: int
) -> ProbeSteps:
    """Find an end near the tip. It takes at most MAX_LOOKS + 3 pages, usually one or two."""
    page, cursor = yield from fetch_from_start(start, cursor, _peek_limit(cursor), now)
    result = to_result(start, cursor, check_first_page(start, cursor, page, retention_ms))
    if page.records and (result.end is None or cursor.record_bytes is None):
        result = yield from fetch_second_page(start, result, _peek_limit(result.cursor))
    if result.end is None or result.start_lost or not result.has_more:
        return result
    try:
        return (yield from search_near_latest(start, result))
    except ThrottledError:
        return result  # what the first page showed still stands


def fetch_second_page(start: ShardState, result: ProbeResult, limit: int) -> ProbeSteps:
    """A second page, where the first was one record wide or held the start record alone."""
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
    retention_ms: int,
    *,
    closed: bool = False,
) -> ProbeSteps:
    """The record with which reading begins, where an end is known without looking. `closed`: see
    `read_ahead`."""
    page, cursor = yield from fetch_from_start(start, cursor, 1, now, persistent=True)
    result = to_result(start, cursor, check_first_page(start, cursor, page, retention_ms))
    return (yield from probe_to_shard_end(start, result, 1)) if closed else result


def probe_to_shard_end(start: ShardState, result: ProbeResult, limit: int) -> ProbeSteps:
    """A closed shard has no tip, only an end; but its last records may come with an iterator, as
    if more could follow, and only the page after them says that it was all."""
    for _ in range(MAX_PAGES_TO_SHARD_END):
        cached = result.cursor.cached_iterator
        if result.end is not None or not result.at_latest or cached is None:
            break
        try:
            page = yield from follow_iterator(cached.iterator, limit, persistent=True)
        except ThrottledError:
            break
        first = page.records[0].sequence_number if page.records else None
        head = FirstPage(page=page, records=page.records, lost=result.start_lost, first=first)
        result = to_result(start, result.cursor, head)
    return result


def search_near_latest(
    start: ShardState, result: ProbeResult, most: int = PAGE_RECORDS
) -> ProbeSteps:
    """Move the end from a record before the tip to one near it.

    Narrows the gap between the last record found and the time after which none was found. In an
    active shard, the first look `window` before now finds a record. In one that has become silent
    the gap is remembered, halved further in the next trigger, and read once it is short, up to
    `most` records.
    """
    if result.end is None or result.time - result.end.arrival <= MIN_WINDOW_MS:
        return result
    gap = _Gap(result)
    for _ in range(MAX_TIME_PROBES):
        if not gap.best.has_more or gap.is_narrow:
            break
        try:
            gap.record((yield from find_by_time(gap.best, gap.next_target())))
        except ThrottledError:
            if gap.best is result:
                raise
            break
    best = gap.result()
    if not best.has_more or (best.found_by_time and not gap.is_quiet) or gap.is_wide:
        return best
    limit = min(most, records_of(best.cursor, REST_BYTES))
    return (yield from _read_rest(start, best, limit))


class _Gap:
    """The time between the last record found (`low`) and the time after which none was found
    (`high`)."""

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

    @property
    def is_quiet(self) -> bool:
        """Whether a look found no recent records."""
        return self._quiet is not None

    @property
    def is_narrow(self) -> bool:
        """Whether no look by time leads further."""
        known = self._quiet is not None or self.best is not self._found
        return self._high - self._low <= (NEAR_MS if known else MIN_WINDOW_MS)

    @property
    def is_wide(self) -> bool:
        """Whether a record was found by time and more records follow it than are read here."""
        return self.best.found_by_time and self._high - self._low > REST_MS

    def next_target(self) -> EpochMillis:
        """Return the time of the next look."""
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
        """Process the result of the look at the last target."""
        if later is None:
            since = self._target if self._quiet is None else min(self._target, self._quiet.since)
            self._quiet = QuietPeriod(since=since, at=self._time)
            self._high = since
            return
        if self._quiet is not None and self._target >= self._quiet.since:
            # The silence has ended: the next look is near the present again.
            self._quiet, self._probes = None, 0
        if later is self.best:
            self._low = self._target
            return
        if self._probes == 1 and self._quiet is None:
            self._window //= 2  # One look was enough: look closer to the tip the next time.
        elif self._probes == 2 and self._quiet is not None:
            self._window = min(2 * self._window, self._time - self._target)
        self.best = later
        self._low = max(self._target, _arrival(later))

    def result(self) -> ProbeResult:
        """Return the best end, with the memory for the next trigger."""
        cursor = replace(
            self.best.cursor,
            window_ms=max(MIN_WINDOW_MS, self._window),
            quiet=self._quiet,
        )
        return replace(self.best, cursor=cursor)


def _arrival(result: ProbeResult) -> EpochMillis:
    return result.time if result.end is None else result.end.arrival


def _read_rest(start: ShardState, result: ProbeResult, limit: int) -> ProbeSteps:
    """Apply the page that follows the end found so far. `rows` are unchanged: there may be
    thousands more, for each of many shards."""
    longer = yield from fetch_second_page(start, replace(result, records=()), limit)
    if not longer.records:
        cursor = replace(
            longer.cursor, position=result.cursor.position, reached_ms=result.cursor.reached_ms
        )
        return replace(longer, end=result.end, records=result.records, cursor=cursor)
    expected = None
    if not result.found_by_time:
        read = result.records + longer.records
        expected = ExpectedSize(records=len(read), size_bytes=sum(row.size_bytes for row in read))
    return replace(longer, records=result.records, found_by_time=True, expected=expected)


def find_by_time(
    result: ProbeResult, target: EpochMillis
) -> Generator[Request, Response, ProbeResult | None]:
    """The first record at `target` or later as the end; None when there is none.

    The same finding comes back when what is there lies before the end known already.
    """
    iterator = yield from open_iterator(AtTimestamp(millis=target))
    page = yield from follow_iterator(
        iterator, PROBE_RECORDS, record_bytes=result.cursor.record_bytes
    )
    if not page.records:
        return None
    row = page.records[-1]
    if result.end is not None and row.order <= result.end.order:
        return result
    return replace(
        result,
        end=row,
        found_by_time=True,
        at_latest=page.at_latest,
        closed=page.next_iterator is None,
        millis_behind=page.lag,
        time=page.time,
        cursor=replace(
            result.cursor,
            position=row.position,
            cached_iterator=cached_iterator_after(page),
            reached_ms=row.arrival,
        ),
    )
