"""Where a batch ends in one shard, found without reading the data twice.

Kinesis has no call that gives a shard's latest sequence number, so an end is found by looking at
few records. Each procedure here is a generator: it yields what it wants from the service (`Open`,
`Fetch`), is sent the answers, and returns a `Finding`. It does no I/O, so the same code runs
against a script, a model and the service; `probing.py` runs it against the service.

* `probe`: the end for an ordinary trigger.
  1. One look from the start, a few records wide. Empty at the tip: the shard is quiet, and the
     cursor that stands at the tip is kept, so that the next trigger costs one call. The tip
     reached: the last record seen is the end.
  2. Otherwise look `window` before now, one record wide: the record found is the end. Nothing
     there: double the window, until something is found or the window reaches what was seen.
* `read_ahead`: under a limit. A limit within a page is met by reading that page; a larger one by
  the first record at a time estimated from the rate.
* `find_tip`: the exact last record, for a query that stops at the tip as it was at its start.

A page may be empty although records follow: only `millis_behind_latest` = 0 is the tip. Ends never
lie before the start. Any record found exists in the shard, which is all that an end must be.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from kinesis_source.model import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    RecordPage,
    SequenceNumber,
    ShardIterator,
    ShardState,
    TrimHorizon,
    sequence_order,
)
from kinesis_source.service import ExpiredIteratorError, ThrottledError

PAGE_RECORDS = 10_000
"""The most records one GetRecords answers (Kinesis API reference)."""
MANY_RECORDS = 1_000_000_000
"""Stands for "no limit on records" where only bytes are limited."""
PEEK_BYTES = 64 * 1024
"""How much a look from the start may fetch, as estimated from the records seen before."""
PEEK_RECORDS = 500
MIN_WINDOW_MS = 250
MAX_DOUBLINGS = 6
"""So many looks at most in one trigger; what is missed then is found in the next one."""
MAX_EMPTY_PAGES = 20
"""So many empty pages are followed in one look; the cursor they lead to is kept."""
CURSOR_LIFE_MS = 4 * 60 * 1000
"""Iterators live five minutes (GetShardIterator); a minute is left for the call itself."""
TIP_STRIDE_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Ask for an iterator. The answer is a `ShardIterator`."""

    position: Position
    inclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Ask for records. The answer is a `PageView`; an expired iterator is thrown in."""

    iterator: ShardIterator
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What planning keeps of a record: never its data."""

    sequence_number: SequenceNumber
    last_sub: int
    arrival: EpochMillis
    size: int
    """Bytes of data and partition key, as the service counts them."""

    @property
    def order(self) -> int:
        return sequence_order(self.sequence_number)

    @property
    def position(self) -> AfterRecord:
        return AfterRecord(sequence_number=self.sequence_number, sub=self.last_sub)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """A page of records without the records."""

    rows: tuple[Row, ...]
    next_iterator: ShardIterator | None
    millis_behind: int
    time: EpochMillis


Request = Open | Fetch
Answer = ShardIterator | PageView
Steps = Generator[Request, Answer, "Finding"]
_Pages = Generator[Request, Answer, PageView]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """An iterator that stands at a known position."""

    iterator: ShardIterator
    issued: EpochMillis


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the driver remembers of a shard between triggers. Losing it costs calls, nothing else.

    It is about `position`: once an offset says otherwise, the cursor is void.
    """

    position: Position | None = None
    cursor: Cursor | None = None
    window_ms: int = 2 * MIN_WINDOW_MS
    record_bytes: float | None = None
    """Running mean of the size of records seen."""
    proven: bool = False
    """The start record was seen in this process, or needs no proof any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one look at a shard found, all of it behind the start position."""

    rows: tuple[Row, ...] = ()
    """The records that directly follow the start, without a gap; a limit may cut them anywhere."""
    end: Row | None = None
    """The farthest record that may be the end: the last of `rows`, or one found further on."""
    at_tip: bool = False
    """Nothing followed `end` (or the start) at `time`."""
    closed: bool = False
    """The shard is closed and nothing follows `end`: the end may be SHARD_END."""
    millis_behind: int = 0
    time: EpochMillis
    start_lost: bool = False
    """The start record is gone from the shard."""
    first: SequenceNumber | None = None
    """The first record, where reading started at TRIM_HORIZON or a time."""
    jumped: bool = False
    """`end` lies beyond `rows`: it was found by time."""
    memory: Memory
    """To be kept if the batch ends at `end` (or SHARD_END)."""

    @property
    def has_more(self) -> bool:
        """Something follows `end`."""
        return not self.closed and not self.at_tip


# --- Reading pages -------------------------------------------------------------------------------


def _follow(iterator: ShardIterator, limit: int, *, tireless: bool = False) -> _Pages:
    """The next page that holds a record, or ends the shard, or is at the tip.

    After many empty pages the last one comes back all the same, unless `tireless`.
    """
    page = yield from _fetch(iterator, limit)
    followed = 0
    while not page.rows and page.millis_behind > 0 and page.next_iterator is not None:
        if followed == MAX_EMPTY_PAGES and not tireless:
            break
        page = yield from _fetch(page.next_iterator, limit)
        followed += 1
    return page


def _fetch(iterator: ShardIterator, limit: int) -> _Pages:
    page = yield Fetch(iterator=iterator, limit=max(1, min(limit, PAGE_RECORDS)))
    if not isinstance(page, PageView):
        raise TypeError(f"a Fetch is answered by a PageView, not {type(page).__name__}")
    return page


def _open(
    position: Position, *, inclusive: bool = False
) -> Generator[Request, Answer, ShardIterator]:
    iterator = yield Open(position=position, inclusive=inclusive)
    if not isinstance(iterator, str):
        raise TypeError(f"an Open is answered by an iterator, not {type(iterator).__name__}")
    return iterator


def _from_start(
    start: ShardState, memory: Memory, limit: int, now: EpochMillis, *, tireless: bool = False
) -> _Pages:
    """The first page behind the start, by the remembered cursor if it still serves.

    Until the start record has been seen once in this process, it is opened at, so that the page
    begins with it if the shard still has it.
    """
    cursor = memory.cursor
    usable = (
        cursor is not None
        and memory.position == start.position
        and 0 <= now - cursor.issued < CURSOR_LIFE_MS
    )
    if usable and cursor is not None:
        try:
            return (yield from _follow(cursor.iterator, limit, tireless=tireless))
        except ExpiredIteratorError:
            pass  # the service's clock decides, not ours: open another
    inclusive = not memory.proven and isinstance(start.position, AfterRecord)
    iterator = yield from _open(start.position, inclusive=inclusive)
    room = limit + 1 if inclusive else limit
    return (yield from _follow(iterator, room, tireless=tireless))


def _peek_limit(memory: Memory) -> int:
    if memory.record_bytes is None:
        return 1
    return max(1, min(PEEK_RECORDS, int(PEEK_BYTES / max(memory.record_bytes, 1.0))))


def _mean_size(memory: Memory, page: PageView) -> float | None:
    if not page.rows:
        return memory.record_bytes
    mean = sum(row.size for row in page.rows) / len(page.rows)
    return mean if memory.record_bytes is None else 0.7 * memory.record_bytes + 0.3 * mean


# --- The start -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The first page, with the start record itself taken out."""

    page: PageView
    rows: tuple[Row, ...]
    lost: bool
    first: SequenceNumber | None


def _take_head(start: ShardState, memory: Memory, page: PageView, retention_ms: int) -> _Head:
    """Drop the start record, and judge whether the shard still holds what follows the start.

    If the start record is gone, nothing was lost as long as the last proof (`seen`) is younger
    than the retention: whatever came after `seen` must still be there.
    """
    position = start.position
    stale = start.seen is None or page.time - start.seen >= retention_ms
    if not isinstance(position, AfterRecord):
        begins = isinstance(position, TrimHorizon | AtTimestamp) and bool(page.rows)
        lost = not memory.proven and start.seen is not None and stale
        first = page.rows[0].sequence_number if begins else None
        return _Head(page=page, rows=page.rows, lost=lost, first=first)
    if memory.proven:
        return _Head(page=page, rows=page.rows, lost=False, first=None)
    order = sequence_order(position.sequence_number)
    if page.rows and page.rows[0].order == order:
        unread_subs = page.rows[0].last_sub > position.sub
        rows = page.rows if unread_subs else page.rows[1:]
        return _Head(page=page, rows=rows, lost=False, first=None)
    # An empty page that is not at the tip proves nothing either way: the caller looks again.
    undecided = not page.rows and page.millis_behind > 0
    return _Head(page=page, rows=page.rows, lost=stale and not undecided, first=None)


def _finding(start: ShardState, memory: Memory, head: _Head) -> Finding:
    """What the first page alone says."""
    page = head.page
    undecided = not page.rows and page.millis_behind > 0 and page.next_iterator is not None
    end = head.rows[-1] if head.rows else None
    cursor = (
        Cursor(iterator=page.next_iterator, issued=page.time)
        if page.next_iterator is not None
        else None
    )
    remembered = replace(
        memory,
        position=end.position if end else start.position,
        cursor=cursor,
        record_bytes=_mean_size(memory, page),
        proven=memory.proven or not undecided,
    )
    return Finding(
        rows=head.rows,
        end=end,
        at_tip=page.millis_behind == 0 and page.next_iterator is not None,
        closed=page.next_iterator is None,
        millis_behind=page.millis_behind,
        time=page.time,
        start_lost=head.lost,
        first=head.first,
        memory=remembered,
    )


# --- The end of an ordinary trigger --------------------------------------------------------------


def probe(start: ShardState, memory: Memory, now: EpochMillis, retention_ms: int) -> Steps:
    """An end near the tip. At most 1 + 2 * MAX_DOUBLINGS looks, most often one or two."""
    page = yield from _from_start(start, memory, _peek_limit(memory), now)
    found = _finding(start, memory, _take_head(start, memory, page, retention_ms))
    if page.rows and (found.end is None or memory.record_bytes is None):
        found = yield from _widen(start, found, _peek_limit(found.memory))
    if found.end is None or found.start_lost or not found.has_more:
        return found
    try:
        return (yield from _jump_near_tip(found))
    except ThrottledError:
        return found  # what the first page showed still stands


def _widen(start: ShardState, found: Finding, limit: int) -> Steps:
    """A second page, where the first was one record wide or held the start record alone."""
    cursor = found.memory.cursor
    if cursor is None or not found.has_more or found.start_lost:
        return found
    try:
        page = yield from _follow(cursor.iterator, limit)
    except ThrottledError:
        return found
    head = _Head(page=page, rows=found.rows + page.rows, lost=False, first=found.first)
    return _finding(start, found.memory, head)


def find_first(start: ShardState, memory: Memory, now: EpochMillis) -> Steps:
    """The record with which reading begins, where an end is known without looking."""
    page = yield from _from_start(start, memory, 1, now, tireless=True)
    first = page.rows[0].sequence_number if page.rows else None
    return _finding(start, memory, _Head(page=page, rows=page.rows, lost=False, first=first))


def _jump_near_tip(found: Finding) -> Steps:
    """From a record short of the tip to one within `window` of it."""
    if found.end is None:
        return found
    window = found.memory.window_ms
    for attempt in range(MAX_DOUBLINGS):
        target = EpochMillis(found.time - window)
        if target <= found.end.arrival:
            break
        jumped = yield from _jump(found, target)
        if jumped is not None:
            if jumped is not found:
                # One try was enough: look closer to the tip the next time.
                window = max(MIN_WINDOW_MS, window // 2) if attempt == 0 else window
            return replace(jumped, memory=replace(jumped.memory, window_ms=window))
        window *= 2
    return replace(found, memory=replace(found.memory, window_ms=max(window, MIN_WINDOW_MS)))


def _jump(found: Finding, target: EpochMillis) -> Generator[Request, Answer, Finding | None]:
    """The first record at `target` or later as the end; None when there is none.

    The same finding comes back when what is there lies before the end known already.
    """
    iterator = yield from _open(AtTimestamp(millis=target))
    page = yield from _follow(iterator, 1)
    if not page.rows:
        return None
    row = page.rows[0]
    if found.end is not None and row.order <= found.end.order:
        return found
    cursor = (
        Cursor(iterator=page.next_iterator, issued=page.time)
        if page.next_iterator is not None
        else None
    )
    return replace(
        found,
        end=row,
        jumped=True,
        at_tip=page.millis_behind == 0 and page.next_iterator is not None,
        closed=page.next_iterator is None,
        millis_behind=page.millis_behind,
        time=page.time,
        memory=replace(found.memory, position=row.position, cursor=cursor),
    )


# --- Under a limit -------------------------------------------------------------------------------


def read_ahead(
    start: ShardState,
    memory: Memory,
    now: EpochMillis,
    retention_ms: int,
    *,
    records: int,
    size: int | None,
    tireless: bool = False,
) -> Steps:
    """The records that follow the start, up to `records`; `size` bytes are a hint.

    Within a page the rows come back for the caller to cut exactly. Beyond a page, the end is the
    first record at a time estimated from the rate: approximate.
    """
    wanted = records
    if size is not None and memory.record_bytes is not None:
        wanted = min(wanted, 1 + int(size / max(memory.record_bytes, 1.0)))
    elif size is not None:
        wanted = min(wanted, _peek_limit(memory))
    exact = wanted <= PAGE_RECORDS
    page = yield from _from_start(
        start, memory, wanted if exact else PEEK_RECORDS, now, tireless=tireless
    )
    found = _finding(start, memory, _take_head(start, memory, page, retention_ms))
    if page.rows and found.end is None:
        found = yield from _widen(start, found, wanted if exact else PEEK_RECORDS)
    if exact or found.closed or found.at_tip or found.start_lost or found.end is None:
        return found
    try:
        return (yield from _jump_by_rate(found, wanted - len(found.rows)))
    except ThrottledError:
        return found


def _jump_by_rate(found: Finding, records: int) -> Steps:
    """About `records` further than the end known already, by the rate of the rows seen."""
    if found.end is None:
        return found
    span = max(1, found.rows[-1].arrival - found.rows[0].arrival)
    stride = max(1, int(records * span / len(found.rows)))
    if found.end.arrival + stride >= found.time - found.memory.window_ms:
        return (yield from _jump_near_tip(found))
    for _ in range(MAX_DOUBLINGS):
        jumped = yield from _jump(found, EpochMillis(found.end.arrival + stride))
        if jumped is not None and jumped is not found:
            return jumped
        if jumped is found:
            stride *= 2  # as many records in one instant: look further
        else:
            stride //= 2  # nothing came that late: look nearer
        if stride < 1:
            break
    return found


# --- The exact tip -------------------------------------------------------------------------------


def find_tip(position: Position, now: EpochMillis, *, oldest: EpochMillis) -> Steps:
    """The last record of an open shard, exactly, as of some moment during the call.

    Looks back in widening steps, narrows the gap by bisection, then reads the rest to the tip.
    `oldest` bounds the look back (retention); from there on it is read from `position`.
    The finding's `end` is None when nothing was found behind `position`; it may also lie before
    `position`, when nothing has come since.
    """
    window = 2 * TIP_STRIDE_MS
    empty_from = now
    page: PageView | None = None
    while now - window > oldest:
        at = EpochMillis(now - window)
        looked = yield from _look(AtTimestamp(millis=at), 1)
        if looked.rows or looked.next_iterator is None:
            page = yield from _bisect(looked, at, empty_from)
            break
        empty_from = at
        window *= 4
    if page is None:
        page = yield from _look(position, 1)
    return (yield from _read_to_tip(position, page))


def find_latest(now: EpochMillis) -> Steps:
    """What LATEST means now: after the last record (`end`), or at `now` when none is near.

    The clock is known to the second only, so a record may have come just before `now`; records of
    the last seconds are looked at to tell. With none since then, "at `now`" is exact.
    """
    page = yield from _look(AtTimestamp(millis=EpochMillis(now - 2 * TIP_STRIDE_MS)), 1)
    return (yield from _read_to_tip(AtTimestamp(millis=now), page))


def _look(position: Position, limit: int) -> _Pages:
    iterator = yield from _open(position)
    return (yield from _follow(iterator, limit, tireless=True))


def _bisect(page: PageView, low: EpochMillis, high: EpochMillis) -> _Pages:
    """Narrow [low, high): records were found from `low` on, none from `high` on."""
    while high - low > TIP_STRIDE_MS and page.millis_behind > 0 and page.next_iterator is not None:
        middle = EpochMillis((low + high) // 2)
        looked = yield from _look(AtTimestamp(millis=middle), 1)
        if looked.rows:
            page, low = looked, middle
        else:
            high = middle
    return page


def _read_to_tip(position: Position, page: PageView) -> Steps:
    last = page.rows[-1] if page.rows else None
    while page.millis_behind > 0 and page.next_iterator is not None:
        page = yield from _follow(page.next_iterator, PAGE_RECORDS, tireless=True)
        last = page.rows[-1] if page.rows else last
    after = last.position if last else position
    cursor = (
        Cursor(iterator=page.next_iterator, issued=page.time)
        if page.next_iterator is not None
        else None
    )
    return Finding(
        end=last,
        at_tip=page.next_iterator is not None,
        closed=page.next_iterator is None,
        time=page.time,
        memory=Memory(position=after, cursor=cursor, proven=True),
    )


def view(page: RecordPage, last_subs: tuple[int, ...]) -> PageView:
    """A page as planning sees it; `last_subs` holds each record's last user record."""
    return PageView(
        rows=tuple(
            Row(
                sequence_number=number,
                last_sub=sub,
                arrival=arrival,
                size=len(data) + len(key),
            )
            for number, sub, arrival, data, key in zip(
                page.sequence_numbers,
                last_subs,
                page.arrival_millis,
                page.data,
                page.partition_keys,
                strict=True,
            )
        ),
        next_iterator=page.next_iterator,
        millis_behind=page.millis_behind_latest,
        time=page.service_time,
    )
