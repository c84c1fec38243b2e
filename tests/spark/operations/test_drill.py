"""A drill: something goes wrong with a real query, and whoever is on call sees what by `spark-ssp
status`, the metrics and the live page alone, follows the remedy, and it works."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp import publish_metrics, serve_live_page
from spark_ssp.operations.health import Verdict
from spark_ssp.testing.kafka.broker import free_ports
from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.faults import Throttle
from tests.support.fakes.clocks import RealClock, ShiftedClock
from tests.support.kafka.queries import KafkaSink, check_read_once
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.kinesis.fan_out_mode import pushed_everywhere
from tests.support.kinesis.feeds import EmbeddedFeed
from tests.support.operations.command import run
from tests.support.operations.metrics import Scrape
from tests.support.servers.kafka_broker import KafkaBrokers
from tests.support.spark import queries
from tests.support.spark.queries import (
    DEADLINE_S,
    Sink,
    TakesBatches,
    check_exactly_once,
    failure_of,
    load,
    start,
    wait_for_rows,
    wait_until,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

_MAX_DELAY: Final = "6s"
_STUCK_AFTER: Final = "12s"
_KEYS: Final = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}


class OnCall:
    """What somebody on call looks at."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Path,
        arguments: list[str],
        clock: ShiftedClock | RealClock,
    ) -> None:
        self._checkpoint = checkpoint
        self._clock = clock
        self._arguments = arguments
        self._metrics = publish_metrics(
            spark, prometheus=0, max_delay=_MAX_DELAY, stuck_after=_STUCK_AFTER
        )
        self._page = serve_live_page(spark, max_delay=_MAX_DELAY, stuck_after=_STUCK_AFTER)

    def close(self) -> None:
        self._metrics.stop()
        self._page.stop()

    def status(self) -> Any:
        """What `spark-ssp status` says of the query."""
        found = run(
            *("status", str(self._checkpoint), "--json", *self._arguments),
            *(f"--max-delay={_MAX_DELAY}", f"--stuck-after={_STUCK_AFTER}"),
            *("--failover=10s", "--wait=12s"),
            now_ms=self._clock.now_ms,
            sleep=time.sleep,
            environment=_KEYS,
        )
        assert found.out, found.err
        (query,) = found.document()["queries"]
        return query

    def planned_records(self) -> list[Any]:
        """The records of the batch in progress, as `spark-ssp tail` shows them."""
        arguments = ("--checkpoint", str(self._checkpoint), *self._arguments, "--json")
        found = run("tail", *arguments, environment=_KEYS)
        assert found.code == 0, found.err
        return [json.loads(line) for line in found.out.splitlines()]

    def scraped(self, **labels: str) -> str | None:
        """The gravest verdict of the metrics; None without one."""
        assert self._metrics.url is not None
        verdicts = Scrape(self._metrics.url).values("ssp_query_verdict", **labels)
        found = [dict(labels)["verdict"] for labels, value in verdicts.items() if value == 1]
        return max(found, key=lambda name: Verdict(name).gravity, default=None)

    def sees(self, verdict: Verdict, *, by_status: Verdict | None = None, reason: str = "") -> Any:
        """Wait until status, metrics and page have the verdict; `by_status` if status has another.
        Return status."""
        wanted = by_status or verdict
        found: Any = None

        def agree() -> bool:
            nonlocal found
            found = self.status()
            return found["verdict"] == wanted and self.scraped() == verdict

        began = time.monotonic()
        while not agree():
            waited = time.monotonic() - began
            assert waited < DEADLINE_S, f"not {wanted} and {verdict}: {found}, {self.scraped()}"
            time.sleep(0.5)
        assert any(reason in one["reason"] for one in found["findings"]) or not reason
        assert verdict in self.page()
        return found

    def page(self) -> str:
        """The page as it is saved."""
        path = self._checkpoint.with_suffix(".html")
        self._page.save(path)
        return path.read_text(encoding="utf-8")


@pytest.fixture
def kinesis(clock: ShiftedClock) -> Iterator[EmbeddedKinesis]:
    (port,) = free_ports("127.0.0.1", 1)
    with (
        EmbeddedKinesis(clock=clock, dynamodb=True, dynamodb_port=port) as service,
        pushed_everywhere(service),
    ):
        yield service


@pytest.fixture
def feed(kinesis: EmbeddedKinesis) -> EmbeddedFeed:
    return EmbeddedFeed(kinesis)


@pytest.fixture
def on_call(
    spark: SparkSession, kinesis: EmbeddedKinesis, clock: ShiftedClock, tmp_path: Path
) -> Iterator[OnCall]:
    arguments = ["--endpoint-url", kinesis.endpoint_url, "--region", "us-east-1"]
    arguments += ["--dynamodb-endpoint-url", kinesis.dynamodb_endpoint_url]
    found = OnCall(spark, tmp_path / "orders", arguments, clock)
    yield found
    found.close()


@contextmanager
def traffic(feed: EmbeddedFeed, *streams: str) -> Iterator[None]:
    """Records all the time."""
    over = threading.Event()

    def put() -> None:
        while not over.wait(0.1):
            for stream in streams or ("orders",):
                feed.put(stream, 2)

    thread = threading.Thread(target=put)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def running(
    spark: SparkSession, options: Mapping[str, str], sink: TakesBatches, folder: Path
) -> AbstractContextManager[StreamingQuery]:
    return queries.running(load(spark, options), sink, folder / "orders")


def test_a_slow_sink_and_one_that_hangs(
    spark: SparkSession,
    feed: EmbeddedFeed,
    options: dict[str, str],
    on_call: OnCall,
    tmp_path: Path,
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 20)
    slow, hangs = threading.Event(), threading.Event()
    sink = Sink()
    go_on = threading.Event()

    def wait(batch: int) -> None:
        if slow.is_set():
            time.sleep(9)
        if hangs.is_set():
            assert go_on.wait(400)

    sink.meanwhile = wait
    with traffic(feed), running(spark, options, sink, tmp_path) as query:
        on_call.sees(Verdict.OK)
        slow.set()
        found = on_call.sees(Verdict.BEHIND)
        assert "sink" in found["findings"][0]["remedy"]
        slow.clear()
        on_call.sees(Verdict.OK)
        hangs.set()
        found = on_call.sees(Verdict.STALLED)
        assert found["stuckIn"] == ["tasks", "sink"]
        hangs.clear()
        go_on.set()
        on_call.sees(Verdict.OK)
        assert query.isActive
    # The remedies lose and repeat nothing.
    query = start(load(spark, options), sink, tmp_path / "orders", "available now")
    query.awaitTermination()
    check_exactly_once(sink, feed.records)


def test_a_poisoned_record(
    spark: SparkSession,
    feed: EmbeddedFeed,
    options: dict[str, str],
    on_call: OnCall,
    tmp_path: Path,
) -> None:
    """The record is one of those of the planned batch, and the only one that is left out."""
    feed.create("orders", shards=2)
    feed.put("orders", 20)
    sink = Sink()
    with running(spark, options, sink, tmp_path) as query:
        wait_for_rows(query, sink, 20)
    feed.put("orders", 20)
    bad = feed.records[30]

    def query_of(orders: DataFrame) -> DataFrame:
        fails = F.col("sequenceNumber") == str(bad.sequence)
        data = F.when(fails, F.raise_error(F.lit("bad record"))).otherwise(F.col("data"))
        return orders.withColumn("data", data)

    query = start(query_of(load(spark, options)), sink, tmp_path / "orders")
    assert "bad record" in failure_of(query)
    found = on_call.sees(Verdict.FAILED, by_status=Verdict.STALLED)
    assert found["stuckIn"] == ["tasks", "sink"]
    shown = on_call.planned_records()
    assert {row["position"] for row in shown} <= {str(one.sequence) for one in feed.records[20:]}
    assert str(bad.sequence) in {row["position"] for row in shown}
    is_bad = (F.col("shardId") == bad.shard) & (F.col("sequenceNumber") == str(bad.sequence))
    query = start(query_of(load(spark, options).where(~is_bad)), sink, tmp_path / "orders")
    try:
        wait_for_rows(query, sink, 39)
        on_call.sees(Verdict.OK)
    finally:
        query.stop()
    check_exactly_once(sink, [record for record in feed.records if record != bad])


def test_a_throttled_shard(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: EmbeddedFeed,
    options: dict[str, str],
    on_call: OnCall,
    tmp_path: Path,
) -> None:
    feed.create("orders", shards=2)
    with traffic(feed), running(spark, options, Sink(), tmp_path):
        on_call.sees(Verdict.OK)
        throttled = kinesis.faults.add(
            Throttle(), operation="GetRecords", shard=feed.open_shards("orders")[0], count=None
        )
        wait_until(lambda: on_call.scraped() in ("BEHIND", "STALLED"), "a delay")
        kinesis.faults.remove(throttled)
        on_call.sees(Verdict.OK)


def test_a_shard_that_nobody_reads_and_a_dead_owner(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: EmbeddedFeed,
    options: dict[str, str],
    on_call: OnCall,
    tmp_path: Path,
) -> None:
    table = (
        boto3.session.Session()
        .resource(
            "dynamodb",
            endpoint_url=kinesis.dynamodb_endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        .Table(tmp_path.name)
    )
    feed.create("orders", shards=2)
    feed.put("orders", 20)
    options |= {
        "applicationName": tmp_path.name,
        "dynamodbEndpointUrl": kinesis.dynamodb_endpoint_url,
        # A busy machine may take seconds for a call.
        "failoverTime": "10s",
        "leaseMaxOutage": "5m",
        "checkpointInterval": "1s",
        "trigger": "processingTime",
    }
    sink = Sink()
    with running(spark, options, sink, tmp_path) as query:
        wait_for_rows(query, sink, 20)
        on_call.sees(Verdict.OK)
        # Somebody writes into the row of a lease that the query holds, which ends it.
        key = {"leaseKey": "shardId-000000000000"}
        good = table.get_item(Key=key)["Item"]
        table.put_item(Item=good | {"checkpoint": "yesterday"})
        found = on_call.sees(Verdict.FAILED, by_status=Verdict.STALLED)
        assert found["notRead"]["malformed lease"] == ["orders/shardId-000000000000"]
    table.delete_item(Key=key)  # the remedy
    with running(spark, options, sink, tmp_path):
        on_call.sees(Verdict.OK)
    # The process was killed: its leases keep their owner.
    table.update_item(
        Key=key,
        UpdateExpression="SET leaseOwner = :ghost",
        ExpressionAttributeValues={":ghost": "ghost"},
    )
    found = on_call.status()
    assert found["verdict"] == Verdict.STALLED
    assert set(found["notRead"]) == {"stale", "free"}
    feed.put("orders", 20)
    with running(spark, options, sink, tmp_path) as query:
        wait_for_rows(query, sink, 40)
        on_call.sees(Verdict.OK)
    check_exactly_once(sink, feed.records)


def test_a_deleted_stream(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: EmbeddedFeed,
    options: dict[str, str],
    on_call: OnCall,
    tmp_path: Path,
) -> None:
    for stream in ("orders", "returns"):
        feed.create(stream)
        feed.put(stream, 10)
    both, sink = options | {"streamName": "orders,returns"}, Sink()
    with running(spark, both, sink, tmp_path) as query:
        wait_for_rows(query, sink, 20)
        kinesis.state.delete_stream("returns")
        wait_until(lambda: not query.isActive, "the query's failure")
    found = on_call.sees(Verdict.FAILED)
    assert "dropStreams" in found["findings"][0]["remedy"]
    feed.put("orders", 10)
    with running(spark, options | {"dropStreams": "returns"}, sink, tmp_path) as query:
        wait_for_rows(query, sink, 30)
        on_call.sees(Verdict.OK)


def test_records_that_expired(
    spark: SparkSession,
    clock: ShiftedClock,
    feed: EmbeddedFeed,
    options: dict[str, str],
    on_call: OnCall,
    tmp_path: Path,
) -> None:
    feed.create("orders")
    feed.put("orders", 10)
    sink = Sink()
    with running(spark, options, sink, tmp_path) as query:
        wait_for_rows(query, sink, 10)
        commit = tmp_path / "orders" / "commits" / "0"
        wait_until(commit.exists, "the commit of the batch", query)
    feed.put("orders", 10)
    clock.advance(25 * 3_600_000)
    feed.put("orders", 5)
    assert on_call.status()["verdict"] == Verdict.LOSING
    assert "[data-loss]" in failure_of(start(load(spark, options), sink, tmp_path / "orders"))
    # By the real clock the query is in time: what expired shows by the query's failure.
    wait_until(lambda: on_call.scraped() == "FAILED", "the failure")
    with running(spark, options | {"failOnDataLoss": "false"}, sink, tmp_path) as query:
        wait_for_rows(query, sink, 15)


def test_a_torn_checkpoint(
    spark: SparkSession,
    feed: EmbeddedFeed,
    options: dict[str, str],
    on_call: OnCall,
    tmp_path: Path,
) -> None:
    feed.create("orders")
    sink = Sink()
    for _ in range(3):
        feed.put("orders", 10)
        with running(spark, options, sink, tmp_path) as query:
            wait_for_rows(query, sink, len(feed.records))
    offsets = tmp_path / "orders" / "offsets"
    last = max(int(path.name) for path in offsets.glob("[0-9]*"))
    torn = offsets / str(last + 1)
    torn.write_text("v1\n")
    found = on_call.status()
    assert found["verdict"] == Verdict.FAILED
    assert f"offsets/{last + 1}" in found["findings"][0]["remedy"]
    torn.unlink()
    feed.put("orders", 10)
    with running(spark, options, sink, tmp_path) as query:
        wait_for_rows(query, sink, len(feed.records))
        on_call.sees(Verdict.OK)
    check_exactly_once(sink, feed.records)


def test_a_dead_broker_and_a_recreated_topic(spark: SparkSession, tmp_path: Path) -> None:
    with (
        KafkaBrokers() as cluster,
        KafkaTopics({"bootstrap.servers": cluster.bootstrap_servers}) as topics,
    ):
        orders = topics.create(2)
        servers = ["--bootstrap-servers", cluster.bootstrap_servers]
        on_call = OnCall(spark, tmp_path / "orders", servers, RealClock())
        sink, put = KafkaSink(), []

        def begin(folder: str) -> StreamingQuery:
            frame = (
                spark.readStream.format("kafka-ssp")
                .options(**cluster.options, subscribe=orders, startingOffsets="earliest")
                .option("includeTask", "true")
                .load()
            )
            return start(frame, sink, tmp_path / folder)

        def put_and_wait(query: StreamingQuery, count: int) -> None:
            put.extend(
                topics.put(orders, [Record(key=b"%d" % n, value=b"v") for n in range(count)])
            )
            wait_for_rows(query, sink, len(put))

        try:
            query = begin("orders")
            put_and_wait(query, 50)
            on_call.sees(Verdict.OK)
            with cluster.away(cluster.numbers[0], "kill"):
                put_and_wait(query, 50)
                on_call.sees(Verdict.OK)
            check_read_once(sink.rows, put)
            topics.delete(orders)
            topics.create(2, name=orders)
            wait_until(lambda: not query.isActive, "the query's failure")
            found = on_call.sees(Verdict.FAILED)
            assert "new checkpoint" in found["findings"][0]["remedy"]
            put, sink = [], KafkaSink()
            query = begin("again")
            put_and_wait(query, 50)
            label = str(query.id)
            wait_until(lambda: on_call.scraped(query=label) == "OK", "a query that is well")
        finally:
            for running_query in spark.streams.active:
                running_query.stop()
            on_call.close()
