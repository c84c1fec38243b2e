"""`maxRecordsPerTrigger` and `maxBytesPerTrigger` hold for every batch."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import (
    Row,
    Sink,
    check_exactly_once,
    load,
    run_to_end,
    running,
    wait_for_rows,
)


def _bytes(rows: tuple[Row, ...]) -> int:
    return sum(len(row.record.data) + len(row.record.key) for row in rows)


def test_records_in_each_batch(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=3)
    feed.put("orders", 95)
    sink = Sink()
    with running(load(spark, options | {"maxRecordsPerTrigger": "20"}), sink, tmp_path) as query:
        wait_for_rows(query, sink, 95)
        feed.put("orders", 45)
        wait_for_rows(query, sink, 140)
    check_exactly_once(sink, feed.records)
    assert max(sink.sizes()) <= 20
    assert min(sink.sizes()[:4]) > 10, "a batch is about full as long as there is enough"


def test_bytes_in_each_batch_alone_and_with_records(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 80)
    sink = Sink()
    run_to_end(load(spark, options | {"maxBytesPerTrigger": "150"}), sink, tmp_path)
    check_exactly_once(sink, feed.records)
    assert max(_bytes(rows) for rows in sink.batches.values()) <= 150
    # The size of records may be unknown to the first batch.
    assert min(sink.sizes()[1:-1]) > 7, "records of up to 8 bytes fill 150 bytes"

    before = len(sink.sizes())
    feed.put("orders", 40)
    both = {"maxBytesPerTrigger": "150", "maxRecordsPerTrigger": "12"}
    run_to_end(load(spark, options | both), sink, tmp_path)
    check_exactly_once(sink, feed.records)
    assert max(_bytes(rows) for rows in sink.batches.values()) <= 150
    assert max(sink.sizes()[before:]) <= 12


def test_one_record_always_fits(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders")
    feed.put("orders", 3)
    sink = Sink()
    run_to_end(load(spark, options | {"maxBytesPerTrigger": "1"}), sink, tmp_path)
    check_exactly_once(sink, feed.records)
    assert sink.sizes() == [1, 1, 1]
