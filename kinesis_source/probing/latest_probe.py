"""Finds the latest record of a shard exactly, for LATEST and for a query that stops there; and the
last record before an end that the user chose. Generators, as `probe_protocol.py` describes them; no
I/O."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import InvalidPositionError
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    Shard,
    TrimHorizon,
    sequence_order,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    PAGE_RECORDS,
    PROBE_RECORDS,
    PageSteps,
    PageView,
    ProbeResult,
    ProbeSteps,
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
            end = replace(end, last_sub=-1 if lost else point.sub)
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
