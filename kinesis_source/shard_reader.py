"""Reading one shard's range, page by page, in order, until its end has been met.

The only loop that fetches records for Spark. What a page contributes is decided by `page_cut`,
what a missing record means by `missing_records`, how fast to go by `fetch_pacing`.

A range begins at an anchor: its start record, or the record with which the batch is known to begin.
The iterator is opened *at* the anchor and the anchor must come first, which proves that nothing
behind it has been trimmed. An iterator that expires is replaced in the same way, anchored at the
last record that was fetched, so nothing is repeated and no gap goes unnoticed.

All calls are made impatiently and repeated here, with the back-off and the limit of the options:
so the waits end at once when the task is stopped, and throttling is seen and slows the shard down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

import tenacity

from kinesis_source.arrow import weigh
from kinesis_source.fetch_pacing import (
    CAREFUL_FOR_MILLIS,
    TIP_PATIENCE_MILLIS,
    backoff_millis,
    pause_millis,
)
from kinesis_source.handoff import Handoff, Reservation, StoppedError
from kinesis_source.hash_ranges import HashRanges
from kinesis_source.missing_records import MissingRecords
from kinesis_source.model import (
    AfterRecord,
    EpochMillis,
    RecordPage,
    SequenceNumber,
    ShardEnd,
    ShardIterator,
)
from kinesis_source.options import KinesisOptions
from kinesis_source.page_cut import WHOLE_RECORD, Anchor, Meeting, cut_page
from kinesis_source.ranges import ShardRange
from kinesis_source.service import (
    ExpiredIteratorError,
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
    ThrottledError,
)
from kinesis_source.timing import Timing
from kinesis_source.user_records import rows_of
from ssp_common.errors import ServiceUnavailableError, StreamNotFoundError
from task_grouping.identifiers import HashRange

logger = logging.getLogger("spark_ssp.kinesis_source.shard_reader")

T = TypeVar("T")

FIRST_RESERVATION: Final = 1 << 20
LARGEST_RESERVATION: Final = 10 << 20
"""Bytes set aside for a fetch: a page is at most 10 MB (Kinesis API reference, GetRecords)."""

MAX_EXPIRIES: Final = 5
"""Iterators that may expire one after the other without a page in between."""

LASTING_ATTEMPTS: Final = 3
"""So many tries in a row that fail are worth a warning."""


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
    ) -> None:
        self._range = range_
        self._options = options
        self._service = service
        self._handoff = handoff
        self._timing = timing
        self._hash_ranges = hash_ranges
        self._missing = MissingRecords(
            range=range_, service=service, fail=options.fail_on_data_loss
        )
        self._anchor = _first_anchor(range_)
        self._seen: EpochMillis | None = range_.start_seen
        self._last: SequenceNumber | None = None
        self._reserve = FIRST_RESERVATION
        self._not_before = timing.monotonic()
        self._careful_until = self._not_before
        self._throttled = 0
        self._empty_at_tip = 0
        self._at_tip_since = self._not_before
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ThrottledError),
            stop=tenacity.stop_after_attempt(options.connection.retry_max_attempts),
            wait=self._backoff,
            before_sleep=self._note_throttling,
            sleep=self._pause,
            reraise=True,
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
        iterator: ShardIterator | None = self._patiently(self._open)
        expiries = 0
        while iterator is not None:
            current = iterator
            try:
                iterator = self._patiently(lambda: self._step(current))  # noqa: B023
                expiries = 0
            except ExpiredIteratorError as expired:
                expiries += 1
                if expiries >= MAX_EXPIRIES:
                    raise self._unavailable(f"{expired.found}, {expiries} times in a row") from None
                if self._last is not None:
                    self._anchor = Anchor(sequence_number=self._last, after_sub=WHOLE_RECORD)
                    self._seen = None
                iterator = self._patiently(self._open)

    def _open(self) -> ShardIterator:
        anchor = self._anchor
        position = (
            self._range.start
            if anchor is None
            else AfterRecord(sequence_number=anchor.sequence_number)
        )
        return self._service.open_iterator(
            self._range.stream,
            self._range.shard,
            position,
            inclusive=anchor is not None,
            patience=False,
        )

    # --- One page ---------------------------------------------------------------------------------

    def _step(self, iterator: ShardIterator) -> ShardIterator | None:
        """Fetch and hand over one page; the next iterator, or None when the range is read."""
        self._pause(self._not_before - self._timing.monotonic())
        with self._handoff.reservation(self._reserve) as reservation:
            started = self._timing.monotonic()
            page = self._service.get_records(
                self._range.stream,
                self._range.shard,
                iterator,
                limit=self._options.max_records_per_fetch,
                patience=False,
            )
            size = weigh(page.partition_keys, page.data)
            self._reserve = min(max(self._reserve, size), LARGEST_RESERVATION)
            if self._digest(page, reservation) or self._is_awaited_in_vain(page):
                return None
        self._not_before = started + self._pause_after(page) / 1000
        return page.next_iterator

    def _digest(self, page: RecordPage, reservation: Reservation) -> bool:
        """Hand over what belongs to the range; whether the range is finished with it."""
        cut = cut_page(page.sequence_numbers, self._anchor, self._range.end)
        if (
            cut.anchor is Meeting.MISSING
            and self._anchor is not None
            and not self._missing.start(
                self._anchor.sequence_number, self._seen, cut.instead_of_anchor
            )
        ):
            return True
        if cut.anchor is not Meeting.AWAITED:
            self._anchor = None
            self._last = page.sequence_numbers[-1] if len(page) else self._last
        if cut.begin < cut.end:
            hash_range = self._hash_range if self._options.deaggregate else None
            reservation.fill(rows_of(page, cut, self._range.key, hash_range))
        if cut.finish is Meeting.MISSING:
            self._missing.end(f"record {cut.instead_of_end} in its place")
        return cut.finish is not Meeting.AWAITED or self._is_closed(page)

    def _is_closed(self, page: RecordPage) -> bool:
        """Whether the shard ended with `page`; judged if that was too early."""
        if page.next_iterator is not None:
            return False
        if self._absent_start_is_tolerated() and not isinstance(self._range.end, ShardEnd):
            self._missing.end("the end of the shard before it")
        return True

    def _is_awaited_in_vain(self, page: RecordPage) -> bool:
        """Count pages that are empty at the tip; whether the missing end is tolerated at last.

        The driver has seen the end, so it must appear: unless nothing at all of the range is
        there, for then it may have been trimmed. Older records are trimmed before younger ones.
        The end of a shard is no record and cannot be trimmed.
        """
        if len(page) or page.millis_behind_latest > 0:
            self._empty_at_tip = 0
            return False
        now = self._timing.monotonic()
        self._at_tip_since = now if self._empty_at_tip == 0 else self._at_tip_since
        self._empty_at_tip += 1
        waited = round((now - self._at_tip_since) * 1000)
        if waited < TIP_PATIENCE_MILLIS:
            return False
        if self._last is not None or isinstance(self._range.end, ShardEnd):
            raise self._unavailable(f"nothing more at the shard's tip for {waited} ms")
        if self._absent_start_is_tolerated():
            self._missing.end(f"nothing from the start to the shard's tip, for {waited} ms")
        return True

    def _absent_start_is_tolerated(self) -> bool:
        """Judge a start record that has not come and cannot come any more."""
        if self._anchor is None:
            return True
        return self._missing.start(self._anchor.sequence_number, self._seen, None)

    def _hash_range(self) -> HashRange:
        return self._hash_ranges.of(self._range, self._options.connection, self._service)

    # --- Waiting ----------------------------------------------------------------------------------

    def _pause_after(self, page: RecordPage) -> int:
        # A closed shard is read to its end by nobody but us and those who are behind as well.
        closed = isinstance(self._range.end, ShardEnd)
        return pause_millis(
            page,
            empty_at_tip=self._empty_at_tip,
            limit=self._options.max_records_per_fetch,
            careful=self._timing.monotonic() < self._careful_until,
            min_fetch_period_millis=0 if closed else self._options.min_fetch_period_ms,
        )

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._timing.wait(self._handoff.stopping, seconds)
        if self._handoff.stopping.is_set():
            raise StoppedError

    def _patiently(self, call: Callable[[], T]) -> T:
        """`call`, repeated while the service throttles or falters, up to `retry.maxAttempts`."""
        self._pause(0)
        try:
            return self._retrying(call)
        except ThrottledError as error:
            attempts = self._options.connection.retry_max_attempts
            raise self._unavailable(f"{error.found}, {attempts} times in a row") from None

    def _backoff(self, state: tenacity.RetryCallState) -> float:
        longest = self._options.connection.retry_max_backoff_ms
        draw = self._timing.random()
        return backoff_millis(state.attempt_number, longest=longest, draw=draw) / 1000

    def _note_throttling(self, state: tenacity.RetryCallState) -> None:
        """Be careful from now on. A short fault is told once for a range, a lasting one louder."""
        self._careful_until = self._timing.monotonic() + CAREFUL_FOR_MILLIS / 1000
        self._throttled += 1
        level = logging.INFO if self._throttled == 1 else logging.DEBUG
        if state.attempt_number == LASTING_ATTEMPTS:
            level = logging.WARNING
        error = state.outcome.exception() if state.outcome is not None else None
        logger.log(
            level,
            "Shard %s: %s; trying again in %.1f s (attempt %d of %d).",
            self._range.key,
            error.found if isinstance(error, ThrottledError) else error,
            state.upcoming_sleep,
            state.attempt_number + 1,
            self._options.connection.retry_max_attempts,
        )

    def _unavailable(self, found: str) -> ServiceUnavailableError:
        end = self._range.end
        last = f"record {end.sequence_number}" if isinstance(end, AfterRecord) else "its end"
        return ServiceUnavailableError(
            f"shard {self._range.key}",
            found=found,
            expected=f"the shard's records up to {last}, which was there when the batch was "
            "planned",
            next_step="restart the query, which repeats the batch; if it stays, check endpointUrl "
            "and the service's health, or raise retry.maxAttempts and retry.maxBackoff",
        )


def _first_anchor(range_: ShardRange) -> Anchor | None:
    if isinstance(range_.start, AfterRecord):
        start = range_.start
        return Anchor(sequence_number=start.sequence_number, after_sub=start.sub)
    if range_.expect_first is not None:
        return Anchor(sequence_number=range_.expect_first, after_sub=-1)
    return None
