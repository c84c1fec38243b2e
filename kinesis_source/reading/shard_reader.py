"""Reads one shard's range, page by page, in order, until its end.

This is the only loop that fetches records for Spark. `page_rows` selects the records of a page and
builds their rows, `data_loss` decides what a missing record means, and `fetch_pacing` sets
the pace and the sizes.

A range may begin with an expected record: its start record, or the record with which the batch is
known to begin. The iterator is opened *at* the expected record, which must come first: that proves
that nothing after it has been trimmed. An iterator that expires is replaced in the same way, at the
last record that was fetched, so nothing is repeated and no gap goes unnoticed. The driver may hand
over an iterator that follows the start record, and that was issued when nothing followed: for the
time that it is valid no record after it can be trimmed, and it needs no proof.

Memory is reserved before an iterator is opened or used. The wait for memory may exceed the five
minutes that an iterator lives, when many shards share the memory and the sink is slow: an iterator
that has become too old is replaced without being tried. Empty pages are followed within one
reservation, since the progress through them would be lost with the iterator.

The client does not retry these calls; they are retried here, with the backoff of the options, so
that waits end at once when the task is stopped. Throttled calls are retried without a limit; other
temporary faults fail the task once they occur `retry.maxAttempts` times in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_ssp.common.errors import (
    AccessError,
    InvalidRequestError,
    ServiceUnavailableError,
    StreamNotFoundError,
)
from spark_ssp.common.times import duration_text, seconds_text
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    FailedCall,
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
    Subscriber,
    Subscription,
)
from spark_ssp.kinesis_source.model.deaggregation import WHOLE_RECORD, KeyFilter
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Position,
    RecordPage,
    SequenceNumber,
    ShardEnd,
    ShardIterator,
    ShardState,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.data_loss import DataLossChecks
from spark_ssp.kinesis_source.reading.arrow_batches import memory_bytes
from spark_ssp.kinesis_source.reading.fan_out import PROCESS_WIDE_FAULTS, FaultLog, PushedPages
from spark_ssp.kinesis_source.reading.fetch_buffer import FetchBuffer, Reservation, StoppedError
from spark_ssp.kinesis_source.reading.fetch_pacing import (
    MIN_RESERVED_BYTES,
    EndWait,
    FetchSizer,
    WaitResult,
    block_ms,
    page_bytes,
    pause_ms,
)
from spark_ssp.kinesis_source.reading.page_rows import (
    ExpectedRecord,
    Match,
    PageSlice,
    StragglerFilter,
    build_rows,
    slice_page,
)
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.shard_retry import Clock, ShardRetry

ITERATOR_LIFETIME_S: Final = 240.0
"""The age up to which an iterator is used. It expires after five minutes (Kinesis API
reference)."""

_OLDEST: Final = ShardState(position=TrimHorizon())

MAX_YOUNG_EXPIRIES: Final = 5
"""The number of young iterators refused in a row that fails the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """An iterator and the monotonic time, in seconds, before which it cannot have been made."""

    iterator: ShardIterator
    made: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCall:
    """The first GetRecords of a range, which can be made at once."""

    iterator: ShardIterator
    limit: int
    memory: int
    """The bytes to reserve for the answer."""
    requested_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """The objects that all shard readers of a task share. Without `subscriber` nothing is
    pushed."""

    options: KinesisOptions
    service: KinesisService
    buffer: FetchBuffer
    clock: Clock
    hash_ranges: HashRangeCache
    rates: ReadRates
    include_repeat_keys: bool
    subscriber: Subscriber | None = None
    faults: FaultLog = PROCESS_WIDE_FAULTS


class ShardReader:
    """Reads `range_` once, in one thread, and adds its rows to the buffer."""

    def __init__(self, range_: ShardRange, context: ReadContext) -> None:
        self.range = range_
        self._options = options = context.options
        self._service = context.service
        self._buffer = context.buffer
        self._clock = context.clock
        self._hash_ranges = context.hash_ranges
        self._rates = rates = context.rates
        self._include_repeat_keys = context.include_repeat_keys
        self._loss_checks = DataLossChecks(
            range=range_,
            service=context.service,
            fail=options.fail_on_data_loss,
            table=options.lease_table,
        )
        self._expected = first_expected(range_)
        self._start = range_.start_state
        is_polled, iterator = range_.consumer is None, range_.iterator
        self._handed_over = (
            _Cursor(iterator=iterator, made=float("-inf")) if is_polled and iterator else None
        )
        self._last: SequenceNumber | None = None
        self._cursor: _Cursor | None = None
        self._refused = 0
        self._failed: FailedCall | None = None
        self._doubtful_end: tuple[SequenceNumber | None] | None = None
        self._sizer = FetchSizer(options.max_records_per_fetch, range_.expected)
        self._end_wait = EndWait()
        self._pushed = PushedPages(
            range_,
            context.subscriber,
            monotonic=context.clock.monotonic,
            faults=context.faults,
        )
        now = context.clock.monotonic()
        self._not_before = rates.next_call(range_, options.connection, now)
        self._retry = ShardRetry(
            range_.key,
            options.connection,
            clock=context.clock,
            pause=self._pause,
            on_throttled=self._record_throttling,
        )

    def run(self) -> None:
        """Read the whole range, or what is left of it if a loss is tolerated.

        Raises `DataLossError` under `failOnDataLoss`, `ServiceUnavailableError` if retries are
        exhausted or the end does not appear, `StoppedError` if the rows are no longer needed, and
        other errors of the service.
        """
        try:
            try:
                self._read()
            except InvalidPositionError as refused:
                if self._restart_at_oldest(refused):
                    self._read()
        except (ShardNotFoundError, StreamNotFoundError, InvalidPositionError) as gone:
            self._loss_checks.report_missing_shard(gone)
        finally:
            self._pushed.close()

    def first_call(self) -> FirstCall | None:
        """Return the first call, if it is known already and its answer is small."""
        now = self._clock.monotonic()
        limit = self._limit()
        memory = self._sizer.bytes_to_reserve(limit)
        if self._handed_over is None or self._not_before > now or memory > MIN_RESERVED_BYTES:
            return None
        return FirstCall(
            iterator=self._handed_over.iterator, limit=limit, memory=memory, requested_at=now
        )

    def take_first(
        self, call: FirstCall, answer: RecordPage | FailedCall, reservation: Reservation
    ) -> bool:
        """Process the answer to the first call; return whether the range is finished. If not, `run`
        reads the rest. Raises the errors of `run`."""
        if isinstance(answer, FailedCall):
            self._failed = answer
            return False
        try:
            self._accept(answer, call.requested_at)
            return self._use(answer, call.limit, call.requested_at, reservation)
        except (ShardNotFoundError, StreamNotFoundError) as gone:
            self._loss_checks.report_missing_shard(gone)
            return True

    def _restart_at_oldest(self, refused: InvalidPositionError) -> bool:
        """Report that the service refuses the start of the range; return whether to read from the
        oldest record left instead. The driver verifies the starts, so this is the replay of a batch
        that was planned without."""
        if not self._loss_checks.report_missing_shard(refused):
            return False
        if self._last is not None:
            return False
        self._start, self._expected, self._cursor = _OLDEST, None, None
        return True

    def _read(self) -> None:
        while not (self._push_step() or self._retry.run(self._poll_step)):
            pass

    def _poll_step(self) -> bool:
        """Fetch, unless the range may be pushed meanwhile; return whether the range is finished."""
        return not self._pushed.is_due(self._sizer.fetched) and self._step()

    def _record_throttling(self) -> None:
        self._rates.record_throttling(self.range, self._options.connection)
        self._pushed.record_throttle()

    # --- Events that are pushed -------------------------------------------------------------------

    def _push_step(self) -> bool:
        """Process events until the range is finished, or has to be polled for some time; return
        whether it is finished."""
        while self._pushed.subscribe(self._subscribe, self._sizer.fetched):
            self._pause(0)
            size = self._pushed.next_size()
            if size is None:
                continue
            with self._buffer.reservation(size) as reservation:
                page = self._pushed.next_page()
                if page is not None and self._process_event(page, reservation):
                    return True
        return False

    def _process_event(self, page: RecordPage, reservation: Reservation) -> bool:
        """Buffer the event's records of the range; return whether the range is finished. Where
        records seem to be missing, poll the rest: only GetRecords proves that they are."""
        part = self._slice(page)
        if Match.MISSING in (part.start_match, part.end_match):
            self._pushed.give_up()
            return False
        finished = self._process(page, part, reservation) or self._is_last_event(page)
        if len(page):
            self._end_wait = EndWait()
        self._pushed.record_event(page)
        return finished

    def _is_last_event(self, page: RecordPage) -> bool:
        """Return whether the range ends with its shard, and the event shows that beyond doubt."""
        is_closed = page.next_iterator is None and page.millis_behind_latest == 0
        return is_closed and isinstance(self.range.end, ShardEnd) and self._expected is None

    def _subscribe(self, subscriber: Subscriber) -> Subscription:
        position, inclusive = self._next_position()
        if self.range.consumer is None:
            raise AssertionError("a range that is polled")
        return subscriber.subscribe(
            self.range.consumer, self.range.key, position, inclusive=inclusive
        )

    # --- One reservation --------------------------------------------------------------------------

    def _step(self) -> bool:
        """Fetch pages until one has rows or is the latest; return whether the range is finished."""
        self._pause(self._not_before - self._clock.monotonic())
        memory = self._sizer.bytes_to_reserve(self._limit())
        with self._buffer.reservation(memory) as reservation:
            while True:
                page, limit, requested_at = self._fetch()
                finished = self._use(page, limit, requested_at, reservation)
                at_latest = page.millis_behind_latest == 0
                if finished or reservation.chunk is not None or at_latest:
                    return finished
                self._buffer.shrink(reservation, self._sizer.bytes_to_reserve(self._limit()))
                self._pause(self._not_before - self._clock.monotonic())

    def _use(
        self, page: RecordPage, limit: int, requested_at: float, reservation: Reservation
    ) -> bool:
        """Process a page; return whether the range is finished."""
        finished = self._process(page, self._slice(page), reservation) or (
            self._is_closed(page) or self._is_end_given_up(page)
        )
        self._pace(page, limit, requested_at, finished=finished)
        return finished

    def _limit(self) -> int:
        expected = None if self._handed_over else self._expected
        repeated = expected is not None and expected.after_sub >= 0
        return self._sizer.record_limit(repeated=int(repeated))

    def _fetch(self) -> tuple[RecordPage, int, float]:
        """Return the next page, the `Limit` of its call and the time before it. Opens an iterator
        first if there is none that is young enough."""
        while True:
            handed_over = self._handed_over
            cursor = handed_over or self._usable_cursor() or self._open()
            limit = self._limit()
            requested_at = self._clock.monotonic()
            try:
                page = self._page(cursor.iterator, limit)
            except ExpiredIteratorError as expired:
                self._cursor = self._handed_over = None
                self._note_expiry(expired, cursor)
                continue
            except (AccessError, InvalidPositionError, InvalidRequestError):
                if handed_over is None:
                    raise
                self._handed_over = None  # it may be good for the driver alone
                continue
            self._accept(page, requested_at)
            return page, limit, requested_at

    def _page(self, iterator: ShardIterator, limit: int) -> RecordPage:
        failed, self._failed = self._failed, None
        if failed is not None:
            page = failed.finish(False)
            if not isinstance(page, RecordPage):
                raise TypeError("a call of GetRecords returns a page")
            return page
        return self._service.get_records(
            self.range.stream, self.range.shard, iterator, limit=limit, retry=False
        )

    def _accept(self, page: RecordPage, requested_at: float) -> None:
        """Go on after a page that the service returned."""
        if self._handed_over is not None:
            self._pass_start()
        self._refused = 0
        self._retry.reset()
        following = page.next_iterator
        self._cursor = None if following is None else _Cursor(iterator=following, made=requested_at)

    def _pass_start(self) -> None:
        """Go on as if the start record had come: the iterator that was handed over follows it."""
        start = self.range.start
        if not isinstance(start, AfterRecord):
            raise TypeError(f"an iterator that follows a {type(start).__name__}")
        self._handed_over, self._expected, self._last = None, None, start.sequence_number

    def _note_expiry(self, expired: ExpiredIteratorError, cursor: _Cursor) -> None:
        """Count an iterator that was refused while young; an old one is not a fault."""
        self._pause(0)
        self._refused += self._clock.monotonic() - cursor.made < ITERATOR_LIFETIME_S
        if self._refused >= MAX_YOUNG_EXPIRIES:
            raise self._iterators_expired_error(expired) from None

    def _usable_cursor(self) -> _Cursor | None:
        if self._cursor is None:
            return None
        age = self._clock.monotonic() - self._cursor.made
        return self._cursor if age < ITERATOR_LIFETIME_S else None

    def _next_position(self) -> tuple[Position, bool]:
        """Return the position to read from, and whether a record at it is included: the expected
        record, which after the first page is the last one fetched.

        The iterator that was used so far is dropped: it is after the record that is expected now,
        also if a subscription there fails before its first event.
        """
        self._cursor = None
        if self._last is not None:
            self._expected = ExpectedRecord(sequence_number=self._last, after_sub=WHOLE_RECORD)
            start = self.range.start
            # More is known of the start: the time at which it was last caught up.
            if not isinstance(start, AfterRecord) or start.sequence_number != self._last:
                self._start = ShardState(position=AfterRecord(sequence_number=self._last))
        expected = self._expected
        position = (
            self._start.position
            if expected is None
            else AfterRecord(sequence_number=expected.sequence_number)
        )
        return position, expected is not None

    def _open(self) -> _Cursor:
        position, inclusive = self._next_position()
        requested_at = self._clock.monotonic()
        iterator = self._service.open_iterator(
            self.range.stream,
            self.range.shard,
            position,
            inclusive=inclusive,
            retry=False,
        )
        self._cursor = _Cursor(iterator=iterator, made=requested_at)
        return self._cursor

    # --- One page ---------------------------------------------------------------------------------

    def _slice(self, page: RecordPage) -> PageSlice:
        return slice_page(page.sequence_numbers, self._expected, self.range.end)

    def _process(self, page: RecordPage, part: PageSlice, reservation: Reservation) -> bool:
        """Buffer the page's records of the range; return whether its last record was found, or is
        known to be missing."""
        if part.start_match is Match.MISSING and not self._loss_checks.check_start(
            self._start, part.instead_of_expected
        ):
            return True
        repeated = 0
        if part.start_match is not Match.PENDING:
            if part.start_match is Match.FOUND and self._expected is not None:
                repeated = int(self._expected.after_sub >= 0)
            self._expected = None
            self._last = page.sequence_numbers[-1] if len(page) else self._last
        self._sizer.record_page(len(page) - repeated, memory_bytes(page))
        if part.begin < part.end:
            reservation.fill(
                build_rows(
                    page,
                    part,
                    self.range.key,
                    deaggregate=self._options.deaggregate,
                    include_repeat_keys=self._include_repeat_keys,
                    straggler_filter=self._straggler_filter,
                )
            )
        if part.end_match is Match.MISSING:
            self._loss_checks.report_missing_end(f"record {part.instead_of_end} in its place")
        return part.end_match is not Match.PENDING

    def _is_closed(self, page: RecordPage) -> bool:
        """Return whether the shard ended with `page`; report a data loss if that was too early.

        A last page with a lag above 0 contradicts itself, and one before the record at which the
        range ends contradicts the plan. It is accepted if the service repeats it after the same
        record.
        """
        if page.next_iterator is not None:
            return False
        doubtful = page.millis_behind_latest > 0 or isinstance(self.range.end, AfterRecord)
        if doubtful and self._doubtful_end != (self._last,):
            self._doubtful_end = (self._last,)
            return False
        if self._absent_start_is_tolerated() and not isinstance(self.range.end, ShardEnd):
            self._loss_checks.report_missing_end("the end of the shard before it")
        return True

    def _is_end_given_up(self, page: RecordPage) -> bool:
        """Return whether the missing end of the range is tolerated.

        The driver has seen the end, so it must appear, unless the range has no records at all: then
        it may have been trimmed. Older records are trimmed before younger ones. The end of a shard
        is not a record and cannot be trimmed.
        """
        now = self._clock.monotonic()
        wait = self._end_wait
        result = wait.record_page(len(page), page.millis_behind_latest, now)
        if result is WaitResult.CONTINUE:
            return False
        if result is WaitResult.STALLED:
            raise self._end_missing_error(
                f"empty pages that came no nearer to the latest record for "
                f"{duration_text(wait.waited_ms)}"
            )
        if self._last is not None or isinstance(self.range.end, ShardEnd):
            raise self._end_missing_error(
                f"nothing after the shard's latest record for {duration_text(wait.waited_ms)}"
            )
        if self._absent_start_is_tolerated():
            self._loss_checks.report_missing_end(
                f"no record from the start to the shard's latest, for "
                f"{duration_text(wait.waited_ms)}"
            )
        return True

    def _absent_start_is_tolerated(self) -> bool:
        """Return whether reading continues without the expected record, which cannot appear now."""
        if self._expected is None:
            return True
        return self._loss_checks.check_start(self._start, None)

    def _straggler_filter(self) -> StragglerFilter | None:
        stragglers = self.range.stragglers
        if stragglers is None:
            return None
        own = self._hash_ranges.get(self.range, self._options.connection, self._service)
        keys = KeyFilter(own=own, family=stragglers.family)
        return StragglerFilter(keys=keys, since=stragglers.since)

    # --- Waiting ----------------------------------------------------------------------------------

    def _pace(self, page: RecordPage, limit: int, requested_at: float, *, finished: bool) -> None:
        """Set the time of the shard's next call: in this range, or by the reader of the next."""
        enforced = self._rates.are_enforced(self.range, self._options.connection)
        if finished:
            if enforced:
                until = requested_at + block_ms(page_bytes(page)) / 1000
                now = self._clock.monotonic()
                self._rates.set_next_call(self.range, self._options.connection, until, now)
            return
        # Readers that pass the latest record of a closed shard are behind as well.
        closed = isinstance(self.range.end, ShardEnd)
        pause = pause_ms(
            page,
            empty_at_latest=self._end_wait.empty_at_latest if page.millis_behind_latest == 0 else 0,
            limit=limit,
            enforced=enforced,
            min_fetch_period_ms=0 if closed else self._options.min_fetch_period_ms,
        )
        self._not_before = requested_at + pause / 1000

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._clock.wait(self._buffer.stopping, seconds)
        if self._buffer.stopping.is_set():
            raise StoppedError

    # --- Errors -----------------------------------------------------------------------------------

    def _iterators_expired_error(self, expired: ExpiredIteratorError) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"shard {self.range.key}",
            found=f"{expired.found}, {self._refused} times in a row, each within "
            f"{seconds_text(ITERATOR_LIFETIME_S)} of the call that gave the iterator",
            expected="an iterator that is accepted for five minutes",
            next_step="restart the query, which repeats the batch; if it fails again, check that "
            "all requests reach one service (a proxy may spread them over several) and that its "
            "clock does not jump",
        )

    def _end_missing_error(self, found: str) -> ServiceUnavailableError:
        end = self.range.end
        last = f"record {end.sequence_number}" if isinstance(end, AfterRecord) else "its end"
        return ServiceUnavailableError(
            f"shard {self.range.key}",
            found=found,
            expected=f"the shard's records up to {last}, which existed when the batch was planned",
            next_step="restart the query, which repeats the batch; if it fails again, check that "
            "endpointUrl names the service that the checkpoint was written with, and the "
            "service's health",
        )


def first_expected(range_: ShardRange) -> ExpectedRecord | None:
    """Return the record that must come first in a range; None if its start names none."""
    if isinstance(range_.start, AfterRecord):
        start = range_.start
        return ExpectedRecord(sequence_number=start.sequence_number, after_sub=start.sub)
    if range_.expect_first is not None:
        return ExpectedRecord(sequence_number=range_.expect_first, after_sub=-1)
    return None
