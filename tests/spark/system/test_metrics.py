"""Metrics of a query while its stream is resharded, in a classic session and by Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ssp import publish_metrics
from tests.support.kinesis.fan_out_mode import python_path
from tests.support.kinesis.feeds import Feed
from tests.support.operations.metrics import Scrape, Scrapes
from tests.support.spark.drivers import ENVIRONMENT, FREE_CONNECT_PORT
from tests.support.spark.queries import load, start

_PROGRAM = Path(__file__).parents[1] / "programs" / "publish_metrics.py"
LIMITED = {"maxRecordsPerTrigger": "5", "trigger": "processingTime"}


def _lag(scrape: Scrape) -> float | None:
    return scrape.total("ssp_planned_delay_seconds", stream="orders")


def _open_shards(scrape: Scrape) -> float | None:
    return scrape.total("ssp_shards", stream="orders", state="open")


def _check_reshard(scrapes: Scrapes, feed: Feed, go_on: Callable[[], object]) -> None:
    """Check the metrics of a query that has records left to read, and that then reads all of them
    and those after a split."""
    behind = scrapes.wait_until(lambda scrape: bool(_lag(scrape)), "a lag")
    assert _open_shards(behind) == 2
    assert behind.total("ssp_running_queries") == 1
    assert behind.total("ssp_slots") == 2
    (rows,) = behind.values("ssp_batch_rows").values()
    assert 0 < rows <= 5
    go_on()
    scrapes.wait_until(lambda scrape: _lag(scrape) == 0, "no lag")
    parent, _ = feed.open_shards("orders")
    feed.split_first("orders")
    feed.put("orders", 20)
    after = scrapes.wait_until(
        lambda scrape: (
            _open_shards(scrape) == 3
            and _lag(scrape) == 0
            and scrape.total("ssp_rows_total") == len(feed.records)
        ),
        "three open shards that are read to their latest records",
    )
    assert after.total("ssp_reshards_total") == 1
    idle = scrapes.wait_until(lambda scrape: scrape.total("ssp_batch_rows") == 0, "an idle query")
    triggered = idle.total("ssp_last_trigger_timestamp_seconds") or 0
    scrapes.wait_until(
        lambda scrape: (scrape.total("ssp_last_trigger_timestamp_seconds") or 0) > triggered,
        "a later trigger of the idle query, by which it differs from one that hangs",
    )
    assert {scrape.total("ssp_slots") for scrape in scrapes.all} <= {None, 2}
    shards = after.values("ssp_shard_delay_seconds")
    assert len(shards) == 3
    assert parent not in {dict(labels)["shard"] for labels in shards}


@pytest.mark.long
@pytest.mark.core("metrics")
def test_a_scrape_shows_a_reshard(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 20)
    go_on = threading.Event()

    def sink(frame: DataFrame, batch: int) -> None:
        frame.collect()
        assert batch != 1 or go_on.wait(240)

    published = publish_metrics(spark, prometheus=0, stuck_after="10s")
    assert published.url is not None
    try:
        query = start(load(spark, options | LIMITED), sink, tmp_path)
        try:
            scrapes = Scrapes(published.url)
            scrapes.wait_until(
                lambda scrape: (
                    scrape.total("ssp_query_verdict", verdict="STALLED") == 1
                    and (scrape.total("ssp_committed_delay_seconds") or 0) > 10
                ),
                "a query whose sink hangs",
            )
            _check_reshard(scrapes, feed, go_on.set)
            scrapes.wait_until(
                lambda scrape: scrape.total("ssp_query_verdict", verdict="OK") == 1,
                "a query that is well again",
            )
        finally:
            go_on.set()
            query.stop()
        ended = scrapes.wait_until(
            lambda scrape: scrape.total("ssp_slots") is None, "the query's end"
        )
        assert ended.total("ssp_running_queries") == 0
        assert ended.total("ssp_query_verdict", verdict="OK") == 0
        assert scrapes.all[-1].total("ssp_query_failures_total") is None
    finally:
        published.stop()


@pytest.mark.long
def test_rows_that_the_watermark_drops_are_counted(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders")
    seconds = F.col("data").cast("string").cast("long")
    frame = (
        load(spark, options)
        .select(F.timestamp_seconds(seconds).alias("time"))
        .withWatermark("time", "1 minute")
        .dropDuplicates(["time"])
    )

    def sink(frame: DataFrame, batch: int) -> None:
        frame.collect()

    published = publish_metrics(spark, prometheus=0)
    assert published.url is not None
    try:
        query = start(frame, sink, tmp_path)
        scrapes = Scrapes(published.url)

        def read(*times: int) -> Scrape:
            for time in times:
                feed.put_data("orders", "key", b"%d" % time)
            return scrapes.wait_until(
                lambda scrape: scrape.total("ssp_rows_total") == len(feed.records), "all rows"
            )

        try:
            for time in (10_000, 10_100):  # the watermark of a batch follows from those before
                read(time)
            assert read(10_050).total("ssp_rows_dropped_by_watermark_total") == 0
            late = read(9_000, 9_001, 10_200)
            assert late.total("ssp_rows_dropped_by_watermark_total") == 2
            assert late.total("ssp_arrival_spread_seconds") == 0
            assert late.total("ssp_shards_left_behind", stream="orders") == 0
        finally:
            query.stop()
    finally:
        published.stop()


@pytest.mark.long
def test_a_client_of_spark_connect_publishes_them(
    feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 60)
    task = {"options": options | LIMITED, "checkpoint": str(tmp_path / "checkpoint")}
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), json.dumps(task)],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | FREE_CONNECT_PORT | python_path(_PROGRAM.parents[3]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            url = next(line for line in client.stdout if line.startswith("http://")).strip()
            _check_reshard(Scrapes(url), feed, lambda: None)
        finally:
            client.stdin.close()
            ended = client.wait(240)
    assert ended == 0
