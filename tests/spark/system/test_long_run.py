"""A quarter of an hour of continuous reshards under a running query. Only in `make soak`."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import Sink, check_exactly_once, load, running, wait_for_rows
from tests.support.waiting import Background

MINUTES = 15
RECORDS_A_SECOND = 100
RESHARD_EVERY_S = 3
MOST_OPEN_SHARDS = 8


@pytest.mark.soak
@pytest.mark.timeout(60 * (MINUTES + 10))
def test_fifteen_minutes_of_reshards(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    reshards: list[str] = []
    dice = random.Random(1)
    next_reshard = time.monotonic() + RESHARD_EVERY_S

    def produce() -> None:
        nonlocal next_reshard
        feed.put("orders", RECORDS_A_SECOND // 10)
        if time.monotonic() >= next_reshard:
            reshards.append(_reshard(feed, dice))
            next_reshard = time.monotonic() + RESHARD_EVERY_S

    sink = Sink()
    with running(load(spark, options | {"slots": "4"}), sink, tmp_path) as query:
        with Background(produce, pause_s=0.1) as producer:
            deadline = time.monotonic() + 60 * MINUTES
            while time.monotonic() < deadline and producer.alive:
                assert query.isActive, query.exception()
                time.sleep(1)
        wait_for_rows(query, sink, len(feed.records))
    check_exactly_once(sink, feed.records)
    assert len(reshards) >= 60 * MINUTES / RESHARD_EVERY_S / 2
    print(f"{len(feed.records)} records, {len(reshards)} reshards, {len(sink.batches)} batches")


def _reshard(feed: Feed, dice: random.Random) -> str:
    """Split or merge at random, within a bound on the open shards."""
    shards = feed.open_shards("orders")
    at = dice.randrange(len(shards) - 1)
    if len(shards) >= MOST_OPEN_SHARDS or (len(shards) > 2 and dice.random() < 0.5):
        return feed.merge("orders", shards[at], shards[at + 1])
    return feed.split("orders", shards[at])[0]
