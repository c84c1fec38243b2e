"""Checkpoints that an earlier commit wrote are resumed, and their last batch is replayed.
`tests/golden/checkpoints` was written by 3d8fe2e: a run after `FIRST`, a reshard, a run after
`SECOND`, and then without its last commit. The files never change: a new format adds new ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import TopicCollection
from pyspark.sql import DataFrame, SparkSession

from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.testing.kinesis import EmbeddedKinesis, ManualClock
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.kinesis.feeds import options_for
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import await_end, start_patiently

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoints"
TOPIC_ID = "{topic-id}"
URL_SAFE = str.maketrans("+/", "-_")
"""Offsets contain ids in the URL-safe alphabet of base64."""
FIRST, SECOND, LATER = range(30), range(30, 60), range(60, 80)


def _run(frame: DataFrame, checkpoint: Path) -> list[int]:
    """Run to the end; return the numbers in the rows, in order."""
    seen: list[int] = []

    def collect(batch: DataFrame, _: int) -> None:
        seen.extend(int(bytes(row[0])) for row in batch.collect())

    writer = frame.writeStream.foreachBatch(collect)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    await_end(start_patiently(writer.start))
    return sorted(seen)


class KinesisInput:
    """A stream whose sequence numbers are the same in every run: its clock stands still."""

    def __init__(self) -> None:
        self.in_second_shard: set[int] = set()
        self._service = EmbeddedKinesis(clock=ManualClock()).__enter__()
        self.client: Any = boto3.client(
            "kinesis",
            endpoint_url=self._service.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        self.client.create_stream(StreamName="orders", ShardCount=2)

    def put(self, numbers: range) -> None:
        for number in numbers:
            put = self.client.put_record(
                StreamName="orders", Data=b"%d" % number, PartitionKey=str(number)
            )
            if put["ShardId"] == "shardId-000000000001":
                self.in_second_shard.add(number)

    def reshard(self) -> None:
        self.client.split_shard(
            StreamName="orders",
            ShardToSplit="shardId-000000000000",
            NewStartingHashKey=str(2**126),
        )

    def frame(self, spark: SparkSession) -> DataFrame:
        options = options_for(self._service.endpoint_url) | {
            "streamName": "orders",
            "startingPosition": "trim_horizon",
        }
        return spark.readStream.format("kinesis-ssp").options(**options).load().select("data")

    def uncommitted(self) -> list[int]:
        """The last batch read the children; the one before, the second shard."""
        return [number for number in SECOND if number not in self.in_second_shard]

    def restored(self, text: str) -> str:
        return text

    def close(self) -> None:
        self._service.__exit__(None, None, None)


class KafkaInput:
    """A topic. Its id, which brokers choose, is a placeholder in the stored checkpoint."""

    def __init__(self, broker: KafkaBroker, topics: KafkaTopics) -> None:
        self._options, self._topics = broker.options, topics
        self.topic = topics.create(2, name="older-orders")

    def put(self, numbers: range) -> None:
        self._topics.put(
            self.topic, [Record(value=b"%d" % n, key=b"k", partition=n % 2) for n in numbers]
        )

    def reshard(self) -> None:
        self._topics.expand(self.topic, 4)

    def frame(self, spark: SparkSession) -> DataFrame:
        options = self._options | {"subscribe": self.topic, "startingOffsets": "earliest"}
        return spark.readStream.format("kafka-ssp").options(**options).load().select("value")

    def uncommitted(self) -> list[int]:
        return list(SECOND)

    def topic_id(self) -> str:
        admin = AdminClient({"bootstrap.servers": self._options["kafka.bootstrap.servers"]})
        described = admin.describe_topics(TopicCollection([self.topic]))[self.topic].result(30)
        return str(described.topic_id).translate(URL_SAFE)

    def restored(self, text: str) -> str:
        return text.replace(TOPIC_ID, self.topic_id())

    def close(self) -> None:
        pass


Input = KinesisInput | KafkaInput


@pytest.fixture(params=["kinesis", "kafka"])
def source(request: pytest.FixtureRequest) -> Iterator[tuple[str, Input]]:
    made: Input
    if request.param == "kinesis":
        made = KinesisInput()
    else:
        made = KafkaInput(
            request.getfixturevalue("kafka_broker"), request.getfixturevalue("topics")
        )
    yield request.param, made
    made.close()


def test_a_checkpoint_of_an_earlier_commit_is_resumed(
    spark: SparkSession, source: tuple[str, Input], tmp_path: Path
) -> None:
    name, given = source
    given.put(FIRST)
    given.reshard()
    given.put(SECOND)
    given.put(LATER)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN / name, checkpoint)
    for path in (checkpoint / "offsets").iterdir():
        path.write_text(given.restored(path.read_text()))
    assert _run(given.frame(spark), checkpoint) == [*given.uncommitted(), *LATER]
