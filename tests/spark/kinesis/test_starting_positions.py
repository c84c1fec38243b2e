"""`startingPosition`: the records that a new query reads, and those that it skips."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.feeds import FEEDS, Feed, Record
from tests.support.spark.queries import (
    Sink,
    Trigger,
    check_exactly_once,
    failure_of,
    load,
    planned_offsets,
    run_to_end,
    running,
    wait_for_rows,
    wait_until,
)

FIRST = "shardId-000000000000"


@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_latest_begins_once_the_first_batch_is_planned(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 30)
    feed.split_first("orders")
    feed.put("orders", 30)
    sink = Sink()
    frame = load(spark, options | {"startingPosition": "latest"})
    with running(frame, sink, tmp_path) as query:
        wait_until(lambda: planned_offsets(tmp_path) != [], "the first plan", query)
        after = feed.put("orders", 30)
        feed.split_first("orders")
        after += feed.put("orders", 30)
        wait_for_rows(query, sink, 60)
    check_exactly_once(sink, after)


def test_latest_is_not_moved_by_a_restart_before_any_data(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 30)
    sink = Sink()
    frame = load(spark, options | {"startingPosition": "latest"})
    with running(frame, sink, tmp_path) as query:
        wait_until(lambda: planned_offsets(tmp_path) != [], "the first plan", query)
    after = feed.put("orders", 30)
    run_to_end(frame, sink, tmp_path)
    check_exactly_once(sink, after)


def _spread(kinesis: EmbeddedKinesis, feed: Feed, now_ms: int) -> list[Record]:
    """Ten records, which arrived a second apart; the last of them now."""
    kinesis.state.create_stream("orders")
    put: list[Record] = []
    for number in range(10):
        record = kinesis.state.put(
            "orders", f"key-{number}", b"%d" % number, arrival_ms=now_ms - (9 - number) * 1000
        )
        put.append(
            Record("orders", FIRST, int(record.sequence_number), f"key-{number}", record.data)
        )
    return put


def test_at_timestamp_begins_with_the_record_of_that_moment(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    now_ms = kinesis.clock.now_ms()
    put = _spread(kinesis, feed, now_ms)
    at_ms = now_ms - 4000
    iso = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    sink = Sink()
    frame = load(spark, options | {"startingPosition": f"at_timestamp {iso}"})
    run_to_end(frame, sink, tmp_path)
    check_exactly_once(sink, put[5:])
    assert [row.arrival_ms for row in sink.rows] == [at_ms + 1000 * n for n in range(5)]


def test_by_shard_with_a_default(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=4)
    put = feed.put("orders", 120, keys=40)
    of = {shard: [r for r in put if r.shard == shard] for shard in feed.open_shards("orders")}
    first, second, third, fourth = of
    position = {
        first: "trim_horizon",
        second: "latest",
        third: {"after_sequence_number": str(of[third][4].sequence)},
        "default": "latest",
    }
    sink = Sink()
    frame = load(spark, options | {"startingPosition": json.dumps(position)})
    run_to_end(frame, sink, tmp_path)
    expected = of[first] + of[third][5:]
    check_exactly_once(sink, expected)
    # A shard that appears later is read from its beginning, with any default.
    feed.split("orders", fourth)
    expected += feed.put("orders", 60, keys=40)
    run_to_end(frame, sink, tmp_path)
    check_exactly_once(sink, expected)


TRIGGERS = ["available now", "once", "processing time"]


def _run(
    frame: DataFrame, sink: Sink, checkpoint: Path, trigger: str, count: int | None = None
) -> str:
    """Run until `count` rows are there, or to the failure, whose text is returned."""
    if trigger == "processing time":
        with running(frame, sink, checkpoint) as query:
            if count is None:
                return failure_of(query)
            wait_for_rows(query, sink, count)
            return ""
    how: Trigger = "once" if trigger == "once" else "available now"
    if count is not None:
        run_to_end(frame, sink, checkpoint, how)
        return ""
    with pytest.raises(StreamingQueryException) as caught:
        run_to_end(frame, sink, checkpoint, how)
    return str(caught.value)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_position_of_another_shard_is_refused_or_all_of_the_shard_is_read(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path, trigger: str
) -> None:
    feed.create("orders", shards=2)
    put = feed.put("orders", 60)
    first, second = feed.open_shards("orders")
    foreign = [record for record in put if record.shard == second][-1]
    position = {
        first: {"after_sequence_number": str(foreign.sequence)},
        "default": "trim_horizon",
    }
    given = options | {"startingPosition": json.dumps(position)}
    sink = Sink()
    text = _run(load(spark, given), sink, tmp_path, trigger)
    assert f"[invalid-position] shard orders/{first}" in text
    assert "startingPosition" in text
    assert sink.count == 0
    # The advice: the corrected option, on the same checkpoint, or failOnDataLoss.
    if trigger == "once":
        _run(load(spark, options), sink, tmp_path, trigger, len(put))
    else:
        frame = load(spark, given | {"failOnDataLoss": "false"})
        _run(frame, sink, tmp_path, trigger, len(put))
    check_exactly_once(sink, put)
    put += feed.put("orders", 20)
    _run(load(spark, options), sink, tmp_path, trigger, len(put))
    check_exactly_once(sink, put)
