"""What cannot work with Kafka fails soon, with an error that says what was found and what to do."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.kafka.feed import KafkaFeed, query_options
from tests.support.kafka.queries import KafkaSink
from tests.support.kafka.topics import KafkaTopics
from tests.support.operations.checkpoints import edit_last_offset
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import failure_of, run_to_end, start


def _failure(spark: SparkSession, options: Mapping[str, str], checkpoint: Path) -> str:
    frame = spark.readStream.format("kafka-ssp").options(**options).load()
    return failure_of(start(frame, KafkaSink(), checkpoint))


def test_brokers_that_are_not_there(spark: SparkSession, tmp_path: Path) -> None:
    with socket.socket() as nobody:  # bound, so that nothing else can listen there
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        few = {"kafka.request.timeout.ms": "1000"}
        options = query_options({"kafka.bootstrap.servers": address}, "orders")
        text = _failure(spark, options | few, tmp_path)
    assert "[service-unavailable]" in text
    assert address in text
    assert "Connection refused" in text
    assert "no answer to DescribeTopics in 1 s" in text
    assert "check kafka.bootstrap.servers" in text
    text = _failure(spark, options | {"endingOffsets": "latest"}, tmp_path / "end")
    assert "[invalid-options] endingOffsets: found an end in a streaming query" in text
    assert "UnboundLocalError" not in text


def test_a_start_that_does_not_fit_the_partitions(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    orders = topics.create(2)
    options = query_options(kafka_broker.options, orders) | {"fetchOffset.numRetries": "1"}
    for offsets, said in (
        ({"0": 0, "1": 0, "2": 0}, f"not read: {orders}-2"),
        ({"0": 0}, f"found no entry for {orders}-1"),
    ):
        position = {"startingOffsets": json.dumps({orders: offsets})}
        text = _failure(spark, options | position, tmp_path / str(len(offsets)))
        assert "[invalid-options] startingOffsets: " in text
        assert said in text
        assert "Next step: " in text


def test_a_checkpoint_that_does_not_fit(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    orders, returns = topics.create(2), topics.create(2)
    KafkaFeed(topics).put(orders, 24)
    options = query_options(kafka_broker.options, orders)
    frame = spark.readStream.format("kafka-ssp").options(**options).load()
    run_to_end(frame, KafkaSink(), tmp_path / "sound")

    for name, cut in (("cut", 40), ("nested", 0)):
        checkpoint = tmp_path / name
        shutil.copytree(tmp_path / "sound", checkpoint)
        newest = _offset_files(checkpoint)[-1]
        version, metadata, offset = newest.read_text().splitlines()
        # Less than the buffers of the socket: Spark writes it to the worker at once.
        torn = offset[:cut] or "[" * 20_000
        newest.write_text("\n".join([version, metadata, torn]))
        (checkpoint / "offsets" / f".{newest.name}.crc").unlink(missing_ok=True)
        text = _failure(spark, options, checkpoint)
        assert "[incompatible-state] checkpoint of the query" in text
        assert "spark-ssp checkpoint LOCATION" in text
        assert "JSONDecodeError" not in text

    def failure(
        name: str, edit: Callable[[dict[str, Any]], object] = lambda _: None, **changed: str
    ) -> str:
        checkpoint = tmp_path / name
        shutil.copytree(tmp_path / "sound", checkpoint)
        edit_last_offset(checkpoint, edit)
        return _failure(spark, options | changed, checkpoint)

    text = failure("version", lambda offset: offset.update(v=3))
    assert "[incompatible-state] checkpoint of a kafka-ssp query" in text
    assert "found offset version 3; expected version 1 or 2" in text
    assert "start it on a new checkpoint location" in text
    text = failure("damaged", lambda offset: offset.pop("assignment"))
    assert "[incompatible-state]" in text
    assert "expected the layout of version 2" in text
    text = failure("grouper", grouper="ssp")
    assert "[incompatible-state] options grouper and tasks" in text
    text = failure("topic", subscribe=returns)
    assert f"[data-loss] topic {orders}" in text
    assert "no longer among the topics to read" in text


def _offset_files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in (checkpoint / "offsets").glob("*") if path.name.isdigit())
