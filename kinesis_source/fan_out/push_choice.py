"""Chooses the ranges of a batch that are pushed by enhanced fan-out; the others are polled.

A consumer may subscribe to a shard again five seconds after it did so before (API reference,
SubscribeToShard), and a subscription costs more than the one GetRecords call that a small range
takes. So a query with a short trigger interval never waits for a subscription. A polled range whose
GetRecords other readers use up is pushed as soon as the consumer may subscribe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.model.ranges import ExpectedSize, ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import ConsumerArn

RESUBSCRIBE_AFTER_S: Final = 5.5
"""The time from one batch that pushes a shard to the next. The tasks of two batches do not begin
equally long after their planning."""
MIN_PUSHED_BYTES: Final = 1 << 20
"""The least size of a range that is pushed: half of what a shard pushes in a second."""
MIN_PUSHED_RECORDS: Final = 2_000
"""The same for a range of which only the number of records is known."""


def choose_pushed(
    ranges: Sequence[SlotRange],
    consumers: Mapping[StreamName, ConsumerArn],
    pushed_at: Mapping[ShardKey, float],
    now: float,
) -> tuple[SlotRange, ...]:
    """Return the ranges with their consumer, and the choice for each.

    `consumers` are those that can be subscribed; `pushed_at` has the times at which shards were
    planned to be pushed before. Both times are in seconds.
    """
    return tuple(
        replace(
            slot,
            shards=tuple(
                replace(
                    each,
                    consumer=consumers.get(each.key.stream),
                    is_polled_first=not _is_pushed(each, pushed_at, now),
                )
                for each in slot.shards
            ),
        )
        for slot in ranges
    )


def pushed_shards(ranges: Sequence[SlotRange]) -> list[ShardKey]:
    """Return the shards whose ranges are pushed."""
    return [each.key for slot in ranges for each in slot.shards if each.is_pushed]


def _is_pushed(range_: ShardRange, pushed_at: Mapping[ShardKey, float], now: float) -> bool:
    since = pushed_at.get(range_.key)
    if since is not None and now - since < RESUBSCRIBE_AFTER_S:
        return False
    return is_worth_pushing(range_.expected)


def is_worth_pushing(expected: ExpectedSize | None, fetched: int = 0) -> bool:
    """Return whether the rest of a range is large enough after `fetched` records. One of unknown
    size, as in a replay, is."""
    if expected is None:
        return True
    rest = expected.records - fetched
    if expected.size_bytes is None:
        return rest >= MIN_PUSHED_RECORDS
    return rest * expected.size_bytes >= MIN_PUSHED_BYTES * max(expected.records, 1)
