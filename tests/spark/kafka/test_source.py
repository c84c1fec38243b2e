"""Kafka read by real queries from a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from spark_ssp.kafka_source.source import spark_schema
from tests.support.kafka.queries import (
    BlockExpansion,
    KafkaRow,
    KafkaSink,
    check_keys,
    check_read_once,
)
from tests.support.kafka.topics import KafkaTopics, Put, Record
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import (
    await_end,
    failure_of,
    run_to_end,
    running,
    start,
    wait_for_idle_reports,
    wait_for_rows,
)

MINUTE = 60_000
TIMED = {"trigger": "processingTime"}
"""Required by limits before PySpark 4.2."""


@dataclass
class Feed:
    """One topic, to which numbers are put under ten keys, one a minute of the records' time."""

    topics: KafkaTopics
    topic: str
    options: dict[str, str]
    records: list[Put] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def put(self, records: int) -> None:
        self.records += self.topics.put(
            self.topic,
            [
                Record(key=b"key-%d" % (n % 10), value=b"%d" % n, time_ms=(n + 1) * MINUTE)
                for n in (next(self.numbers) for _ in range(records))
            ],
        )

    def ends(self, partitions: int) -> dict[str, int]:
        """Where each partition ends, as offsets stand in JSON."""
        return {
            str(partition): sum(one.partition == partition for one in self.records)
            for partition in range(partitions)
        }


@pytest.fixture
def feed(kafka_broker: KafkaBroker, topics: KafkaTopics) -> Feed:
    topic = topics.create(2, config={"retention.ms": "-1"})
    options = {
        **kafka_broker.options,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeTask": "true",
        "partitionDiscoveryInterval": "200ms",
    }
    return Feed(topics=topics, topic=topic, options=options)


def frame(spark: SparkSession, feed: Feed, **changed: str) -> Any:
    return spark.readStream.format("kafka-ssp").options(**(feed.options | changed)).load()


def lag(progress: Any) -> Any:
    """What the source reports, in a query's progress."""
    (source,) = progress["sources"]
    return json.loads(source["latestOffset"])


def test_keys_stay_with_their_tasks_through_expansions_and_restarts(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    sink = KafkaSink()
    feed.put(40)
    with running(frame(spark, feed), sink, tmp_path) as query:
        wait_for_rows(query, sink, 40)
        feed.topics.expand(feed.topic, 4)
        feed.put(60)
        wait_for_rows(query, sink, 100)
        wait_for_idle_reports(query, 1)
        progress = query.lastProgress
    assert lag(progress)["sumOffsetsBehindLatest"] == 0
    by_partition = lag(progress)["topics"][feed.topic]["offsetsBehindLatest"]
    assert by_partition == {"0": 0, "1": 0, "2": 0, "3": 0}
    feed.put(40)
    feed.topics.expand(feed.topic, 8)
    feed.put(60)
    batches = len(sink.sizes())
    limited = frame(spark, feed, **TIMED, maxOffsetsPerTrigger="20")
    ended = run_to_end(limited, sink, tmp_path)
    assert len(sink.sizes()) - batches >= 5
    assert max(sink.sizes()[batches:]) <= 20 + 8
    behind = [
        lag(report)["sumOffsetsBehindLatest"]
        for report in ended.recentProgress
        if report["numInputRows"]
    ]
    assert behind == sorted(behind, reverse=True)
    assert behind[-1] == 0
    check_read_once(sink.rows, feed.records)
    check_keys(sink.rows)
    assert {(row.task, row.ssp) for row in sink.rows} == {("Partition 0", 0), ("Partition 1", 1)}
    partitions = {row.partition for row in sink.rows}
    assert partitions & {2, 3}, "keys moved with the first expansion"
    assert partitions & {4, 5, 6, 7}, "and with the second"


def test_available_now_reads_all_in_one_run_or_refuses_a_limit(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """Before PySpark 4.2 such a run is one batch, which a limit would end early."""
    sink = KafkaSink()
    limited = {"maxOffsetsPerTrigger": "20"}
    waiting = {"minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1h"}
    for changed in (waiting, limited, {}):
        feed.put(50)
        query = start(frame(spark, feed, **changed), sink, tmp_path, "available now")
        if changed is limited and not PASSES_LIMITS:
            assert "maxOffsetsPerTrigger: found PySpark 4." in failure_of(query)
            continue
        await_end(query)
        check_read_once(sink.rows, feed.records)
    assert [sink.sizes()[0], sink.sizes()[-1]] == [50, 50 if PASSES_LIMITS else 100]
    assert max(sink.sizes()[1:-1], default=0) <= 20


def test_tasks_are_as_the_options_say(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    blocks = f"{BlockExpansion.__module__}.{BlockExpansion.__qualname__}"
    wanted = {
        "ssp": {"grouper": "ssp", "partitionExpansionAlgorithm": blocks},
        "single": {"grouper": "single", "maxBytesPerTrigger": "1", **TIMED},
        "fewer": {"tasks": "1"},
    }
    sinks = {name: KafkaSink() for name in wanted}
    for partitions in (2, 6):
        if partitions > 2:
            feed.topics.expand(feed.topic, partitions)
        feed.put(20)
        for name, options in wanted.items():
            run_to_end(frame(spark, feed, **options), sinks[name], tmp_path / name)
    for sink in sinks.values():
        check_read_once(sink.rows, feed.records)

    tasks = {name: {row.partition: row.task for row in sinks[name].rows} for name in wanted}
    whole = [f"SystemStreamPartition [kafka, {feed.topic}, {n}]" for n in range(2)]
    blocks_of = {0: 0, 1: 1, 2: 0, 3: 0, 4: 1, 5: 1}
    assert tasks["ssp"] == {partition: whole[blocks_of[partition]] for partition in tasks["ssp"]}
    assert tasks["ssp"].keys() & {3, 4}, "no key came to where modulo would say otherwise"
    assert set(tasks["single"].values()) == {"Task-0"}
    assert set(tasks["fewer"].values()) == {"Partition 0"}
    assert max(sinks["single"].sizes()) <= 6, "each partition has at least one offset, and no more"


def test_a_stream_begins_at_the_given_position(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.put(20)
    middle = feed.ends(2)
    feed.put(20)
    first = feed.records
    starts = {
        "latest": ({"startingOffsets": "latest"}, []),
        "offsets": (
            {"startingOffsets": f'{{"{feed.topic}": {{"0": {middle["0"]}, "1": -2}}}}'},
            [one for one in first if one.partition == 1 or one.offset >= middle["0"]],
        ),
        "time": ({"startingTimestamp": str(31 * MINUTE)}, first[30:]),
    }
    sinks = {name: KafkaSink() for name in starts}
    for name, (options, expected) in starts.items():
        run_to_end(frame(spark, feed, **options), sinks[name], tmp_path / name)
        check_read_once(sinks[name].rows, expected)
    feed.put(10)
    later = feed.records[40:]
    for name, (options, expected) in starts.items():
        # Once reads all there is, whatever the limit; PySpark before 4.2 refuses one.
        limit = {"maxOffsetsPerTrigger": "1"} if PASSES_LIMITS else {}
        run_to_end(frame(spark, feed, **options, **limit), sinks[name], tmp_path / name, "once")
        check_read_once(sinks[name].rows, [*expected, *later])
        assert sinks[name].sizes()[-1] == 10


def test_a_batch_query_reads_what_lies_between_its_bounds(spark: SparkSession, feed: Feed) -> None:
    feed.put(30)
    ends = feed.ends(2)

    def rows(**options: str) -> list[KafkaRow]:
        given = {name: text for name, text in feed.options.items() if name != "startingOffsets"}
        loaded = spark.read.format("kafka-ssp").options(**given, **options).load()
        return [
            KafkaRow(*row[:5], *map(bytes, row[5:]))
            for row in loaded.select(*KafkaRow._fields).collect()
        ]

    everything = rows()
    check_read_once(everything, feed.records)
    assert {row.task for row in everything} == {"Partition 0", "Partition 1"}
    between = {
        "startingTimestamp": str(11 * MINUTE),
        "endingTimestamp": str(21 * MINUTE),
    }
    check_read_once(rows(**between), feed.records[10:20])
    last = f'{{"{feed.topic}": {{"0": {ends["0"] - 1}, "1": -1}}}}'
    check_read_once(rows(endingOffsets=last), [one for one in feed.records if not _last(one, ends)])
    tolerated = {"startingOffsets": f'{{"{feed.topic}": {{"0": 9999, "1": -2}}}}'}
    with pytest.raises(PySparkException, match=rf"(?s)data-loss.*{feed.topic}-0.*9999"):
        rows(**tolerated)
    found = rows(**tolerated, failOnDataLoss="false")
    check_read_once(found, [one for one in feed.records if one.partition == 1])


@pytest.mark.core("columns")
def test_any_columns_in_any_order_in_batch_reads_and_streams(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """A restarted stream may request others; a value that is not text fails it until it is read as
    bytes."""
    feed.put(30)
    batch = spark.read.format("kafka-ssp").options(**feed.options)
    found = batch.schema("task string, value string, offset bigint").load().collect()
    assert sorted(found) == sorted(
        (f"Partition {one.partition}", (one.record.value or b"").decode(), one.offset)
        for one in feed.records
    )
    assert batch.schema("timestampType int").load().distinct().collect() == [(0,)]

    rows: list[Row] = []

    def keep(frame: DataFrame, _: int) -> None:
        rows.extend(frame.collect())

    stream = spark.readStream.format("kafka-ssp").options(**feed.options)
    text, raw = stream.schema("value string, key binary").load(), stream.schema("value binary")
    run_to_end(text, keep, tmp_path)
    assert sorted(rows) == sorted(
        ((one.record.value or b"").decode(), one.record.key) for one in feed.records
    )
    rows.clear()
    (bad,) = feed.topics.put(feed.topic, [Record(key=b"k", value=b"\xff")])
    failure = failure_of(start(text, keep, tmp_path, "available now"))
    assert (
        "invalid-request] the record at offset "
        f"{bad.offset} of partition {feed.topic}-{bad.partition}" in failure
    )
    run_to_end(raw.load(), keep, tmp_path)
    assert rows == [(b"\xff",)]


def _last(one: Put, ends: dict[str, int]) -> bool:
    return one.partition == 0 and one.offset == ends["0"] - 1


def test_wrong_options_are_reported_by_name(
    spark: SparkSession, feed: Feed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PySparkException) as raised:
        spark.readStream.format("kafka-ssp").option("grouper", "none").load()
    assert all(
        name in str(raised.value)
        for name in ("invalid-options", "subscribe", "grouper", "kafka.bootstrap.servers")
    )
    reader = spark.readStream.format("kafka-ssp").options(**feed.options)
    other = start(reader.schema("body string").load(), KafkaSink(), tmp_path / "schema")
    assert "unsupported] .schema(...), column body" in failure_of(other)
    batch = spark.read.format("kafka-ssp").options(**feed.options)
    with pytest.raises(PySparkException, match="startingOffsets: found latest"):
        batch.option("startingOffsets", "latest").load().count()
    unknown = {"subscribe": f"{feed.topic},no-such-topic", "fetchOffset.numRetries": "1"}
    missing = start(frame(spark, feed, **unknown), KafkaSink(), tmp_path / "missing")
    assert "option subscribe: found topics that do not exist: no-such-topic" in failure_of(missing)
    secret = frame(
        spark,
        feed,
        **{"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.password": "plainly-visible"},
        **{"kafka.security.protocol": "SASL_SSL", "kafka.sasl.username": "me"},
    )
    assert secret.schema == spark_schema(include_headers=False, include_task=True)
    secret.explain(extended=True)
    text = capsys.readouterr().out
    assert "kafka-ssp" in text
    assert "plainly-visible" not in text
