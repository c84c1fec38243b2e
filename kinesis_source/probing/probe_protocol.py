"""Defines probes of a shard: the requests of planning to the service, and the state kept of the
answers.

Kinesis has no call that returns a shard's latest sequence number, so an end is found by probing few
records. Each probe (in `batch_end_probe.py`, `limited_end_probe.py` and `instant_probe.py`) is a
generator: it yields requests (`OpenIterator`, `FetchPage`), receives the responses, and returns a
`ProbeResult`. It does no I/O, so the same code runs against a script, a model and the service;
`probe_runner.py` runs it against the service.

A page may be empty although records follow, and an emulator answers 0 milliseconds behind for a
page that its limit cut. `PageView.at_latest` is the only rule for both.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import force_setattr

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.client.api import MAX_PAGE_BYTES, ThrottledError
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    Position,
    RecordPage,
    SequenceNumber,
    ShardIterator,
    sequence_order,
)
from spark_ssp.kinesis_source.probing.intake_rate import Intake

PAGE_RECORDS = 10_000
"""The most records one GetRecords answers (Kinesis API reference)."""
CUT_BYTES = 1024 * 1024
"""A page of this size may have been cut: the service returns at most 10 MB, less the record that
would not fit."""
LARGEST_RECORD_BYTES = 1024 * 1024
"""The largest record, unless its stream accepts larger ones."""
PROBE_RECORDS = 2
"""The limit of a probe by time: a page with fewer records proves that its record is the last."""
MIN_WINDOW_MS = 250
"""The shortest distance from now of a probe by time."""
MAX_EMPTY_PAGES = 20
"""The most empty pages that one probe follows; the cursor they lead to is kept."""


class OpenIterator(msgspec.Struct, frozen=True, kw_only=True):
    """Request for an iterator. The response is a `ShardIterator`."""

    position: Position
    inclusive: bool = False


class FetchPage(msgspec.Struct, frozen=True, kw_only=True):
    """Request for records. The response is a `PageView`; an expired iterator is thrown in."""

    iterator: ShardIterator
    limit: int
    max_bytes: int = MAX_PAGE_BYTES
    """The largest expected size of the response."""


class RecordRef(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a record that planning keeps: never its data."""

    sequence_number: SequenceNumber
    last_sub: int
    arrival: EpochMillis
    size_bytes: int
    """The size of data and partition key, as the service counts it."""

    @property
    def order(self) -> int:
        return sequence_order(self.sequence_number)

    @property
    def position(self) -> AfterRecord:
        return AfterRecord(sequence_number=self.sequence_number, sub=self.last_sub)


class PageView(msgspec.Struct, frozen=True, kw_only=True):
    """A page of records without the records."""

    records: tuple[RecordRef, ...]
    next_iterator: ShardIterator | None
    millis_behind: int
    """The service's answer, which is not reliable: use `at_latest`."""
    time: EpochMillis
    limit: int
    """The number of records requested."""
    size_bytes: int = 0
    """The size of the records, as the service counts it. Set from them, as are the two below."""
    is_cut: bool = False
    """True if the page may have been cut by its limit, so that more records may follow."""
    at_latest: bool = False
    """True if nothing followed the page in an open shard when the service answered. 0 milliseconds
    behind is trusted only on a page that was not cut: kinesis-mock answers 0 for all records of the
    latest second, even if a limit left some of them out."""

    def __post_init__(self) -> None:
        # Once, and not in properties: each is needed several times for each shard and probe.
        records = self.records
        size = sum([record.size_bytes for record in records])
        is_cut = bool(records) and (len(records) >= self.limit or size >= CUT_BYTES)
        at_latest = self.next_iterator is not None and self.millis_behind == 0 and not is_cut
        force_setattr(self, "size_bytes", size)
        force_setattr(self, "is_cut", is_cut)
        force_setattr(self, "at_latest", at_latest)

    @property
    def lag(self) -> int:
        """Milliseconds behind the latest record, never 0 before it."""
        if self.millis_behind or self.at_latest or not self.records or self.next_iterator is None:
            return self.millis_behind
        return max(1, self.time - self.records[-1].arrival)


Request = OpenIterator | FetchPage
Response = ShardIterator | PageView
ProbeSteps = Generator[Request, Response, "ProbeResult"]
CheckSteps = Generator[Request, Response, "PositionAnswer"]
PageSteps = Generator[Request, Response, PageView]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedIterator:
    """An iterator at a known position, kept between triggers."""

    iterator: ShardIterator
    issued: EpochMillis
    at_latest: bool = False
    """True if nothing followed in the shard when the iterator was issued."""
    follows: AfterRecord | None = field(default=None, compare=False)
    """The record that it follows, if that was on the page which it came with."""


def cached_iterator_after(page: PageView) -> CachedIterator | None:
    """Return the iterator that follows a page; None at the end of the shard."""
    if page.next_iterator is None:
        return None
    return CachedIterator(
        iterator=page.next_iterator,
        issued=page.time,
        at_latest=page.at_latest,
        follows=page.records[-1].position if page.records else None,
    )


class QuietPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """A probe at `at` found no record that had arrived at `since` or later."""

    since: EpochMillis
    at: EpochMillis


class Lookahead(msgspec.Struct, frozen=True, kw_only=True):
    """Records that follow `position` directly: a page that was read for a batch had them, but the
    limit left them out."""

    position: Position
    records: tuple[RecordRef, ...]
    cached_iterator: CachedIterator | None
    """The iterator after the last of them, if it is known."""


class ShardCursor(msgspec.Struct, frozen=True, kw_only=True):
    """State of a shard that the driver keeps between triggers. Losing it only costs calls. It
    refers to `position`: if an offset has another position, the iterator is void."""

    position: Position | None = None
    cached_iterator: CachedIterator | None = None
    window_ms: int = 2 * MIN_WINDOW_MS
    record_bytes: float | None = None
    """Running mean of the size of records seen; under a limit, at least the mean of the last
    page."""
    proven: bool = False
    """The iterator has passed the start record, or its absence has been judged."""
    reached_ms: EpochMillis | None = None
    """The arrival time of the record at `position`, if known."""
    quiet: QuietPeriod | None = None
    """The last probe by time that found nothing: the latest record is older, or records came
    since."""
    intake: Intake | None = None
    """The rate at which the shard took in the records counted last."""
    window_end_ms: EpochMillis | None = None
    """If the end at `position` was found by time: the time at or after which it had to arrive."""
    lookahead: Lookahead | None = None


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one probe of a shard; all of it follows the start position."""

    records: tuple[RecordRef, ...] = ()
    """The records that directly follow the start, without a gap; a limit may cut them anywhere."""
    end: RecordRef | None = None
    """The farthest record that may be the end: the last of `records`, or a later one found by
    time."""
    at_latest: bool = False
    """Nothing followed `end` (or the start) at `time`."""
    closed: bool = False
    """The shard is closed and nothing follows `end`: the end may be SHARD_END."""
    millis_behind: int = 0
    time: EpochMillis
    start_lost: bool = False
    """The start record is missing from the shard."""
    first: SequenceNumber | None = None
    """The first record, if reading started at TRIM_HORIZON or a time."""
    found_by_time: bool = False
    """`end` is later than `records`: it was found by time."""
    fetches: int = 1
    """The number of GetRecords calls of the probe, set by its runner."""
    fetched_bytes: int = 0
    """The bytes of records that those calls returned, set by the runner."""
    throttled: bool = False
    """One of the probe's calls was throttled, set by the runner."""
    expected: ExpectedSize | None = None
    """The size from the start to `end`, if counted or estimated."""
    cursor: ShardCursor
    """The cursor to keep if the batch ends at `end` (or SHARD_END)."""

    @property
    def has_more(self) -> bool:
        """Return whether records follow `end`."""
        return not self.closed and not self.at_latest


def without_end(result: ProbeResult) -> ProbeResult:
    """Return the result of a probe that met an end of its shard which is not confirmed."""
    return replace(
        result,
        closed=False,
        at_latest=False,
        millis_behind=max(result.millis_behind, 1),
        cursor=replace(result.cursor, cached_iterator=None),
    )


class PositionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The service's answer about the record of a position, as of `time`."""

    refused: str | None = None
    """The refusal, if the service takes the number for that of another shard or stream."""
    found: SequenceNumber | None = None
    """The first record at the position or after it; None: there is none up to the latest."""
    oldest: SequenceNumber | None = None
    """The oldest record of the shard, if it is needed; None: the shard has no records."""
    time: EpochMillis
    cursor: ShardCursor = msgspec.field(default_factory=ShardCursor)
    """The cursor to keep if the shard is read from the position."""
    fetches: int = 0
    """The number of GetRecords calls, set by the runner, as are the two below."""
    fetched_bytes: int = 0
    throttled: bool = False


# --- Reading pages -------------------------------------------------------------------------------


def follow_iterator(
    iterator: ShardIterator,
    limit: int,
    *,
    record_bytes: float | None = None,
    persistent: bool = False,
) -> PageSteps:
    """Fetch the next page that contains a record, ends the shard, or is at the latest record.

    After many empty pages the last one is returned, unless `persistent`, as it is if the service
    throttles. The iterator it leads to is kept: a shard of many empty pages is passed in several
    probes, each of which would otherwise start from the beginning.
    """
    page = yield from fetch_page(iterator, limit, record_bytes)
    followed = 0
    while not page.records and not page.at_latest and page.next_iterator is not None:
        if followed == MAX_EMPTY_PAGES and not persistent:
            break
        try:
            page = yield from fetch_page(page.next_iterator, limit, record_bytes)
        except ThrottledError:
            break
        followed += 1
    return page


def fetch_page(iterator: ShardIterator, limit: int, record_bytes: float | None = None) -> PageSteps:
    """Fetch one page of at most `limit` records of about `record_bytes`, if that is known."""
    limit = max(1, min(limit, PAGE_RECORDS))
    each = LARGEST_RECORD_BYTES if record_bytes is None else math.ceil(record_bytes)
    page = yield FetchPage(
        iterator=iterator, limit=limit, max_bytes=min(MAX_PAGE_BYTES, limit * each)
    )
    if not isinstance(page, PageView):
        raise TypeError(f"a FetchPage is answered by a PageView, not {type(page).__name__}")
    return page


def open_iterator(
    position: Position, *, inclusive: bool = False
) -> Generator[Request, Response, ShardIterator]:
    iterator = yield OpenIterator(position=position, inclusive=inclusive)
    if not isinstance(iterator, str):
        raise TypeError(
            f"an OpenIterator is answered by an iterator, not {type(iterator).__name__}"
        )
    return iterator


def page_view(page: RecordPage, last_subs: tuple[int, ...], limit: int) -> PageView:
    """Return a page as planning uses it; `last_subs` has each record's last user record, `limit` is
    the number of records requested."""
    return PageView(
        records=tuple(
            [
                RecordRef(
                    sequence_number=number,
                    last_sub=sub,
                    arrival=arrival,
                    size_bytes=len(data) + len(key or ""),
                )
                for number, sub, arrival, data, key in zip(
                    page.sequence_numbers,
                    last_subs,
                    page.arrival_ms,
                    page.data,
                    page.partition_keys,
                    strict=True,
                )
            ]
        ),
        next_iterator=page.next_iterator,
        millis_behind=page.millis_behind_latest,
        time=page.service_time,
        limit=limit,
    )
