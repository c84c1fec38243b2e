"""Kafka written by real queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_ssp.common.errors import InvalidRowsError, UnsupportedError
from spark_ssp.common.spark.requirement import PROVIDER, PROVIDER_SETTING
from spark_ssp.kafka_source.dedup.deduplicate import drop_duplicates
from spark_ssp.planner.graph.systems import SparkFormat
from spark_ssp.planner.running.start import writing
from tests.support.kafka.copying import copying
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.drivers import Driver
from tests.support.spark.queries import await_end, failure_of, start_patiently, wait_until

_COPY_TOPICS: Final = Path(__file__).parents[1] / "programs" / "copy_topics.py"


@pytest.fixture
def rocks_db(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(PROVIDER_SETTING)
    spark.conf.set(PROVIDER_SETTING, PROVIDER)
    yield
    spark.conf.set(PROVIDER_SETTING, str(before))


def _written(broker: KafkaBroker, topic: str) -> int:
    """How many records the topic has."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "none", "log_level": "0"}
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
        for partition in partitions
    ]
    consumer.close()
    return sum(ends)


def _load(reader: Any, broker: KafkaBroker, topic: str, **options: str) -> DataFrame:
    given = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
    frame: DataFrame = (
        reader.format("kafka-ssp").options(**broker.options, **given, **options).load()
    )
    return frame


@pytest.mark.core("Kafka sink")
def test_a_batch_query_writes_and_says_what_it_cannot(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    topic = topics.create(2)
    assert _load(spark.read, kafka_broker, topic).collect() == []
    rows = spark.sql(
        "SELECT * FROM VALUES ('k', 'v', 1, array(named_struct('key', 'h', 'value', X'00'))),"
        " (NULL, NULL, 0, NULL), ('', '', NULL, array()) AS t(key, value, partition, headers)"
    )

    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        given = {**kafka_broker.options, "topic": topic, **options}
        frame.write.format("kafka-ssp").mode(mode).options(**given).save()

    write(rows)
    write(rows.selectExpr("'all' AS value", "1 AS more").limit(1), includeRepeatHeaders="true")
    found = {
        (bytes(row.key) if row.key is not None else None, bytes(row.value or b"")): row
        for row in _load(spark.read, kafka_broker, topic).collect()
    }
    assert set(found) == {(b"k", b"v"), (None, b""), (b"", b""), (None, b"all")}
    assert found[b"k", b"v"].partition == 1
    assert [(h.key, bytes(h.value)) for h in found[b"k", b"v"].headers] == [("h", b"\0")]
    assert found[None, b""].partition == 0
    assert [h.key for h in found[None, b"all"].headers] == ["ssp-source", "ssp-position"]

    for frame, mode, options, wrong in [
        (rows, "overwrite", {}, "append"),
        (rows.drop("value"), "append", {}, "column value"),
        (rows.withColumn("partition", rows.value), "append", {}, r"CAST\(partition AS INT\)"),
        (rows, "append", {"kafka.acks": "0"}, r"kafka\.acks"),
        (rows, "append", {"kafka.linger.ms": "soon"}, r"kafka\.linger\.ms"),
        (rows, "append", {"topic": "no-such-topic"}, "topic no-such-topic"),
    ]:
        with pytest.raises(PySparkException, match=wrong):
            write(frame, mode, **options)
    assert _written(kafka_broker, topic) == 4


@pytest.mark.core("Kafka sink")
@pytest.mark.long
@pytest.mark.usefixtures("rocks_db")
def test_each_row_once_though_the_driver_was_killed_before_it_could_commit(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    source, target, gate = topics.create(2), topics.create(3), tmp_path / "gate"
    put = topics.put(
        source,
        [
            # Some have no key, and some are the same as others.
            Record(key=b"key-%d" % (n % 7) if n % 3 else None, value=b"%d" % (n // 2), partition=p)
            for n in range(40)
            for p in (0, 1)
        ],
    )
    options = {
        "brokers": kafka_broker.bootstrap_servers,
        "from": source,
        "to": target,
        "checkpoint": str(tmp_path / "copying"),
        "gate": str(gate),
    }

    def read() -> None:
        rows = drop_duplicates(_load(spark.readStream, kafka_broker, target))
        writer = (
            rows.writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "reading"))
            .trigger(availableNow=True)
        )
        await_end(start_patiently(writer.start))

    with Driver(tmp_path / "driver", [options], program=_COPY_TOPICS) as driver:
        # Of the first batch one task has written its part, and the other one waits.
        wait_until(
            lambda: _written(kafka_broker, target) >= 30 or not driver.alive,
            "the rows of one task",
        )
        assert driver.alive, driver.log[-4000:]
        assert "java" in driver.kill()
    before = _written(kafka_broker, target)
    read()
    gate.touch()
    await_end(start_patiently(copying(spark, options).start))
    assert _written(kafka_broker, target) == len(put) + before
    read()
    wanted = Counter((one.record.key, one.record.value) for one in put)
    assert max(wanted.values()) > 1

    def content(frame: DataFrame) -> Counter[tuple[bytes | None, bytes]]:
        return Counter(
            (None if row.key is None else bytes(row.key), bytes(row.value))
            for row in frame.collect()
        )

    whole = _load(spark.read, kafka_broker, target)
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert content(found) == wanted
    assert content(drop_duplicates(whole)) == wanted
    assert found.columns == whole.columns
    assert found.dtypes == whole.dtypes
    every = {(row.partition, row.offset): row for row in whole.collect()}
    assert all(every[row.partition, row.offset] == row for row in found.collect())


def test_what_foreach_batch_writes_is_the_querys(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    source, target = topics.create(), topics.create()
    options = {**kafka_broker.options, "topic": target, "includeRepeatHeaders": "true"}
    write = writing(SparkFormat("kafka-ssp", options), "batchWriteId")
    ids = set()
    for value in (b"a", b"b"):
        topics.put(source, [Record(value=value)])
        sink = _load(spark.readStream, kafka_broker, source).select("value").writeStream
        writer = sink.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        query = start_patiently(writer.trigger(availableNow=True).start)
        ids.add(str(query.id))
        await_end(query)
    (query_id,) = ids
    found = [
        (bytes(row.value), [bytes(header.value).decode() for header in row.headers])
        for row in _load(spark.read, kafka_broker, target).orderBy("offset").collect()
    ]
    assert [(value, who, where.split(":")[0]) for value, (who, where) in found] == [
        (b"a", f"{query_id}/{target}", "0"),
        (b"b", f"{query_id}/{target}", "1"),
    ]


def test_what_drop_repeats_needs(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    topic = topics.create()
    stream = _load(spark.readStream, kafka_broker, topic)
    with pytest.raises(UnsupportedError) as caught:
        drop_duplicates(stream)
    assert f'spark.conf.set("{PROVIDER_SETTING}", "{PROVIDER}")' in str(caught.value)
    with pytest.raises(InvalidRowsError, match=r"column headers.*includeHeaders=true"):
        drop_duplicates(stream.drop("headers"))
    # And a stream that fails says where.
    writer = stream.select("value").writeStream.format("kafka-ssp").options(**kafka_broker.options)
    query = start_patiently(
        writer.option("topic", "no-such-topic")
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="0 seconds")
        .start
    )
    topics.put(topic, [Record(value=b"what nobody may read in a log")])
    failure = failure_of(query)
    assert "[stream-not-found] topic no-such-topic" in failure
    assert "nobody may read" not in failure
