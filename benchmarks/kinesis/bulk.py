"""Kinesis in bulk: this project's source beside bare loops over the same service.

    python -m benchmarks.kinesis.bulk [--shards 1 16 128] [--records 2000000] [--size 200] \
        [--columns data]

The service is a page server on this machine, so that it is not the limit (`page_server`). `ours` is
one batch over all shards into the sink `noop`, on 2 slots, timed by Spark (`triggerExecution`);
`query` is the same with the start and the end of the query. `parse` fetches the pages over HTTP
with botocore's connections, parses them with orjson and decodes the data, in as many processes as
there are cores, and does nothing else; `boto3` is GetRecords of an unmodified client, in as many
processes. It is so slow that it reads about a tenth of the pages; its seconds are those for all of
them at that pace. The loops' time starts when their processes are ready. Ratios are those of
`ours`. With `--columns`, `chosen` is `ours` of only these columns, in the same rounds. Seconds are
wall time; a first round warms up and is dropped.
"""

from __future__ import annotations

import argparse
import binascii
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import boto3
import orjson
from botocore.awsrequest import AWSRequest
from botocore.httpsession import URLLib3Session
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from benchmarks.support.page_server import STREAM, Load, page_server
from benchmarks.support.report import Report, ratio, spread
from benchmarks.support.sessions import checkpoint_in, run_on_spark
from spark_ssp.kinesis_source.source import spark_schema

CORES: Final = 2
_READY_S: Final = 60
_AT_MOST_S: Final = 1_800


Loop = Callable[[str, list[tuple[int, int]], Barrier], None]
"""Reads the given numbers of pages of shards (shard number, pages), once all processes are ready.
"""


def read_by_boto3(url: str, work: list[tuple[int, int]], ready: Barrier) -> None:
    """By boto3's own parser."""
    client: Any = boto3.client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    client.describe_stream_summary(StreamName=STREAM)  # connects, loads the rules of endpoints
    ready.wait()
    for shard, pages in work:
        iterator = client.get_shard_iterator(
            StreamName=STREAM, ShardId=f"shardId-{shard:012d}", ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        for _ in range(pages):
            iterator = client.get_records(ShardIterator=iterator).get("NextShardIterator")


def read_by_hand(url: str, work: list[tuple[int, int]], ready: Barrier) -> None:
    """Fetched, parsed by orjson, the data decoded."""
    session = URLLib3Session()
    ready.wait()
    for shard, pages in work:
        iterator = f"shardId-{shard:012d}:0:0"
        for _ in range(pages):
            request = AWSRequest(
                method="POST",
                url=url,
                headers={"x-amz-target": "Kinesis_20131202.GetRecords"},
                data=orjson.dumps({"ShardIterator": iterator}),
            )
            page = orjson.loads(session.send(request.prepare()).content)
            for record in page["Records"]:
                binascii.a2b_base64(record["Data"])
            iterator = page.get("NextShardIterator")
    session.close()


def in_processes(loop: Loop, url: str, work: list[tuple[int, int]]) -> float:
    """Seconds that this takes, shared out to a process for each core."""
    context = multiprocessing.get_context("fork")
    shares = [share for core in range(CORES) if (share := work[core::CORES])]
    ready = context.Barrier(len(shares) + 1)
    processes = [context.Process(target=_timed, args=(loop, url, share, ready)) for share in shares]
    for process in processes:
        process.start()
    ready.wait(_READY_S)
    began = time.perf_counter()
    ready.wait(_AT_MOST_S)  # a killed process sends nothing
    took = time.perf_counter() - began
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"a reader ended with {process.exitcode}")
    return took


def _timed(loop: Loop, url: str, work: list[tuple[int, int]], ready: Barrier) -> None:
    """The end of the process does not count."""
    try:
        loop(url, work, ready)
        ready.wait()
    except BaseException:
        ready.abort()
        raise


def tenth(load: Load) -> list[tuple[int, int]]:
    """About a tenth of the pages, of as many shards as give one each."""
    pages = max(1, load.pages // 10)
    shards = min(load.shards, max(CORES, load.shards * load.pages // (10 * pages)))
    shards += -shards % CORES if load.shards % CORES == 0 else 0  # As much for each core.
    return [(shard, pages) for shard in range(shards)]


def _boto3(url: str, load: Load) -> float:
    """Seconds for all, at the pace of a tenth."""
    work = tenth(load)
    part = sum(pages for _, pages in work) / (load.shards * load.pages)
    return in_processes(read_by_boto3, url, work) / part


def read_by_us(
    spark: SparkSession,
    url: str,
    checkpoint: str,
    *,
    columns: Sequence[str] = (),
    slots: int = CORES,
    **options: str,
) -> list[dict[str, Any]]:
    """Run one query that reads everything and ends, with further options; return its progress by
    batch. Without `columns`, all are read."""
    source = spark_schema(include_repeat_keys=False)
    reader = spark.readStream.format("kinesis-ssp")
    if columns:
        reader = reader.schema(StructType([source[name] for name in columns]))
    query = (
        reader.option("streamName", STREAM)
        .option("startingPosition", "trim_horizon")
        .option("slots", str(slots))
        .option("endpointUrl", url)
        .option("region", "us-east-1")
        .option("awsAccessKeyId", "local")
        .option("awsSecretAccessKey", "local")
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [dict(entry) for entry in query.recentProgress]


def _ours(
    spark: SparkSession, url: str, checkpoint: str, records: int, columns: Sequence[str] = ()
) -> tuple[float, float]:
    """Seconds of the batches, and of the whole query."""
    began = time.perf_counter()
    progress = read_by_us(spark, url, checkpoint, columns=columns)
    took = time.perf_counter() - began
    read = sum(entry["numInputRows"] for entry in progress)
    batches = sum(entry["numInputRows"] > 0 for entry in progress)
    if (read, batches) != (records, 1):
        raise AssertionError(f"{read:,} records in {batches} batches, of {records:,} in one")
    return sum(entry["durationMs"]["triggerExecution"] for entry in progress) / 1000, took


def run(
    spark: SparkSession,
    folder: Path,
    *,
    shards: list[int],
    records: int,
    size: int,
    rounds: int,
    columns: Sequence[str] = (),
) -> Report:
    """Measure. About `records` in all, a page for each shard at least."""
    report = Report(
        name="kinesis.bulk",
        command="python -m benchmarks.kinesis.bulk "
        f"--shards {' '.join(str(count) for count in shards)} --records {records} --size {size} "
        f"--rounds {rounds}{' --columns ' if columns else ''}{' '.join(columns)}",
        columns=(
            "shards",
            "records",
            "ours s",
            "query s",
            "parse s",
            "boto3 s",
            "ours records/s",
            "part of parse",
            "times boto3",
            *(("chosen s", "part of all columns") if columns else ()),
        ),
    )
    for count in shards:
        single = Load(shards=count, pages=1, size=size)
        load = Load(shards=count, pages=max(1, records // single.records), size=size)
        took: dict[str, list[float]] = defaultdict(list)
        with page_server(load) as server:
            for number in range(rounds + 1):
                checkpoint = checkpoint_in(folder, f"{count}-{number}")
                batches, query = _ours(spark, server.url, checkpoint, load.records)
                now = {
                    "ours": batches,
                    "query": query,
                    "parse": in_processes(
                        read_by_hand, server.url, [(shard, load.pages) for shard in range(count)]
                    ),
                    "boto3": _boto3(server.url, load),
                }
                if columns:
                    narrow = checkpoint_in(folder, f"{count}-{number}-chosen")
                    now["chosen"], _ = _ours(spark, server.url, narrow, load.records, columns)
                if number > 0:  # The first one warms up.
                    for name, value in now.items():
                        took[name].append(value)
        part = ratio(took["parse"], took["ours"])
        times = ratio(took["boto3"], took["ours"])
        chosen = ratio(took["chosen"], took["ours"]) if columns else None
        report.add(
            str(count),
            f"{load.records:,}",
            *(spread(took[name]).text(2) for name in ("ours", "query", "parse", "boto3")),
            f"{load.records / spread(took['ours']).median:,.0f}",
            part.text(2),
            times.text(2),
            *(() if chosen is None else (spread(took["chosen"]).text(2), chosen.text(2))),
            shards=count,
            records=load.records,
            size=size,
            seconds=took,
            part_of_parse=part.median,
            times_boto3=times.median,
            part_of_all_columns=None if chosen is None else chosen.median,
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--columns", nargs="+", default=(), help="also read only these")
    run_on_spark(run, vars(parser.parse_args()), cores=CORES)


if __name__ == "__main__":
    main()
