"""A query from the start that `spark-ssp checkpoint` writes neither leaves out nor repeats a
record; queries pass a bad record and a damaged checkpoint as the guide says."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.kafka.queries import KafkaSink, check_read_once
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.kinesis.feeds import Feed
from tests.support.operations.command import run
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import Sink, check_exactly_once, load, run_to_end

pytestmark = pytest.mark.long


def _uncommit(checkpoint: Path) -> int:
    """Remove the last commit, as if the driver had been killed; return the number of batches that
    are still committed."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()
    return last


@pytest.mark.parametrize("uncommitted", [False, True])
def test_kinesis(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path, uncommitted: bool
) -> None:
    """Through a split before the checkpoint ends and one after it."""
    feed.create("orders", shards=2)
    first, old = Sink(), tmp_path / "old"
    for _ in range(2):
        feed.put("orders", 40)
        run_to_end(load(spark, options), first, old)
        feed.split_first("orders")
    if uncommitted:
        kept = _uncommit(old)
        first.batches = {batch: rows for batch, rows in first.batches.items() if batch < kept}
    feed.put("orders", 40)
    connection = ["--endpoint-url", feed.endpoint_url, "--region", "us-east-1"]
    keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    found = run("checkpoint", str(old), "--as-starting-position", *connection, environment=keys)
    assert found.code == 0, found.err
    second = Sink()
    feed.put("orders", 20)
    run_to_end(load(spark, options | found.document()), second, tmp_path / "new")
    both = itertools.chain(first.batches.values(), second.batches.values())
    assert second.count >= 60
    check_exactly_once(Sink(batches=dict(enumerate(both))), feed.records)


@pytest.mark.parametrize("damaged", ["offsets", "commits", "planned"])
def test_a_query_continues_when_the_files_are_deleted_that_the_command_names(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path, damaged: str
) -> None:
    feed.create("orders", shards=1)
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    for _ in range(3):
        feed.put("orders", 10)
        run_to_end(load(spark, options), sink, checkpoint)
    last = max(sink.batches)
    if damaged == "planned":
        _uncommit(checkpoint)
    log = checkpoint / ("commits" if damaged == "commits" else "offsets")
    (log / str(last)).write_bytes(b"")
    with pytest.raises(StreamingQueryException):
        run_to_end(load(spark, options), Sink(), checkpoint)
    found = run("checkpoint", str(checkpoint))
    assert found.code == 2
    advice = found.err.partition("delete ")[2]
    for name in re.findall(r"(?:offsets|commits)/[0-9]+", advice.partition(" and ")[0]):
        folder, _, batch = name.partition("/")
        (checkpoint / name).unlink()
        (checkpoint / folder / f".{batch}.crc").unlink(missing_ok=True)
    (repeated,) = re.findall(r"the records of batch ([0-9]+),", advice) or [None]
    assert repeated == (None if damaged == "planned" else str(last))
    again = Sink()
    run_to_end(load(spark, options), again, checkpoint)
    assert {batch: sorted(rows) for batch, rows in again.batches.items()} == {
        last: sorted(sink.batches[last])
    }


def _forget(table: Path, batch: int) -> None:
    """Take a batch out of the table of Spark's file sink."""
    log = table / "_spark_metadata" / str(batch)
    for line in log.read_text().splitlines()[1:]:
        Path(urlsplit(json.loads(line)["path"]).path).unlink()
    log.unlink()
    (log.parent / f".{batch}.crc").unlink(missing_ok=True)


def _to_files(source: DataFrame, table: Path, checkpoint: Path) -> None:
    writer = source.select("data").writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start(str(table))
    assert query.awaitTermination(120)


@pytest.mark.parametrize("followed", [False, True])
def test_a_batch_that_is_planned_again_has_to_be_taken_out_of_the_files(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path, followed: bool
) -> None:
    feed.create("orders", shards=1)
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    for _ in range(2):
        feed.put("orders", 10)
        _to_files(load(spark, options), table, checkpoint)
    last = max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    for log in ("offsets", "commits"):
        (checkpoint / log / str(last)).unlink()
        (checkpoint / log / f".{last}.crc").unlink()
    feed.put("orders", 10)
    if followed:
        _forget(table, last)
    _to_files(load(spark, options), table, checkpoint)
    found = sorted(bytes(row.data) for row in spark.read.parquet(str(table)).collect())
    if followed:
        assert found == sorted(record.data for record in feed.records)
    else:
        assert len(found) == 20  # Spark has left out the new rows.


def test_a_new_checkpoint_needs_a_new_folder(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=1)
    feed.put("orders", 10)
    _to_files(load(spark, options), tmp_path / "table", tmp_path / "first")
    feed.put("orders", 10)
    _to_files(load(spark, options), tmp_path / "table", tmp_path / "second")
    assert spark.read.parquet(str(tmp_path / "table")).count() == 10
    _to_files(load(spark, options), tmp_path / "other", tmp_path / "third")
    assert spark.read.parquet(str(tmp_path / "other")).count() == 20


def test_kafka(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    topic = topics.create(2)
    brokers = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers}

    def read(options: dict[str, str], sink: KafkaSink, checkpoint: Path) -> None:
        frame = (
            spark.readStream.format("kafka-ssp")
            .options(includeTask="true", **brokers, **options)
            .load()
        )
        run_to_end(frame, sink, checkpoint)

    put = topics.put(topic, [Record(key=b"%d" % n, value=b"v") for n in range(50)])
    first, second, old = KafkaSink(), KafkaSink(), tmp_path / "old"
    read({"subscribe": topic, "startingOffsets": "earliest"}, first, old)
    topics.expand(topic, 3)
    put += topics.put(topic, [Record(key=b"%d" % n, value=b"v") for n in range(50, 100)])
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    found = run("checkpoint", str(old), "--as-starting-position", *servers)
    assert found.code == 0, found.err
    read(found.document(), second, tmp_path / "new")
    assert first.count == second.count == 50
    check_read_once([*first.rows, *second.rows], put)
