"""Computes the pause between two fetches of a shard; see `pause_ms` for the rules.

A shard grants 5 GetRecords calls and 2 MiB per second to all its readers together, and an answer
above 2 MiB makes the calls of the following seconds fail: five seconds after the largest answer of
10 MiB (Kinesis API reference, GetRecords). So a reader that respects the rates waits for as long as
the last answer has used them up. `shared_read_rates` decides whether the service enforces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import BYTES_PER_SECOND
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
    return memory_bytes(page.partition_keys, page.data) - ROW_OVERHEAD_BYTES * len(page)


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
    others = f" (and {len(awaited) - 1} more shards)" if len(awaited) > 1 else ""
    return ServiceUnavailableError(
        f"shard {awaited[0]}{others}",
        found=f"neither a further record nor the end of the shard for {duration_text(waited_ms)}",
        expected=f"the records that the shard had when {since}",
        next_step="run the query again; if the error stays, check endpointUrl and the service's "
        "health",
    )
