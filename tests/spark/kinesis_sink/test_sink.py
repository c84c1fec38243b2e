"""Kinesis written by real queries."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ssp.testing.kinesis import Distribution, EmbeddedKinesis
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.spark.queries import (
    Sink,
    await_end,
    load,
    run_to_end,
    start_patiently,
    wait_until,
)

KEYS = 23


def _copying(frame: DataFrame, options: dict[str, str], checkpoint: Path) -> Any:
    return (
        frame.select("data", "partitionKey")
        .writeStream.format("kinesis-ssp")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
    )


def _records(kinesis: EmbeddedKinesis, stream: str) -> list[tuple[str | None, bytes]]:
    return [(one.partition_key, one.data) for one in kinesis.state.records(stream)]


def _by_key(records: list[tuple[str | None, bytes]]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for key, data in records:
        found.setdefault(key, []).append(int(data))
    return found


@pytest.mark.core("Kinesis sink")
def test_a_batch_query_writes_and_names_what_it_cannot(
    spark: SparkSession, kinesis: EmbeddedKinesis
) -> None:
    state = kinesis.state
    for stream in ("orders", "returns"):
        state.create_stream(stream, shards=2)
    endpoint = options_for(kinesis.endpoint_url)

    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("kinesis-ssp").mode(mode).options(**endpoint, **options).save()

    rows = spark.range(2_000).selectExpr(
        "CAST(id AS STRING) AS data",
        "concat('key-', id % 7) AS partitionKey",
        "IF(id % 2 = 0, 'orders', 'returns') AS stream",
        "'0' AS explicitHashKey",
        "id AS more",
    )
    write(rows)
    for remainder, stream in enumerate(("orders", "returns")):
        found = sorted(int(data) for _, data in _records(kinesis, stream))
        assert found == list(range(remainder, 2_000, 2))
    write(rows.drop("explicitHashKey"), streamName="returns")
    assert len(_records(kinesis, "returns")) == 3_000

    large = rows.limit(1).withColumn("data", F.repeat(F.lit("s3cret"), 200_000))
    refusals: list[tuple[DataFrame, dict[str, str], str]] = [
        (rows.drop("stream"), {}, "column stream: found neither a column stream nor the option"),
        (rows.drop("data"), {}, "found no column data"),
        (rows.withColumn("data", F.col("more")), {}, r"data of type bigint.*CAST\(data AS STRING"),
        (rows, {"ordering": "shard"}, "ordering: found 'shard'"),
        (rows, {"streamName": "orders,returns"}, "streamName: found 2 streams"),
        (rows, {"streamName": "absent"}, r"stream-not-found.*absent"),
        (rows, {"kinesis.sink.proxyAddress": "host"}, "HTTPS_PROXY"),
        (
            rows.withColumn("partitionKey", F.lit(None).cast("string")),
            {},
            "partitionKey: found null",
        ),
        (large, {}, "found 12000.. bytes"),
    ]
    for frame, options, expected in refusals:
        with pytest.raises(PySparkException, match=f"(?s){expected}") as caught:
            write(frame, **options)
        assert "s3crets3cret" not in str(caught.value)
    with pytest.raises(PySparkException, match=r"(?s)overwrite.*records of a stream are not"):
        write(rows, mode="overwrite")


@pytest.mark.core("Kinesis sink")
def test_a_stream_is_copied_in_order_while_the_target_is_resharded(
    spark: SparkSession, kinesis: EmbeddedKinesis, tmp_path: Path
) -> None:
    feed = EmbeddedFeed(kinesis)
    feed.create("orders", shards=2)
    feed.create("copies")
    options = options_for(kinesis.endpoint_url)
    source = load(
        spark,
        options
        | {
            "streamName": "orders",
            "startingPosition": "trim_horizon",
            "maxRecordsPerTrigger": "200",
            "trigger": "processingTime",
        },
    )
    query = start_patiently(
        _copying(source, options | {"streamName": "copies", "ordering": "key"}, tmp_path).start
    )
    for reshard in (feed.split_first, feed.split_first, feed.merge_first, feed.merge_first):
        feed.put("orders", 400, keys=KEYS)
        wait_until(
            lambda: len(_records(kinesis, "copies")) >= len(feed.records), "records are copied"
        )
        reshard("copies")
    query.stop()
    copies = _records(kinesis, "copies")
    assert Counter(copies) == Counter((record.key, record.data) for record in feed.records)
    assert all(order == sorted(order) for order in _by_key(copies).values())


@pytest.mark.core("Kinesis sink")
def test_aggregates_are_read_as_the_rows_that_were_written(
    spark: SparkSession, kinesis: EmbeddedKinesis, tmp_path: Path
) -> None:
    feed, sink = EmbeddedFeed(kinesis), Sink()
    feed.create("orders", shards=2)
    kinesis.state.create_stream("auto", shards=2, distribution=Distribution.AUTO)
    options = options_for(kinesis.endpoint_url)

    def write(first: int, stream: str = "orders") -> None:
        rows = spark.range(first, first + 3_000).selectExpr(
            "CAST(id AS STRING) AS data", "concat('key-', id % 501) AS partitionKey"
        )
        given = options | {"streamName": stream, "aggregation": "true"}
        rows.write.format("kinesis-ssp").mode("append").options(**given).save()

    for round_, reshard in enumerate((feed.split_first, feed.merge_first)):
        write(round_ * 3_000)
        reshard("orders")
    assert len(_records(kinesis, "orders")) < 100
    source = load(spark, options | {"streamName": "orders", "startingPosition": "trim_horizon"})
    run_to_end(source, sink, tmp_path)
    assert sorted(int(row.record.data) for row in sink.rows) == list(range(6_000))
    assert {row.record.key for row in sink.rows} == {f"key-{number}" for number in range(501)}
    with pytest.raises(PySparkException, match=r"(?s)\[unsupported\].*AUTO"):
        write(0, "auto")


def test_a_task_that_fails_writes_its_rows_again(
    spark: SparkSession, kinesis: EmbeddedKinesis, tmp_path: Path
) -> None:
    kinesis.state.create_stream("orders", shards=1)
    marker = tmp_path / "failed"

    def fail_once(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 3 and not marker.exists():
                marker.touch()
                raise RuntimeError("a lost executor")
            yield batch

    conf = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(conf)
    spark.conf.set(conf, "100")
    rows = spark.range(0, 1_000, 1, 1).selectExpr(
        "CAST(id AS STRING) AS data", "CAST(id AS STRING) AS partitionKey"
    )
    failing = rows.mapInArrow(fail_once, rows.schema)
    options = options_for(kinesis.endpoint_url) | {"streamName": "orders"}

    def write() -> None:
        failing.write.format("kinesis-ssp").mode("append").options(**options).save()

    with pytest.raises(PySparkException, match="a lost executor"):
        write()
    write()
    spark.conf.set(conf, str(before))
    copies = Counter(key for key, _ in _records(kinesis, "orders"))
    assert set(copies) == {str(number) for number in range(1_000)}
    assert max(copies.values()) <= 2


@pytest.mark.core("Kinesis sink")
def test_each_batch_of_the_output_mode_complete_writes_the_whole_result_and_lists_the_shards_once(
    spark: SparkSession, kinesis: EmbeddedKinesis, tmp_path: Path
) -> None:
    feed = EmbeddedFeed(kinesis)
    feed.create("orders")
    feed.create("counts")
    options = options_for(kinesis.endpoint_url)
    source = load(spark, options | {"streamName": "orders", "startingPosition": "trim_horizon"})
    counts = (
        source.groupBy("partitionKey").count().withColumn("data", F.col("count").cast("string"))
    )
    written = []
    for keys in (2, 3, 4):
        feed.put("orders", 6, keys=keys)
        query = (
            _copying(counts, options | {"streamName": "counts"}, tmp_path)
            .outputMode("complete")
            .trigger(availableNow=True)
        )
        await_end(start_patiently(query.start))
        written.append(len(_records(kinesis, "counts")))
    assert written == [2, 2 + 3, 2 + 3 + 4]
    assert kinesis.calls.count("ListShards", stream="counts") == 3
