"""Ranges pushed by another service than the embedded one: HTTP/1.1, and HTTP/2 with TLS."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest

from spark_ssp.kinesis_source.client.boto3_client import disconnect
from tests.support.kinesis.pushed_stream import PushedStream, connection_to, put_numbers
from tests.support.servers.ministack import Ministack

pytestmark = pytest.mark.long

RECORDS = 640
SHARDS = 64


@pytest.fixture(scope="module")
def ministack() -> Iterator[Ministack]:
    with Ministack() as running:
        yield running


@pytest.mark.parametrize("shards", [2, SHARDS])
@pytest.mark.parametrize("is_secure", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_all_records_are_pushed(
    ministack: Ministack, monkeypatch: pytest.MonkeyPatch, is_secure: bool, shards: int
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ministack.authority))
    client = boto3.session.Session().client("kinesis", **ministack.client_settings())
    name = f"pushed-{shards}-{is_secure}"
    client.create_stream(StreamName=name, ShardCount=shards)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    arn = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
    consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="etl")["Consumer"]
    last = put_numbers(client, name, RECORDS)
    url = ministack.secure_url if is_secure else ministack.endpoint_url
    stream = PushedStream.of(
        name, consumer["ConsumerARN"], last, connection_to(url, timeout_ms=10_000)
    )
    rows = stream.rows()
    assert sorted(int(row.data) for row in rows) == list(range(RECORDS))
    assert rows == stream.polled()
    client.close()
    disconnect()
