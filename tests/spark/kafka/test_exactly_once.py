"""Exactly-once delivery by real queries."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_ssp.common.errors import IncompatibleStateError, UnsupportedError
from spark_ssp.common.spark.batch_plan import ADAPTIVE_STREAM, run_of_task
from spark_ssp.common.spark.pyspark_api import WRITES_ARROW
from tests.support.kafka.copying import copying
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.simulation.effort import AMOUNT
from tests.support.spark.drivers import Driver
from tests.support.spark.queries import await_end, failure_of, start_patiently

_COPY_TOPICS: Final = Path(__file__).parents[1] / "programs" / "copy_topics.py"


def _committed(spark: SparkSession, broker: KafkaBroker, topic: str) -> Counter[bytes]:
    frame: Any = (
        spark.read.format("kafka-ssp")
        .options(**broker.options, subscribe=topic, startingOffsets="earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    return Counter(bytes(row.value) for row in frame.collect())


def test_a_task_knows_the_run_of_its_query(spark: SparkSession) -> None:
    """By which it knows whether a client that its process has kept may be used."""

    def run_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"run": pa.array([run_of_task()], pa.string())})

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.mapInArrow(run_of, "run string").writeStream.format("memory").queryName("runs")
    for _ in range(2):
        query = start_patiently(writer.trigger(once=True).start)
        await_end(query)
        found = {row.run for row in spark.table("runs").collect()}
        assert found == {str(query.runId)}


@pytest.mark.core("Kafka sink")
def test_batches_that_run_again_write_nothing_twice(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    """Spark's commit log is lost after the batches; then a copy of an older checkpoint is used."""
    source, target = topics.create(2), topics.create(3)
    checkpoint = tmp_path / "checkpoint"
    options = {
        "brokers": kafka_broker.bootstrap_servers,
        "from": source,
        "to": target,
        "checkpoint": str(checkpoint),
        "gate": str(tmp_path),
        "delivery": "exactly-once",
    }

    def run() -> None:
        await_end(start_patiently(copying(spark, options).start))

    if WRITES_ARROW:
        adaptive = copying(spark, options | {"checkpoint": str(tmp_path / "adaptive")})
        spark.conf.unset(ADAPTIVE_STREAM)
        assert ADAPTIVE_STREAM in failure_of(start_patiently(adaptive.start))
    put: Counter[bytes] = Counter()
    for part in range(2):
        records = [Record(value=b"%d-%d" % (part, n // 2), partition=n % 2) for n in range(20)]
        topics.put(source, records)
        put += Counter(record.value or b"" for record in records)
        run()
        assert _committed(spark, kafka_broker, target) == put
    last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    run()
    assert _committed(spark, kafka_broker, target) == put
    for number in (last - 1, last):
        for folder in ("commits", "offsets") if number == last else ("commits",):
            (checkpoint / folder / str(number)).unlink()
            (checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)
    query = start_patiently(copying(spark, options).start)
    assert IncompatibleStateError.kind in failure_of(query)
    assert _committed(spark, kafka_broker, target) == put


@pytest.mark.core("Kafka sink")
def test_a_write_in_foreach_batch_needs_an_id(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    """Without one, a batch that runs again would be written twice."""
    source, target = topics.create(), topics.create()
    topics.put(source, [Record(value=b"a")])
    options = {
        **kafka_broker.options,
        "topic": target,
        "deliveryGuarantee": "exactly-once",
        "transactionName": "copies",
    }

    def write(rows: DataFrame, _: int) -> None:
        rows.write.format("kafka-ssp").options(**options).mode("append").save()

    read = spark.readStream.format("kafka-ssp").options(**kafka_broker.options, subscribe=source)
    rows = read.option("startingOffsets", "earliest").load().select("value")
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
    failure = failure_of(start_patiently(writer.trigger(availableNow=True).start))
    assert UnsupportedError.kind in failure
    assert "batchWriteId" in failure
    assert not _committed(spark, kafka_broker, target)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_each_row_is_visible_once_though_drivers_are_killed(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    source, target = topics.create(4), topics.create(3)
    options = {
        "brokers": kafka_broker.bootstrap_servers,
        "from": source,
        "to": target,
        "checkpoint": str(tmp_path / "copying"),
        "gate": str(tmp_path),
        "delivery": "exactly-once",
    }
    put: Counter[bytes] = Counter()
    chance = random.Random(17)
    for kill in range(AMOUNT.kills):
        records = [
            Record(key=b"%d" % n, value=b"%d-%d" % (kill, n), partition=n % 4) for n in range(400)
        ]
        topics.put(source, records)
        put += Counter(record.value or b"" for record in records)
        with Driver(tmp_path / f"driver-{kill}", [options], program=_COPY_TOPICS) as driver:
            time.sleep(chance.uniform(3, 15))
            driver.kill()
    await_end(start_patiently(copying(spark, options).start))
    assert _committed(spark, kafka_broker, target) == put
