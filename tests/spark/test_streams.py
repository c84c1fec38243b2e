"""Several streams in one query, streams by ARN, and aggregated records."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from embedded_kinesis import EmbeddedKinesis
from tests.support.feeds import Feed
from tests.support.kpl import Put, aggregate
from tests.support.queries import (
    Sink,
    check_exactly_once,
    check_tasks,
    load,
    run_to_end,
    running,
    wait_for_rows,
)


def test_several_streams_share_the_slots(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.create("returns")
    feed.put("orders", 40)
    feed.put("returns", 40)
    sink = Sink()
    frame = load(spark, options | {"streamName": "returns, orders", "slots": "2"})
    with running(frame, sink, tmp_path) as query:
        wait_for_rows(query, sink, 80)
        feed.split_first("returns")
        feed.put("returns", 40)
        feed.put("orders", 40)
        wait_for_rows(query, sink, 160)
        check_tasks(spark, query, slots=2)
    check_exactly_once(sink, feed.records)
    assert {row.record.stream for row in sink.rows} == {"orders", "returns"}


def test_streams_by_their_arns(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    arns = []
    for stream in ("orders", "returns"):
        feed.create(stream)
        feed.put(stream, 20)
        arns.append(kinesis.state.stream(stream).arn)
    del options["streamName"], options["region"]
    sink = Sink()
    run_to_end(load(spark, options | {"streamARN": ",".join(arns)}), sink, tmp_path)
    check_exactly_once(sink, feed.records)


def test_aggregated_records_are_split_and_their_parts_counted(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    """Also where a limit ends a batch right behind one, and a restart goes on from there."""
    feed.create("orders")
    expected: list[tuple[int, str, bytes]] = []
    for number in range(6):
        parts = [Put(partition_key=f"user-{n}", data=b"%d of %d" % (n, number)) for n in range(5)]
        feed.put_data("orders", "the-aggregate", aggregate(parts))
        expected += [(sub, part.partition_key, part.data) for sub, part in enumerate(parts)]
        feed.put_data("orders", "plain", b"%d" % number)
        expected.append((0, "plain", b"%d" % number))
    sink = Sink()
    run_to_end(load(spark, options | {"maxRecordsPerTrigger": "5"}), sink, tmp_path / "split")
    assert [(row.sub, row.record.key, row.record.data) for row in sink.rows] == expected
    assert max(sink.sizes()) == 3 * 5 + 2, "the limit counts records as the service does"

    whole = Sink()
    run_to_end(load(spark, options | {"deaggregate": "false"}), whole, tmp_path / "whole")
    assert [(row.record, row.sub) for row in whole.rows] == [(r, 0) for r in feed.records]


def test_parts_that_belong_to_the_other_child_of_a_split_come_once(
    spark: SparkSession, kinesis: EmbeddedKinesis, options: dict[str, str], tmp_path: Path
) -> None:
    """A producer that does not know of a split yet aggregates keys of both children. It sends what
    did not fit again; readers drop what lies outside the shard's hash keys."""
    kinesis.state.create_stream("orders")
    lower, upper = kinesis.state.split("orders", "shardId-000000000000")
    parts = [
        Put(partition_key=f"user-{n}", data=b"%d" % n, explicit_hash_key=str(n << 124))
        for n in range(16)
    ]
    for half in (0, (1 << 128) - 1):
        kinesis.state.put("orders", "mixed", aggregate(parts), explicit_hash_key=half)
    sink = Sink()
    run_to_end(load(spark, options), sink, tmp_path)
    found = sorted((row.record.shard, row.sub, row.record.data) for row in sink.rows)
    assert found == [(lower if n < 8 else upper, n, b"%d" % n) for n in range(16)]
