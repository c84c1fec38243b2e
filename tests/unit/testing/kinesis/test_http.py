"""The HTTP face of the embedded service, as boto3 and as a raw client see it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from spark_ssp.testing.kinesis import EmbeddedKinesis, ManualClock
from spark_ssp.testing.kinesis.__main__ import main
from spark_ssp.testing.kinesis.state.faults import (
    AccessDenied,
    DropConnection,
    InternalFailure,
    LostReply,
    Throttle,
    Timeout,
)

if TYPE_CHECKING:
    from types_boto3_kinesis import KinesisClient

FIRST = "shardId-000000000000"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def served() -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(clock=ManualClock(1_700_000_000_999)) as service:
        yield service


@pytest.fixture
def kinesis(served: EmbeddedKinesis) -> Iterator[EmbeddedKinesis]:
    served.state.create_stream("orders")
    yield served
    served.faults.clear()
    served.calls.reset()
    served.state.delete_stream("orders")


@pytest.fixture
def client(kinesis: EmbeddedKinesis) -> Iterator[KinesisClient]:
    """One that tries once."""
    found = boto3.client(
        "kinesis",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=0.3),
        **kinesis.client_settings(),
    )
    yield found
    found.close()


def first_iterator(client: KinesisClient) -> str:
    return client.get_shard_iterator(
        StreamName="orders", ShardId=FIRST, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]


def put(client: KinesisClient, data: bytes) -> str:
    answer = client.put_record(StreamName="orders", PartitionKey="key", Data=data)
    return answer["SequenceNumber"]


def test_a_record_comes_back_as_it_was_put(client: KinesisClient) -> None:
    data = bytes(range(256))
    answer = client.put_record(StreamName="orders", PartitionKey='k"\\\u20ac\n', Data=data)
    page = client.get_records(ShardIterator=first_iterator(client))
    (record,) = page["Records"]
    assert (record["Data"], record["PartitionKey"]) == (data, 'k"\\\u20ac\n')
    assert record["SequenceNumber"] == answer["SequenceNumber"]
    arrival = record["ApproximateArrivalTimestamp"]
    assert round(arrival.timestamp() * 1000) == 1_700_000_000_999


def test_the_date_header_is_the_clock_cut_to_seconds(client: KinesisClient) -> None:
    headers = client.list_streams()["ResponseMetadata"]["HTTPHeaders"]
    assert parsedate_to_datetime(headers["date"]).timestamp() == 1_700_000_000


def test_connections_are_kept(client: KinesisClient, kinesis: EmbeddedKinesis) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(kinesis.endpoint_url[17:]))
    try:
        for _ in range(3):
            connection.request(
                "POST", "/", body=b"{}", headers={"X-Amz-Target": "Kinesis_20131202.ListStreams"}
            )
            answer = connection.getresponse()
            assert json.loads(answer.read())["StreamNames"] == ["orders"]
            assert answer.getheader("connection") is None
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ({"X-Amz-Target": "Kinesis_20131202.Nonsense"}, b"{}", "UnknownOperationException"),
        ({"X-Amz-Target": "DynamoDB_20120810.ListTables"}, b"{}", "UnknownOperationException"),
        ({}, b"{}", "UnknownOperationException"),
        ({"X-Amz-Target": "Kinesis_20131202.ListStreams"}, b"{", "SerializationException"),
        ({"X-Amz-Target": "Kinesis_20131202.ListStreams"}, b"[]", "SerializationException"),
        (
            {
                "X-Amz-Target": "Kinesis_20131202.ListStreams",
                "Content-Type": "application/x-amz-cbor-1.1",
            },
            b"\xa0",
            "SerializationException",
        ),
        (
            {"X-Amz-Target": "Kinesis_20131202.PutRecord"},
            b'{"StreamName":"orders","PartitionKey":"k","Data":"%"}',
            "SerializationException",
        ),
    ],
)
def test_bad_requests_are_refused_by_name(
    kinesis: EmbeddedKinesis, headers: dict[str, str], body: bytes, code: str
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(kinesis.endpoint_url[17:]))
    try:
        connection.request("POST", "/", body=body, headers=headers)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("x-amzn-errortype")) == (400, code)
        assert json.loads(answer.read())["__type"] == code
    finally:
        connection.close()


def test_errors_by_fault(client: KinesisClient, kinesis: EmbeddedKinesis) -> None:
    found = []
    for fault in (Throttle(), InternalFailure(), InternalFailure(status=503), AccessDenied()):
        kinesis.faults.add(fault)
        with pytest.raises(ClientError) as caught:
            client.describe_stream_summary(StreamName="orders")
        status = caught.value.response["ResponseMetadata"]["HTTPStatusCode"]
        found.append((caught.value.response["Error"]["Code"], status))
    assert found == [
        ("LimitExceededException", 400),
        ("InternalFailure", 500),
        ("ServiceUnavailable", 503),
        ("AccessDeniedException", 400),
    ]
    client.describe_stream_summary(StreamName="orders")
    assert kinesis.calls.count("DescribeStreamSummary", stream="orders") == 5
    assert kinesis.calls.refused["AccessDeniedException"] == 1


def test_a_dropped_connection_applies_nothing_but_a_lost_reply_does(
    client: KinesisClient, kinesis: EmbeddedKinesis
) -> None:
    for fault, stored in ((DropConnection(), 0), (LostReply(), 1)):
        kinesis.faults.add(fault, operation="PutRecord")
        with pytest.raises(ConnectionClosedError):
            put(client, b"x")
        assert len(kinesis.state.records("orders")) == stored
    put(client, b"y")
    assert len(kinesis.state.records("orders")) == 2


def test_a_timeout_outlasts_the_client(client: KinesisClient, kinesis: EmbeddedKinesis) -> None:
    kinesis.faults.add(Timeout(delay_ms=60_000), operation="ListStreams")
    with pytest.raises(ReadTimeoutError):
        client.list_streams()
    assert client.list_streams()["StreamNames"] == ["orders"]


def test_stop_does_not_wait_for_a_pending_timeout() -> None:
    service = EmbeddedKinesis()
    service.start()
    service.faults.add(Timeout(delay_ms=3_600_000))
    connection = http.client.HTTPConnection("127.0.0.1", int(service.endpoint_url[17:]))
    connection.request(
        "POST", "/", body=b"{}", headers={"X-Amz-Target": "Kinesis_20131202.ListStreams"}
    )
    dropped = threading.Event()

    def wait_for_answer() -> None:
        with pytest.raises(http.client.RemoteDisconnected):
            connection.getresponse()
        dropped.set()

    waiting = threading.Thread(target=wait_for_answer)
    waiting.start()
    while not service.calls.count():  # the request has arrived
        threading.Event().wait(0.01)
    service.stop()
    service.stop()
    waiting.join(30)
    connection.close()
    assert dropped.is_set()


def test_dynamodb_beside_it() -> None:
    def tables(service: EmbeddedKinesis, *created: str) -> list[str]:
        endpoint: Any = {"endpoint_url": service.dynamodb_endpoint_url}
        with closing(boto3.client("dynamodb", **service.client_settings() | endpoint)) as dynamodb:
            for name in created:
                dynamodb.create_table(
                    TableName=name,
                    KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
                    AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
                    BillingMode="PAY_PER_REQUEST",
                )
            return dynamodb.list_tables()["TableNames"]

    with EmbeddedKinesis(dynamodb=True) as one, EmbeddedKinesis(dynamodb=True) as other:
        assert tables(one, "leases") == ["leases"]
        assert tables(other) == [], "tables are the service's, not the process's"
        addresses = one.endpoint_url, one.dynamodb_endpoint_url
        assert one.environment()["AWS_ENDPOINT_URL_DYNAMODB"] == one.dynamodb_endpoint_url
        one.stop()
        one.start()
        assert (one.endpoint_url, one.dynamodb_endpoint_url) == addresses
        assert tables(one) == ["leases"]


def test_a_stream_that_is_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--stream", "orders:2", "--stream", "clicks", "--stream", "orders"])
    assert refused.value.code == 2
    assert "argument --stream: found orders twice" in capsys.readouterr().err


def test_the_command_line_serves_until_it_is_stopped() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_ssp.testing.kinesis", "--port", "0", "--stream", "orders:3"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().split()[-1]
        client = boto3.client(
            "kinesis",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        assert len(client.list_shards(StreamName="orders")["Shards"]) == 3
        client.close()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    for setting in (
        f"AWS_ENDPOINT_URL_KINESIS={endpoint}",
        "CBOR_ENABLED=false",
        "AWS_CBOR_DISABLE=true",
    ):
        assert f"  export {setting}\n" in rest
