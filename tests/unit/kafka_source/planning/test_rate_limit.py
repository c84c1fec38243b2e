"""Sharing limits out: Spark's proportions, bytes by estimate, and waiting for enough."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.planning.rate_limit import (
    DEFAULT_BYTES_PER_OFFSET,
    UNLIMITED,
    ReadLimits,
    TriggerDelay,
)
from tests.support.kafka.partitions import ssp

ORDERS, CLICKS = StreamName("orders"), StreamName("clicks")

lags = st.dictionaries(
    st.builds(ssp, st.sampled_from(["orders", "clicks"]), st.integers(0, 9)),
    st.integers(1, 10_000),
    min_size=1,
    max_size=12,
)


@given(lags, st.integers(1, 200_000))
def test_offsets_are_shared_out_as_spark_does(
    backlog: dict[SystemStreamPartition, int], limit: int
) -> None:
    """KafkaMicroBatchStream.rateLimit, written again: a part below one is rounded up, any other
    down. Exact fractions instead of doubles."""
    total = sum(backlog.values())
    shares = ReadLimits(max_offsets=limit).split(backlog)
    for one, lag in backlog.items():
        prorate = limit * Fraction(lag, total)
        rounded = math.ceil(prorate) if prorate < 1 else math.floor(prorate)
        assert shares[one] == min(lag, rounded)


@given(lags, st.none() | st.integers(1, 10_000), st.none() | st.integers(1, 10_000_000))
def test_every_partition_moves_and_none_too_far(
    backlog: dict[SystemStreamPartition, int], offsets: int | None, size: int | None
) -> None:
    limits = ReadLimits(
        max_offsets=offsets, max_bytes=size, bytes_per_offset={ORDERS: 10, CLICKS: 3_000}
    )
    shares = limits.split(backlog)
    assert shares.keys() == backlog.keys()
    assert all(1 <= shares[one] <= lag for one, lag in backlog.items())
    granted_alone = sum(share == 1 for share in shares.values())
    if offsets is not None:
        assert sum(shares.values()) <= offsets + granted_alone
    if size is not None:
        total = sum(n * limits.bytes_per_offset[one.stream] for one, n in shares.items())
        assert total <= size + 3_000 * granted_alone
    if offsets is None and size is None:
        assert shares == backlog
    assert limits.without(shares).exhausted is (
        (offsets is not None and sum(shares.values()) >= offsets)
        or (
            size is not None
            and sum(n * limits.bytes_per_offset[one.stream] for one, n in shares.items()) >= size
        )
    )


def test_bytes_are_estimated_from_what_was_seen_of_each_topic() -> None:
    limits = ReadLimits(max_bytes=10_000, bytes_per_offset={ORDERS: 100})
    assert limits.split({ssp("orders", 0): 400}) == {ssp("orders", 0): 100}
    assert limits.split({ssp("clicks", 0): 400}) == {
        ssp("clicks", 0): 10_000 // DEFAULT_BYTES_PER_OFFSET
    }
    assert limits.split({ssp("orders", 0): 100, ssp("clicks", 0): 1}) == {
        ssp("orders", 0): 100 * 10_000 // 11_024,
        ssp("clicks", 0): 1,
    }


def test_the_stricter_limit_counts() -> None:
    backlog = {ssp("orders", 0): 100, ssp("orders", 1): 300}
    seen = {ORDERS: 10}
    by_offsets = {ssp("orders", 0): 10, ssp("orders", 1): 30}
    by_size = {ssp("orders", 0): 5, ssp("orders", 1): 15}
    assert (
        ReadLimits(max_offsets=40, max_bytes=10_000, bytes_per_offset=seen).split(backlog)
        == by_offsets
    )
    assert (
        ReadLimits(max_offsets=40, max_bytes=200, bytes_per_offset=seen).split(backlog) == by_size
    )
    assert (
        ReadLimits(max_offsets=400, max_bytes=4_000, bytes_per_offset=seen).split(backlog)
        == backlog
    )


def test_a_limit_beyond_a_javas_long_overflows_nothing() -> None:
    """SPARK-26718."""
    backlog = {ssp("orders", 0): 1 << 62, ssp("orders", 1): 1}
    assert ReadLimits(max_offsets=(1 << 63) - 1).split(backlog) == backlog
    assert not UNLIMITED.exhausted


@pytest.mark.parametrize(
    ("waited", "backlog", "should_delay"),
    [
        (None, 0, False),
        (0, 99, True),
        (0, 100, False),
        (999, 0, True),
        (1_000, 0, False),
        (5_000, 99, False),
    ],
)
def test_a_batch_waits_for_enough_offsets_but_not_for_ever(
    waited: int | None, backlog: int, should_delay: bool
) -> None:
    trigger_delay = TriggerDelay(min_offsets=100, max_delay_ms=1_000, waited_ms=waited)
    assert trigger_delay.should_delay(backlog) is should_delay
