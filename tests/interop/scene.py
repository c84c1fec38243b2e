"""One stream on kinesis-mock and one lease table on DynamoDB Local, with a producer and a watch. A
producer puts records all the time, plain ones and the KPL's aggregates; a watch looks at the table
all the time and notes every change of a lease."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from botocore.exceptions import ClientError

from spark_ssp.checkpoint.leases.lease import Lease, ShardEnded
from spark_ssp.checkpoint.leases.lease_serializer import decode
from tests.support.kcl.kpl import Put, aggregate
from tests.support.kcl.workers import Worker
from tests.support.kinesis.feeds import Feed
from tests.support.waiting import Background

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

STREAM: Final = "orders"
_KEYS: Final = 23
_AGGREGATE_EVERY: Final = 7
_USER_RECORDS: Final = 3
_PAUSE_S: Final = 0.03
_LOOK_S: Final = 0.1
_POLL_S: Final = 0.1
PATIENCE_S: Final = 240
"""For every wait; a busy machine needs a minute to start a worker of the KCL."""


class Seen(NamedTuple):
    """A lease as the watch saw it first. `at`: seconds since the epoch."""

    at: float
    lease: Lease


class Producer:
    """Puts numbered user records, with some keys in turn, until it is stopped."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._next = 0
        self.keys: dict[int, str] = {}
        """The key of every number put so far."""
        self._background = Background(self.put, _PAUSE_S)

    def start(self) -> None:
        self._background.start()

    def end(self) -> None:
        """The last record is put when this returns."""
        self._background.end()

    def put(self) -> None:
        """One Kinesis record, now and then an aggregate."""
        turn = len(self._feed.records)
        key = f"key-{turn % _KEYS}"
        if turn % _AGGREGATE_EVERY:
            self._feed.put_data(STREAM, key, str(self._take(key)).encode())
        else:
            numbers = [self._take(key) for _ in range(_USER_RECORDS)]
            puts = [Put(partition_key=key, data=str(number).encode()) for number in numbers]
            self._feed.put_data(STREAM, key, aggregate(puts))

    def _take(self, key: str) -> int:
        self._next += 1
        self.keys[self._next] = key
        return self._next


class Watch:
    """A context manager: every change of a lease, until the block ends."""

    def __init__(self, dynamodb: DynamoDBClient, table: str) -> None:
        self._dynamodb = dynamodb
        self._table = table
        self.seen: list[Seen] = []
        self._now: dict[str, Lease] = {}
        self._background = Background(self._scan, _LOOK_S)

    def leases(self) -> dict[str, Lease]:
        """By shard, as they were seen last."""
        return dict(self._now)

    def held_by(self, worker: Worker) -> set[str]:
        """The shards whose lease this worker holds and that are not finished."""
        return {
            shard
            for shard, lease in self.leases().items()
            if lease.holder == worker.name and not isinstance(lease.progress, ShardEnded)
        }

    def _scan(self) -> None:
        try:
            items = self._dynamodb.scan(TableName=self._table, ConsistentRead=True)["Items"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise
            return  # not created yet
        at = time.time()
        rows = [decode(dict(item)) for item in items]
        found = {str(row.shard): row for row in rows if isinstance(row, Lease)}
        for shard, lease in found.items():
            if self._now.get(shard) != lease:
                self.seen.append(Seen(at, lease))
        self._now = found

    def __enter__(self) -> Self:
        self._background.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._background.end()


@dataclass(kw_only=True)
class Scene:
    """The services of a scenario. The stream has `STREAM`'s name, the table the application's."""

    folder: Path
    feed: Feed
    producer: Producer
    watch: Watch
    application: str
    kinesis_url: str
    dynamodb_url: str
    workers: list[Worker]
    """All that have ever run."""

    def numbers_read(self) -> set[int]:
        return {int(read.data) for worker in self.workers for read in worker.reads()}

    def wait(self, reached: Callable[[], bool], what: str) -> float:
        """Wait for a condition; how long it took, in seconds."""
        begin = time.monotonic()
        while not reached():
            for worker in self.workers:
                assert not worker.failed, f"{worker.name} has ended:\n{worker.log[-4000:]}"
            if time.monotonic() > begin + PATIENCE_S:
                raise AssertionError(f"not within {PATIENCE_S} s: {what}\n{self._state()}")
            time.sleep(_POLL_S)
        return time.monotonic() - begin

    def wait_until_read(self) -> float:
        """Wait until every record put by now has been read by some worker; return the duration."""
        numbers = set(self.producer.keys)
        return self.wait(lambda: numbers <= self.numbers_read(), f"{len(numbers)} records read")

    def finish(self, *workers: Worker) -> None:
        """Let the producer end, wait until everything is read, and stop the workers."""
        self.producer.end()
        self.wait_until_read()
        for worker in workers:
            worker.stop()

    def _state(self) -> str:
        rows = [
            f"{shard}: {lease.holder} -> {lease.owner}, {lease.progress}"
            for shard, lease in sorted(self.watch.leases().items())
        ]
        missing = sorted(set(self.producer.keys) - self.numbers_read())
        logs = [f"{each.name}:\n{each.log[-2000:]}" for each in self.workers]
        return "\n".join([*rows, f"{len(missing)} missing: {missing[:20]}", *logs])
