"""`maxRecordsPerTrigger` and `maxBytesPerTrigger` hold for every batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import (
    Row,
    Sink,
    await_end,
    check_exactly_once,
    load,
    running,
    start,
    wait_for_rows,
)

TIMED = {"trigger": "processingTime"}
"""Required by limits before PySpark 4.2."""


def _bytes(rows: tuple[Row, ...]) -> int:
    return sum(len(row.record.data) + len(row.record.key) for row in rows)


def test_records_in_each_batch(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=3)
    feed.put("orders", 95)
    sink = Sink()
    limited = options | TIMED | {"maxRecordsPerTrigger": "20"}
    with running(load(spark, limited), sink, tmp_path) as query:
        wait_for_rows(query, sink, 95)
        feed.put("orders", 45)
        wait_for_rows(query, sink, 140)
    check_exactly_once(sink, feed.records)
    assert max(sink.sizes()) <= 20
    assert min(sink.sizes()[:4]) > 10, "a batch is about full as long as there is enough"


def test_available_now_reads_all_in_one_run_or_refuses_a_limit(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    """Before PySpark 4.2 such a run is one batch, which a limit would end early."""
    feed.create("orders", shards=2)
    sink = Sink()
    limited = options | {"maxRecordsPerTrigger": "20"}
    for changed in (options, limited, options):
        feed.put("orders", 50)
        if changed is limited and not PASSES_LIMITS:
            with pytest.raises(PySparkException, match=r"maxRecordsPerTrigger: found PySpark 4\."):
                load(spark, limited)
            continue
        await_end(start(load(spark, changed), sink, tmp_path, "available now"))
        check_exactly_once(sink, feed.records)
    assert sink.sizes() == ([50, 20, 20, 10, 50] if PASSES_LIMITS else [50, 100])


def test_bytes_in_each_batch_alone_and_with_records(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 80)
    sink = Sink()
    by_size = options | TIMED | {"maxBytesPerTrigger": "150"}
    with running(load(spark, by_size), sink, tmp_path) as query:
        wait_for_rows(query, sink, 80)
    check_exactly_once(sink, feed.records)
    assert max(_bytes(rows) for rows in sink.batches.values()) <= 150
    # The size of records may be unknown to the first batch.
    assert min(sink.sizes()[1:-1]) > 7, "records of up to 8 bytes fill 150 bytes"

    before = len(sink.sizes())
    feed.put("orders", 40)
    both = by_size | {"maxRecordsPerTrigger": "12"}
    with running(load(spark, both), sink, tmp_path) as query:
        wait_for_rows(query, sink, 120)
    check_exactly_once(sink, feed.records)
    assert max(_bytes(rows) for rows in sink.batches.values()) <= 150
    assert max(sink.sizes()[before:]) <= 12


def test_one_record_always_fits(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders")
    feed.put("orders", 3)
    sink = Sink()
    limited = options | TIMED | {"maxBytesPerTrigger": "1"}
    with running(load(spark, limited), sink, tmp_path) as query:
        wait_for_rows(query, sink, 3)
    check_exactly_once(sink, feed.records)
    assert sink.sizes() == [1, 1, 1]
