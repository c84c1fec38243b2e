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
    LOOK_RECORDS,
    MIN_WINDOW_MS,
    PAGE_RECORDS,
    Answer,
    Finding,
    Memory,
    PageView,
    Request,
    Row,
    Silence,
    Steps,
    cursor_after,
    follow,
    open_at,
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
MAX_LOOKS = 3
"""So many looks by time at most in one trigger; what is missed then is found in the next one. With
the look from the start and the rest they stay within the five GetRecords that a shard answers in a
second (Kinesis API reference)."""
SILENCE_MS = 5000
"""How long a silence is assumed to last before it is checked for new records."""
WIDE_GAP_MS = 5 * 60 * 1000
"""A gap above this is narrowed by its logarithm: the tip is more likely near the younger end."""
MAX_PAGES_PAST_THE_TIP = 3
"""So many more pages are asked of a closed shard that shows neither a record nor its end, for the
same reason; the next look goes on from there."""
CURSOR_LIFE_MS = 4 * 60 * 1000
"""Iterators live five minutes (GetShardIterator); a minute is left for the call itself."""


def from_start(
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
            page = yield from follow(
                cursor.iterator, limit, record_bytes=memory.record_bytes, tireless=tireless
            )
        except ExpiredIteratorError:
            pass  # the service's clock decides, not ours: open another
        else:
            return page, memory
    inclusive = isinstance(start.position, AfterRecord)
    iterator = yield from open_at(start.position, inclusive=inclusive)
    room = limit + 1 if inclusive else limit
    page = yield from follow(iterator, room, record_bytes=memory.record_bytes, tireless=tireless)
    return page, replace(memory, proven=False)


def _peek_limit(memory: Memory) -> int:
    """Return the limit of the first look: a few records, or more if only a short gap before a
    silence is left."""
    silence, reached = memory.silence, memory.reached
    if silence is not None and reached is not None and 0 < silence.since - reached <= REST_MS:
        return records_of(memory, REST_BYTES)
    return min(PEEK_RECORDS, records_of(memory, PEEK_BYTES))


def records_of(memory: Memory, size: int) -> int:
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
class Head:
    """The first page, with the start record itself taken out."""

    page: PageView
    rows: tuple[Row, ...]
    lost: bool
    first: SequenceNumber | None


def take_head(start: ShardState, memory: Memory, page: PageView, retention_ms: int) -> Head:
    """Drop the start record, and judge whether the records after the start are still in the
    shard."""
    position = start.position
    found = page.rows[0].sequence_number if page.rows else None
    # An empty page that is not at the tip proves nothing either way: the caller looks again.
    undecided = not page.rows and page.millis_behind > 0
    evidence = Evidence(found=found, time=page.time, retention_ms=retention_ms)
    lost = not memory.proven and not undecided and judge(start, evidence) is Verdict.LOST
    if not isinstance(position, AfterRecord):
        return Head(page=page, rows=page.rows, lost=lost, first=found)
    rows = page.rows
    if not memory.proven and rows and rows[0].order == sequence_order(position.sequence_number):
        rows = rows if rows[0].last_sub > position.sub else rows[1:]
    return Head(page=page, rows=rows, lost=lost, first=None)


def finding_of(start: ShardState, memory: Memory, head: Head) -> Finding:
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
        reached=end.arrival if end else memory.reached,
        silence=memory.silence,
        intake=memory.intake,
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
    """Find an end near the tip. It takes at most MAX_LOOKS + 3 pages, usually one or two."""
    page, memory = yield from from_start(start, memory, _peek_limit(memory), now)
    found = finding_of(start, memory, take_head(start, memory, page, retention_ms))
    if page.rows and (found.end is None or memory.record_bytes is None):
        found = yield from widen(start, found, _peek_limit(found.memory))
    if found.end is None or found.start_lost or not found.has_more:
        return found
    try:
        return (yield from near_tip(start, found))
    except ThrottledError:
        return found  # what the first page showed still stands


def widen(start: ShardState, found: Finding, limit: int) -> Steps:
    """A second page, where the first was one record wide or held the start record alone."""
    cursor = found.memory.cursor
    if cursor is None or not found.has_more or found.start_lost:
        return found
    try:
        page = yield from follow(cursor.iterator, limit, record_bytes=found.memory.record_bytes)
    except ThrottledError:
        return found
    head = Head(page=page, rows=found.rows + page.rows, lost=False, first=found.first)
    return finding_of(start, found.memory, head)


def find_first(
    start: ShardState, memory: Memory, now: EpochMillis, retention_ms: int, *, closed: bool = False
) -> Steps:
    """The record with which reading begins, where an end is known without looking. `closed`: see
    `read_ahead`."""
    page, memory = yield from from_start(start, memory, 1, now, tireless=True)
    found = finding_of(start, memory, take_head(start, memory, page, retention_ms))
    return (yield from past_the_tip(start, found, 1)) if closed else found


def past_the_tip(start: ShardState, found: Finding, limit: int) -> Steps:
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
        head = Head(page=page, rows=page.rows, lost=found.start_lost, first=first)
        found = finding_of(start, found.memory, head)
    return found


def near_tip(start: ShardState, found: Finding, most: int = PAGE_RECORDS) -> Steps:
    """Move the end from a record before the tip to one near it.

    Narrows the gap between the last record found and the time after which none was found. In an
    active shard, the first look `window` before now finds a record. In one that has become silent
    the gap is remembered, halved further in the next trigger, and read once it is short, up to
    `most` records.
    """
    if found.end is None or found.time - found.end.arrival <= MIN_WINDOW_MS:
        return found
    gap = _Gap(found)
    for _ in range(MAX_LOOKS):
        if not gap.best.has_more or gap.is_narrow:
            break
        try:
            gap.take((yield from jump(gap.best, gap.target())))
        except ThrottledError:
            if gap.best is found:
                raise
            break
    best = gap.finding()
    if not best.has_more or (best.jumped and not gap.is_silent) or gap.is_wide:
        return best
    limit = min(most, records_of(best.memory, REST_BYTES))
    return (yield from _read_on(start, best, limit))


class _Gap:
    """The time between the last record found (`low`) and the time after which none was found
    (`high`)."""

    def __init__(self, found: Finding) -> None:
        self.best = self._found = found
        self._time = found.time
        self._low = _arrival(found)
        self._window = found.memory.window_ms
        silence = found.memory.silence
        self._silence = silence if silence is not None and silence.since > self._low else None
        self._high = found.time if self._silence is None else self._silence.since
        self._looks = 0
        self._asked = self._time

    @property
    def is_silent(self) -> bool:
        """Whether a look found no recent records."""
        return self._silence is not None

    @property
    def is_narrow(self) -> bool:
        """Whether no look by time leads further."""
        known = self._silence is not None or self.best is not self._found
        return self._high - self._low <= (NEAR_MS if known else MIN_WINDOW_MS)

    @property
    def is_wide(self) -> bool:
        """Whether a record was found by time and more records follow it than are read here."""
        return self.best.jumped and self._high - self._low > REST_MS

    def target(self) -> EpochMillis:
        """Return the time of the next look."""
        target = self._next()
        if not self._low < target < self._high:
            target = EpochMillis((self._low + self._high) // 2)
        self._asked = target
        self._looks += 1
        return target

    def _next(self) -> EpochMillis:
        if self._silence is not None and self._is_old(self._silence):
            self._high = self._time
            return self._silence.at  # it may have ended since
        youngest, oldest = self._time - self._high, self._time - self._low
        if self._silence is None and self._looks == 0:
            return EpochMillis(self._time - self._window)
        if oldest > WIDE_GAP_MS and oldest > 16 * youngest:
            return EpochMillis(self._time - math.isqrt(max(1, youngest) * oldest))
        return EpochMillis((self._low + self._high) // 2)

    def _is_old(self, silence: Silence) -> bool:
        return self._time - silence.at > SILENCE_MS

    def take(self, jumped: Finding | None) -> None:
        """Process the result of the look at the last target."""
        if jumped is None:
            since = self._asked if self._silence is None else min(self._asked, self._silence.since)
            self._silence = Silence(since=since, at=self._time)
            self._high = since
            return
        if self._silence is not None and self._asked >= self._silence.since:
            # The silence has ended: the next look is near the present again.
            self._silence, self._looks = None, 0
        if jumped is self.best:
            self._low = self._asked
            return
        if self._looks == 1 and self._silence is None:
            self._window //= 2  # One look was enough: look closer to the tip the next time.
        elif self._looks == 2 and self._silence is not None:
            self._window = min(2 * self._window, self._time - self._asked)
        self.best = jumped
        self._low = max(self._asked, _arrival(jumped))

    def finding(self) -> Finding:
        """Return the best end, with the memory for the next trigger."""
        memory = replace(
            self.best.memory,
            window_ms=max(MIN_WINDOW_MS, self._window),
            silence=self._silence,
        )
        return replace(self.best, memory=memory)


def _arrival(found: Finding) -> EpochMillis:
    return found.time if found.end is None else found.end.arrival


def _read_on(start: ShardState, found: Finding, limit: int) -> Steps:
    """Apply the page that follows the end found so far. `rows` are unchanged: there may be
    thousands more, for each of many shards."""
    longer = yield from widen(start, replace(found, rows=()), limit)
    if not longer.rows:
        memory = replace(
            longer.memory, position=found.memory.position, reached=found.memory.reached
        )
        return replace(longer, end=found.end, rows=found.rows, memory=memory)
    expected = None
    if not found.jumped:
        read = found.rows + longer.rows
        expected = ExpectedSize(records=len(read), size=sum(row.size for row in read))
    return replace(longer, rows=found.rows, jumped=True, expected=expected)


def jump(found: Finding, target: EpochMillis) -> Generator[Request, Answer, Finding | None]:
    """The first record at `target` or later as the end; None when there is none.

    The same finding comes back when what is there lies before the end known already.
    """
    iterator = yield from open_at(AtTimestamp(millis=target))
    page = yield from follow(iterator, LOOK_RECORDS, record_bytes=found.memory.record_bytes)
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
        memory=replace(
            found.memory,
            position=row.position,
            cursor=cursor_after(page),
            reached=row.arrival,
        ),
    )
