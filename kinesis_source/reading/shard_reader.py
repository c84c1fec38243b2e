"""Reads one shard's range, page by page, in order, until its end.

This is the only loop that fetches records for Spark. `page_cut` decides the rows of a page,
`missing_records` the meaning of a missing record, `fetch_pacing` the pace, and `page_requests` the
sizes.

A range begins at an anchor: its start record, or the record with which the batch is known to begin.
The iterator is opened *at* the anchor and the anchor must come first, which proves that nothing
after it has been trimmed. An iterator that expires is replaced in the same way, anchored at the
last record that was fetched, so nothing is repeated and no gap goes unnoticed.

Memory is reserved before an iterator is opened or used. The wait for memory may exceed the five
minutes that an iterator lives, when many shards share the memory and the sink is slow: an iterator
that has become too old is replaced without being tried. Empty pages are followed within one
reservation, since the progress through them would be lost with the iterator.

The client does not retry these calls; they are repeated here, with the back-off of the options, so
that waits end at once when the task is stopped. Throttled calls are repeated without a limit, other
faults up to `retry.maxAttempts` times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kinesis_source.aggregation.deaggregation import KeyFilter
from kinesis_source.client.api import (
    ExpiredIteratorError,
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
)
from kinesis_source.client.hash_range_cache import HashRanges
from kinesis_source.model.ranges import ShardRange
from kinesis_source.model.shard import (
    AfterRecord,
    RecordPage,
    SequenceNumber,
    ShardEnd,
    ShardIterator,
    ShardState,
)
from kinesis_source.options.values import KinesisOptions
from kinesis_source.reading.arrow_batches import weigh
from kinesis_source.reading.clock import Timing
from kinesis_source.reading.data_loss_checks import MissingRecords
from kinesis_source.reading.end_wait import EndWatch, Verdict
from kinesis_source.reading.fetch_buffer import Handoff, Reservation, StoppedError
from kinesis_source.reading.fetch_rate import block_millis, pause_millis, size_of
from kinesis_source.reading.fetch_size import PageRequests
from kinesis_source.reading.range_filter import WHOLE_RECORD, Anchor, Meeting, cut_page
from kinesis_source.reading.row_builder import Dropping, rows_of
from kinesis_source.reading.shard_retry import ShardPatience
from kinesis_source.reading.shared_read_rates import ReadRates
from ssp_common.errors import ServiceUnavailableError, StreamNotFoundError

ITERATOR_SECONDS: Final = 240.0
"""The age up to which an iterator is used. It expires after five minutes (Kinesis API
reference)."""

MAX_EXPIRIES: Final = 5
"""The most young iterators that may be refused in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """An iterator and the monotonic time, in seconds, before which it cannot have been made."""

    iterator: ShardIterator
    made: float


class ShardReader:
    """Reads `range_` once, in one thread, and hands its rows to `handoff`."""

    def __init__(
        self,
        range_: ShardRange,
        options: KinesisOptions,
        service: KinesisService,
        handoff: Handoff,
        *,
        timing: Timing,
        hash_ranges: HashRanges,
        rates: ReadRates,
    ) -> None:
        self._range = range_
        self._options = options
        self._service = service
        self._handoff = handoff
        self._timing = timing
        self._hash_ranges = hash_ranges
        self._rates = rates
        self._missing = MissingRecords(
            range=range_, service=service, fail=options.fail_on_data_loss
        )
        self._anchor = _first_anchor(range_)
        self._start = range_.begin
        self._last: SequenceNumber | None = None
        self._cursor: _Cursor | None = None
        self._refused = 0
        self._doubted: tuple[SequenceNumber | None] | None = None
        self._requests = PageRequests(options.max_records_per_fetch, range_.expected)
        self._end_watch = EndWatch()
        now = timing.monotonic()
        self._not_before = rates.not_before(range_, options.connection, now)
        self._patience = ShardPatience(
            range_.key,
            options.connection,
            timing=timing,
            pause=self._pause,
            throttled=lambda: rates.throttled(range_, options.connection),
        )

    def run(self) -> None:
        """Return once the whole range is handed over, or what of it was lost is tolerated.

        Raises `DataLossError` under `failOnDataLoss`, `ServiceUnavailableError` when retries are
        used up or the end does not appear, `StoppedError` when the rows are no longer wanted, and
        what else the service raises.
        """
        try:
            self._read()
        except (ShardNotFoundError, StreamNotFoundError, InvalidPositionError) as gone:
            self._missing.shard(gone)

    def _read(self) -> None:
        while not self._patience.run(self._step):
            pass

    # --- One reservation --------------------------------------------------------------------------

    def _step(self) -> bool:
        """Fetch pages until one brings rows or is at the tip; whether the range is finished."""
        self._pause(self._not_before - self._timing.monotonic())
        memory = self._requests.memory(self._limit())
        with self._handoff.reservation(memory) as reservation:
            while True:
                page, limit, asked = self._fetch()
                finished = self._digest(page, reservation) or self._is_awaited_in_vain(page)
                self._pace(page, limit, asked, finished=finished)
                at_tip = page.millis_behind_latest == 0
                if finished or reservation.chunk is not None or at_tip:
                    return finished
                self._handoff.shrink(reservation, self._requests.memory(self._limit()))
                self._pause(self._not_before - self._timing.monotonic())

    def _limit(self) -> int:
        repeated = self._anchor is not None and self._anchor.after_sub >= 0
        return self._requests.limit(repeated=int(repeated))

    def _fetch(self) -> tuple[RecordPage, int, float]:
        """Return the next page, the `Limit` of its call and the time before it.

        Opens an iterator first if there is none that is young enough.
        """
        while True:
            cursor = self._usable_cursor() or self._open()
            limit = self._limit()
            asked = self._timing.monotonic()
            try:
                page = self._service.get_records(
                    self._range.stream,
                    self._range.shard,
                    cursor.iterator,
                    limit=limit,
                    patience=False,
                )
            except ExpiredIteratorError as expired:
                self._cursor = None
                self._note_expiry(expired, cursor)
                continue
            self._refused = 0
            self._patience.answered()
            following = page.next_iterator
            self._cursor = None if following is None else _Cursor(iterator=following, made=asked)
            return page, limit, asked

    def _note_expiry(self, expired: ExpiredIteratorError, cursor: _Cursor) -> None:
        """Count an iterator that was refused while young; an old one is not a fault."""
        self._pause(0)
        self._refused += self._timing.monotonic() - cursor.made < ITERATOR_SECONDS
        if self._refused >= MAX_EXPIRIES:
            raise self._iterators_refused(expired) from None

    def _usable_cursor(self) -> _Cursor | None:
        if self._cursor is None:
            return None
        age = self._timing.monotonic() - self._cursor.made
        return self._cursor if age < ITERATOR_SECONDS else None

    def _open(self) -> _Cursor:
        """Open an iterator at the anchor: after the first page, the last record fetched."""
        if self._last is not None:
            self._anchor = Anchor(sequence_number=self._last, after_sub=WHOLE_RECORD)
            self._start = ShardState(position=AfterRecord(sequence_number=self._last))
        anchor = self._anchor
        position = (
            self._range.start
            if anchor is None
            else AfterRecord(sequence_number=anchor.sequence_number)
        )
        asked = self._timing.monotonic()
        iterator = self._service.open_iterator(
            self._range.stream,
            self._range.shard,
            position,
            inclusive=anchor is not None,
            patience=False,
        )
        self._cursor = _Cursor(iterator=iterator, made=asked)
        return self._cursor

    # --- One page ---------------------------------------------------------------------------------

    def _digest(self, page: RecordPage, reservation: Reservation) -> bool:
        """Hand over what belongs to the range; whether the range is finished with it."""
        cut = cut_page(page.sequence_numbers, self._anchor, self._range.end)
        if cut.anchor is Meeting.MISSING and not self._missing.start(
            self._start, cut.instead_of_anchor
        ):
            return True
        repeated = 0
        if cut.anchor is not Meeting.AWAITED:
            if cut.anchor is Meeting.MET and self._anchor is not None:
                repeated = int(self._anchor.after_sub >= 0)
            self._anchor = None
            self._last = page.sequence_numbers[-1] if len(page) else self._last
        self._requests.answered(len(page) - repeated, weigh(page.partition_keys, page.data))
        if cut.begin < cut.end:
            reservation.fill(
                rows_of(
                    page,
                    cut,
                    self._range.key,
                    deaggregate=self._options.deaggregate,
                    dropping=self._dropping,
                )
            )
        if cut.finish is Meeting.MISSING:
            self._missing.end(f"record {cut.instead_of_end} in its place")
        return cut.finish is not Meeting.AWAITED or self._is_closed(page)

    def _is_closed(self, page: RecordPage) -> bool:
        """Return whether the shard ended with `page`; report a data loss if that was too early.

        A last page that is not at the tip contradicts itself. It is believed if the service repeats
        it behind the same record.
        """
        if page.next_iterator is not None:
            return False
        if page.millis_behind_latest > 0 and self._doubted != (self._last,):
            self._doubted = (self._last,)
            return False
        if self._absent_start_is_tolerated() and not isinstance(self._range.end, ShardEnd):
            self._missing.end("the end of the shard before it")
        return True

    def _is_awaited_in_vain(self, page: RecordPage) -> bool:
        """Return whether the missing end of the range is tolerated.

        The driver has seen the end, so it must appear: unless nothing at all of the range is
        there, for then it may have been trimmed. Older records are trimmed before younger ones.
        The end of a shard is no record and cannot be trimmed.
        """
        now = self._timing.monotonic()
        watch = self._end_watch
        verdict = watch.judge(len(page), page.millis_behind_latest, now)
        if verdict is Verdict.READ_ON:
            return False
        if verdict is Verdict.STALLED:
            raise self._end_missing(
                f"empty pages that came no nearer to the shard's tip for {watch.waited_millis} ms"
            )
        if self._last is not None or isinstance(self._range.end, ShardEnd):
            raise self._end_missing(f"nothing more at the shard's tip for {watch.waited_millis} ms")
        if self._absent_start_is_tolerated():
            self._missing.end(
                f"nothing from the start to the shard's tip, for {watch.waited_millis} ms"
            )
        return True

    def _absent_start_is_tolerated(self) -> bool:
        """Judge a start record that has not come and cannot come any more."""
        if self._anchor is None:
            return True
        return self._missing.start(self._start, None)

    def _dropping(self) -> Dropping | None:
        stragglers = self._range.stragglers
        if stragglers is None:
            return None
        own = self._hash_ranges.of(self._range, self._options.connection, self._service)
        keys = KeyFilter(own=own, family=stragglers.family)
        return Dropping(keys=keys, since=stragglers.since)

    # --- Waiting ----------------------------------------------------------------------------------

    def _pace(self, page: RecordPage, limit: int, asked: float, *, finished: bool) -> None:
        """Set the time of the shard's next call: in this range, or by the reader of the next."""
        enforced = self._rates.are_enforced(self._range, self._options.connection)
        if finished:
            if enforced:
                until = asked + block_millis(size_of(page)) / 1000
                now = self._timing.monotonic()
                self._rates.leave(self._range, self._options.connection, until, now)
            return
        # Readers that pass the tip of a closed shard are behind as well.
        closed = isinstance(self._range.end, ShardEnd)
        pause = pause_millis(
            page,
            empty_at_tip=self._end_watch.empty_at_tip if page.millis_behind_latest == 0 else 0,
            limit=limit,
            enforced=enforced,
            min_fetch_period_millis=0 if closed else self._options.min_fetch_period_ms,
        )
        self._not_before = asked + pause / 1000

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._timing.wait(self._handoff.stopping, seconds)
        if self._handoff.stopping.is_set():
            raise StoppedError

    # --- Errors -----------------------------------------------------------------------------------

    def _iterators_refused(self, expired: ExpiredIteratorError) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"shard {self._range.key}",
            found=f"{expired.found}, {self._refused} times in a row, each within "
            f"{ITERATOR_SECONDS:.0f} s of the call that gave the iterator",
            expected="an iterator that is accepted for five minutes",
            next_step="restart the query, which repeats the batch; if it fails again, check that "
            "all requests reach one service (a proxy may spread them over several) and that its "
            "clock does not jump",
        )

    def _end_missing(self, found: str) -> ServiceUnavailableError:
        end = self._range.end
        last = f"record {end.sequence_number}" if isinstance(end, AfterRecord) else "its end"
        return ServiceUnavailableError(
            f"shard {self._range.key}",
            found=found,
            expected=f"the shard's records up to {last}, which was there when the batch was "
            "planned",
            next_step="restart the query, which repeats the batch; if it fails again, check that "
            "endpointUrl names the service that the checkpoint was written with, and the "
            "service's health",
        )


def _first_anchor(range_: ShardRange) -> Anchor | None:
    if isinstance(range_.start, AfterRecord):
        start = range_.start
        return Anchor(sequence_number=start.sequence_number, after_sub=start.sub)
    if range_.expect_first is not None:
        return Anchor(sequence_number=range_.expect_first, after_sub=-1)
    return None
