"""`spark.read`: streams between two positions, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from spark_ssp.common.errors import AccessError
from spark_ssp.kinesis_source.source import KinesisBatchReader
from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.faults import AccessDenied
from tests.support.fakes.clocks import ShiftedClock
from tests.support.kcl.kpl import Put, aggregate
from tests.support.kinesis.fan_out_mode import pushed_everywhere
from tests.support.kinesis.feeds import FEEDS, Feed
from tests.support.spark.queries import failure_of, run_to_end, start

HOUR_MS = 3_600_000


@pytest.fixture
def kinesis(clock: ShiftedClock) -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(clock=clock) as service, pushed_everywhere(service):
        yield service


def read(spark: SparkSession, options: Mapping[str, str], **changes: str) -> list[Row]:
    return spark.read.format("kinesis-ssp").options(**{**options, **changes}).load().collect()


def numbers(rows: list[Row]) -> list[int]:
    return sorted(int(row.data) for row in rows)


@pytest.mark.core("Kinesis batch read")
@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_all_generations_of_shards_in_the_order_of_keys(
    spark: SparkSession, feed: Feed, options: dict[str, str]
) -> None:
    feed.create("orders", shards=1)
    put = feed.put("orders", 60)
    feed.split_first("orders")
    put += feed.put("orders", 60)
    feed.split_first("orders")
    put += feed.put("orders", 60)
    feed.merge_first("orders")
    put += feed.put("orders", 60)
    rows = read(spark, options, slots="2")
    assert sorted(
        (row.shardId, int(row.sequenceNumber), bytes(row.data)) for row in rows
    ) == sorted((record.shard, record.sequence, record.data) for record in put)
    assert {row.ssp for row in rows} == {0, 1}
    of_key: dict[tuple[int, str], list[int]] = {}
    for row in rows:
        of_key.setdefault((row.ssp, row.partitionKey), []).append(int(row.data))
    assert all(found == sorted(found) for found in of_key.values())


@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_two_reads_that_meet_at_a_time_or_a_record_and_a_look(
    spark: SparkSession, feed: Feed, options: dict[str, str]
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 80)
    whole = read(spark, options)
    assert numbers(whole) == list(range(1, 81))
    middle = sorted(row.approximateArrivalTimestamp for row in whole)[40]
    time = f"at_timestamp {round(middle.timestamp() * 1000)}"
    before = read(spark, options, endingPosition=time)
    after = read(spark, options, startingPosition=time)
    assert numbers(before + after) == list(range(1, 81))
    assert all(row.approximateArrivalTimestamp < middle for row in before)
    last = {
        shard: max(int(row.sequenceNumber) for row in whole[:50] if row.shardId == shard)
        for shard in {row.shardId for row in whole[:50]}
    }
    bound = json.dumps(
        {shard: {"after_sequence_number": str(number)} for shard, number in last.items()}
        | {"default": "at_timestamp 1700000000000"}
    )
    before = read(spark, options, endingPosition=bound)
    after = read(spark, options, startingPosition=bound)
    assert numbers(before + after) == list(range(1, 81))
    assert len(read(spark, options, maxRecords="7")) == 7


@pytest.mark.core("columns")
def test_any_columns_in_any_order_in_batch_reads_and_streams(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    """A restarted stream may request others; data that is not text fails it until it is read as
    bytes."""
    feed.create("orders", shards=2)
    feed.put("orders", 40)
    batch = spark.read.format("kinesis-ssp").options(**options)
    full = {row.sequenceNumber: row for row in read(spark, options)}
    found = batch.schema("ssp int, sequenceNumber string, data string").load().collect()
    assert sorted(found) == sorted(
        (row.ssp, number, row.data.decode()) for number, row in full.items()
    )
    assert batch.schema("data binary").load().count() == 40

    rows: list[Row] = []

    def keep(frame: DataFrame, _: int) -> None:
        rows.extend(frame.collect())

    stream = spark.readStream.format("kinesis-ssp").options(**options)
    text, raw = stream.schema("data string").load(), stream.schema("shardId string, data binary")
    run_to_end(text, keep, tmp_path)
    assert sorted(rows) == sorted((row.data.decode(),) for row in full.values())
    rows.clear()
    bad = feed.put_data("orders", "key", b"\xff")
    failure = failure_of(start(text, keep, tmp_path, "available now"))
    assert "invalid-request] record" in failure
    assert f"{bad.sequence}, sub-sequence number 0, of shard orders/{bad.shard}" in failure
    run_to_end(raw.load(), keep, tmp_path)
    assert rows == [(bad.shard, bad.data)]


def test_aggregated_records_are_split_and_a_bound_may_lie_inside_one(
    spark: SparkSession, kinesis: EmbeddedKinesis, feed: Feed, options: dict[str, str]
) -> None:
    feed.create("orders")
    users = [Put(partition_key=f"key-{n}", data=b"%d" % n) for n in range(6)]
    for part in (users[:3], users[3:]):
        kinesis.state.put("orders", "a", aggregate(part))
    rows = read(spark, options)
    assert [(row.partitionKey, int(row.data)) for row in rows] == [
        (f"key-{n}", n) for n in range(6)
    ]
    inside = json.dumps(
        {
            rows[4].shardId: {
                "after_sequence_number": rows[4].sequenceNumber,
                "sub_sequence_number": 1,
            }
        }
    )
    assert numbers(read(spark, options, endingPosition=inside)) == [0, 1, 2, 3, 4]
    assert numbers(read(spark, options, startingPosition=inside)) == [5]


@pytest.mark.core("Kinesis batch read")
def test_records_trimmed_before_the_start(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    clock: ShiftedClock,
) -> None:
    feed.create("orders")
    first = feed.put("orders", 10)[4]
    clock.advance(25 * HOUR_MS)
    feed.put("orders", 10)
    start = json.dumps({first.shard: {"after_sequence_number": str(first.sequence)}})
    with pytest.raises(PySparkException, match=r"(?s)data-loss.*failOnDataLoss"):
        read(spark, options, startingPosition=start)
    rows = read(spark, options, startingPosition=start, failOnDataLoss="false")
    assert numbers(rows) == list(range(11, 21))
    # The oldest records of a shard are not promised.
    assert numbers(read(spark, options)) == list(range(11, 21))


def test_a_task_that_fails_once_reads_the_same_again(
    kinesis: EmbeddedKinesis, feed: Feed, options: dict[str, str]
) -> None:
    """`local[2]` does not repeat a failed task, so the tasks of one plan are run here."""
    feed.create("orders", shards=2)
    feed.put("orders", 40)
    reader = KinesisBatchReader(options)
    partitions = reader.partitions()

    def run() -> list[int]:
        return sorted(
            int(data.as_py())
            for partition in partitions
            for page in reader.read(partition)
            for data in page.column("data")
        )

    kinesis.faults.add(AccessDenied(), operation="GetRecords", count=1)
    with pytest.raises(AccessError):
        run()
    feed.put("orders", 40)
    feed.split_first("orders")
    assert run() == run() == list(range(1, 41))


@pytest.mark.core("Kinesis batch read")
def test_several_streams_and_an_empty_one(
    spark: SparkSession, feed: Feed, options: dict[str, str]
) -> None:
    for stream in ("orders", "returns", "none"):
        feed.create(stream, shards=2)
    feed.put("orders", 20)
    feed.put("returns", 20)
    frame = (
        spark.read.format("kinesis-ssp")
        .options(**options | {"streamName": "orders,returns,none", "slots": "2"})
        .load()
    )
    counts = {row.stream: row["count"] for row in frame.groupBy("stream").count().collect()}
    assert counts == {"orders": 20, "returns": 20}
    assert {row.ssp for row in frame.collect()} == {0, 1}
    assert read(spark, options, streamName="none") == []


def test_options_of_streaming_queries_are_refused(
    spark: SparkSession, options: dict[str, str]
) -> None:
    with pytest.raises(PySparkException, match=r"(?s)invalid-options.*applicationName"):
        read(spark, options, applicationName="orders-etl", trigger="processingTime")


def test_a_start_in_another_shard_is_refused_or_all_of_the_shard_is_read(
    spark: SparkSession, feed: Feed, options: dict[str, str]
) -> None:
    feed.create("orders", shards=2)
    put = feed.put("orders", 40)
    first, second = feed.open_shards("orders")
    foreign = [record for record in put if record.shard == second][-1]
    bound = json.dumps(
        {first: {"after_sequence_number": str(foreign.sequence)}, "default": "trim_horizon"}
    )
    with pytest.raises(PySparkException, match=r"invalid-position.*startingPosition"):
        read(spark, options, startingPosition=bound)
    rows = read(spark, options, startingPosition=bound, failOnDataLoss="false")
    assert sorted(row.data for row in rows) == sorted(record.data for record in put)
