"""`spark-ssp shards` and `spark-ssp topics`."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest

from spark_ssp.testing.kinesis import Distribution, StreamMode
from tests.contract.operations.conftest import KEYS, Cloud
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.operations.command import WIDTHS, check_output, run
from tests.support.servers.kafka_broker import KafkaBroker

OUTPUTS = Path(__file__).parent / "outputs"
QUARTER = 1 << 126


@pytest.fixture
def orders(cloud: Cloud) -> Cloud:
    """A stream of four shards, of which one is split, and a child merged with its neighbour."""
    cloud.kinesis.state.create_stream("orders", shards=4)
    cloud.put("orders", "k", 0)
    cloud.clock.advance(3_600_000)
    cloud.split("orders", 0, QUARTER // 2)
    cloud.client.merge_shards(
        StreamName="orders",
        ShardToMerge="shardId-000000000005",
        AdjacentShardToMerge="shardId-000000000001",
    )
    return cloud


@pytest.mark.parametrize("columns", WIDTHS)
def test_output(orders: Cloud, columns: int) -> None:
    summary = orders.client.describe_stream_summary(StreamName="orders")
    created = summary["StreamDescriptionSummary"]["StreamCreationTimestamp"]
    found = orders.run("shards", "orders", "--oldest", columns=columns)
    assert found.code == 0, found.err
    marks = {created.strftime("%Y-%m-%d"): "2026-11-23", created.strftime("%H:%M:%S"): "12:00:00"}
    check_output(OUTPUTS / f"shards-{columns}.txt", found.out, marks)
    assert max(map(len, found.out.splitlines())) <= columns


def test_json_of_a_stream_with_automatic_distribution(cloud: Cloud) -> None:
    cloud.kinesis.state.create_stream(
        "events", mode=StreamMode.ON_DEMAND, distribution=Distribution.AUTO
    )
    found = cloud.run("shards", "events", "--json").document()
    assert (found["mode"], found["distribution"]) == ("ON_DEMAND", "AUTO")
    assert found["shards"][0]["firstHashKey"] == "0"
    assert "records of a key may be in any shard" in cloud.run("shards", "events").out


def test_registered_consumers(moto: str) -> None:
    client = boto3.client(
        "kinesis",
        endpoint_url=moto,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    client.create_stream(StreamName="shared", ShardCount=1)
    arn = client.describe_stream_summary(StreamName="shared")["StreamDescriptionSummary"][
        "StreamARN"
    ]
    client.register_stream_consumer(StreamARN=arn, ConsumerName="databricks_1")
    client.close()
    connection = (f"--endpoint-url={moto}", "--region=us-east-1")
    found = run("shards", arn, *connection, environment=KEYS)
    assert found.code == 0, found.err
    assert "registered consumers: databricks_1 (ACTIVE)" in found.out


def test_a_missing_stream_is_one_line(cloud: Cloud) -> None:
    found = cloud.run("shards", "nothing")
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert "[stream-not-found]" in found.err
    assert "[invalid-options]" in cloud.run("shards", "no/name").err


# --- Topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", WIDTHS)
def test_topics(kafka_broker: KafkaBroker, topics: KafkaTopics, columns: int) -> None:
    first = topics.create(4, name=f"orders-{columns}")
    second = topics.create(2, name=f"payments-{columns}")
    topics.put(first, [Record(value=b"v", partition=n) for n in (0, 0, 0, 3)])
    topics.expire(first, {0: 1})
    servers = f"--bootstrap-servers={kafka_broker.bootstrap_servers}"
    found = run("topics", first, second, servers, "--tasks", "2", columns=columns)
    assert found.code == 0, found.err
    check_output(OUTPUTS / f"topics-{columns}.txt", found.out)


def test_topics_as_json(kafka_broker: KafkaBroker, topics: KafkaTopics) -> None:
    topic = topics.create(2)
    topics.put(topic, [Record(value=b"v", partition=1)])
    servers = f"--bootstrap-servers={kafka_broker.bootstrap_servers}"
    found = json.loads(run("topics", topic, servers, "--json").out)
    assert [(row["begin"], row["end"]) for row in found["partitions"]] == [(0, 0), (0, 1)]
    assert found["topics"][topic]["id"]
    missing = run("topics", f"{topic}-other", servers)
    assert (missing.code, missing.out, missing.err.count("\n")) == (2, "", 1)
    assert "[stream-not-found]" in missing.err
    without = run("topics", topic)
    assert without.code == 2
    assert "kafka.bootstrap.servers" in without.err
