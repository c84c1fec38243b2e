"""Shards come and go under a query: each record once, keys in order, tasks never above slots."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kinesis.feeds import FEEDS, Feed
from tests.support.spark.queries import (
    Sink,
    check_exactly_once,
    check_tasks,
    load,
    run_to_end,
    running,
    wait_for_rows,
)


@pytest.mark.core("split while running")
@pytest.mark.parametrize("feed", ["embedded", "kinesis_mock"], indirect=True)
def test_while_the_query_runs(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 100)
    sink = Sink()
    with running(load(spark, options), sink, tmp_path) as query:
        wait_for_rows(query, sink, 100)
        feed.split_first("orders")
        feed.put("orders", 50)
        wait_for_rows(query, sink, 150)
        feed.merge_first("orders")
        feed.put("orders", 50)
        # The child is split before its parents, or itself, can have been read.
        feed.split_first("orders")
        feed.put("orders", 50)
        wait_for_rows(query, sink, 250)
        check_tasks(spark, query, slots=2)
    check_exactly_once(sink, feed.records)
    assert {row.slot for row in sink.rows} <= {0, 1}


@pytest.mark.core("merge while stopped")
@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_while_the_query_is_stopped(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 100)
    sink = Sink()
    frame = load(spark, options | {"slots": "2"})
    run_to_end(frame, sink, tmp_path)
    check_exactly_once(sink, feed.records)
    feed.put("orders", 50)
    lower, _ = feed.split_first("orders")
    feed.put("orders", 50)
    feed.split("orders", lower)
    feed.put("orders", 50)
    feed.merge_first("orders")
    feed.put("orders", 50)
    query = run_to_end(frame, sink, tmp_path)
    check_exactly_once(sink, feed.records)
    check_tasks(spark, query, slots=2)


@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_before_the_start_with_closed_shards_unread(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 50)
    feed.split_first("orders")
    feed.put("orders", 50)
    feed.merge_first("orders")
    feed.put("orders", 50)
    sink = Sink()
    query = run_to_end(load(spark, options), sink, tmp_path)
    check_exactly_once(sink, feed.records)
    check_tasks(spark, query, slots=2)
    closed = {record.shard for record in feed.records} - set(feed.open_shards("orders"))
    assert len(closed) == 3, "the records of three closed shards were to be read"
