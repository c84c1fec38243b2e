"""A restarted query resumes exactly where it stopped: with other slots, shards and limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.feeds import FEEDS, Feed
from tests.support.spark.queries import (
    Sink,
    check_exactly_once,
    check_tasks,
    failure_of,
    load,
    planned_offsets,
    run_to_end,
    running,
    start,
    wait_for_rows,
)


@pytest.mark.core("restart")
@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_with_other_numbers_of_slots(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    sink = Sink()
    used: list[set[int]] = []
    for slots in ("2", "1", "5", None):
        feed.put("orders", 60)
        before = sink.count
        changed = options if slots is None else options | {"slots": slots}
        query = run_to_end(load(spark, changed), sink, tmp_path)
        used.append({row.slot for row in sink.rows[before:]})
        assert planned_offsets(tmp_path)[-1]["slots"] == int(slots or 3)
        check_tasks(spark, query, slots=int(slots or 3))
        if slots == "1":
            # The last two runs find three open shards, and a parent whose end is still to come.
            feed.split_first("orders")
    check_exactly_once(sink, feed.records)
    both, alone, roomy, one_to_one = used
    assert both == {0, 1}
    assert alone == {0}
    assert len(roomy) >= 3, "with room for all, each shard has a separate slot"
    assert roomy <= set(range(5))
    assert one_to_one == {0, 1, 2}


def test_slots_by_hash_range_keep_the_keys(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    feed.create("orders", shards=2)
    sink = Sink()
    chosen = options | {"slots": "4", "slotAssignment": "hash-range"}
    for _ in range(3):
        feed.put("orders", 80, keys=40)
        run_to_end(load(spark, chosen), sink, tmp_path)
        feed.split_first("orders")
    check_exactly_once(sink, feed.records)
    for row in sink.rows:
        of = kinesis.state.shard("orders", row.record.shard).hash_range
        assert row.slot == (of.first + of.last) // 2 * 4 >> 128
    assert {row.slot for row in sink.rows} == {0, 1, 2}


@pytest.mark.core("replayed batch")
@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_an_unfinished_batch_is_repeated_row_by_row(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    """The very first batch as well as a later one; then more records come, shards are split,
    and the restart has other slots and limits."""
    feed.create("orders", shards=2)
    feed.put("orders", 70)
    sink = Sink(broken=True)
    query = start(load(spark, options), sink, tmp_path)
    assert "the sink is broken" in failure_of(query)

    feed.put("orders", 30)
    feed.split_first("orders")
    feed.put("orders", 30)
    sink.broken = False
    with running(load(spark, options | {"slots": "1"}), sink, tmp_path) as query:
        wait_for_rows(query, sink, 130)
        sink.broken = True
        feed.put("orders", 40)
        assert "the sink is broken" in failure_of(query)

    feed.put("orders", 40)
    feed.merge_first("orders")
    feed.put("orders", 10)
    sink.broken = False
    limited = options | {"maxRecordsPerTrigger": "7", "trigger": "processingTime"}
    with running(load(spark, limited), sink, tmp_path) as query:
        wait_for_rows(query, sink, len(feed.records))
    check_exactly_once(sink, feed.records)
    repeated = [batch for batch, _ in sink.attempts]
    assert len(repeated) - len(set(repeated)) == 2, "two batches were to be repeated"


def test_a_stream_can_be_added(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders")
    feed.create("returns")
    feed.put("orders", 10)
    feed.put("returns", 10)
    sink = Sink()
    run_to_end(load(spark, options), sink, tmp_path)
    assert {row.record.stream for row in sink.rows} == {"orders"}
    run_to_end(load(spark, options | {"streamName": "orders,returns"}), sink, tmp_path)
    check_exactly_once(sink, feed.records)
