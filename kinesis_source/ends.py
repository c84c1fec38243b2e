"""Where a batch ends in one shard, found without reading the data twice.

* `probe`: the end for an ordinary trigger.
  1. One look from the start, a few records wide. Empty at the tip: the shard is quiet, and the
     cursor that stands at the tip is kept, so that the next trigger costs one call. The tip
     reached: the last record seen is the end.
  2. Otherwise look `window` before now, one record wide: the record found is the end. Nothing
     there: double the window. Something there: narrow the gap.
  3. If no look leads further, read the page that follows what was seen.
* `read_ahead`: under a limit. A limit within a page is met by reading that page; a larger one by
  the first record at a time estimated from the rate.

Ends never lie before the start. Any record found exists in the shard, which is all that an end
must be. Generators, as `looking.py` describes them; no I/O.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from kinesis_source.looking import (
    LOOK_RECORDS,
    MIN_WINDOW_MS,
    PAGE_RECORDS,
    Answer,
    Finding,
    Memory,
    PageView,
    Request,
    Row,
    Steps,
    cursor_after,
    follow,
    open_at,
)
from kinesis_source.loss import Evidence, Verdict, judge
from kinesis_source.model import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    SequenceNumber,
    ShardState,
    sequence_order,
)
from kinesis_source.service import ExpiredIteratorError, ThrottledError

MANY_RECORDS = 1_000_000_000
"""Stands for "no limit on records" where only bytes are limited."""
PEEK_BYTES = 64 * 1024
"""How much a look from the start may fetch, as estimated from the records seen before."""
PEEK_RECORDS = 500
REST_BYTES = 1024 * 1024
"""How much may be fetched on the driver where no look by time leads further: what a shard takes in
a second (Kinesis quotas)."""
NEAR_MS = 1000
"""An end that is known to be so near the tip, or nearer, is not looked for any closer."""
MAX_DOUBLINGS = 3
"""So many looks by time at most in one trigger; what is missed then is found in the next one. With
the look from the start and the rest they stay within the five GetRecords that a shard answers in a
second (Kinesis API reference)."""
MAX_PAGES_PAST_THE_TIP = 3
"""So many more pages are asked of a closed shard that shows neither a record nor its end, for the
same reason; the next look goes on from there."""
CURSOR_LIFE_MS = 4 * 60 * 1000
"""Iterators live five minutes (GetShardIterator); a minute is left for the call itself."""


def _from_start(
    start: ShardState, memory: Memory, limit: int, now: EpochMillis, *, tireless: bool = False
) -> Generator[Request, Answer, tuple[PageView, Memory]]:
    """The first page behind the start, by the remembered cursor if it still serves.

    Otherwise the start record is opened at, so that the page begins with it if the shard still
    has it. The memory comes back without its proof then: time may have passed, and the proof was
    about what a cursor led to.
    """
    cursor = memory.cursor
    usable = (
        cursor is not None
        and memory.position == start.position
        and 0 <= now - cursor.issued < CURSOR_LIFE_MS
    )
    if usable and cursor is not None:
        try:
            page = yield from follow(cursor.iterator, limit, tireless=tireless)
        except ExpiredIteratorError:
            pass  # the service's clock decides, not ours: open another
        else:
            return page, memory
    inclusive = isinstance(start.position, AfterRecord)
    iterator = yield from open_at(start.position, inclusive=inclusive)
    room = limit + 1 if inclusive else limit
    page = yield from follow(iterator, room, tireless=tireless)
    return page, replace(memory, proven=False)


def _peek_limit(memory: Memory) -> int:
    return min(PEEK_RECORDS, _limit(memory, PEEK_BYTES))


def _limit(memory: Memory, size: int) -> int:
    """How many records make about `size` bytes; one while their size is not known."""
    if memory.record_bytes is None:
        return 1
    return max(1, min(PAGE_RECORDS, int(size / max(memory.record_bytes, 1.0))))


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
    """Drop the start record, and judge whether the shard still holds what follows the start."""
    position = start.position
    found = page.rows[0].sequence_number if page.rows else None
    # An empty page that is not at the tip proves nothing either way: the caller looks again.
    undecided = not page.rows and page.millis_behind > 0
    evidence = Evidence(found=found, time=page.time, retention_ms=retention_ms)
    lost = not memory.proven and not undecided and judge(start, evidence) is Verdict.LOST
    if not isinstance(position, AfterRecord):
        return _Head(page=page, rows=page.rows, lost=lost, first=found)
    rows = page.rows
    if not memory.proven and rows and rows[0].order == sequence_order(position.sequence_number):
        rows = rows if rows[0].last_sub > position.sub else rows[1:]
    return _Head(page=page, rows=rows, lost=lost, first=None)


def _finding(start: ShardState, memory: Memory, head: _Head) -> Finding:
    """What the first page alone says."""
    page = head.page
    undecided = not page.rows and page.millis_behind > 0 and page.next_iterator is not None
    end = head.rows[-1] if head.rows else None
    # Not by `replace`, which takes longer than all else: it is done for every shard and look.
    remembered = Memory(
        position=end.position if end else start.position,
        cursor=cursor_after(page),
        window_ms=memory.window_ms,
        record_bytes=_mean_size(memory, page),
        proven=memory.proven or not undecided,
    )
    return Finding(
        rows=head.rows,
        end=end,
        at_tip=page.at_tip,
        closed=page.next_iterator is None,
        millis_behind=page.lag,
        time=page.time,
        start_lost=head.lost,
        first=head.first,
        memory=remembered,
    )


# --- The end of an ordinary trigger --------------------------------------------------------------


def probe(start: ShardState, memory: Memory, now: EpochMillis, retention_ms: int) -> Steps:
    """An end near the tip. At most MAX_DOUBLINGS + 3 looks, most often one or two."""
    page, memory = yield from _from_start(start, memory, _peek_limit(memory), now)
    found = _finding(start, memory, _take_head(start, memory, page, retention_ms))
    if page.rows and (found.end is None or memory.record_bytes is None):
        found = yield from _widen(start, found, _peek_limit(found.memory))
    if found.end is None or found.start_lost or not found.has_more:
        return found
    try:
        return (yield from _jump_near_tip(start, found))
    except ThrottledError:
        return found  # what the first page showed still stands


def _widen(start: ShardState, found: Finding, limit: int) -> Steps:
    """A second page, where the first was one record wide or held the start record alone."""
    cursor = found.memory.cursor
    if cursor is None or not found.has_more or found.start_lost:
        return found
    try:
        page = yield from follow(cursor.iterator, limit)
    except ThrottledError:
        return found
    head = _Head(page=page, rows=found.rows + page.rows, lost=False, first=found.first)
    return _finding(start, found.memory, head)


def find_first(
    start: ShardState, memory: Memory, now: EpochMillis, retention_ms: int, *, closed: bool = False
) -> Steps:
    """The record with which reading begins, where an end is known without looking. `closed`: see
    `read_ahead`."""
    page, memory = yield from _from_start(start, memory, 1, now, tireless=True)
    found = _finding(start, memory, _take_head(start, memory, page, retention_ms))
    return (yield from _past_the_tip(start, found, 1)) if closed else found


def _past_the_tip(start: ShardState, found: Finding, limit: int) -> Steps:
    """A closed shard has no tip, only an end; but its last records may come with an iterator, as
    if more could follow, and only the page after them says that it was all."""
    for _ in range(MAX_PAGES_PAST_THE_TIP):
        cursor = found.memory.cursor
        if found.end is not None or not found.at_tip or cursor is None:
            break
        try:
            page = yield from follow(cursor.iterator, limit, tireless=True)
        except ThrottledError:
            break
        first = page.rows[0].sequence_number if page.rows else None
        head = _Head(page=page, rows=page.rows, lost=found.start_lost, first=first)
        found = _finding(start, found.memory, head)
    return found


def _jump_near_tip(start: ShardState, found: Finding) -> Steps:
    """From a record short of the tip to one near it.

    The first look is `window` before now. Nothing there: the window is doubled. Something there,
    and the tip may still be far: the gap between where something and where nothing was found is
    halved. So a shard that fell silent a while ago, after a burst, is followed to its tip in a
    few triggers. If no look leads further, little is left: the page that follows is read.
    """
    if found.end is None or found.time - found.end.arrival <= MIN_WINDOW_MS:
        return found
    time, window, best = found.time, found.memory.window_ms, found
    low, high = found.end.arrival, found.time  # records come after `low`; none seen from `high` on
    for attempt in range(MAX_DOUBLINGS):
        if not best.has_more or high - low <= (MIN_WINDOW_MS if best is found else NEAR_MS):
            break
        target = EpochMillis(time - window)
        if best is not found or not low < target < high:
            target = EpochMillis((low + high) // 2)
        try:
            jumped = yield from _jump(best, target)
        except ThrottledError:
            if best is found:
                raise
            break
        if jumped is None:
            high = target
            window = 2 * (time - target) if best is found else window
            continue
        low, window = target, time - target
        if jumped is not best and jumped.end is not None:
            best, low = jumped, max(target, jumped.end.arrival)
            # One try was enough: look closer to the tip the next time.
            window = window // 2 if attempt == 0 else window
    if best is found:
        window = min(window, time - low)
    window = max(MIN_WINDOW_MS, window)
    best = replace(best, memory=replace(best.memory, window_ms=window))
    if best.jumped:
        return best
    return (yield from _widen(start, best, _limit(best.memory, REST_BYTES)))


def _jump(found: Finding, target: EpochMillis) -> Generator[Request, Answer, Finding | None]:
    """The first record at `target` or later as the end; None when there is none.

    The same finding comes back when what is there lies before the end known already.
    """
    iterator = yield from open_at(AtTimestamp(millis=target))
    page = yield from follow(iterator, LOOK_RECORDS)
    if not page.rows:
        return None
    row = page.rows[-1]
    if found.end is not None and row.order <= found.end.order:
        return found
    return replace(
        found,
        end=row,
        jumped=True,
        at_tip=page.at_tip,
        closed=page.next_iterator is None,
        millis_behind=page.lag,
        time=page.time,
        memory=replace(found.memory, position=row.position, cursor=cursor_after(page)),
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
    closed: bool = False,
) -> Steps:
    """The records that follow the start, up to `records`; `size` bytes are a hint. `closed`: the
    shard is known to be closed, so it is looked at until it shows a record or its end.

    Within a page the rows come back for the caller to cut exactly. Beyond a page, the end is the
    first record at a time estimated from the rate: approximate.
    """
    wanted = records
    if size is not None and memory.record_bytes is not None:
        wanted = min(wanted, 1 + int(size / max(memory.record_bytes, 1.0)))
    elif size is not None:
        wanted = min(wanted, _peek_limit(memory))
    exact = wanted <= PAGE_RECORDS
    page, memory = yield from _from_start(
        start, memory, wanted if exact else PEEK_RECORDS, now, tireless=tireless
    )
    found = _finding(start, memory, _take_head(start, memory, page, retention_ms))
    if page.rows and found.end is None:
        found = yield from _widen(start, found, wanted if exact else PEEK_RECORDS)
    if closed:
        found = yield from _past_the_tip(start, found, wanted if exact else PEEK_RECORDS)
    if exact or found.closed or found.at_tip or found.start_lost or found.end is None:
        return found
    try:
        return (yield from _jump_by_rate(start, found, wanted - len(found.rows)))
    except ThrottledError:
        return found


def _jump_by_rate(start: ShardState, found: Finding, records: int) -> Steps:
    """About `records` further than the end known already, by the rate of the rows seen."""
    if found.end is None:
        return found
    span = max(1, found.rows[-1].arrival - found.rows[0].arrival)
    stride = max(1, int(records * span / len(found.rows)))
    if found.end.arrival + stride >= found.time - found.memory.window_ms:
        return (yield from _jump_near_tip(start, found))
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
