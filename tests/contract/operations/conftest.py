"""Services for the command, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis, disconnect
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.testing.kinesis import EmbeddedKinesis, ManualClock
from tests.support.operations.command import Run, run

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_kinesis import KinesisClient

KEYS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}


def lease_row(shard: int, checkpoint: str, **more: Any) -> dict[str, Any]:
    """A row as early versions of KCL 1 write it, without hash keys, and the attributes `more`."""
    return {
        "leaseKey": {"S": f"shardId-{shard:012}"},
        "leaseCounter": {"N": "7"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": "0"},
        **more,
    }


def of_stream(stream: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as an application of several streams has it, of the one with this identifier."""
    key = row["leaseKey"]["S"]
    names = {"leaseKey": f"{stream}:{key}", "streamName": stream, "shardId": key}
    return row | {name: {"S": value} for name, value in names.items()}


@dataclass(kw_only=True)
class Cloud:
    """Kinesis and DynamoDB on this machine."""

    kinesis: EmbeddedKinesis
    clock: ManualClock
    client: KinesisClient
    dynamodb: DynamoDBClient
    region: str = "us-east-1"
    tables: list[str] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)
    """Parts of an output that differ from run to run, and what replaces them."""

    def run(self, *arguments: str, dynamodb: bool = True, **more: Any) -> Run:
        """Run the command, connected to these services, at the service's time."""
        connection = [f"--region={self.region}", f"--endpoint-url={self.kinesis.endpoint_url}"]
        if dynamodb:
            connection.append(f"--dynamodb-endpoint-url={self.kinesis.dynamodb_endpoint_url}")
        more.setdefault("now_ms", self.clock.now_ms())
        return run(*arguments, *connection, environment=KEYS, **more)

    def put(self, stream: str, key: str, hash_key: int, data: bytes = b"{}") -> str:
        """Put a record; return its sequence number."""
        answer = self.client.put_record(
            StreamName=stream, PartitionKey=key, ExplicitHashKey=str(hash_key), Data=data
        )
        return answer["SequenceNumber"]

    def created_ms(self, stream: str) -> int:
        found = self.client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
        return round(found["StreamCreationTimestamp"].timestamp() * 1000)

    def split(self, stream: str, shard: int, at: int) -> None:
        self.client.split_shard(
            StreamName=stream, ShardToSplit=f"shardId-{shard:012}", NewStartingHashKey=str(at)
        )

    def table(self, name: str, items: list[dict[str, Any]], key: str = "leaseKey") -> None:
        """Create a table, with rows in the API's form."""
        self.dynamodb.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        self.tables.append(name)
        for item in items:
            self.dynamodb.put_item(TableName=name, Item=item)

    def renew(self, table: str, *shards: int) -> Callable[[float], None]:
        """Return a pause, in which the holders of these shards renew their leases."""
        return self.renew_keys(table, [f"shardId-{shard:012}" for shard in shards])

    def renew_keys(self, table: str, keys: Sequence[str]) -> Callable[[float], None]:
        """Return a pause, in which the leases with these keys are renewed."""

        def pause(seconds: float) -> None:
            self.clock.advance(round(seconds * 1000))
            for key in keys:
                self.dynamodb.update_item(
                    TableName=table,
                    Key={"leaseKey": {"S": key}},
                    UpdateExpression="ADD leaseCounter :one",
                    ExpressionAttributeValues={":one": {"N": "1"}},
                )

        return pause


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[EmbeddedKinesis, ManualClock]]:
    clock = ManualClock()
    with EmbeddedKinesis(clock=clock, dynamodb=True) as kinesis:
        yield kinesis, clock
        disconnect()


@pytest.fixture
def cloud(services: tuple[EmbeddedKinesis, ManualClock]) -> Iterator[Cloud]:
    """Empty services."""
    yield from open_cloud(services, "us-east-1")


@pytest.fixture
def asked_arns(monkeypatch: pytest.MonkeyPatch) -> set[str | None]:
    """The ARNs by which streams are requested; None for one that is requested by its name."""
    asked = set[str | None]()
    for name in ("describe", "list_shards", "open_iterator", "get_records"):

        def asking(service: Any, stream: StreamRef, *rest: Any, _call: Any, **more: Any) -> Any:
            asked.add(stream.arn)
            return _call(service, stream, *rest, **more)

        call = getattr(Boto3Kinesis, name)
        monkeypatch.setattr(Boto3Kinesis, name, partialmethod(asking, _call=call))
    return asked


def open_cloud(services: tuple[EmbeddedKinesis, ManualClock], region: str) -> Iterator[Cloud]:
    """Yield services without streams, and delete what a test makes. Tables of other tests are in
    other regions, or in this one."""
    kinesis, clock = services
    settings = kinesis.client_settings()
    client = boto3.client("kinesis", **settings)
    there: Any = {"endpoint_url": kinesis.dynamodb_endpoint_url, "region_name": region}
    dynamodb = boto3.client("dynamodb", **settings | there)
    found = Cloud(kinesis=kinesis, clock=clock, client=client, dynamodb=dynamodb, region=region)
    yield found
    for name in client.list_streams()["StreamNames"]:
        client.delete_stream(StreamName=name)
    for name in found.tables:
        dynamodb.delete_table(TableName=name)
    clock.advance(60_000)
    client.close()
    dynamodb.close()
