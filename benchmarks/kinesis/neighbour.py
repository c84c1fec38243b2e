"""Throughput of a query beside a reader that uses up the stream's GetRecords.

    python -m benchmarks.kinesis.neighbour [--shards 2] [--seconds 120] [--rounds 1]

The embedded service with the limits of AWS, in a process of its own, takes in 1 MB/s in each shard,
as much as AWS allows, in records of 1,000 bytes. The neighbour, a process with a thread for each
shard, reads the shard again and again in pages of 400 kB, and tries again 20 ms after it was
throttled: so it takes all five calls and 2 MB of a second. The query polls, or has a consumer of
enhanced fan-out (HTTP/1.1), with a trigger interval of six seconds. `MB/s` is what its batches have
read between the start of production and the end of the time, whole batches only; `of alone` is
relative to the same mode without the neighbour, in the same round. `neighbour` has its calls per
second and shard that succeeded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from pyspark.sql import SparkSession

from benchmarks.kinesis.service import STREAM, ServiceProcess, kinesis_service
from benchmarks.kinesis.triggers import wait_for_batches
from benchmarks.support.report import Report
from benchmarks.support.sessions import checkpoint_in, run_on_spark
from spark_ssp.testing.kinesis import Limits

SIZE: Final = 1_000
RATE: Final = 1_000
"""Records per second and shard."""
PAGE_RECORDS: Final = 400
RETRY_S: Final = 0.02
TRIGGER: Final = "6 seconds"
_LONGEST = 12
"""A measurement lasts at most so many times as long as asked for."""
MODES: Final[dict[str, dict[str, str]]] = {
    "poll": {},
    "push": {"consumerMode": "efo", "consumerName": "bench"},
}


def _greedy(url: str, shards: int, calls: Synchronized[int], over: Event) -> None:
    client = boto3.session.Session().client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}, max_pool_connections=shards),
    )

    def read(shard: str) -> None:
        iterator: str | None = None
        while not over.is_set():
            try:
                if iterator is None:
                    iterator = client.get_shard_iterator(
                        StreamName=STREAM, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
                    )["ShardIterator"]
                page = client.get_records(ShardIterator=iterator, Limit=PAGE_RECORDS)
            except ClientError:
                over.wait(RETRY_S)
                continue
            with calls.get_lock():
                calls.value += 1
            iterator = page.get("NextShardIterator") if page["MillisBehindLatest"] else None

    readers = [
        threading.Thread(target=read, args=(f"shardId-{number:012}",)) for number in range(shards)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


@contextmanager
def neighbour(url: str, shards: int) -> Iterator[Synchronized[int]]:
    """The other reader, within the block; the number of its calls that succeeded."""
    context = multiprocessing.get_context("spawn")
    calls: Synchronized[int] = context.Value("q", 0)
    over = context.Event()
    process = context.Process(target=_greedy, args=(url, shards, calls, over), daemon=True)
    process.start()
    try:
        while not calls.value and process.is_alive():
            time.sleep(0.1)  # until it has loaded boto3
        yield calls
    finally:
        over.set()
        process.join()


def measure(
    spark: SparkSession, folder: Path, *, mode: str, beside: bool, shards: int, seconds: float
) -> dict[str, Any]:
    """Return megabytes per second of the query, and the neighbour's calls."""
    with kinesis_service(shards, size=SIZE, limits=Limits.strict()) as service:
        query = _start(spark, folder, service, mode)
        try:
            wait_for_batches(query, 1)
            other = neighbour(service.url, shards) if beside else nullcontext(None)
            with other as calls:
                before = _rows(query)
                called = 0 if calls is None else calls.value
                began = time.monotonic()
                service.produce(RATE * shards)
                time.sleep(seconds)
                while _rows(query) == before and time.monotonic() - began < _LONGEST * seconds:
                    time.sleep(1)  # a machine so busy that no trigger has ended
                lasted = time.monotonic() - began
                rows = _rows(query) - before
                called = (0 if calls is None else calls.value) - called
        finally:
            query.stop()
    return {
        "megabytes_per_second": rows * SIZE / lasted / 1_000_000,
        "neighbour_calls": called / lasted / shards,
    }


def _rows(query: Any) -> int:
    return sum(int(entry["numInputRows"]) for entry in query.recentProgress)


def _start(spark: SparkSession, folder: Path, service: ServiceProcess, mode: str) -> Any:
    service.produce(1)  # so that a first batch has something to read
    return (
        spark.readStream.format("kinesis-ssp")
        .options(**service.options(), **MODES[mode])
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint_in(folder, f"{mode}-{time.monotonic_ns()}"))
        .trigger(processingTime=TRIGGER)
        .start()
    )


def run(spark: SparkSession, folder: Path, *, shards: int, seconds: float, rounds: int) -> Report:
    """Measure each mode alone and beside the neighbour, in each round."""
    report = Report(
        name="kinesis.neighbour",
        command="python -m benchmarks.kinesis.neighbour "
        f"--shards {shards} --seconds {seconds:g} --rounds {rounds}",
        columns=("mode", "MB/s alone", "MB/s beside", "of alone", "neighbour"),
    )
    for mode in MODES:
        found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for _ in range(rounds):
            for disturbed, measured in found.items():
                one = measure(
                    spark, folder, mode=mode, beside=disturbed, shards=shards, seconds=seconds
                )
                measured.append(one)
        alone = [one["megabytes_per_second"] for one in found[False]]
        beside = [one["megabytes_per_second"] for one in found[True]]
        kept = [each / undisturbed for undisturbed, each in zip(alone, beside, strict=True)]
        calls = [one["neighbour_calls"] for one in found[True]]
        report.add(
            mode,
            f"{statistics.median(alone):.2f}",
            f"{statistics.median(beside):.2f}",
            f"{statistics.median(kept):.0%}",
            f"{statistics.median(calls):.1f}",
            mode=mode,
            alone=alone,
            beside=beside,
            kept=kept,
            neighbour_calls=calls,
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=1)
    run_on_spark(run, vars(parser.parse_args()))


if __name__ == "__main__":
    main()
