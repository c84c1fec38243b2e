"""The implementations of `KinesisService` that one contract holds for."""

from __future__ import annotations

from dataclasses import dataclass

import boto3

from spark_ssp.common.aws.clients import client_config
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.api import (
    KinesisService,
)
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import (
    Position,
    RecordPage,
    SequenceNumber,
    ShardIterator,
    StreamRef,
)
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.testing.kinesis.state.faults import (
    Faults,
)
from tests.contract.services import Service

FIRST = ShardId("shardId-000000000000")
SECOND = ShardId("shardId-000000000001")
ABSENT = StreamRef(name=StreamName("absent"))
LAST_KEY = (1 << 128) - 1
ATTEMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An implementation, and the service behind it to put into. `faults`: injects faults."""

    kinesis: KinesisService
    service: Service
    faults: Faults | None = None

    def stream(self, shards: int = 1) -> StreamRef:
        return StreamRef(name=StreamName(self.service.stream(shards)))

    def put(self, stream: StreamRef, *data: str, key: int = 0) -> list[SequenceNumber]:
        return [SequenceNumber(n) for n in self.service.put(stream.name, *data, key=key)]

    def open(self, stream: StreamRef, position: Position, shard: ShardId = FIRST) -> ShardIterator:
        return self.kinesis.open_iterator(stream, shard, position)

    def page(
        self, stream: StreamRef, iterator: ShardIterator, shard: ShardId = FIRST, limit: int = 1000
    ) -> RecordPage:
        return self.kinesis.get_records(stream, shard, iterator, limit=limit)

    def texts(self, stream: StreamRef, iterator: ShardIterator, shard: ShardId = FIRST) -> str:
        """All the data from there to the first empty page or the end, put together."""
        token: ShardIterator | None = iterator
        found = ""
        while token is not None:
            page = self.page(stream, token, shard)
            found += b"".join(page.data).decode()
            token = page.next_iterator if len(page) else None
        return found


def over_boto3(endpoint_url: str) -> Boto3Kinesis:
    session = boto3.Session(
        region_name="us-east-1", aws_access_key_id="local", aws_secret_access_key="local"
    )
    config = client_config(ConnectionOptions())
    return Boto3Kinesis(
        session.client("kinesis", endpoint_url=endpoint_url, config=config),
        retry=RetrySettings(max_attempts=ATTEMPTS, max_backoff=0.01),
    )
