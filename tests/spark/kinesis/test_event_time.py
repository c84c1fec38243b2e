"""No row is late for a watermark because of a reshard, a stop or a limit. Rows are put in the order
of their event times, one a second by the service's clock, so a watermark of ten seconds, which is
more than ends near the latest record differ by, may drop none of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.fakes.clocks import ShiftedClock
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.spark.queries import await_end, load, wait_until

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

    def __init__(self, feed: EmbeddedFeed, clock: ShiftedClock) -> None:
        self.feed = feed
        self.count = 0
        self._clock = clock
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
            self._clock.advance(1000)

    def reshard(self, shards: int) -> None:
        self._client.update_shard_count(
            StreamName="orders", TargetShardCount=shards, ScalingType="UNIFORM_SCALING"
        )


@contextmanager
def events_of(options: dict[str, str]) -> Iterator[Events]:
    """Serve a stream of four shards, which `options` then name."""
    clock = ShiftedClock()
    with EmbeddedKinesis(dynamodb=True, clock=clock) as kinesis:
        feed = EmbeddedFeed(kinesis)
        feed.create("orders", shards=4)
        options |= options_for(kinesis.endpoint_url) | {
            "streamName": "orders",
            "startingPosition": "trim_horizon",
        }
        if "applicationName" in options:
            options["dynamodbEndpointUrl"] = kinesis.dynamodb_endpoint_url
        yield Events(feed, clock)


def window_counts(
    spark: SparkSession, options: dict[str, str], windows: Windows, checkpoint: Path
) -> DataStreamWriter:
    """Return a query that counts the events of each minute."""
    seconds = F.col("data").cast("string").cast("long") + EVENTS_FROM
    return (
        load(spark, options)
        .select(F.timestamp_seconds(seconds).alias("time"))
        .withWatermark("time", "10 seconds")
        .groupBy(F.window("time", "1 minute").alias("window"))
        .count()
        .select(F.col("window.start").alias("begin"), "count")
        .writeStream.outputMode("update")
        .foreachBatch(windows)
        .option("checkpointLocation", str(checkpoint))
    )


def run_to_end(writer: DataStreamWriter, windows: Windows) -> int:
    """Run a query until it has read all records; return the number of its batches."""
    query = await_end(writer.trigger(availableNow=True).start())
    windows.dropped += dropped_rows(query)
    return batches_with_rows(query)


def run_until(writer: DataStreamWriter, windows: Windows, total: int) -> int:
    """Run a query until it has counted as many events; return the number of its batches."""
    query = writer.start()
    try:
        wait_until(lambda: windows.total >= total, f"{total} events are counted", query)
    finally:
        query.stop()
    windows.dropped += dropped_rows(query)
    return batches_with_rows(query)


def batches_with_rows(query: StreamingQuery) -> int:
    """Return the number of batches that read records."""
    return sum(progress.numInputRows > 0 for progress in query.recentProgress)


def dropped_rows(query: StreamingQuery) -> int:
    """Return the number of rows that Spark dropped as late."""
    return sum(
        operator.numRowsDroppedByWatermark
        for progress in query.recentProgress
        for operator in progress.stateOperators
    )


@pytest.mark.core("rows in event time")
@pytest.mark.parametrize(
    ("reshards", "more"),
    [
        ((6, 3, 8), {}),
        ((6,), {"maxRecordsPerTrigger": "50"}),
        pytest.param((6,), {}, marks=pytest.mark.long),
        pytest.param((6, 3, 8), {"maxRecordsPerTrigger": "50"}, marks=pytest.mark.long),
    ],
    ids=["three times", "once, limited", "once", "three times, limited"],
)
def test_a_reshard_while_the_query_is_stopped(
    spark: SparkSession, tmp_path: Path, reshards: tuple[int, ...], more: dict[str, str]
) -> None:
    options: dict[str, str] = {}
    windows = Windows()
    with events_of(options) as events:
        events.put(600)
        run_to_end(window_counts(spark, options, windows, tmp_path), windows)
        assert windows.total == 600
        events.put(300)
        for shards in reshards:
            events.reshard(shards)
            events.put(300)
        if PASSES_LIMITS:
            batches = run_to_end(window_counts(spark, options | more, windows, tmp_path), windows)
        else:  # such a PySpark ends after one batch
            steady = options | more | {"trigger": "processingTime"}
            query = window_counts(spark, steady, windows, tmp_path)
            batches = run_until(query, windows, events.count)
    assert (windows.total, windows.dropped) == (events.count, 0)
    assert more or batches <= 2


@pytest.mark.long
def test_reshards_while_the_query_with_leases_is_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {
        "applicationName": tmp_path.name,
        "failoverTime": "10s",
        "trigger": "processingTime",
    }
    windows = Windows()
    with events_of(options) as events:
        events.put(600)
        run_until(window_counts(spark, options, windows, tmp_path), windows, 600)
        events.put(300)
        for shards in (6, 3):
            events.reshard(shards)
            events.put(300)
        run_until(window_counts(spark, options, windows, tmp_path), windows, events.count)
    assert (windows.total, windows.dropped) == (events.count, 0)
