"""Finds the last record of a shard before an instant: the present, exactly, for LATEST and for a
query that stops there; an end that the user chose; or the end of an aligned batch. Generators, as
`probe_protocol.py` describes them; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import InvalidPositionError
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    Shard,
    ShardState,
    TrimHorizon,
    sequence_order,
)
from spark_ssp.kinesis_source.probing.batch_end_probe import (
    PEEK_BYTES,
    PEEK_RECORDS,
    check_first_page,
    fetch_from_start,
    fetch_second_page,
    records_of,
    to_result,
)
from spark_ssp.kinesis_source.probing.intake_rate import count
from spark_ssp.kinesis_source.probing.probe_protocol import (
    PAGE_RECORDS,
    PROBE_RECORDS,
    PageSteps,
    PageView,
    ProbeResult,
    ProbeSteps,
    RecordRef,
    ShardCursor,
    cached_iterator_after,
    follow_iterator,
    open_iterator,
)

EndPoint = AtTimestamp | AfterRecord
"""The end of a batch read in a shard: everything before a time, or up to a record."""
NO_ENDS: Final[Mapping[ShardKey, EndPoint]] = MappingProxyType({})
LATEST_STRIDE_MS = 1000
"""The rest of a shard is read once it is known to span no more than this."""
WIDENING_FACTOR = 16
"""The factor by which each probe starts further back. An idle shard may answer empty pages from the
time of the probe, so all probes together cost little more than the last one."""


def is_end_of(shard: Shard, end: EndPoint | None) -> bool:
    """Return whether an end by record is the EndingSequenceNumber of the closed shard: all of the
    shard is read."""
    return isinstance(end, AfterRecord) and end.sequence_number == shard.ending_sequence_number


def find_latest_record(position: Position, now: EpochMillis, *, oldest: EpochMillis) -> ProbeSteps:
    """Find the last record of an open shard, exactly, as of some moment during the call.

    Probes back in widening steps, narrows the gap by bisection, then reads the rest. Records that
    arrived before `oldest` (retention) are searched from `position`, as the last resort. The result
    has no `end` if no record was found after `position`; it may also precede `position`, if no
    record came since.
    """
    window = 2 * LATEST_STRIDE_MS
    empty_from = now
    while now - window > oldest:
        at = EpochMillis(now - window)
        page = yield from _probe_at(AtTimestamp(millis=at), PROBE_RECORDS)
        if page.records or page.next_iterator is None:
            break
        empty_from = at
        window *= WIDENING_FACTOR
    else:
        at = min(oldest, empty_from)
        page = yield from _probe_at(position, PROBE_RECORDS)
    page = yield from _bisect(page, at, empty_from)
    return (yield from _read_to_latest(position, page))


def find_end(
    point: EndPoint | None, now: EpochMillis, retention_ms: int, *, closed: bool
) -> ProbeSteps:
    """Find the last record of a shard up to `point`; None means the latest record.

    A time means the records before the first one that a reader from that time would get, so that a
    read to a time and a read from it share no record and leave none out, whatever the order of
    arrival times. The latest record is found first: a record that comes in between belongs to
    neither search. The result is `closed` if all of a closed shard comes before `point`, and
    `start_lost` if the service no longer has the record at which the shard should end.
    """
    latest: ProbeResult | None = None
    if not closed:
        oldest = EpochMillis(now - retention_ms)
        latest = yield from find_latest_record(TrimHorizon(), now, oldest=oldest)
    if point is None and latest is not None:
        return latest
    exact = isinstance(point, AfterRecord)
    try:
        iterator = yield from open_iterator(point or TrimHorizon(), inclusive=exact)
    except InvalidPositionError:
        return ProbeResult(start_lost=True, time=now, cursor=ShardCursor())
    page = yield from follow_iterator(iterator, PROBE_RECORDS, persistent=True)
    # An empty page of a closed shard may be said to be at the latest record before its end.
    while not page.records and page.next_iterator is not None and (closed or not page.at_latest):
        page = yield from follow_iterator(page.next_iterator, PROBE_RECORDS, persistent=True)
    end = page.records[0] if page.records else None
    if isinstance(point, AfterRecord):
        lost = end is None or end.order != sequence_order(point.sequence_number)
        if end is not None:
            end = replace(end, last_sub=-1 if lost else min(point.sub, end.last_sub))
        return ProbeResult(end=end, start_lost=lost, time=page.time, cursor=ShardCursor())
    if end is not None:
        end = replace(end, last_sub=-1)
        return ProbeResult(end=end, time=page.time, cursor=ShardCursor())
    if latest is not None:
        return latest
    return ProbeResult(closed=True, time=page.time, cursor=ShardCursor())


def resolve_latest(now: EpochMillis) -> ProbeSteps:
    """Resolve LATEST: after the last record (`end`), or at `now` if none is near. The clock has a
    resolution of a second, so a record may have come just before `now`; the records of the last
    seconds are probed. If there are none, "at `now`" is exact."""
    page = yield from _probe_at(
        AtTimestamp(millis=EpochMillis(now - 2 * LATEST_STRIDE_MS)), PROBE_RECORDS
    )
    return (yield from _read_to_latest(AtTimestamp(millis=now), page))


def _probe_at(position: Position, limit: int) -> PageSteps:
    iterator = yield from open_iterator(position)
    return (yield from follow_iterator(iterator, limit, persistent=True))


def _bisect(page: PageView, low: EpochMillis, high: EpochMillis) -> PageSteps:
    """Narrow [low, high): records were found from `low` on, none from `high` on."""
    while high - low > LATEST_STRIDE_MS and not page.at_latest and page.next_iterator is not None:
        middle = EpochMillis((low + high) // 2)
        probed = yield from _probe_at(AtTimestamp(millis=middle), PROBE_RECORDS)
        if probed.records:
            page, low = probed, middle
        else:
            high = middle
    return page


def _read_to_latest(position: Position, page: PageView) -> ProbeSteps:
    last = page.records[-1] if page.records else None
    while not page.at_latest and page.next_iterator is not None:
        page = yield from follow_iterator(page.next_iterator, PAGE_RECORDS, persistent=True)
        last = page.records[-1] if page.records else last
    after = last.position if last else position
    return ProbeResult(
        end=last,
        at_latest=page.at_latest,
        closed=page.next_iterator is None,
        time=page.time,
        cursor=ShardCursor(
            position=after, cached_iterator=cached_iterator_after(page), proven=True
        ),
    )


# --- The last record until an instant -----------------------------------------------------------


def rows_until(records: Sequence[RecordRef], until: EpochMillis) -> int:
    """Return the number of leading records that arrived at `until` or earlier."""
    return sum(1 for _ in takewhile(lambda row: row.arrival <= until, records))


def find_last_until(
    start: ShardState,
    cursor: ShardCursor,
    now: EpochMillis,
    kept_ms: int,
    near: EpochMillis,
    until: EpochMillis,
) -> ProbeSteps:
    """Find the last record that arrived at `until` or earlier, or any that arrived at `near` or
    later and until then.

    A page from the start has it in a shard of few records, and one shortly before `until` in a busy
    shard. Between the two, the last record is found by bisection. Records of the page from the
    start that arrived later are in `records`, for the caller to cut. If nothing arrived after
    `until`, the result does not have more.
    """
    limit = min(PEEK_RECORDS, records_of(cursor, PEEK_BYTES))
    page, cursor = yield from fetch_from_start(start, cursor, limit, now, persistent=True)
    result = to_result(start, cursor, check_first_page(start, cursor, page, kept_ms))
    limit = min(PEEK_RECORDS, records_of(result.cursor, PEEK_BYTES))
    if page.records and (result.end is None or cursor.record_bytes is None):
        result = yield from fetch_second_page(start, result, limit)
    if result.end is None or result.start_lost or not result.has_more:
        return result
    if rows_until(result.records, until) < len(result.records) or result.end.arrival >= near:
        return result
    search = _Search(best=result.end, low=result.end.arrival, empty_from=until, until=until)
    window = result.cursor.window_ms
    while search.best.arrival < near and not search.is_narrow:
        at = EpochMillis(max(until - window, search.middle))
        iterator = yield from open_iterator(AtTimestamp(millis=at))
        page = yield from follow_iterator(iterator, limit, record_bytes=result.cursor.record_bytes)
        if search.record(page, at):
            return search.result(result)
        window *= WIDENING_FACTOR
    iterator = yield from open_iterator(search.best.position)
    while search.best.arrival < near:
        page = yield from follow_iterator(
            iterator, PAGE_RECORDS, record_bytes=result.cursor.record_bytes, persistent=True
        )
        is_over = search.record(page, search.empty_from)
        if (
            is_over
            or page.next_iterator is None
            or rows_until(page.records, until) < len(page.records)
        ):
            break
        iterator = page.next_iterator
    return search.result(result)


@dataclass(slots=True, kw_only=True)
class _Search:
    """The search for the last record until a time: the best so far, and the time from which on
    there is none."""

    best: RecordRef
    low: EpochMillis
    """The pages so far have no record after `best` that arrived before this time."""
    empty_from: EpochMillis
    until: EpochMillis
    has_more: bool = True

    @property
    def middle(self) -> EpochMillis:
        return EpochMillis((self.low + self.empty_from) // 2)

    @property
    def is_narrow(self) -> bool:
        return self.empty_from - self.low <= LATEST_STRIDE_MS

    def record(self, page: PageView, at: EpochMillis) -> bool:
        """Record a page that starts at a time, or after the best record; return whether the search
        is over."""
        within = page.records[: rows_until(page.records, self.until)]
        if within and within[-1].order > self.best.order:
            self.best = within[-1]
            self.low = max(self.low, self.best.arrival)
        elif within:
            self.low = max(self.low, at)
        elif page.records:
            self.empty_from = min(self.empty_from, at)
        if len(within) < len(page.records):
            return bool(within)
        self.has_more = not page.at_latest and page.next_iterator is not None
        # A page without records before the latest one proves nothing.
        return not self.has_more or not page.records

    def result(self, result: ProbeResult) -> ProbeResult:
        cursor = replace(
            result.cursor,
            position=self.best.position,
            reached_ms=self.best.arrival,
            cached_iterator=None,
        )
        return replace(
            result,
            end=self.best,
            found_by_time=True,
            at_latest=False,
            closed=not self.has_more,
            expected=self._expected(result),
            cursor=cursor,
        )

    def _expected(self, result: ProbeResult) -> ExpectedSize | None:
        """Return the estimated size up to the best record. Without it a task requests a full page,
        which may block the shard for seconds."""
        rows = result.records
        intake = result.cursor.intake or count(rows, None, None)
        if intake is None or not rows:
            return None
        counted = ExpectedSize(records=len(rows), size_bytes=sum(row.size_bytes for row in rows))
        return intake.expected(max(0, self.best.arrival - rows[-1].arrival), counted)
