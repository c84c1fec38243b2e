"""Queries that share a stream's shards: joining, leaving, dying, while shards come and go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.checkpoint.leases.lease import Lease, Processed, ShardEnded
from spark_ssp.checkpoint.leases.lease_store import LeaseStore, TableSettings
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from spark_ssp.kinesis_source.leases.drain import stop_gracefully
from spark_ssp.kinesis_source.reading.fan_out import RESUBSCRIBE_AFTER_S
from spark_ssp.testing.kafka.broker import free_ports
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.fan_out_mode import pushed_everywhere, python_path
from tests.support.kinesis.feeds import EmbeddedFeed, Feed, Record, options_for
from tests.support.leases.stores import open_store
from tests.support.spark.drivers import (
    ENVIRONMENT,
    FREE_CONNECT_PORT,
    Driver,
    files_per_batch,
    records_in,
)
from tests.support.spark.queries import (
    Sink,
    check_exactly_once,
    failure_of,
    load,
    run_to_end,
    start,
    wait_for_rows,
    wait_until,
)

_PROGRAM = Path(__file__).parents[1] / "programs" / "stop_gracefully.py"


@pytest.fixture
def kinesis() -> Iterator[EmbeddedKinesis]:
    (port,) = free_ports("127.0.0.1", 1)
    with (
        EmbeddedKinesis(dynamodb=True, dynamodb_port=port) as service,
        pushed_everywhere(service),
    ):
        yield service


@pytest.fixture
def feed(kinesis: EmbeddedKinesis) -> Feed:
    return EmbeddedFeed(kinesis)


@pytest.fixture
def application(tmp_path: Path) -> str:
    """Another one for each test."""
    return tmp_path.name


@pytest.fixture
def options(kinesis: EmbeddedKinesis, application: str) -> dict[str, str]:
    return options_for(kinesis.endpoint_url) | {
        "streamName": "orders",
        "startingPosition": "trim_horizon",
        "applicationName": application,
        "dynamodbEndpointUrl": kinesis.dynamodb_endpoint_url,
        # A busy machine may take seconds for a call.
        "failoverTime": "10s",
        "leaseMaxOutage": "5m",
        "checkpointInterval": "1s",
        # Required with leases before PySpark 4.2, without effect since.
        "trigger": "processingTime",
    }


class Table:
    """The lease table as anybody may look at it."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._seen: tuple[float, list[Lease]] = (float("-inf"), [])

    def rows(self) -> list[Lease]:
        """Of shards that are not finished, as they were half a second ago or later."""
        if time.monotonic() - self._seen[0] > 0.5:
            leases = self._store.scan().leases
            rows = [row for row in leases if not isinstance(row.progress, ShardEnded)]
            self._seen = (time.monotonic(), rows)
        return self._seen[1]

    def owners(self) -> Counter[str | None]:
        """How many leases everybody holds; None: nobody."""
        return Counter(row.holder for row in self.rows())


@pytest.fixture
def table(kinesis: EmbeddedKinesis, application: str) -> Iterator[Table]:
    connection = ConnectionOptions(
        region="us-east-1",
        endpoint_url=kinesis.dynamodb_endpoint_url,
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    store = open_store(connection, TableSettings(name=application))
    store.prepare()
    yield Table(store)
    store.close()


def _records(*sinks: Sink) -> list[Record]:
    return [row.record for sink in sinks for row in sink.rows]


def _wait_for_all(feed: Feed, query: StreamingQuery, *sinks: Sink) -> None:
    def missing() -> set[Record]:
        return set(feed.records) - set(_records(*sinks))

    wait_until(lambda: not missing(), f"all records ({len(feed.records)})", query)


def _read_all(frame: DataFrame, sink: Sink, checkpoint: Path, count: int) -> None:
    """Run a query until the sink has `count` rows, and end it in good order."""
    if PASSES_LIMITS:
        run_to_end(frame, sink, checkpoint)
        return
    query = start(frame, sink, checkpoint)
    try:
        wait_for_rows(query, sink, count)
        assert stop_gracefully(query, timeout=60)
    finally:
        query.stop()


@pytest.mark.core("graceful stop")
def test_a_query_of_any_source_is_stopped_between_two_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = spark.readStream.format("rate").load().writeStream
    query = (
        writer.foreachBatch(lambda *_: time.sleep(1.5))
        .trigger(processingTime="3 seconds")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )

    def batches(log: str) -> set[str]:
        return {file.name for file in (tmp_path / log).glob("[0-9]*")}

    try:
        wait_until(lambda: batches("offsets") > batches("commits") > set(), "a batch", query)
        running = batches("offsets") - batches("commits")
        assert stop_gracefully(query, timeout=60)
        assert running <= batches("commits")
    finally:
        query.stop()


@pytest.mark.core("leases between two queries")
@pytest.mark.core("graceful stop")
def test_queries_come_and_go(
    spark: SparkSession, feed: Feed, options: dict[str, str], table: Table, tmp_path: Path
) -> None:
    feed.create("orders", shards=8)
    feed.put("orders", 80)
    by_anne, by_bert = Sink(), Sink()
    as_anne, as_bert = (options | {"workerId": name} for name in ("anne", "bert"))
    anne = start(load(spark, as_anne), by_anne, tmp_path / "anne")
    try:
        _wait_for_all(feed, anne, by_anne)

        # Another one joins, and gets half, with nothing read twice.
        bert = start(load(spark, as_bert), by_bert, tmp_path / "bert")
        wait_until(lambda: table.owners() == {"anne": 4, "bert": 4}, "halves", bert)
        feed.put("orders", 80)
        _wait_for_all(feed, bert, by_anne, by_bert)
        check_exactly_once(_both(by_anne, by_bert), feed.records)

        # It is asked to leave: at once the first has all again, and nothing is read twice.
        assert stop_gracefully(bert, timeout=60)
        wait_until(lambda: table.owners() == {"anne": 8}, "all back", anne)
        feed.put("orders", 80)
        _wait_for_all(feed, anne, by_anne, by_bert)
        check_exactly_once(_both(by_anne, by_bert), feed.records)
    finally:
        anne.stop()
    wait_until(lambda: table.owners() == {None: 8}, "leases given back")

    # The end of a run to the tip is the table's, and the next run begins there.
    feed.put("orders", 40)
    _read_all(load(spark, as_anne), by_anne, tmp_path / "anne", by_anne.count + 40)
    check_exactly_once(_both(by_anne, by_bert), feed.records)
    feed.put("orders", 40)
    by_carl = Sink()
    _read_all(load(spark, options), by_carl, tmp_path / "carl", 40)
    check_exactly_once(by_carl, feed.records[-40:])

    # Another application knows nothing of it.
    by_dora = Sink()
    as_another = options | {"applicationName": f"{tmp_path.name}-2"}
    _read_all(load(spark, as_another), by_dora, tmp_path / "dora", len(feed.records))
    check_exactly_once(by_dora, feed.records)


def test_a_self_join_is_refused_with_leases_and_whole_without(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    """Spark makes two readers for it, which would divide the shards as two workers."""
    feed.create("orders", shards=4)
    feed.put("orders", 40)
    joined: list[str] = []

    def self_join(frame: DataFrame) -> DataFrame:
        one, other = (frame.select("sequenceNumber").alias(side) for side in ("one", "other"))
        return one.join(other, "sequenceNumber")

    def collect(frame: DataFrame, batch: int) -> None:
        joined.extend(row["sequenceNumber"] for row in frame.collect())

    query = start(self_join(load(spark, options)), collect, tmp_path / "leased")
    try:
        message = failure_of(query)
    finally:
        query.stop()
    assert f"[unsupported] lease table {tmp_path.name}: found a second reader" in message
    assert joined == []

    without = {name: options[name] for name in options if name != "applicationName"}
    for name in ("dynamodbEndpointUrl", "failoverTime", "leaseMaxOutage", "checkpointInterval"):
        del without[name]
    run_to_end(self_join(load(spark, without)), collect, tmp_path / "without")
    assert sorted(map(int, joined)) == sorted(record.sequence for record in feed.records)


def _both(*sinks: Sink) -> Sink:
    """One sink with all the rows, whose order between the sinks is not known."""
    rows = sorted((row for sink in sinks for row in sink.rows), key=lambda r: int(r.record.data))
    return Sink(batches={0: tuple(rows)})


def _has_rows(output: Path) -> bool:
    """Whether a file sink has committed a batch that was not empty."""
    return (output / "_spark_metadata").exists() and any(files_per_batch(output).values())


def test_one_of_three_is_killed_while_shards_come_and_go(
    spark: SparkSession, feed: Feed, options: dict[str, str], table: Table, tmp_path: Path
) -> None:
    feed.create("orders", shards=8)
    feed.put("orders", 80)
    sinks = by_anne, by_bert = Sink(), Sink()
    as_anne, as_bert, as_carl = (options | {"workerId": name} for name in ("anne", "bert", "carl"))
    folder = tmp_path / "driver"
    with Driver(folder, [as_carl], trigger="as fast as possible") as carl:
        anne = start(load(spark, as_anne), by_anne, tmp_path / "anne")
        bert = start(load(spark, as_bert), by_bert, tmp_path / "bert")
        try:
            three = {"anne", "bert", "carl"}
            wait_until(lambda: set(table.owners()) == three, "three owners", anne, bert)
            feed.split_first("orders")
            feed.put("orders", 80)
            feed.merge_first("orders")
            feed.put("orders", 80)
            wait_until(lambda: table.owners()["carl"] >= 2, "a share for the third", anne, bert)
            feed.put("orders", 80)
            wait_until(lambda: _has_rows(folder / "output-0"), "rows of the third", anne, bert)
            feed.put("orders", 80)
            assert "java" in carl.kill()
            feed.put("orders", 80)
            before = Counter(records_in(spark, folder / "output-0"))
            wait_until(lambda: set(table.owners()) == {"anne", "bert"}, "two owners", anne, bert)
            wait_until(
                lambda: not set(feed.records) - set(_records(*sinks)) - set(before),
                "all records",
                anne,
                bert,
            )
        finally:
            anne.stop()
            bert.stop()
    found, wanted = Counter(_records(*sinks)) + before, Counter(feed.records)
    assert wanted - found == Counter(), "records that did not come"
    again = found - wanted
    assert set(again) <= set(before), "read twice, and not because of the one that was killed"
    print(f"read twice after the kill: {again.total()} of {wanted.total()}")


@pytest.mark.long
def test_owners_of_shards_share_a_consumer_that_remains(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    table: Table,
    tmp_path: Path,
) -> None:
    def put() -> int:
        """Put more than 1 MiB for each shard, since less is polled, once the consumer may subscribe
        again; return the subscriptions so far."""
        time.sleep(RESUBSCRIBE_AFTER_S)
        with kinesis.state.lock:
            for number in range(3_000):
                feed.put_data("orders", f"key-{number % 101}", b"%01000d" % len(feed.records))
            return kinesis.calls.count("SubscribeToShard")

    def pushed_since(before: int) -> int:
        return kinesis.calls.count("SubscribeToShard") - before

    feed.create("orders", shards=2)
    by_anne, by_bert = Sink(), Sink()
    shared = options | {"consumerMode": "efo", "consumerName": tmp_path.name}
    as_anne, as_bert = (shared | {"workerId": name} for name in ("anne", "bert"))
    anne = start(load(spark, as_anne), by_anne, tmp_path / "anne")
    try:
        before = put()
        _wait_for_all(feed, anne, by_anne)
        assert pushed_since(before) >= 2
        bert = start(load(spark, as_bert), by_bert, tmp_path / "bert")
        wait_until(lambda: table.owners() == {"anne": 1, "bert": 1}, "one each", anne, bert)
        before = put()
        _wait_for_all(feed, bert, by_anne, by_bert)
        assert pushed_since(before) >= 2
        assert by_bert.count > 0
        assert stop_gracefully(bert, timeout=60)
        wait_until(lambda: table.owners() == {"anne": 2}, "all back", anne)
        before = put()
        _wait_for_all(feed, anne, by_anne, by_bert)
        assert pushed_since(before) >= 2
    finally:
        anne.stop()
    check_exactly_once(_both(by_anne, by_bert), feed.records)
    wait_until(lambda: table.owners() == {None: 2}, "leases given back")
    state = kinesis.state
    registered = state.consumers("orders").all(state.clock.now_ms())
    assert [each.name for each in registered] == [tmp_path.name]


@pytest.mark.long
def test_a_table_that_is_out_of_reach(
    spark: SparkSession,
    kinesis: EmbeddedKinesis,
    feed: Feed,
    options: dict[str, str],
    table: Table,
    tmp_path: Path,
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 20)
    sink = Sink()
    dynamodb = kinesis._dynamodb
    assert dynamodb is not None
    query = start(load(spark, options | {"leaseMaxOutage": "20s"}), sink, tmp_path)
    try:
        _wait_for_all(feed, query, sink)
        dynamodb.stop()
        feed.put("orders", 20)
        _wait_for_all(feed, query, sink)
        dynamodb.start()
        counters = [row.counter for row in table.rows()]
        wait_until(
            lambda: all(row.counter > old for row, old in zip(table.rows(), counters, strict=True)),
            "renewals",
            query,
        )
        feed.put("orders", 20)
        _wait_for_all(feed, query, sink)
        dynamodb.stop()
        message = failure_of(query)
        dynamodb.start()
    finally:
        query.stop()
    assert f"[service-unavailable] lease table {tmp_path.name}" in message
    assert "20 s (leaseMaxOutage)" in message
    check_exactly_once(sink, feed.records)


@pytest.mark.long
def test_a_client_of_spark_connect_stops_its_query_gracefully(
    feed: Feed, options: dict[str, str], table: Table, tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 20)
    task = {
        "options": options,
        "checkpoint": str(tmp_path / "checkpoint"),
        "output": str(tmp_path / "output"),
        "rows": 20,
    }
    client = subprocess.run(
        [sys.executable, str(_PROGRAM)],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | FREE_CONNECT_PORT | python_path(_PROGRAM.parents[3]),
        input=json.dumps(task).encode(),
        capture_output=True,
        check=False,
        timeout=540,
    )
    assert client.returncode == 0, client.stderr[-4000:]
    said = [line for line in client.stdout.splitlines() if line.startswith(b"{")]
    assert json.loads(said[-1]) == {"rows": 20, "drained": True}, client.stderr[-4000:]
    # What the query itself gave back is all that it has read.
    assert table.owners() == {None: 2}
    last = {record.shard: record.sequence for record in sorted(feed.records)}
    written = {row.shard: row.progress for row in table.rows()}
    for shard, progress in written.items():
        assert isinstance(progress, Processed)
        assert int(progress.sequence_number) == last[shard]
