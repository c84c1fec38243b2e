"""Runs probes by a script, or against a model of a shard."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from spark_ssp.common.errors import SspError
from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    ThrottledError,
    UnreachableError,
)
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardIterator,
    ShardState,
    TrimHorizon,
    sequence_order,
)
from spark_ssp.kinesis_source.probing.batch_end_probe import probe
from spark_ssp.kinesis_source.probing.limited_end_probe import MANY_RECORDS, LimitShare, scan_ahead
from spark_ssp.kinesis_source.probing.probe_protocol import (
    PAGE_RECORDS,
    CachedIterator,
    FetchPage,
    OpenIterator,
    PageView,
    ProbeResult,
    ProbeSteps,
    RecordRef,
    Request,
    Response,
    ShardCursor,
)

NOW = EpochMillis(1_700_000_000_000)
DAY_MS = 24 * 3_600_000


def ms(offset: int) -> EpochMillis:
    """A time relative to `NOW`."""
    return EpochMillis(NOW + offset)


def row(order: int, arrival: int = 0, *, sub: int = 0, size: int = 100) -> RecordRef:
    """Record `order`, arrived at `arrival` relative to `NOW`."""
    return RecordRef(
        sequence_number=SequenceNumber(str(order)),
        last_sub=sub,
        arrival=ms(arrival),
        size_bytes=size,
    )


def page(
    rows: Iterable[RecordRef] = (), *, onward: str | None = "onward", behind: int = 0, time: int = 0
) -> PageView:
    """Return a page of GetRecords; `onward` None: the shard has ended."""
    return PageView(
        records=tuple(rows),
        next_iterator=None if onward is None else ShardIterator(onward),
        millis_behind=behind,
        time=ms(time),
        limit=PAGE_RECORDS,
    )


def opened(position: Position, *, inclusive: bool = False) -> OpenIterator:
    return OpenIterator(position=position, inclusive=inclusive)


def cursor(iterator: str, issued: int = 0, *, at_latest: bool = False) -> CachedIterator:
    return CachedIterator(iterator=ShardIterator(iterator), issued=ms(issued), at_latest=at_latest)


def fetched(iterator: str, limit: int) -> FetchPage:
    return FetchPage(iterator=ShardIterator(iterator), limit=limit)


Exchange = tuple[Request, PageView | str | SspError]
"""A request that must come, and its response: a page, an iterator or an error."""


def play(steps: ProbeSteps, *script: Exchange) -> ProbeResult:
    """Answer each request by the script; the requests must be exactly these, whatever the size that
    they expect of a response."""
    answer: Response | SspError | None = None
    for expected, given in script:
        request = _next(steps, answer)
        if isinstance(request, FetchPage) and isinstance(expected, FetchPage):
            expected = replace(expected, max_bytes=request.max_bytes)
        assert request == expected, f"asked for {request}, not for {expected}"
        if isinstance(given, PageView) and isinstance(request, FetchPage):
            given = replace(given, limit=request.limit)
        answer = ShardIterator(given) if isinstance(given, str) else given
    last = _next(steps, answer)
    assert isinstance(last, ProbeResult), f"asked for {last} after the end of the script"
    check_records(last)
    return last


def check_records(result: ProbeResult) -> None:
    """Unless the end was found by time, the records from the start to the end are known."""
    if result.records and not result.found_by_time:
        assert result.records[-1] == result.end


def _next(steps: ProbeSteps, answer: Response | SspError | None) -> Request | ProbeResult:
    try:
        if answer is None:
            return next(steps)
        if isinstance(answer, SspError):
            return steps.throw(answer)
        return steps.send(answer)
    except StopIteration as done:
        finding = done.value
        assert isinstance(finding, ProbeResult)
        return finding


@dataclass(kw_only=True)
class ModelShard:
    """A shard that answers like the API reference. `rows` are in sequence order; their arrival
    times need not be. Each page holds at most `page_records`; `empties` empty pages come first.
    `vague_ms`: within this time of the last record's arrival it answers 0 milliseconds behind, as
    emulators do, also on a page that its limit cut."""

    rows: Sequence[RecordRef]
    closed: bool = False
    page_records: int = 10_000
    empties: Callable[[int], int] = lambda call: 0
    vague_ms: int = 0
    now: EpochMillis = NOW
    calls: int = 0
    records_given: int = 0

    def __post_init__(self) -> None:
        self._orders = [row.order for row in self.rows]
        self._peaks = list(accumulate((row.arrival for row in self.rows), max))

    def run(self, steps: ProbeSteps) -> ProbeResult:
        answer: Response | None = None
        while True:
            request = _next(steps, answer)
            if isinstance(request, ProbeResult):
                return request
            self.calls += 1
            answer = (
                self._open(request) if isinstance(request, OpenIterator) else self._fetch(request)
            )

    def _open(self, request: OpenIterator) -> ShardIterator:
        match request.position:
            case TrimHorizon():
                place = 0
            case AtTimestamp(millis=millis):
                place = bisect_left(self._peaks, min(millis, self.now))
            case AfterRecord(sequence_number=number):
                find = bisect_left if request.inclusive else bisect_right
                place = find(self._orders, sequence_order(number))
            case ShardEnd():
                raise AssertionError("there is no iterator at the end of a shard")
        return self._iterator(place, self.empties(self.calls))

    @staticmethod
    def _iterator(place: int, empties: int) -> ShardIterator:
        return ShardIterator(f"{place}/{empties}")

    def _fetch(self, request: FetchPage) -> PageView:
        place, empties = (int(part) for part in request.iterator.split("/"))
        rows = self.rows[place : place + min(request.limit, self.page_records)]
        if empties and rows:
            behind = max(1, self.now - rows[0].arrival)
            return PageView(
                records=(),
                next_iterator=self._iterator(place, empties - 1),
                millis_behind=behind,
                time=self.now,
                limit=request.limit,
            )
        after = place + len(rows)
        at_latest = after == len(self.rows)
        ended = self.closed and at_latest
        self.records_given += len(rows)
        return PageView(
            records=tuple(rows),
            next_iterator=None if ended else self._iterator(after, self.empties(self.calls)),
            millis_behind=0 if at_latest else self._behind(self.rows[after]),
            time=self.now,
            limit=request.limit,
        )

    def _behind(self, following: RecordRef) -> int:
        vague = abs(self.rows[-1].arrival - following.arrival) < self.vague_ms
        return 0 if vague else max(1, self.now - following.arrival)


P = AfterRecord(sequence_number=SequenceNumber("100"))
START_ROW = row(100, -5000)
QUIET = ShardState(position=P, last_caught_up_ms=ms(-60_000))
TRIM = ShardState(position=TrimHorizon())
FRESH = ShardCursor()
KNOWN = ShardCursor(record_bytes=100.0)
AT_LATEST = ShardCursor(
    position=P, cached_iterator=cursor("c", -1000), record_bytes=1024.0, proven=True
)
PEEK = 64
"""The number of records of 1024 bytes that a page from the start may fetch."""

EXPIRED = ExpiredIteratorError("it", found="old", expected="young", next_step="open another")
THROTTLED = ThrottledError("it", found="many", expected="few", next_step="wait")
UNREACHABLE = UnreachableError("it", found="nothing", expected="an answer", next_step="wait")


def at(offset: int) -> AtTimestamp:
    return AtTimestamp(millis=ms(offset))


def look(start: ShardState, memory: ShardCursor) -> ProbeSteps:
    return probe(start, memory, NOW, DAY_MS)


def ahead(
    start: ShardState,
    memory: ShardCursor,
    records: int = MANY_RECORDS,
    size: int | None = None,
    *,
    closed: bool = False,
) -> ProbeSteps:
    share = LimitShare(records=records, size_bytes=size)
    return scan_ahead(start, memory, NOW, DAY_MS, share, closed=closed, persistent=closed)


def orders(finding: ProbeResult) -> list[int]:
    return [found.order for found in finding.records]
