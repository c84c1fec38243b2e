"""The Kinesis sink on a slow uplink, which all tasks share.

    python -m benchmarks.kinesis.slow_link [--rates 0.7 1.5 10] [--tasks 1 8] [--megabytes 40]

Each task is a process with a writer, and writes rows of 20 kB to a service behind a link of that
many megabytes per second (`slow_link`); together they have `--megabytes` of data. `times the link`
is the duration of the slowest task, from its first request, by the time that the link needs for the
rows as PutRecords has them, in base64. `stored` is the number of rows that the stream has, `twice`
the part of the rows that it has more than once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from benchmarks.kinesis.sink import writer
from benchmarks.support.page_server import STREAM
from benchmarks.support.report import Report
from benchmarks.support.slow_link import SlowLink
from spark_ssp.kinesis_source.client.boto3_client import disconnect
from spark_ssp.testing.kinesis import EmbeddedKinesis

ROW: Final = 20_000
_SHARDS: Final = 64
_BATCH: Final = 200
_MB: Final = 1_000_000


def rows(task: int, count: int) -> Iterator[pa.RecordBatch]:
    """Return rows that begin with their number, and differ."""
    for start in range(0, count, _BATCH):
        numbers = range(start, min(count, start + _BATCH))
        names = [f"{task}-{number}" for number in numbers]
        data = [name.encode().ljust(20) + os.urandom(ROW - 20) for name in names]
        yield pa.RecordBatch.from_pydict({"data": data, "partitionKey": names})


def run_task(url: str, task: int, count: int, all_ready: Any, sender: Any) -> None:
    """Write the rows; send the times of the beginning and the end, and the error if any."""
    task_writer, batches = writer(url), list(rows(task, count))
    all_ready.wait()
    began, error = time.monotonic(), ""
    try:
        task_writer.write(batches)
    except Exception as raised:  # noqa: BLE001 - reported by the parent
        error = str(raised)
    sender.send((began, time.monotonic(), error))
    disconnect()


def measure(rate: float, tasks: int, megabytes: float) -> dict[str, Any]:
    """Return the figures of one link and number of tasks."""
    count = int(megabytes * _MB / ROW / tasks)
    context = multiprocessing.get_context("spawn")
    with EmbeddedKinesis() as kinesis:
        kinesis.state.create_stream(STREAM, shards=_SHARDS)
        port = urlsplit(kinesis.endpoint_url).port or 0
        with SlowLink(port, rate * _MB) as link:
            started, ends, all_ready = [], [], context.Barrier(tasks)
            for task in range(tasks):
                receiver, sender = context.Pipe(duplex=False)
                arguments = (link.url, task, count, all_ready, sender)
                process = context.Process(target=run_task, args=arguments)
                process.start()
                sender.close()
                started.append(process)
                ends.append(receiver)
            outcomes = [each.recv() for each in ends]
            for process in started:
                process.join()
            passed = link.passed
        stored = Counter(one.data[:20] for one in kinesis.state.records(STREAM))
    seconds = max(end for _, end, _ in outcomes) - min(began for began, _, _ in outcomes)
    ideal = count * tasks * ROW * 4 / 3 / (rate * _MB)
    return {
        "rate": rate,
        "tasks": tasks,
        "seconds": seconds,
        "times_the_link": seconds / ideal,
        "rows": count * tasks,
        "stored": len(stored),
        "records": stored.total(),
        "megabytes_sent": passed / _MB,
        "errors": "; ".join(error for _, _, error in outcomes if error),
    }


def run(*, rates: list[float], tasks: list[int], megabytes: float) -> Report:
    """Measure each link with each number of tasks."""
    command = (
        f"python -m benchmarks.kinesis.slow_link --rates {' '.join(f'{one:g}' for one in rates)} "
        f"--tasks {' '.join(map(str, tasks))} --megabytes {megabytes:g}"
    )
    report = Report(
        name="kinesis.slow_link",
        command=command,
        columns=("MB/s", "tasks", "s", "times the link", "rows", "stored", "twice", "MB sent"),
    )
    for rate in rates:
        for number in tasks:
            figures = measure(rate, number, megabytes)
            report.add(
                f"{rate:g}",
                str(number),
                f"{figures['seconds']:.1f}",
                f"{figures['times_the_link']:.2f}",
                f"{figures['rows']:,}",
                f"{figures['stored']:,}",
                f"{figures['records'] / figures['stored'] - 1:.2%}",
                f"{figures['megabytes_sent']:.1f}",
                **figures,
            )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.7, 1.5, 10])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--megabytes", type=float, default=40)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()
