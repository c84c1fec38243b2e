"""Rows that a sink has written twice, dropped by their repeat keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.spark.queries import Sink, await_end, load, run_to_end, start_patiently

WRITTEN = {"streamName": "copies", "startingPosition": "trim_horizon"}
REPEAT_KEYS = {"includeRepeatKeys": "true"}


def _content(rows: Iterable[Row]) -> Counter[tuple[str, bytes]]:
    return Counter((row.partitionKey, bytes(row.data)) for row in rows)


def _forget_newest_commit(checkpoint: Path) -> None:
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.core("Kinesis sink")
def test_the_rows_of_a_batch_that_is_written_twice_are_dropped(
    spark: SparkSession, kinesis: EmbeddedKinesis, tmp_path: Path
) -> None:
    feed = EmbeddedFeed(kinesis)
    feed.create("orders", shards=2)
    feed.create("copies", shards=2)
    put = [feed.put_data("orders", f"key-{n % 7}", b"%d" % (n % 35)) for n in range(300)]
    wanted = Counter((record.key, record.data) for record in put)
    assert set(wanted.values()) > {8}, "equal rows on purpose"
    options = options_for(kinesis.endpoint_url)
    sink = options | REPEAT_KEYS | {"streamName": "copies", "aggregation": "true"}

    def copy() -> None:
        source = load(spark, options | {"streamName": "orders", "startingPosition": "trim_horizon"})
        writer = (
            source.select("data", "partitionKey")
            .writeStream.format("kinesis-ssp")
            .options(**sink)
            .option("checkpointLocation", str(tmp_path / "copy"))
            .trigger(availableNow=True)
        )
        await_end(start_patiently(writer.start))

    def read(**more: str) -> DataFrame:
        return spark.read.format("kinesis-ssp").options(**options, **WRITTEN, **more).load()

    copy()
    earlier = Sink()
    run_to_end(load(spark, options | WRITTEN), earlier, tmp_path / "reader")
    assert earlier.count == len(put)
    _forget_newest_commit(tmp_path / "copy")
    feed.split_first("copies")
    copy()
    assert _content(read().collect()) == wanted + wanted
    rows = read(**REPEAT_KEYS)
    assert _content(rows.dropDuplicates(["repeatKey"]).collect()) == wanted

    stream = load(spark, options | WRITTEN | REPEAT_KEYS)
    once: list[Row] = []
    run_to_end(
        stream.withWatermark("approximateArrivalTimestamp", "1 hour")
        .dropDuplicatesWithinWatermark(["repeatKey"])
        .select("partitionKey", "data"),
        lambda frame, _: once.extend(frame.collect()),
        tmp_path / "once",
    )
    assert _content(once) == wanted
    # The option can be added to a query that has a checkpoint.
    later: list[Row] = []
    run_to_end(stream, lambda frame, _: later.extend(frame.collect()), tmp_path / "reader")
    assert _content(later) == wanted
    assert {row.repeatKey for row in later} == {row.repeatKey for row in rows.collect()}

    def write(**more: str) -> None:
        batch = spark.range(0, 1, 1, 1).selectExpr("'x' AS data", "'key' AS partitionKey")
        batch.write.format("kinesis-ssp").mode("append").options(**sink, **more).save()

    for _ in range(2):
        write(batchWriteId="the-query:7")
        write()
    assert read().count() == 2 * len(put) + 4
    assert read(**REPEAT_KEYS).dropDuplicates(["repeatKey"]).count() == len(put) + 3
