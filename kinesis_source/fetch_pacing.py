"""How long to leave a shard alone between two fetches. Pure; see `pause_millis` for the rules.

A shard grants 5 GetRecords calls and 2 MB per second to all its readers together (Kinesis API
reference, GetRecords), and the driver and other applications read too. A service on the same
machine grants any number. So reading is optimistic: far behind the tip it goes at full speed until
the service objects, and then keeps below the calls that the service grants.
"""

from __future__ import annotations

from typing import Final

from kinesis_source.model import RecordPage

CAREFUL_INTERVAL_MILLIS: Final = 250
"""Between two calls on a shard that has been throttled: 4 of its 5 calls per second."""

CAREFUL_FOR_MILLIS: Final = 30_000
"""How long a throttled answer makes reading careful."""

NEAR_TIP_MILLIS: Final = 1_000

TIP_PATIENCE_MILLIS: Final = 60_000
"""How long a record that the driver has seen may stay invisible at the tip."""

_TIP_BACKOFF_MAX_MILLIS: Final = 5_000
_FULL_PAGE_BYTES: Final = 1 << 20
_FIRST_BACKOFF_MILLIS: Final = 200


def pause_millis(
    page: RecordPage,
    *,
    empty_at_tip: int,
    limit: int,
    careful: bool,
    min_fetch_period_millis: int,
) -> int:
    """Milliseconds from the start of the fetch that gave `page` to the start of the next.

    * At the tip with nothing to read, for the `empty_at_tip`th time in a row: `minFetchPeriod`,
      doubled each time, up to 5 s.
    * Near the tip, with a page that did not use its limits: `minFetchPeriod`.
    * An empty page before the tip, or a shard throttled lately (`careful`): 250 ms.
    * Otherwise none.
    """
    floor = CAREFUL_INTERVAL_MILLIS if careful else 0
    if empty_at_tip:
        backoff = max(min_fetch_period_millis, 1) << min(empty_at_tip - 1, 16)
        return max(floor, min(backoff, max(_TIP_BACKOFF_MAX_MILLIS, min_fetch_period_millis)))
    if not len(page):
        return CAREFUL_INTERVAL_MILLIS
    full = len(page) >= limit or sum(map(len, page.data)) >= _FULL_PAGE_BYTES
    if page.millis_behind_latest < NEAR_TIP_MILLIS and not full:
        return max(floor, min_fetch_period_millis)
    return floor


def backoff_millis(attempt: int, *, longest: int, draw: float) -> float:
    """Milliseconds to wait after failed attempt `attempt` (from 1); `draw` is uniform in [0, 1).

    Exponential from 200 ms, with jitter over the upper half: after a full 10 MB answer a shard
    refuses for up to five seconds (Kinesis API reference, GetRecords), and the default of eight
    attempts must outlast that however the dice fall.
    """
    full: float = min(longest, _FIRST_BACKOFF_MILLIS * 2.0 ** min(attempt - 1, 32))
    return full * (0.5 + draw / 2)
