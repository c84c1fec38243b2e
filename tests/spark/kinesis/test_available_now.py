"""Queries that end by themselves: Trigger.AvailableNow and Trigger.Once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import (
    Sink,
    await_end,
    check_exactly_once,
    check_tasks,
    load,
    run_to_end,
    start,
)


@pytest.mark.core("availableNow and once with limits")
@pytest.mark.parametrize(
    ("feed", "limit"),
    [
        ("embedded", None),
        ("embedded", 40),
        ("kinesis_mock", 90),
    ],
    indirect=["feed"],
)
def test_stops_at_the_tip_as_it_was_at_the_start(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path, limit: int | None
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 60)
    lower, _ = feed.split_first("orders")
    feed.put("orders", 60)
    feed.split("orders", lower)
    feed.put("orders", 60)
    there = list(feed.records)

    def go_on(batch: int) -> None:
        feed.put("orders", 20)
        if batch == 0:
            feed.merge_first("orders")
            feed.put("orders", 20)

    sink = Sink(meanwhile=go_on)
    limited = options if limit is None else options | {"maxRecordsPerTrigger": str(limit)}
    if PASSES_LIMITS:
        query = run_to_end(load(spark, limited), sink, tmp_path)
        check_exactly_once(sink, there)
        check_tasks(spark, query, slots=4)
        if limit is not None:
            assert max(sink.sizes()) <= limit
            assert len(sink.sizes()) >= 180 / limit
    else:
        if limit is not None:
            _check_refusal(spark, limited, "maxRecordsPerTrigger")
        await_end(start(load(spark, options), sink, tmp_path, "available now"))
        (size,) = sink.sizes()
        assert {row.record for row in sink.rows} <= set(there)
        assert size >= 60, "at least the records of the shards that the first split left"

    sink.meanwhile = None
    run_to_end(load(spark, options), sink, tmp_path)
    check_exactly_once(sink, feed.records)


def _check_refusal(spark: SparkSession, options: dict[str, str], *names: str) -> None:
    """Check that a PySpark that does not pass limits refuses to load a query with these options."""
    with pytest.raises(PySparkException) as caught:
        load(spark, options)
    message = str(caught.value)
    assert "which runs the triggers availableNow and once as a single batch" in message
    assert "expected PySpark 4.2 or newer" in message
    assert "set trigger=processingTime if the query has neither trigger" in message
    assert all(name in message for name in names)


@pytest.mark.parametrize("position", ["trim_horizon", "latest"])
def test_an_empty_stream_ends_at_once_and_is_gone_on_with(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path, position: str
) -> None:
    feed.create("orders", shards=2)
    sink = Sink()
    frame = load(spark, options | {"startingPosition": position})
    run_to_end(frame, sink, tmp_path)
    assert sink.rows == []
    feed.put("orders", 30)
    run_to_end(frame, sink, tmp_path)
    check_exactly_once(sink, feed.records)
    run_to_end(frame, sink, tmp_path)
    check_exactly_once(sink, feed.records)


@pytest.mark.core("availableNow and once with limits")
def test_trigger_once_takes_all_in_one_batch_whatever_the_limits(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 50)
    sink = Sink()
    limited = options | {"maxRecordsPerTrigger": "5", "maxBytesPerTrigger": "10"}
    if not PASSES_LIMITS:
        _check_refusal(spark, limited, "maxRecordsPerTrigger", "maxBytesPerTrigger")
        limited = options
    run_to_end(load(spark, limited), sink, tmp_path, "once")
    check_exactly_once(sink, feed.records)
    assert sink.sizes() == [50]


def test_trigger_once_from_latest_first_only_says_where_it_stands(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders")
    feed.put("orders", 10)
    sink = Sink()
    frame = load(spark, options | {"startingPosition": "latest"})
    run_to_end(frame, sink, tmp_path, "once")
    assert sink.rows == []
    after = feed.put("orders", 10)
    run_to_end(frame, sink, tmp_path, "once")
    check_exactly_once(sink, after)
