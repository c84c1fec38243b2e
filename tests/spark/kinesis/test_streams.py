"""Several streams in one query, streams by ARN, and aggregated records."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from spark_ssp.testing.kinesis import Distribution, EmbeddedKinesis
from tests.support.kcl.kpl import Put, aggregate
from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import (
    Sink,
    Trial,
    check_tasks,
    load,
    run_to_end,
    running,
    wait_for_rows,
)


def test_several_streams_share_the_slots(trial: Trial) -> None:
    trial.create(40, shards=2)
    trial.feed.create("returns")
    trial.feed.put("returns", 40)
    with trial.running({"streamName": "returns, orders", "slots": "2"}) as query:
        trial.wait_for_all(query)
        trial.feed.split_first("returns")
        trial.feed.put("returns", 40)
        trial.put(40)
        trial.wait_for_all(query)
        check_tasks(trial.spark, query, slots=2)
    trial.check()
    assert {row.record.stream for row in trial.sink.rows} == {"orders", "returns"}


def test_streams_by_their_arns(trial: Trial, kinesis: EmbeddedKinesis) -> None:
    arns = []
    for stream in ("orders", "returns"):
        trial.feed.create(stream)
        trial.feed.put(stream, 20)
        arns.append(kinesis.state.stream(stream).arn)
    del trial.options["streamName"], trial.options["region"]
    trial.run_to_end({"streamARN": ",".join(arns)})
    trial.check()


def test_aggregated_records_are_split_and_their_parts_counted(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    """Also where a limit ends a batch right behind one, and a restart resumes there."""
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


def test_the_service_may_choose_the_shards(
    spark: SparkSession, kinesis: EmbeddedKinesis, options: dict[str, str], tmp_path: Path
) -> None:
    """100 user records of aggregates in any shard come once, also through a split and a
    switch of the record distribution strategy while the query runs; and records without key."""
    state = kinesis.state
    state.create_stream("orders", 2, distribution=Distribution.AUTO)

    def put(first: int) -> None:
        for number in range(first, first + 25, 5):
            made_for = str(number % 2 * ((1 << 128) - 1))
            parts = [
                Put(partition_key="k", data=b"%d" % (number + n), explicit_hash_key=made_for)
                for n in range(5)
            ]
            state.put("orders", "k", aggregate(parts), explicit_hash_key=int(made_for))

    put(0)
    state.put("orders", None, b"no key")
    sink = Sink()
    with running(load(spark, options), sink, tmp_path) as query:
        wait_for_rows(query, sink, 26)
        state.split("orders", "shardId-000000000000")
        put(25)
        wait_for_rows(query, sink, 51)
        state.set_distribution("orders", Distribution.USER_PARTITION_KEY)
        put(50)
        wait_for_rows(query, sink, 76)
        state.set_distribution("orders", Distribution.AUTO)
        put(75)
        wait_for_rows(query, sink, 101)
    found = {row.record.data: row.record.key for row in sink.rows}
    assert len(sink.rows) == 101
    assert found == {b"%d" % n: "k" for n in range(100)} | {b"no key": None}
