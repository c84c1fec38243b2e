"""One run of the demo, from an empty output folder to the result."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from examples.flights import DemoError, data, pipeline, script
from examples.flights.check import Finding, check
from examples.flights.evidence import gather
from examples.flights.follow import (
    SHARD_END,
    BatchReport,
    Follower,
    Rate,
    ShardInService,
    changes,
    is_finished,
    rows,
    short,
)
from examples.flights.producer import Assignment, Finished, News, Producer, Put, Resharded
from examples.flights.screen import Screen, View, result, screen
from examples.flights.session import TaskCounter, output_to, spark_session
from examples.lease_table import LeaseTable
from spark_ssp import EmbeddedKinesis, LivePage, serve_live_page, stop_gracefully

STREAM: Final = "departures"
APPLICATION: Final = "flights-demo"
"""The lease table's name: it contains the owner of each shard and its checkpoint."""
WORKER: Final = "this-query"
SHARDS: Final = 2
LOG: Final = "spark.log"
PAGE: Final = "live-page.html"
"""The live page when the query had read everything, and still ran."""
OWNERS_SECONDS: Final = 1.0
"""The period between reads of the lease table."""
STALLED_SECONDS: Final = 300.0
"""The time without progress after which the demo stops waiting and checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a run. `departures` None: all. `seconds`: the duration of the puts."""

    departures: int | None
    seconds: float
    slots: int
    folder: Path


def run(plan: Plan, console: Console) -> int:
    """0 when every promise was kept, 1 when not. DemoError when it does not come to that."""
    began = time.monotonic()
    _empty(plan.folder)
    console.print("Starting Spark and a Kinesis on this machine …", style="dim")
    with EmbeddedKinesis(dynamodb=True) as kinesis, spark_session(plan.folder, LOG) as spark:
        kinesis.state.create_stream(STREAM, shards=SHARDS)
        demo = _Demo(plan, kinesis, spark)
        page = serve_live_page(spark)
        console.print(f"Live page: {page.url}", highlight=False)
        try:
            with screen(console) as shown:
                demo.follow(shown, page)
        finally:
            page.stop()
        console.print("Checking the output …", style="dim")
        findings = demo.findings()
    console.print(result(findings))
    kept = all(finding.kept for finding in findings)
    _farewell(console, plan, kept=kept, seconds=time.monotonic() - began)
    return 0 if kept else 1


def _empty(folder: Path) -> None:
    """Begin with an empty folder. DemoError when it holds something else than a demo."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / LOG).exists():
            raise DemoError(f"{folder} holds something else; name another --output")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _await_source(query: StreamingQuery) -> None:
    """Return once the query asks for records (or has failed), so that it sees the first of them
    arrive; starting Spark's Python processes takes a few seconds of both cores."""
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.1)


class _Demo:
    """The producer and the query, while they run."""

    def __init__(self, plan: Plan, kinesis: EmbeddedKinesis, spark: SparkSession) -> None:
        self._plan = plan
        self._kinesis = kinesis
        self._spark = spark
        self._tasks = TaskCounter(spark)
        self._leases = LeaseTable(kinesis, APPLICATION)
        self._follower = Follower(STREAM)
        self._latest: BatchReport | None = None
        self._seen: set[str] = set()
        self._total = script.record_count(data.departures(plan.departures).num_rows)
        self._put = 0
        self._finished = False
        self._put_rate, self._read_rate = Rate(), Rate()
        self._owners_then: dict[str, str | None] = {}
        self._owners_at = -OWNERS_SECONDS
        self._began = time.monotonic()

    def follow(self, shown: Screen, page: LivePage) -> None:
        """Start both, show them, and stop the query once it has read everything."""
        self._spark.streams.addListener(self._follower)
        query = pipeline.start(self._spark, self._source(), self._plan.folder, self._tasks.count)
        try:
            _await_source(query)
            with output_to(self._plan.folder / LOG):
                producer = Producer(self._assignment())
            try:
                self._watch(query, producer, shown)
            finally:
                producer.stop()
            page.save(self._plan.folder / PAGE)
            stop_gracefully(query)
        finally:
            query.stop()
            self._spark.streams.removeListener(self._follower)

    def findings(self) -> list[Finding]:
        """The check, once the query has ended."""
        return check(
            gather(
                self._kinesis,
                STREAM,
                self._plan.folder,
                departures=self._plan.departures,
                slots=self._plan.slots,
                tasks=self._tasks.most,
                leases=self._leases.rows(),
            )
        )

    def _source(self) -> dict[str, str]:
        settings = self._kinesis.client_settings()
        return {
            "streamName": STREAM,
            "startingPosition": "trim_horizon",
            "slots": str(self._plan.slots),
            "shardDiscoveryInterval": "2s",
            "applicationName": APPLICATION,
            # Leases require it before PySpark 4.2, which does not pass the trigger to a source.
            "trigger": "processingTime",
            "workerId": WORKER,
            "dynamodbEndpointUrl": self._kinesis.dynamodb_endpoint_url,
            "endpointUrl": settings["endpoint_url"],
            "region": settings["region_name"],
            "awsAccessKeyId": settings["aws_access_key_id"],
            "awsSecretAccessKey": settings["aws_secret_access_key"],
        }

    def _assignment(self) -> Assignment:
        return Assignment(
            stream=STREAM,
            departures=self._plan.departures,
            seconds=self._plan.seconds,
            settings=self._kinesis.client_settings(),
        )

    def _watch(self, query: StreamingQuery, producer: Producer, shown: Screen) -> None:
        moved = time.monotonic()
        while query.isActive:
            for news in producer.news():
                self._take_news(news, shown)
                moved = time.monotonic()
            reports = self._follower.take()
            for report in reports:
                self._take_report(report, shown)
                moved = time.monotonic() if report.records else moved
            view = self._view()
            shown.show(view, new_batch=any(report.records for report in reports))
            if self._finished and is_finished(view.shards):
                return
            if time.monotonic() - moved > STALLED_SECONDS:
                shown.event(self._seconds(), "nothing has moved for long: giving up")
                return
            time.sleep(0.2)
        reason = str(query.exception()).split("\n", 1)[0]
        raise DemoError(f"the query has ended: {reason}; see {self._plan.folder / LOG}")

    def _take_news(self, news: News, shown: Screen) -> None:
        self._put = news.records
        match news:
            case Put():
                self._put_rate.add(time.monotonic(), news.records)
            case Resharded():
                parents = " and ".join(short(shard) for shard in news.parents)
                children = " and ".join(short(shard) for shard in news.children)
                done = "split into" if news.kind is script.Reshard.SPLIT else "merged into"
                shown.event(
                    self._seconds(), f"{parents} {done} {children}, after {news.records:,} records"
                )
            case Finished():
                self._finished = True
                shown.event(self._seconds(), f"all {news.records:,} records have been put")

    def _take_report(self, report: BatchReport, shown: Screen) -> None:
        for text in changes(self._latest, report):
            shown.event(self._seconds(), text)
        self._latest = report
        self._seen |= report.positions.keys()

    def _view(self) -> View:
        shards = self._shards()
        read = sum(shard.read for shard in shards)
        self._read_rate.add(time.monotonic(), read)
        latest = self._latest
        return View(
            seconds=self._seconds(),
            total=self._total,
            put=self._put,
            put_rate=self._put_rate.per_second(),
            read=read,
            read_rate=self._read_rate.per_second(),
            slots=self._plan.slots,
            shards=tuple(rows(shards, latest, self._owners())),
            batch=latest,
            tasks=None if latest is None else self._tasks.most.get(latest.batch),
        )

    def _shards(self) -> list[ShardInService]:
        """The service's own shards, and how far into each the committed batches have come."""
        with self._kinesis.state.lock:
            now = self._kinesis.clock.now_ms()
            shards = self._kinesis.state.stream(STREAM).shards(now)
            return [
                ShardInService(
                    shard=shard.shard_id,
                    parents=shard.parents,
                    open=shard.is_open,
                    records=shard.log.end,
                    read=shard.log.after_number(self._position(shard.shard_id, shard.last_number)),
                )
                for shard in shards
            ]

    def _owners(self) -> dict[str, str | None]:
        """Return the owners, read once a second; a shard without a lease has none."""
        if time.monotonic() - self._owners_at >= OWNERS_SECONDS:
            self._owners_at = time.monotonic()
            self._owners_then = {shard: lease.owner for shard, lease in self._leases.rows().items()}
        return self._owners_then

    def _position(self, shard: str, last: int) -> int:
        """The sequence number up to which a shard is read; 0 before its first record."""
        latest = self._latest
        if latest is None or shard not in self._seen:
            return 0
        position = latest.positions.get(shard, SHARD_END)  # a shard that left the offset is done
        return last if position == SHARD_END else int(position or 0)

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def _farewell(console: Console, plan: Plan, *, kept: bool, seconds: float) -> None:
    folder = plan.folder
    word = "[bold green]Every promise was kept[/]" if kept else "[bold red]A promise was broken[/]"
    console.print(f"{word}, {seconds:.0f} s in all.\n")
    console.print(
        f"Written to {folder}/: {pipeline.DEPARTURES}/ by month and batch, "
        f"{pipeline.MALFORMED}/ by batch, checkpoint/, {LOG}, {PAGE}\n\n"
        "What to try next:\n"
        f'  - look at it: spark.read.parquet("{folder}/{pipeline.DEPARTURES}").groupBy("airline")'
        ".count()\n"
        "  - fewer tasks, or more: python -m examples.flights --slots 2 (and --help)\n"
        "  - your own stream: the same options with its streamName and region, but without "
        "endpointUrl and keys,\n    read AWS with the machine's own credentials; see "
        "docs/guide/kinesis.md",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
