"""The cost of `publish_metrics` and `serve_live_page` for each trigger of a busy Kinesis query.

    python -m benchmarks.kinesis.metrics [--shards 16 128 1000] [--slots 4] [--seconds 30]

The query is the busy one of `kinesis.triggers`: 1,000 records/s of 200 B over all shards. Metrics
are published for Prometheus, scraped once a second, and as lines for CloudWatch in a file; the live
page is served, and not open.
`listener` is the time from Spark's call in Python to its return, on the wall: the reading of the
report from the JVM, and `publishing`. `CPU` is the thread's processor time. No query
waits for it. `share` is the part of the median trigger that the processor time of either takes.
`counts` is the size of the part of the report that exists only for metrics.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.kinesis.service import kinesis_service
from benchmarks.kinesis.triggers import INTERVAL_S, RATE, WARM_UP, wait_for_batches
from benchmarks.support.report import Report, quantile
from benchmarks.support.sessions import checkpoint_in, run_on_spark
from spark_ssp import publish_metrics, serve_live_page
from spark_ssp.operations.jvm_reports import JsonReports
from spark_ssp.operations.progress import ProgressListener

_COUNTS: Final = ("shards", "closedShards", "parents", "counters", "leases")


@dataclass(slots=True)
class Times:
    """Milliseconds of each call of the listener, of its processor time, of that for publishing, and
    of each scrape."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    publishing: list[float] = field(default_factory=list)
    scrapes: list[float] = field(default_factory=list)


@contextmanager
def _timed(times: Times) -> Iterator[None]:
    """Time the calls of Python listeners by the JVM."""
    original = JsonReports.onQueryProgress

    def timed(self: JsonReports, event: Any) -> None:
        began, used = time.perf_counter(), time.thread_time()
        original(self, event)
        times.processor.append(1000 * (time.thread_time() - used))
        times.wall.append(1000 * (time.perf_counter() - began))

    publish = ProgressListener.publish

    def timed_publish(self: ProgressListener, progress: Any) -> None:
        used = time.thread_time()
        publish(self, progress)
        times.publishing.append(1000 * (time.thread_time() - used))

    JsonReports.onQueryProgress = timed  # type: ignore[method-assign,assignment]
    ProgressListener.publish = timed_publish  # type: ignore[method-assign]
    try:
        yield
    finally:
        JsonReports.onQueryProgress = original  # type: ignore[method-assign]
        ProgressListener.publish = publish  # type: ignore[method-assign]


@contextmanager
def _scraped(url: str, times: Times) -> Iterator[None]:
    """Scrape once a second."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(1):
            began = time.perf_counter()
            with urllib.request.urlopen(url) as answer:  # noqa: S310 - of this process
                answer.read()
            times.scrapes.append(1000 * (time.perf_counter() - began))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measure(
    spark: SparkSession, folder: Path, *, shards: int, slots: int, seconds: float
) -> tuple[Times, list[dict[str, Any]]]:
    """Return the times of a query's triggers, and their progress."""
    times = Times()
    published = publish_metrics(
        spark, prometheus=0, cloudwatch=folder / f"{shards}.log", series=100
    )
    page = serve_live_page(spark)
    assert published.url is not None
    try:
        with kinesis_service(shards) as service:
            service.produce(RATE)
            query = (
                spark.readStream.format("kinesis-ssp")
                .options(**service.options(), slots=str(slots))
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint_in(folder, str(shards)))
                .trigger(processingTime=f"{INTERVAL_S:g} seconds")
                .start()
            )
            try:
                wait_for_batches(query, WARM_UP)
                before = len(query.recentProgress)
                with _timed(times), _scraped(published.url, times):
                    time.sleep(seconds)
                    while not (times.wall and times.scrapes):
                        wait_for_batches(query, 1)
                progress = [dict(one) for one in query.recentProgress[before:]]
            finally:
                query.stop()
    finally:
        page.stop()
        published.stop()
    return times, progress


def _count_bytes(progress: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the size of the last report and of the counts in it."""
    last = progress[-1]
    status = json.loads(last["sources"][0]["latestOffset"])
    counts = [{name: one[name] for name in _COUNTS if name in one} for one in status.values()]
    whole = sum(len(last["sources"][0][name]) for name in ("startOffset", "endOffset"))
    return whole + len(json.dumps(status)), sum(len(json.dumps(one)) - 2 for one in counts)


def run(
    spark: SparkSession, folder: Path, *, shards: list[int], slots: int, seconds: float
) -> Report:
    """Measure each number of shards."""
    report = Report(
        name="kinesis.metrics",
        command="python -m benchmarks.kinesis.metrics "
        f"--shards {' '.join(map(str, shards))} --slots {slots} --seconds {seconds:g}",
        columns=(
            "shards",
            "trigger ms",
            "listener ms: median, p99",
            "CPU ms (share)",
            "publishing CPU ms (share)",
            "scrape ms",
            "report bytes",
            "of counts",
        ),
    )
    for count in shards:
        times, progress = measure(spark, folder, shards=count, slots=slots, seconds=seconds)
        trigger = quantile([float(one["durationMs"]["triggerExecution"]) for one in progress], 0.5)
        wall, processor = quantile(times.wall, 0.5), quantile(times.processor, 0.5)
        publishing = quantile(times.publishing, 0.5)
        whole, counts = _count_bytes(progress)
        scrape = quantile(times.scrapes, 0.5)
        report.add(
            f"{count:,}",
            f"{trigger:,.0f}",
            f"{wall:,.1f}, {quantile(times.wall, 0.99):,.1f}",
            f"{processor:,.1f} ({processor / trigger:.2%})",
            f"{publishing:,.1f} ({publishing / trigger:.2%})",
            f"{scrape:,.1f}",
            f"{whole:,}",
            f"{counts:,}",
            shards=count,
            trigger_ms=trigger,
            listener_ms=times.wall,
            listener_cpu_ms=times.processor,
            publishing_cpu_ms=times.publishing,
            listener_share=processor / trigger,
            publishing_share=publishing / trigger,
            scrape_ms=times.scrapes,
            report_bytes=whole,
            count_bytes=counts,
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of metrics and page for a trigger.")
    parser.add_argument("--shards", type=int, nargs="+", default=[16, 128, 1000])
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30)
    run_on_spark(run, vars(parser.parse_args()))


if __name__ == "__main__":
    main()
