"""Computes the pause between two fetches of a shard; see `pause_millis` for the rules.

A shard grants 5 GetRecords calls and 2 MiB per second to all its readers together, and an answer
above 2 MiB makes the calls of the following seconds fail: five seconds after the largest answer of
10 MiB (Kinesis API reference, GetRecords). So a reader that respects the rates waits until the last
answer is paid for. `read_rates` decides whether the service enforces them.
"""

from __future__ import annotations

from typing import Final

from kinesis_source.client.api import BYTES_PER_SECOND
from kinesis_source.model.shard import RecordPage
from kinesis_source.reading.arrow_batches import ROW_OVERHEAD_BYTES, weigh

CALL_INTERVAL_MILLIS: Final = 250
"""Between two calls on a shard far behind its tip: 4 of its 5 calls per second."""

NEAR_TIP_MILLIS: Final = 1_000

TIP_PATIENCE_MILLIS: Final = 60_000
"""How long a record that the driver has seen may stay invisible at the tip."""

STALL_PATIENCE_MILLIS: Final = 600_000
"""How long empty pages may fail to come nearer to the tip."""

_TIP_BACKOFF_MAX_MILLIS: Final = 5_000
_FULL_PAGE_BYTES: Final = 1 << 20
_FIRST_BACKOFF_MILLIS: Final = 200


def size_of(page: RecordPage) -> int:
    """Return the bytes of a page as the service counts them: data and partition keys."""
    return weigh(page.partition_keys, page.data) - ROW_OVERHEAD_BYTES * len(page)


def block_millis(size: int) -> int:
    """Return how long an answer of this size uses up a shard's read rate, rounded up."""
    return -(-size * 1000 // BYTES_PER_SECOND)


def pause_millis(
    page: RecordPage,
    *,
    empty_at_tip: int,
    limit: int,
    enforced: bool,
    min_fetch_period_millis: int,
) -> int:
    """Return the milliseconds from the start of the fetch that returned `page` to the start of the
    next.

    * At the tip with nothing to read, for the `empty_at_tip`th time in a row: `minFetchPeriod`,
      doubled each time, up to 5 s.
    * Near the tip, with a page that did not use its limits: `minFetchPeriod`.
    * An empty page before the tip: 250 ms.
    * Otherwise, where the service enforces its rates: 250 ms, and as long as the page has used up
      the shard's 2 MiB per second. Else none.
    """
    size = size_of(page)
    floor = max(CALL_INTERVAL_MILLIS, block_millis(size)) if enforced else 0
    if empty_at_tip:
        backoff = max(min_fetch_period_millis, 1) << min(empty_at_tip - 1, 16)
        return max(floor, min(backoff, max(_TIP_BACKOFF_MAX_MILLIS, min_fetch_period_millis)))
    if not len(page):
        return CALL_INTERVAL_MILLIS
    full = len(page) >= limit or size >= _FULL_PAGE_BYTES
    if page.millis_behind_latest < NEAR_TIP_MILLIS and not full:
        return max(floor, min_fetch_period_millis)
    return floor


def backoff_millis(attempt: int, *, longest: int, draw: float) -> float:
    """Return the milliseconds to wait after failed attempt `attempt` (from 1); `draw` is uniform in
    [0, 1).

    Exponential from 200 ms, with jitter over the upper half: an answer of 10 MiB to another reader
    makes a shard refuse for up to five seconds (Kinesis API reference, GetRecords), and the default
    of eight attempts outlasts that whatever the jitter.
    """
    full: float = min(longest, _FIRST_BACKOFF_MILLIS * 2.0 ** min(attempt - 1, 32))
    return full * (0.5 + draw / 2)
