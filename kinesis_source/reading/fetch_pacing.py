"""Sets the pace, the size and the end of the fetches of one range, within the limits of the API.

A shard grants 5 GetRecords calls and 2 MiB per second to all its readers together, and an answer
above 2 MiB makes the calls of the following seconds fail: five seconds after the largest answer of
10 MiB (Kinesis API reference, GetRecords). So a reader that respects the rates waits for as long as
the last answer has used them up; `ReadRates` decides whether the service enforces them.

A fetch requests no more than the expected rest of the range. The expectation is a hint, often an
estimate: if it was too low, the next fetch requests an eighth of the records so far, and each
further one twice that share. So a small error costs few bytes beyond the end of the range, and a
large one few calls.

After an empty page many more may follow, as in a shard that had no records for hours. Until a
record comes, fetches request few records, fewer if the records are known to be large, and one if
their size is unknown, so that many shards can be followed through such gaps in little memory.

A range's end is waited for, since the driver has seen it. `MillisBehindLatest` is not trusted: a
shard without further records may occasionally return a value above 0, and an emulator may always do
so. Only records count as progress, and a value lower than all before it, as when empty pages are
followed towards the latest record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import BYTES_PER_SECOND, MAX_PAGE_BYTES
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import RecordPage
from spark_ssp.kinesis_source.reading.arrow_batches import ROW_OVERHEAD_BYTES, memory_bytes

CALL_INTERVAL_MS: Final = 250
"""The time between two calls on a shard that is far behind: 4 of its 5 calls per second."""

NEAR_LATEST_MS: Final = 1_000

END_TIMEOUT_MS: Final = 60_000
"""The longest time that a record seen by the driver may stay invisible after the latest record."""

STALL_TIMEOUT_MS: Final = 600_000
"""The longest time in which empty pages may come no nearer to the latest record."""

_IDLE_BACKOFF_MAX_MS: Final = 5_000
_FULL_PAGE_BYTES: Final = 1 << 20
_FIRST_BACKOFF_MS: Final = 200


def page_bytes(page: RecordPage) -> int:
    """Return the bytes of a page as the service counts them: data and partition keys."""
    return memory_bytes(page) - ROW_OVERHEAD_BYTES * len(page)


def block_ms(size: int) -> int:
    """Return how long an answer of `size` bytes uses up a shard's read rate, rounded up."""
    return -(-size * 1000 // BYTES_PER_SECOND)


def pause_ms(
    page: RecordPage,
    *,
    empty_at_latest: int,
    limit: int,
    enforced: bool,
    min_fetch_period_ms: int,
) -> int:
    """Return the milliseconds from the start of the fetch that returned `page` to the start of the
    next.

    * No record after the latest one, for the `empty_at_latest`th time in a row: `minFetchPeriod`,
      doubled each time, up to 5 s.
    * Near the latest record, with a page that did not use its limits: `minFetchPeriod`.
    * An empty page before the latest record: 250 ms.
    * Otherwise, where the service enforces its rates: 250 ms, and as long as the page has used up
      the shard's 2 MiB per second. Else none.
    """
    size = page_bytes(page)
    floor = max(CALL_INTERVAL_MS, block_ms(size)) if enforced else 0
    if empty_at_latest:
        backoff = max(min_fetch_period_ms, 1) << min(empty_at_latest - 1, 16)
        return max(floor, min(backoff, max(_IDLE_BACKOFF_MAX_MS, min_fetch_period_ms)))
    if not len(page):
        return CALL_INTERVAL_MS
    full = len(page) >= limit or size >= _FULL_PAGE_BYTES
    if page.millis_behind_latest < NEAR_LATEST_MS and not full:
        return max(floor, min_fetch_period_ms)
    return floor


def backoff_ms(attempt: int, *, longest: int, draw: float) -> float:
    """Return the milliseconds to wait after failed attempt `attempt` (from 1); `draw` is uniform in
    [0, 1).

    Exponential from 200 ms, with jitter over the upper half: an answer of 10 MiB to another reader
    makes a shard refuse calls for up to five seconds (Kinesis API reference, GetRecords), and the
    default of eight attempts lasts longer than that with any jitter.
    """
    full: float = min(longest, _FIRST_BACKOFF_MS * 2.0 ** min(attempt - 1, 32))
    return full * (0.5 + draw / 2)


def not_reached_error(
    awaited: Sequence[ShardKey], waited_ms: int, *, since: str
) -> ServiceUnavailableError:
    """Return the error for shards without a further record for END_TIMEOUT_MS before their ends of
    `since`."""
    return unanswered_error(
        awaited,
        found=f"neither a further record nor the end of the shard for {duration_text(waited_ms)}",
        expected=f"the records that the shard had when {since}",
    )


def unanswered_error(
    awaited: Sequence[ShardKey], *, found: str, expected: str, option: str | None = None
) -> ServiceUnavailableError:
    """Return the error for shards that the service has not answered for. `option`: the one that
    needs the answer."""
    of_option = "" if option is None else f"option {option}, "
    others = f" (and {len(awaited) - 1} more shards)" if len(awaited) > 1 else ""
    return ServiceUnavailableError(
        f"{of_option}shard {awaited[0]}{others}",
        found=found,
        expected=expected,
        next_step="run the query again; if the error stays, check endpointUrl and the service's "
        "health",
    )


MIN_RESERVED_BYTES: Final = 1 << 20
_FEW: Final = 100
"""The fewest records to request beyond the expected ones, and the most after an empty page."""


@dataclass(slots=True)
class FetchSizer:
    """The sizes of the requests for one range, of at most `most` records each."""

    most: int
    expected: ExpectedSize | None
    fetched: int = 0
    """The number of records of the range so far."""
    _bytes: int = 0
    """The memory of those records."""
    _largest: int = 0
    """The memory of the largest page, without those after an empty one, which have few records."""
    _overruns: int = 0
    """Answers after the expected number of records."""
    _in_gap: bool = False
    """True if the last answer contained no new record."""

    def record_limit(self, *, repeated: int) -> int:
        """Return the `Limit` of the next fetch, whose first `repeated` records do not count."""
        if self.expected is None:
            wanted = self.most
        else:
            left = self.expected.records - self.fetched
            wanted = left if left > 0 else max(_FEW, self._share_of(self.fetched))
        if self._in_gap:
            mean = self._mean_bytes()
            fitting = 1 if mean is None else int(MIN_RESERVED_BYTES / mean) - 1
            wanted = max(1, min(wanted, _FEW, fitting))
        return min(self.most, wanted + repeated)

    def _share_of(self, records: int) -> int:
        return records >> max(0, 3 - self._overruns)

    def bytes_to_reserve(self, limit: int) -> int:
        """Return how many bytes to reserve for an answer of up to `limit` records. In a gap the
        reservation is kept: a new iterator may then add the last record."""
        if self._in_gap:
            limit = self.record_limit(repeated=1)
        most, mean = MAX_PAGE_BYTES + ROW_OVERHEAD_BYTES * limit, self._mean_bytes()
        if self._largest and not self._in_gap:
            likely = 2 * self._largest
        elif mean is not None:
            likely = int(mean * limit)
        else:  # nothing is known of the size of the records
            likely = 0 if self._in_gap else most
        return max(MIN_RESERVED_BYTES, min(likely, most))

    def _mean_bytes(self) -> float | None:
        """Return the memory of a record: the mean so far, or the expected one; the larger of both
        until a page outside of gaps has shown it. None: nothing is known of it."""
        means: list[float] = []
        if self.fetched:
            means.append(self._bytes / self.fetched)
        if not self._largest and self.expected is not None and self.expected.size_bytes is not None:
            mean = self.expected.size_bytes / max(self.expected.records, 1)
            means.append(mean + ROW_OVERHEAD_BYTES)
        return max(means, default=None)

    def record_page(self, records: int, memory_bytes: int) -> None:
        """Count the records of an answer, which takes `memory_bytes` of memory."""
        was_in_gap, self._in_gap = self._in_gap, records == 0
        if self._in_gap:
            return
        if self.expected is not None and self.fetched >= self.expected.records:
            self._overruns += 1
        self.fetched += records
        self._bytes += memory_bytes
        if not was_in_gap:
            self._largest = max(self._largest, memory_bytes)


LONGEST_STEP_S: Final = 10.0
"""The most that the time between two pages counts. It is longer if the service throttles or the
task waits for memory, which proves nothing about the end."""


class WaitResult(Enum):
    """The effect of an empty page on the wait for the end."""

    CONTINUE = auto()
    END_MISSING = auto()
    """The latest record was reached long enough ago, and no record followed."""
    STALLED = auto()
    """For long enough, empty pages have come no nearer to the latest record."""


@dataclass(slots=True)
class EndWait:
    """The empty pages since the last record. Times are seconds since the first page, of which steps
    longer than `LONGEST_STEP_S` count only in part."""

    empty_at_latest: int = 0
    """Pages without a record whose `MillisBehindLatest` was 0."""
    waited_ms: int = 0
    """The duration of the wait at the last page."""
    _at_latest_since: float = 0.0
    _nearest: int | None = None
    _nearest_since: float = 0.0
    _last_page_at: float | None = None
    """The monotonic time of the last page."""
    _time: float = 0.0

    def record_page(self, records: int, behind_ms: int, now: float) -> WaitResult:
        """Record a page with this number of records at the monotonic time `now`, and decide."""
        if self._last_page_at is not None:
            self._time += min(now - self._last_page_at, LONGEST_STEP_S)
        self._last_page_at = now
        if records:
            self.empty_at_latest = 0
            self._nearest = None
            return WaitResult.CONTINUE
        if self._nearest is None or behind_ms < self._nearest:
            self._nearest, self._nearest_since = behind_ms, self._time
        if behind_ms > 0:
            self.waited_ms = round((self._time - self._nearest_since) * 1000)
            stalled = self.waited_ms >= STALL_TIMEOUT_MS
            return WaitResult.STALLED if stalled else WaitResult.CONTINUE
        if self.empty_at_latest == 0:
            self._at_latest_since = self._time
        self.empty_at_latest += 1
        self.waited_ms = round((self._time - self._at_latest_since) * 1000)
        done = self.waited_ms >= END_TIMEOUT_MS
        return WaitResult.END_MISSING if done else WaitResult.CONTINUE
