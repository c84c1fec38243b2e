"""The exact tip of a shard, for a query that stops at the tip as it was at its start.

Generators, as `probe_protocol.py` describes them; no I/O.
"""

from __future__ import annotations

from kinesis_source.model.shard import AtTimestamp, EpochMillis, Position
from kinesis_source.probing.probe_protocol import (
    LOOK_RECORDS,
    PAGE_RECORDS,
    Finding,
    Memory,
    Pages,
    PageView,
    Steps,
    cursor_after,
    follow,
    open_at,
)

TIP_STRIDE_MS = 1000
"""The rest of a shard is read once it is known to be no longer than this."""
WIDENING = 16
"""The factor by which each look back is wider. An idle shard may answer empty pages from the time
looked back to, so all looks together cost little more than the last one."""


def find_tip(position: Position, now: EpochMillis, *, oldest: EpochMillis) -> Steps:
    """The last record of an open shard, exactly, as of some moment during the call.

    Looks back in widening steps, narrows the gap by bisection, then reads the rest to the tip.
    What arrived before `oldest` (retention) is looked for from `position`, as the last resort.
    The finding's `end` is None when nothing was found behind `position`; it may also lie before
    `position`, when nothing has come since.
    """
    window = 2 * TIP_STRIDE_MS
    empty_from = now
    while now - window > oldest:
        at = EpochMillis(now - window)
        page = yield from _look(AtTimestamp(millis=at), LOOK_RECORDS)
        if page.rows or page.next_iterator is None:
            break
        empty_from = at
        window *= WIDENING
    else:
        at = min(oldest, empty_from)
        page = yield from _look(position, LOOK_RECORDS)
    page = yield from _bisect(page, at, empty_from)
    return (yield from _read_to_tip(position, page))


def find_latest(now: EpochMillis) -> Steps:
    """What LATEST means now: after the last record (`end`), or at `now` when none is near.

    The clock is known to the second only, so a record may have come just before `now`; records of
    the last seconds are looked at to tell. With none since then, "at `now`" is exact.
    """
    page = yield from _look(AtTimestamp(millis=EpochMillis(now - 2 * TIP_STRIDE_MS)), LOOK_RECORDS)
    return (yield from _read_to_tip(AtTimestamp(millis=now), page))


def _look(position: Position, limit: int) -> Pages:
    iterator = yield from open_at(position)
    return (yield from follow(iterator, limit, tireless=True))


def _bisect(page: PageView, low: EpochMillis, high: EpochMillis) -> Pages:
    """Narrow [low, high): records were found from `low` on, none from `high` on."""
    while high - low > TIP_STRIDE_MS and not page.at_tip and page.next_iterator is not None:
        middle = EpochMillis((low + high) // 2)
        looked = yield from _look(AtTimestamp(millis=middle), LOOK_RECORDS)
        if looked.rows:
            page, low = looked, middle
        else:
            high = middle
    return page


def _read_to_tip(position: Position, page: PageView) -> Steps:
    last = page.rows[-1] if page.rows else None
    while not page.at_tip and page.next_iterator is not None:
        page = yield from follow(page.next_iterator, PAGE_RECORDS, tireless=True)
        last = page.rows[-1] if page.rows else last
    after = last.position if last else position
    return Finding(
        end=last,
        at_tip=page.at_tip,
        closed=page.next_iterator is None,
        time=page.time,
        memory=Memory(position=after, cursor=cursor_after(page), proven=True),
    )
