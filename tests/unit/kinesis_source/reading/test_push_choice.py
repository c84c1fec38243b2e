"""The choice of the ranges that are pushed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import ConsumerArn
from spark_ssp.kinesis_source.reading.pushed_pages import (
    MIN_PUSHED_BYTES,
    MIN_PUSHED_RECORDS,
    RESUBSCRIBE_AFTER_S,
    choose_pushed,
    is_worth_pushing,
    pushed_shards,
)
from tests.support.fakes.scripted import STREAM
from tests.support.kinesis.reading import A, B, shard_range, slot_of

ETL = ConsumerArn("arn:aws:kinesis:us-east-1:000000000000:stream/orders/consumer/etl:1")
LARGE = ExpectedSize(records=10, size_bytes=MIN_PUSHED_BYTES)
RANGES = (slot_of(shard_range(A, expected=LARGE), shard_range(B, expected=LARGE)),)


def key(shard: str) -> ShardKey:
    return next(each.key for each in RANGES[0].shards if each.shard == shard)


def test_large_ranges_of_a_stream_with_a_consumer_are_pushed() -> None:
    chosen = choose_pushed(RANGES, {STREAM.name: ETL}, {}, now=0.0)
    assert pushed_shards(chosen) == [key(A), key(B)]
    assert {each.consumer for each in chosen[0].shards} == {ETL}
    without = [replace(each, consumer=None) for each in chosen[0].shards]
    assert without == list(RANGES[0].shards)
    assert choose_pushed(RANGES, {}, {}, now=0.0) == RANGES


def test_a_shard_is_pushed_again_once_its_consumer_may_subscribe_again() -> None:
    pushed_at = {key(A): 100.0}
    for now, expected in (
        (100.0, [key(B)]),
        (100.0 + RESUBSCRIBE_AFTER_S - 0.1, [key(B)]),
        (100.0 + RESUBSCRIBE_AFTER_S, [key(A), key(B)]),
    ):
        chosen = choose_pushed(RANGES, {STREAM.name: ETL}, pushed_at, now)
        assert pushed_shards(chosen) == expected
        assert {each.consumer for each in chosen[0].shards} == {ETL}


@pytest.mark.parametrize(
    ("expected", "fetched", "worth"),
    [
        (None, 0, True),
        (LARGE, 0, True),
        (LARGE, 1, False),
        (replace(LARGE, size_bytes=MIN_PUSHED_BYTES - 1), 0, False),
        (replace(LARGE, size_bytes=2 * MIN_PUSHED_BYTES), 5, True),
        (ExpectedSize(records=MIN_PUSHED_RECORDS), 0, True),
        (ExpectedSize(records=MIN_PUSHED_RECORDS), 1, False),
        (ExpectedSize(records=0, size_bytes=0), 0, False),
        (LARGE, 20, False),
    ],
)
def test_what_is_left_of_a_range_decides(
    expected: ExpectedSize | None, fetched: int, worth: bool
) -> None:
    assert is_worth_pushing(expected, fetched) is worth
