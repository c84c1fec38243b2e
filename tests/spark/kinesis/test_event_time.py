"""No row is late for a watermark because of a reshard, a stop or a limit.

Rows are put in the order of their event times, one a second, so a watermark of two minutes may drop
none of them.
"""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import await_end, load

EVENTS_FROM = 1_700_000_000


class Windows:
    """The counts of a windowed aggregation, as its sink has them."""

    def __init__(self) -> None:
        self.counts: dict[object, int] = {}
        self.dropped = 0

    def __call__(self, frame: DataFrame, batch: int) -> None:
        for row in frame.collect():
            self.counts[row["begin"]] = row["count"]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class Events:
    """A stream of one event a second, and its reshards."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.count = 0
        self._client = boto3.client(
            "kinesis",
            endpoint_url=feed.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )

    def put(self, count: int) -> None:
        for _ in range(count):
            self.feed.put_data("orders", f"key-{self.count % 97}", b"%d" % self.count)
            self.count += 1

    def reshard(self, shards: int) -> None:
        self._client.update_shard_count(
            StreamName="orders", TargetShardCount=shards, ScalingType="UNIFORM_SCALING"
        )


def count_windows(
    spark: SparkSession, options: dict[str, str], windows: Windows, checkpoint: Path
) -> None:
    """Run the query until it has read what there is."""
    seconds = F.col("data").cast("string").cast("long") + EVENTS_FROM
    query = (
        load(spark, options)
        .select(F.timestamp_seconds(seconds).alias("time"))
        .withWatermark("time", "2 minutes")
        .groupBy(F.window("time", "1 minute").alias("window"))
        .count()
        .select(F.col("window.start").alias("begin"), "count")
        .writeStream.outputMode("update")
        .foreachBatch(windows)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    await_end(query)
    for progress in query.recentProgress:
        for operator in progress.stateOperators:
            windows.dropped += operator.numRowsDroppedByWatermark


@pytest.mark.core("rows in event time")
@pytest.mark.parametrize("more", [{}, {"maxRecordsPerTrigger": "50"}], ids=["all", "limited"])
@pytest.mark.parametrize("reshards", [(6,), (6, 3, 8)], ids=["once", "three times"])
def test_a_reshard_while_the_query_is_stopped(
    spark: SparkSession,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
    reshards: tuple[int, ...],
    more: dict[str, str],
) -> None:
    feed.create("orders", shards=4)
    events, windows = Events(feed), Windows()
    events.put(600)
    count_windows(spark, options, windows, tmp_path)
    assert windows.total == 600
    events.put(300)
    for shards in reshards:
        events.reshard(shards)
        events.put(300)
    count_windows(spark, options | more, windows, tmp_path)
    assert (windows.total, windows.dropped) == (events.count, 0)
