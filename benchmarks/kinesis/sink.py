"""Kinesis written: this project's sink beside boto3's client and aws_kinesis_agg.

    python -m benchmarks.kinesis.sink [--shards 64] [--records 300000] [--size 200] [--rounds 3]

The service is a server on this machine that stores nothing (`page_server`), with that many open
shards; the sink keeps to their limits. All take the rows from Arrow batches. `ours` and
`aggregated` are the writer of a task with its prediction, pacing and threads; `boto3` is PutRecords
of an unmodified client with 500 records in a request; `aws_kinesis_agg` is the same with the
records that this library aggregates. The two loops know nothing of shards. Each runs in a new
process, and its figure is records per second of that process's CPU: the sink waits most of the
time. Ratios are those of `ours` and of `aggregated` to `boto3`.

`throttled` is the part of the records that a strict service refused, with four tasks that write to
two shards at full rate for `--seconds`, after the first ten seconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import boto3
import pyarrow as pa
from aws_kinesis_agg.aggregator import RecordAggregator

from benchmarks.support.page_server import STREAM, Load, page_server
from benchmarks.support.report import Report, ratio, spread
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.boto3_client import connect, disconnect
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.sink.columns import SinkColumns
from spark_ssp.kinesis_source.sink.options import SinkOptions
from spark_ssp.kinesis_source.sink.writer import LEARNED_RATES, RecordWriter, TargetCache
from spark_ssp.testing.kinesis import EmbeddedKinesis, Limits

KEYS: Final = 5_000
_BATCH: Final = 10_000
_REQUEST: Final = 500
_SETTLING_S: Final = 10.0

Loop = Callable[[str, int, int], Callable[[], object]]
"""Prepares records of a size for the service at a URL, and returns the function that writes them.
"""


def by_boto3(url: str, records: int, size: int) -> Callable[[], object]:
    client, rows = _client(url), list(batches(records, size))

    def send() -> None:
        for batch in rows:
            entries = [
                {"Data": data, "PartitionKey": key}
                for data, key in zip(*(part.to_pylist() for part in batch.columns), strict=True)
            ]
            for start in range(0, len(entries), _REQUEST):
                client.put_records(StreamName=STREAM, Records=entries[start : start + _REQUEST])

    return send


def by_aws_kinesis_agg(url: str, records: int, size: int) -> Callable[[], object]:
    client, rows = _client(url), list(batches(records, size))

    def send() -> None:
        aggregator = RecordAggregator()
        for batch in rows:
            data, keys = (part.to_pylist() for part in batch.columns)
            for key, each in zip(keys, data, strict=True):
                full = aggregator.add_user_record(key, each)
                if full:
                    outer, _, content = full.get_contents()
                    entry = {"Data": content, "PartitionKey": outer}
                    client.put_records(StreamName=STREAM, Records=[entry])

    return send


def by_us(url: str, records: int, size: int) -> Callable[[], object]:
    rows = list(batches(records, size))
    return lambda: writer(url).write(rows)


def by_us_aggregated(url: str, records: int, size: int) -> Callable[[], object]:
    rows = list(batches(records, size))
    return lambda: writer(url, is_aggregating=True).write(rows)


LOOPS: Final[dict[str, Loop]] = {
    "ours": by_us,
    "aggregated": by_us_aggregated,
    "boto3": by_boto3,
    "aws_kinesis_agg": by_aws_kinesis_agg,
}


def batches(records: int, size: int) -> Iterator[pa.RecordBatch]:
    """Return Arrow batches of this many records, as Spark passes them."""
    data = os.urandom(size)
    for start in range(0, records, _BATCH):
        count = min(_BATCH, records - start)
        keys = [f"key-{number % KEYS}" for number in range(start, start + count)]
        yield pa.RecordBatch.from_pydict({"data": [data] * count, "partitionKey": keys})


def writer(url: str, *, is_aggregating: bool = False) -> RecordWriter:
    """Return the writer of a task."""
    stream = StreamRef(name=StreamName(STREAM))
    connection = ConnectionOptions(
        region="us-east-1",
        endpoint_url=url,
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    service, cache = connect(connection), TargetCache()
    return RecordWriter(
        service=service,
        target_of=lambda each: cache.get(each, connection, service),
        columns=SinkColumns(data=0, partition_key=1),
        options=SinkOptions(stream=stream, is_aggregating=is_aggregating, connection=connection),
        learned=LEARNED_RATES,
    )


def _client(url: str) -> Any:
    return boto3.client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )


def records_per_cpu_second(loop: Loop, url: str, records: int, size: int) -> float:
    """Run the loop in a new process; return its records per second of CPU, without its start."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(loop, url, records, size, sender))
    process.start()
    sender.close()
    seconds: float = receiver.recv()
    process.join()
    return records / seconds


def _measure(loop: Loop, url: str, records: int, size: int, sender: Any) -> None:
    loop(url, _REQUEST, size)()  # connects, and loads what the SDK loads once
    send = loop(url, records, size)
    began = time.process_time()
    send()
    sender.send(time.process_time() - began)


def throttled(seconds: float, size: int) -> float:
    """Return the part of the records that a strict service refused after the first seconds."""
    with EmbeddedKinesis(limits=Limits.strict()) as kinesis:
        kinesis.state.create_stream(STREAM, shards=2)
        ends_at = time.monotonic() + seconds
        tasks = [writer(kinesis.endpoint_url) for _ in range(4)]
        threads = [
            threading.Thread(target=each.write, args=(_until(ends_at, size),)) for each in tasks
        ]
        for thread in threads:
            thread.start()
        time.sleep(min(_SETTLING_S, seconds / 2))
        refused_before, stored_before = _counts(tasks)
        for thread in threads:
            thread.join()
        disconnect()
    refused, stored = _counts(tasks)
    refused -= refused_before
    return refused / max(1, refused + stored - stored_before)


def _counts(tasks: list[RecordWriter]) -> tuple[int, int]:
    """Return how many records were throttled, and stored, so far."""
    counts = [each.metrics for task in tasks for each in task._deliveries.values()]
    return sum(each.throttled.total() for each in counts), sum(each.records for each in counts)


def _until(ends_at: float, size: int) -> Iterator[pa.RecordBatch]:
    while time.monotonic() < ends_at:
        yield from batches(500, size)


def run(*, shards: int, records: int, size: int, rounds: int, seconds: float) -> Report:
    """Measure. boto3's loop writes a tenth of the records."""
    report = Report(
        name="kinesis.sink",
        command=f"python -m benchmarks.kinesis.sink --shards {shards} --records {records} "
        f"--size {size} --rounds {rounds} --seconds {seconds:g}",
        columns=(
            "bytes",
            *(f"{name} records/CPU s" for name in LOOPS),
            "ours, times boto3",
            "aggregated, times boto3",
            "throttled",
        ),
    )
    paces: dict[str, list[float]] = {name: [] for name in LOOPS}
    with page_server(Load(shards=shards, pages=1, size=size, is_open=True)) as server:
        for _ in range(rounds):
            for name, loop in LOOPS.items():
                count = records // 10 if name == "boto3" else records
                pace = records_per_cpu_second(loop, server.url, max(_REQUEST, count), size)
                paces[name].append(pace)
    times = ratio(paces["ours"], paces["boto3"])
    aggregated = ratio(paces["aggregated"], paces["boto3"])
    part = throttled(seconds, size)
    report.add(
        f"{size:,}",
        *(spread(paces[name]).text() for name in LOOPS),
        times.text(1),
        aggregated.text(1),
        f"{part:.2%}",
        size=size,
        records_per_cpu_second=paces,
        times_boto3=times.median,
        aggregated_times_boto3=aggregated.median,
        throttled=part,
    )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()
