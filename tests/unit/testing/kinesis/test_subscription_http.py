"""SubscribeToShard over HTTP/1.1: connections that end, and a server that stops."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.waiting import until

if TYPE_CHECKING:
    from types_boto3_kinesis import KinesisClient

FIRST = "shardId-000000000000"
WAIT_S = 20


@pytest.fixture
def kinesis() -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis() as service:
        service.state.create_stream("orders")
        service.state.register_consumer("orders", "etl")
        yield service


@pytest.fixture
def client(kinesis: EmbeddedKinesis) -> Iterator[KinesisClient]:
    config = Config(retries={"total_max_attempts": 1}, read_timeout=WAIT_S)
    found = boto3.client("kinesis", config=config, **kinesis.client_settings())
    yield found
    found.close()


def consumer_arn(kinesis: EmbeddedKinesis) -> str:
    return kinesis.state.consumers("orders").get("etl", kinesis.clock.now_ms()).arn


def is_open(kinesis: EmbeddedKinesis) -> bool:
    return kinesis.state.subscriptions("orders") != []


def test_a_client_that_disconnects_ends_its_subscription(
    kinesis: EmbeddedKinesis, client: KinesisClient
) -> None:
    answer = client.subscribe_to_shard(
        ConsumerARN=consumer_arn(kinesis), ShardId=FIRST, StartingPosition={"Type": "LATEST"}
    )
    next(iter(answer["EventStream"]))
    assert is_open(kinesis)
    answer["EventStream"].close()
    until(lambda: not is_open(kinesis), "the subscription ends", within_s=WAIT_S)


def test_a_stopped_server_ends_its_subscriptions(kinesis: EmbeddedKinesis) -> None:
    for _ in range(20):
        kinesis.state.put("orders", "key", bytes(1024 * 1024))
    silent = socket.create_connection(("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2])))
    body = json.dumps(
        {
            "ConsumerARN": consumer_arn(kinesis),
            "ShardId": FIRST,
            "StartingPosition": {"Type": "TRIM_HORIZON"},
        }
    )
    head = (
        "POST / HTTP/1.1",
        "Host: 127.0.0.1",
        "X-Amz-Target: Kinesis_20131202.SubscribeToShard",
        "Content-Type: application/x-amz-json-1.1",
        f"Content-Length: {len(body)}",
        "",
        body,
    )
    silent.sendall("\r\n".join(head).encode())  # and reads nothing: the service cannot send all
    with silent:
        until(lambda: is_open(kinesis), "the subscription opens", within_s=WAIT_S)
        kinesis.stop()
        assert not is_open(kinesis)
