"""The producer: a separate process that puts the records and reshards the stream, with boto3."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from examples.flights import DemoError, data
from examples.flights.script import (
    Message,
    OpenShard,
    Reshard,
    shard_to_split,
    shards_to_merge,
    steps,
)

if TYPE_CHECKING:
    from types_boto3_kinesis import KinesisClient

    from spark_ssp import ClientSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """The number of records put so far."""

    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharded:
    """The stream was resharded after this number of records."""

    kind: Reshard
    parents: tuple[str, ...]
    children: tuple[str, ...]
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Everything has been put."""

    records: int


News = Put | Resharded | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The producer's settings. `seconds`: the time over which the departures are spread."""

    stream: str
    departures: int | None
    seconds: float
    settings: ClientSettings


class Producer:
    """The process, seen from the demo."""

    def __init__(self, assignment: Assignment) -> None:
        context = multiprocessing.get_context("spawn")
        self._news, theirs = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=replay, args=(assignment, theirs), name="producer", daemon=True
        )
        self._process.start()
        theirs.close()  # so that reading ends when the process does

    def news(self) -> list[News]:
        """Return the news since the last call. Raises DemoError if the producer failed."""
        found: list[News] = []
        try:
            while self._news.poll():
                found.append(self._news.recv())
        except EOFError:
            self._process.join()
            if self._process.exitcode != 0:
                raise DemoError("the producer has failed; see the log") from None
        return found

    def stop(self) -> None:
        """End it, done or not."""
        self._process.terminate()
        self._process.join()
        self._news.close()


def replay(assignment: Assignment, news: Connection) -> None:
    """Carry out the script, at an even pace. Runs in the producer's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the demo's to handle
    client = _connect(assignment.settings)
    table = data.departures(assignment.departures)
    seconds_per_record = assignment.seconds / max(1, table.num_rows)
    began = time.monotonic()
    done = 0
    for step in steps(table):
        if isinstance(step, Reshard):
            parents, children = _reshard(client, assignment.stream, step)
            news.send(Resharded(kind=step, parents=parents, children=children, records=done))
            continue
        ahead = began + done * seconds_per_record - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        _put(client, assignment.stream, step)
        done += len(step)
        news.send(Put(records=done))
    news.send(Finished(records=done))
    news.close()


def _connect(settings: ClientSettings) -> KinesisClient:
    import boto3
    from botocore.config import Config

    # A repeated put could store records twice, which the demo would report as duplicates.
    once = Config(retries={"total_max_attempts": 1}, parameter_validation=False)
    return boto3.client("kinesis", config=once, **settings)


def _put(client: KinesisClient, stream: str, messages: Sequence[Message]) -> None:
    """Put one batch. The service takes its records in their order unless it refuses some."""
    answer = client.put_records(
        StreamName=stream,
        Records=[{"PartitionKey": message.key, "Data": message.data} for message in messages],
    )
    if answer["FailedRecordCount"]:
        raise RuntimeError(f"{answer['FailedRecordCount']} records were refused")


def _reshard(
    client: KinesisClient, stream: str, kind: Reshard
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split or merge; the parents' and the children's ids."""
    before = open_shards(client, stream)
    if kind is Reshard.SPLIT:
        chosen = shard_to_split(before)
        parents: tuple[str, ...] = (chosen.shard,)
        client.split_shard(
            StreamName=stream, ShardToSplit=chosen.shard, NewStartingHashKey=str(chosen.middle)
        )
    else:
        one, other = shards_to_merge(before)
        parents = (one.shard, other.shard)
        client.merge_shards(
            StreamName=stream, ShardToMerge=one.shard, AdjacentShardToMerge=other.shard
        )
    known = {shard.shard for shard in before}
    after = [shard.shard for shard in open_shards(client, stream)]
    return parents, tuple(sorted(shard for shard in after if shard not in known))


def open_shards(client: KinesisClient, stream: str) -> list[OpenShard]:
    """The shards that take records, by ListShards."""
    listed: list[Any] = list(client.list_shards(StreamName=stream)["Shards"])
    return [
        OpenShard(
            shard=shard["ShardId"],
            parent=shard.get("ParentShardId"),
            first=int(shard["HashKeyRange"]["StartingHashKey"]),
            last=int(shard["HashKeyRange"]["EndingHashKey"]),
        )
        for shard in listed
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]
