"""Memory of a query that reads much from one shard of Kinesis through one slot.

    python -m benchmarks.kinesis.memory [--gigabytes 10] [--size 1000] [--by poll|push|http2]

One batch reads the whole shard into the sink `noop`; it is served by a page server on this machine
(`page_server`): by GetRecords, or pushed by enhanced fan-out over HTTP/1.1 or HTTP/2. The resident
memory of each kind of process is sampled five times a second: of this one, of the planner's, of the
biggest worker that runs the task, and of the JVM, whose heap may grow up to its limit. `flat` means
that a row's figures are alike, however much was read.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.kinesis.bulk import read_by_us
from benchmarks.support.page_server import CONSUMER, Load, page_server
from benchmarks.support.processes import ROLES, sampled_memory
from benchmarks.support.report import Report
from benchmarks.support.sessions import checkpoint_in, local_spark
from tests.support.kinesis.certificates import write_certificates

PARTS: Final = (0.1, 0.5, 1.0)
_PUSH: Final = {
    "consumerMode": "efo",
    "consumerName": CONSUMER,
    "consumerLifecycle": "self",
}
BY: Final[dict[str, dict[str, str]]] = {"poll": {}, "push": _PUSH, "http2": _PUSH}
_MIB: Final = 1 << 20
_GIGABYTE: Final = 1_000_000_000


def run(
    spark: SparkSession,
    folder: Path,
    *,
    gigabytes: float,
    size: int,
    by: str = "poll",
    certificates: Path | None = None,
) -> Report:
    """Measure. About `gigabytes` of data in records of `size` bytes, a page at least. `by` is one
    of `BY`; HTTP/2 needs certificates that Spark's processes trust."""
    page = Load(shards=1, pages=1, size=size)
    load = Load(shards=1, pages=max(1, round(gigabytes * _GIGABYTE / page.bytes)), size=size)
    report = Report(
        name="kinesis.memory",
        command=f"python -m benchmarks.kinesis.memory --gigabytes {gigabytes:g} --size {size} "
        f"--by {by}",
        columns=("process", *(f"MiB at {part:.0%}" for part in PARTS), "peak MiB"),
    )
    with page_server(load, certificates=certificates) as server:
        checkpoint = checkpoint_in(folder, "memory")
        began = time.perf_counter()
        with sampled_memory(lambda: server.served() / load.pages) as memory:
            read_by_us(spark, server.url, checkpoint, slots=1, **BY[by])
        took = time.perf_counter() - began
        if by != "poll" and server.polled() > 1 + load.pages / 2:
            raise RuntimeError(f"{server.polled()} of {load.pages} pages were polled, not pushed")
    peak = memory.peak()
    for role in ROLES:
        resident = [memory.at(part)[role] for part in PARTS]
        report.add(
            role,
            *(f"{value / _MIB:,.0f}" for value in resident),
            f"{peak[role] / _MIB:,.0f}",
            role=role,
            by=by,
            bytes_at={f"{part:g}": value for part, value in zip(PARTS, resident, strict=True)},
            peak_bytes=peak[role],
            gigabytes=load.bytes / _GIGABYTE,
            seconds=took,
            samples=len(memory.samples),
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--size", type=int, default=1_000)
    parser.add_argument("--by", choices=BY, default="poll")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, certificates = Path(name), None
        if arguments.by == "http2":
            certificates = folder
            write_certificates(folder, "server")
            os.environ["AWS_CA_BUNDLE"] = str(folder / "ca.pem")
        spark = local_spark(2)
        report = run(
            spark,
            folder,
            gigabytes=arguments.gigabytes,
            size=arguments.size,
            by=arguments.by,
            certificates=certificates,
        )
        spark.stop()
    report.publish()


if __name__ == "__main__":
    main()
