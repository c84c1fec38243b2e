"""Records that are gone before they were read: an error, or a warning under `failOnDataLoss=false`.

Nothing that is still there is left out, and a trim that lost nothing is no data loss.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from embedded_kinesis import EmbeddedKinesis
from tests.support.feeds import Feed
from tests.support.queries import (
    Sink,
    check_exactly_once,
    failure_of,
    load,
    planned_offsets,
    run_to_end,
    running,
    start,
    wait_for_rows,
    wait_until,
)

FIRST = "shardId-000000000000"
HOUR_MS = 3_600_000


class ShiftedClock:
    """The machine's clock, which can be moved forward."""

    def __init__(self) -> None:
        self._shift_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def advance(self, milliseconds: int) -> None:
        self._shift_ms += milliseconds


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def kinesis(clock: ShiftedClock) -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(clock=clock) as service:
        yield service


def test_a_stream_deleted_under_the_query(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    feed.create("orders")
    feed.put("orders", 10)
    sink = Sink()
    with running(load(spark, options), sink, tmp_path) as query:
        wait_for_rows(query, sink, 10)
        kinesis.state.delete_stream("orders")
        text = failure_of(query)
    assert "[stream-not-found] stream orders" in text
    check_exactly_once(sink, feed.records)


@pytest.mark.parametrize("while_running", [True, False])
def test_a_stream_deleted_and_created_again(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
    while_running: bool,
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 20)
    sink = Sink()

    def recreate() -> None:
        with kinesis.state.lock:
            kinesis.state.delete_stream("orders")
            kinesis.state.create_stream("orders", shards=3)

    if while_running:
        with running(load(spark, options), sink, tmp_path) as query:
            wait_for_rows(query, sink, 20)
            recreate()
            text = failure_of(query)
    else:
        run_to_end(load(spark, options), sink, tmp_path)
        recreate()
        text = failure_of(start(load(spark, options), sink, tmp_path))
    assert "[data-loss]" in text
    assert "deleted and created again" in text
    assert "failOnDataLoss" in text
    # The new stream is read from its beginning, once that is what the user wants.
    feed.put("orders", 30)
    tolerant = load(spark, options | {"failOnDataLoss": "false"})
    with running(tolerant, sink, tmp_path) as query:
        wait_for_rows(query, sink, 50)
        feed.put("orders", 10)
        wait_for_rows(query, sink, 60)
    check_exactly_once(sink, feed.records)


def test_records_trimmed_before_they_were_read(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    clock: ShiftedClock,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    """The query was stopped for longer than the retention."""
    feed.create("orders")
    feed.put("orders", 10)
    sink = Sink()
    run_to_end(load(spark, options), sink, tmp_path)
    lost = feed.put("orders", 10)
    clock.advance(25 * HOUR_MS)
    feed.put("orders", 10)
    text = failure_of(start(load(spark, options), sink, tmp_path))
    assert f"[data-loss] shard orders/{FIRST}" in text
    assert "failOnDataLoss" in text
    run_to_end(load(spark, options | {"failOnDataLoss": "false"}), sink, tmp_path)
    check_exactly_once(sink, [record for record in feed.records if record not in lost])


def test_a_start_record_trimmed_after_all_had_been_read_is_no_loss(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    clock: ShiftedClock,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    """A quiet shard: its last record goes, and nothing came after it until the query had looked."""
    feed.create("orders")
    feed.put("orders", 10)
    sink = Sink()
    with running(load(spark, options), sink, tmp_path) as query:
        wait_for_rows(query, sink, 10)
        for _ in range(5):
            clock.advance(6 * HOUR_MS)
            wait_until(lambda: _proven(tmp_path, clock), "a new proof of the tip", query)
    assert kinesis.state.records("orders") == [], "the records were to be trimmed"
    feed.put("orders", 10)
    run_to_end(load(spark, options), sink, tmp_path)
    check_exactly_once(sink, feed.records)


def _proven(checkpoint: Path, clock: ShiftedClock) -> bool:
    """Whether the last offset says that the shard was read to its tip lately."""
    offset = planned_offsets(checkpoint)[-1]
    state = offset["ssp"]["0"]["orders"][FIRST]
    return bool(clock.now_ms() - state.get("seen", 0) < HOUR_MS)


def test_the_records_of_a_planned_batch_trimmed_before_its_tasks_read_them(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    feed.create("orders")
    feed.put("orders", 10)
    sink = Sink(broken=True)
    failure_of(start(load(spark, options), sink, tmp_path))
    # The batch is planned and logged. Its first half is trimmed, more records come.
    middle = feed.records[5]
    kinesis.state.trim("orders", FIRST, before_sequence_number=str(middle.sequence))
    feed.put("orders", 5)
    sink.broken = False
    text = failure_of(start(load(spark, options), sink, tmp_path))
    assert f"[data-loss] shard orders/{FIRST}" in text
    sink.attempts.clear()  # those before the loss, which cannot be repeated
    run_to_end(load(spark, options | {"failOnDataLoss": "false"}), sink, tmp_path)
    check_exactly_once(sink, feed.records[5:])
