"""Brokers that go and come back, records that are gone before they were read, and who is let in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.kafka.broker_faults import FAULTS
from tests.support.kafka.feed import KafkaFeed, kafka_traffic, query_options
from tests.support.kafka.queries import (
    KafkaSink,
    check_keys,
    check_read_once,
    check_tasks,
    kafka_rows_in,
    run_into_files,
)
from tests.support.kafka.topics import KafkaTopics, Put
from tests.support.servers.kafka_broker import KafkaBroker, KafkaBrokers
from tests.support.servers.kafka_security import PASSWORD, USER, SecureKafka
from tests.support.spark.drivers import Driver
from tests.support.spark.queries import (
    failure_of,
    run_to_end,
    running,
    start,
    start_patiently,
    wait_for_rows,
    wait_until,
)
from tests.support.spark.watched_imports import check_no_pandas, watched


def frame(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format("kafka-ssp").options(**options).load()


# --- A broker of one's own ------------------------------------------------------------------------


@pytest.mark.long
def test_a_broker_goes_and_comes_back_under_a_query(
    spark: SparkSession, secure: SecureKafka, tmp_path: Path
) -> None:
    """Once in an orderly way and once not. The query has its password with it, and tells nobody."""
    broker = secure.broker
    sink = KafkaSink()
    with KafkaTopics({"bootstrap.servers": broker.bootstrap_servers}) as topics:
        orders = topics.create(2)
        feed = KafkaFeed(topics)
        options = query_options(_with_password(secure, PASSWORD), orders)

        with (
            kafka_traffic(feed, orders),
            running(frame(spark, options), sink, tmp_path / "right") as query,
        ):
            wait_for_rows(query, sink, 50)
            for go in (broker.stop, broker.kill):
                go()
                broker.start_again()
                # Records that were put before are not enough.
                wait_for_rows(query, sink, len(feed.records) + 50)
        run_to_end(frame(spark, options), sink, tmp_path / "right")
        check_read_once(sink.rows, feed.records)
        check_keys(sink.rows)

        wrong = query_options(_with_password(secure, "wrong-battery-9921"), orders)
        text = failure_of(start(frame(spark, wrong), KafkaSink(), tmp_path / "wrong"))
    assert "[access]" in text
    assert "check kafka.sasl.mechanism" in text
    assert "wrong-battery-9921" not in text
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(PASSWORD.encode() in content for content in kept)


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaBrokers]:
    with KafkaBrokers() as brokers:
        yield brokers


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_query_continues_without_each_of_three_brokers(
    spark: SparkSession, cluster: KafkaBrokers, tmp_path: Path, fault: str
) -> None:
    """From one topic into another, in fixed tasks, with commits to a group."""
    sink = KafkaSink()
    with KafkaTopics({"bootstrap.servers": cluster.bootstrap_servers}) as topics:
        orders, copies = topics.create(4), topics.create(4)
        feed = KafkaFeed(topics)
        options = query_options(cluster.options, orders)
        options |= {"tasks": "2", "commitOffsetsToGroup": f"group-{orders}"}
        copying = (
            spark.readStream.format("kafka-ssp")
            .options(**cluster.options, subscribe=orders, startingOffsets="earliest")
            .load()
            .writeStream.format("kafka-ssp")
            .options(**cluster.options, topic=copies)
            .option("checkpointLocation", str(tmp_path / "copies"))
        )
        with (
            kafka_traffic(feed, orders),
            running(frame(spark, options), sink, tmp_path / "orders") as query,
        ):
            copy = start_patiently(copying.start)
            wait_for_rows(query, sink, 50)
            for number in cluster.numbers:
                with cluster.away(number, fault):
                    # Records that were put before are not enough.
                    wait_for_rows(query, sink, len(feed.records) + 200)
                    assert copy.isActive, copy.exception()
        run_to_end(frame(spark, options), sink, tmp_path / "orders")
        wait_until(lambda: _copied(spark, cluster, copies) >= len(feed.records), "copies", copy)
        copy.stop()
        check_read_once(sink.rows, feed.records)
        check_keys(sink.rows)
        assert _copied(spark, cluster, copies) == len(feed.records)


def _copied(spark: SparkSession, cluster: KafkaBrokers, topic: str) -> int:
    """Return the number of different records of a topic, by a batch read."""
    options = {**cluster.options, "subscribe": topic}
    found = spark.read.format("kafka-ssp").options(**options).load()
    return found.select("value").distinct().count()


def _with_password(secure: SecureKafka, password: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": secure.broker.address("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
        f'required username="{USER}" password="{password}";',
    }


# --- Records that are gone ------------------------------------------------------------------------


def test_records_that_are_gone_while_the_query_is_stopped(
    spark: SparkSession,
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    feed: KafkaFeed,
    tmp_path: Path,
) -> None:
    """One topic was read too late, one was deleted and created again with more records than were
    read before: a query that compared offsets alone would go on in their midst."""
    late, again = topics.create(2), topics.create(2)
    queries = {topic: query_options(kafka_broker.options, topic) for topic in (late, again)}
    folder = tmp_path / "driver"
    folder.mkdir()
    checkpoints = {topic: folder / f"checkpoint-{n}" for n, topic in enumerate(queries)}
    kept: dict[str, list[Put]] = {}
    for number, (topic, options) in enumerate(queries.items()):
        kept[topic] = feed.put(topic, 96)
        run_into_files(frame(spark, options), folder, number)

    gone = feed.put(late, 48)
    positions = {number: _end(feed.records, late, number) for number in range(2)}
    kept[late] += feed.put(late, 48)
    topics.expire(late, positions)
    topics.delete(again)
    topics.create(2, name=again)
    kept[again] += feed.put(again, 192)

    said = {
        topic: failure_of(start(frame(spark, options), KafkaSink(), checkpoints[topic]))
        for topic, options in queries.items()
    }
    assert {one.partition for one in gone} == {0, 1}
    assert f"[data-loss] partition {late}-0, partition {late}-1: found" in said[late]
    assert f"its oldest record at {positions[0]}, after the position" in said[late]
    assert f"[data-loss] topic {again}: found the topic deleted and created again" in said[again]
    assert all("set failOnDataLoss to false" in text for text in said.values())

    # What is left is read, all of it, in the same tasks; and what was lost is told.
    tolerant = [options | {"failOnDataLoss": "false"} for options in queries.values()]
    own = watched(tmp_path)
    with Driver(folder, tolerant, sources=["kafka-ssp"], environment=own) as driver:
        results = driver.results()
    check_no_pandas(tmp_path)
    assert [result["failure"] for result in results] == [None] * 2
    for number, topic in enumerate(queries):
        rows = kafka_rows_in(spark, folder / f"output-{number}")
        check_read_once(rows, kept[topic])
        check_tasks(rows)
        assert {(row.task, row.partition) for row in rows} == {
            ("Partition 0", 0),
            ("Partition 1", 1),
        }
    for subject in (f"partition {late}-0", f"partition {late}-1", f"topic {again}"):
        assert f"data loss in {subject}, tolerated by failOnDataLoss=false" in driver.log


def _end(records: list[Put], topic: str, partition: int) -> int:
    """Where a partition ends."""
    return 1 + max(
        one.offset for one in records if one.topic == topic and one.partition == partition
    )
