"""Finds where a batch under a limit ends in one shard.

A limit of a small page is met exactly: the page is read, and its records come back for the caller
to cut. Beyond that, reading on the driver what a task reads again would use up the shard's read
rate. So the records of one page are counted now and then (`intake_rate.py`), and in between the end
is the first record that arrived when, at the rate counted, the limit was reached: one look, two
records wide. Generators, as `probe_protocol.py` describes them; no I/O."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator
from dataclasses import replace
from itertools import accumulate

from kinesis_source.client.api import MAX_PAGE_BYTES, ThrottledError
from kinesis_source.model.ranges import ExpectedSize
from kinesis_source.model.shard import AfterRecord, EpochMillis, ShardState
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
"""Stands for "no limit on records" if only bytes are limited."""
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


def scan_ahead(
    start: ShardState,
    memory: ShardCursor,
    now: EpochMillis,
    retention_ms: int,
    *,
    records: int,
    size: int | None,
    tireless: bool = False,
    closed: bool = False,
) -> ProbeSteps:
    """The records that follow the start, up to `records`; `size` bytes are a hint. `closed`: the
    shard is known to be closed, so it is looked at until it shows a record or its end.

    Within a small page the rows come back for the caller to cut exactly. Beyond that the end is
    the first record at a time estimated from the rate: approximate.
    """
    if _trusts_rate(start, memory, records, size):
        seen = yield from _by_rate(start, memory, now, records, size)
        if isinstance(seen, ProbeResult):
            return seen
        memory = seen
    limit = _page_limit(memory, records, size)
    page, memory = yield from fetch_from_start(start, memory, limit, now, tireless=tireless)
    found = to_result(start, memory, check_first_page(start, memory, page, retention_ms))
    limit = _page_limit(found.cursor, records, size)
    if page.rows and (found.end is None or memory.record_bytes is None):
        found = yield from _fetch_second_page(start, found, limit)
    if closed:
        found = yield from probe_to_shard_end(start, found, limit)
    wanted = _wanted(found.cursor, records, size)
    if found.end is None or found.start_lost or _is_exact(found.cursor, wanted):
        return found
    memory = replace(found.cursor, intake=count(found.rows, found.cursor.intake))
    found = _cut(replace(found, cursor=memory), records, size)
    if not found.has_more or ENOUGH * wanted <= _rows(found):
        return found
    try:
        return (yield from _continue_by_time(start, found, records, size))
    except ThrottledError:
        return found


# --- How much ------------------------------------------------------------------------------------


def _wanted(memory: ShardCursor, records: int, size: int | None) -> int:
    """Return the limit in records; a limit of bytes is converted by the size of the records
    seen."""
    if size is None:
        return records
    return min(records, 1 + int(size / max(memory.record_bytes or MAX_PAGE_BYTES, 1.0)))


def _is_exact(memory: ShardCursor, wanted: int) -> bool:
    """Return whether this number of records is read on the driver to be cut exactly."""
    if memory.record_bytes is None or wanted <= PROBE_RECORDS:
        return True
    return wanted <= EXACT_RECORDS and wanted * memory.record_bytes <= EXACT_BYTES


def _page_limit(memory: ShardCursor, records: int, size: int | None) -> int:
    """Return the limit of the page from the start."""
    if memory.record_bytes is None:
        return min(records, FIRST_RECORDS) if size is None else 1
    wanted = _wanted(memory, records, size)
    return wanted if _is_exact(memory, wanted) else min(wanted, records_of(memory, COUNT_BYTES))


def _fetch_second_page(start: ShardState, found: ProbeResult, limit: int) -> ProbeSteps:
    """Read a second page if the first was small or contained only the start record."""
    if found.end is not None and len(found.rows) >= limit:
        return found
    return (yield from fetch_second_page(start, found, max(1, limit - len(found.rows))))


def _cut(found: ProbeResult, records: int, size: int | None) -> ProbeResult:
    """Cut a large page by the shard's part of the limit, and keep few of its rows."""
    if len(found.rows) <= EXACT_RECORDS:
        return found
    sizes = list(accumulate(row.size for row in found.rows))
    fitting = len(sizes) if size is None else bisect_right(sizes, size)
    fitting = max(1, min(fitting, records))
    kept = replace(
        found,
        rows=found.rows[:EXACT_RECORDS],
        end=found.rows[fitting - 1],
        found_by_time=True,
        expected=ExpectedSize(records=fitting, size=sizes[fitting - 1]),
    )
    if fitting == len(sizes):
        return kept
    end = found.rows[fitting - 1]
    memory = replace(
        found.cursor, position=end.position, reached_ms=end.arrival, cached_iterator=None
    )
    behind = max(found.millis_behind, found.time - found.rows[fitting].arrival, 1)
    return replace(kept, at_latest=False, closed=False, millis_behind=behind, cursor=memory)


def _rows(found: ProbeResult) -> int:
    return len(found.rows) if found.expected is None else found.expected.records


# --- By the rate ---------------------------------------------------------------------------------


def _trusts_rate(start: ShardState, memory: ShardCursor, records: int, size: int | None) -> bool:
    """Return whether the end is searched by time immediately, without a page from the start.

    Not where the start was the tip: the page from there is one call while the shard is quiet.
    """
    at_tip = memory.cached_iterator is not None and memory.cached_iterator.at_latest
    return (
        memory.proven
        and not at_tip
        and memory.position == start.position
        and isinstance(start.position, AfterRecord)
        and memory.reached_ms is not None
        and memory.intake is not None
        and memory.intake.trusted
        and not _is_exact(memory, _wanted(memory, records, size))
    )


def _by_rate(
    start: ShardState, memory: ShardCursor, now: EpochMillis, records: int, size: int | None
) -> Generator[Request, Response, ProbeResult | ShardCursor]:
    """Find the first record at the time when the limit is reached. If that is near the tip or finds
    nothing, return the memory: a page from the start is needed."""
    position, reached, intake = start.position, memory.reached_ms, memory.intake
    if not isinstance(position, AfterRecord) or reached is None or intake is None:
        return memory
    target = EpochMillis(reached + intake.span_ms(records, size))
    if target >= now - NEAR_MS:
        return memory
    stand = RecordRef(
        sequence_number=position.sequence_number, last_sub=position.sub, arrival=reached, size=0
    )
    here = ProbeResult(end=stand, time=now, cursor=memory)
    jumped = yield from find_by_time(here, target)
    if jumped is None:
        return replace(memory, quiet=QuietPeriod(since=target, at=now))
    if jumped is here:
        return memory
    return _estimated(jumped, reached, target, ExpectedSize(records=0, size=0))


def _continue_by_time(
    start: ShardState, found: ProbeResult, records: int, size: int | None
) -> ProbeSteps:
    """Continue from the counted rows to where the rest of the limit is reached."""
    intake = found.cursor.intake
    if found.end is None or intake is None:
        return found
    counted = found.expected or ExpectedSize(
        records=len(found.rows), size=sum(row.size for row in found.rows)
    )
    left = None if size is None else max(0, size - (counted.size or 0))
    rest = records - counted.records
    span = intake.span_ms(rest, left)
    target = EpochMillis(found.end.arrival + span)
    silence = found.cursor.quiet
    if silence is not None and found.end.arrival < silence.since <= target:
        return (yield from search_near_latest(start, found, most=_wanted(found.cursor, rest, left)))
    if target >= found.time - NEAR_MS:
        return (yield from search_near_latest(start, found, most=_wanted(found.cursor, rest, left)))
    if span < 1:
        return found
    jumped = yield from find_by_time(found, target)
    if jumped is None:
        memory = replace(found.cursor, quiet=QuietPeriod(since=target, at=found.time))
        quiet = replace(found, cursor=memory)
        return (yield from search_near_latest(start, quiet, most=_wanted(found.cursor, rest, left)))
    return found if jumped is found else _estimated(jumped, found.end.arrival, target, counted)


def _estimated(
    found: ProbeResult, since: EpochMillis, target: EpochMillis, counted: ExpectedSize
) -> ProbeResult:
    """Return the finding with the expected size up to its end: `counted`, plus the intake after
    `since`. A gap after `target` is not counted as if it had records."""
    intake = found.cursor.intake
    if intake is None or found.end is None:
        return found
    gap_ms = intake.clump * intake.millis / intake.records
    until = min(found.end.arrival, target + math.ceil(gap_ms))
    records, size = intake.within(until - since)
    margin = MARGIN + 1 / math.sqrt(max(1, records))
    expected = ExpectedSize(
        records=counted.records + math.ceil(records * margin) + PROBE_RECORDS,
        size=(counted.size or 0) + math.ceil(size * margin),
    )
    return replace(found, expected=expected, cursor=replace(found.cursor, intake=intake.spent()))
