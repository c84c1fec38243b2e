"""Batch queries: the same options give what Spark's own Kafka source gives, or fail like it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.parity import cases
from tests.support.parity.cases import both_fail, differ
from tests.support.parity.comparison import (
    IN_HASTE,
    OURS,
    SPARKS,
    Failed,
    Pair,
    Read,
    difference,
    read_both,
    tasks_of,
)
from tests.support.parity.topics import ParityTopics, by_partition_json
from tests.support.servers.kafka_broker import KafkaBroker


def _run(
    spark: SparkSession, broker: KafkaBroker, queries: Mapping[str, cases.Options]
) -> dict[str, Pair]:
    return read_both(
        spark, {name: {**broker.options, **IN_HASTE, **given} for name, given in queries.items()}
    )


def test_the_same_rows(
    spark: SparkSession, kafka_broker: KafkaBroker, prepared: ParityTopics
) -> None:
    wanted = cases.same(prepared)
    pairs = _run(spark, kafka_broker, {name: case.options for name, case in wanted.items()})
    _check({name: _same(pair, wanted[name].rows) for name, pair in pairs.items()})


def test_the_same_failures(
    spark: SparkSession, kafka_broker: KafkaBroker, prepared: ParityTopics
) -> None:
    wanted = both_fail(prepared)
    pairs = _run(spark, kafka_broker, {name: case.options for name, case in wanted.items()})
    _check(
        {
            name: _as_meant(pair, wanted[name].sparks, wanted[name].ours)
            for name, pair in pairs.items()
        }
    )


def test_the_differences_that_are_meant(
    spark: SparkSession, kafka_broker: KafkaBroker, prepared: ParityTopics
) -> None:
    wanted = differ(prepared)
    pairs = _run(spark, kafka_broker, {name: case.options for name, case in wanted.items()})
    _check(
        {
            name: _as_meant(pair, wanted[name].sparks, wanted[name].ours)
            for name, pair in pairs.items()
        }
    )


@pytest.mark.parametrize(
    "options",
    [
        {"minPartitions": "7"},
        {"maxRecordsPerPartition": "9"},
        {"minPartitions": "20", "maxRecordsPerPartition": "30"},
    ],
)
def test_the_same_tasks(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, options: dict[str, str]
) -> None:
    """Spark's source applies maxRecordsPerPartition to the numbers in the options, so alone it has
    no effect on a read from `earliest`, -2, to `latest`, -1."""
    topic = topics.create(4)
    sizes = (5, 45, 85, 0)
    records = [Record(value=b"", partition=p) for p, size in enumerate(sizes) for _ in range(size)]
    topics.put(topic, records)
    bounds = {
        "startingOffsets": by_partition_json(topic, 0, 0, 0, 0),
        "endingOffsets": by_partition_json(topic, *sizes),
    }
    given = {**kafka_broker.options, **options, **bounds, "subscribe": topic}
    sparks, ours = (
        tasks_of(spark.read.format(source).options(**given).load()) for source in (SPARKS, OURS)
    )
    assert ours == sparks
    assert len(ours) > 3


def _check(found: Mapping[str, str | None]) -> None:
    wrong = [f"- {name}: {what}" for name, what in found.items() if what is not None]
    assert not wrong, "\n".join(wrong)


def _same(pair: Pair, rows: int) -> str | None:
    if isinstance(pair.sparks, Read) and pair.sparks.count != rows:
        return f"Spark's has {pair.sparks.count} rows instead of {rows}"
    return difference(pair)


def _as_meant(pair: Pair, sparks: int | str, ours: int | str) -> str | None:
    return _unlike("Spark's", pair.sparks, sparks) or _unlike("ours", pair.ours, ours)


def _unlike(whose: str, found: Read | Failed, wanted: int | str) -> str | None:
    """`wanted` is a number of rows, or a pattern for the message of a failure."""
    if isinstance(wanted, int):
        if isinstance(found, Failed):
            return f"{whose} fails: {found.message[:1000]}"
        return None if found.count == wanted else f"{whose} has {found.count} rows"
    if isinstance(found, Read):
        return f"{whose} does not fail but has {found.count} rows"
    if re.search(wanted, found.message, re.DOTALL) is None:
        return f"{whose} fails in another way: {found.message[:1000]}"
    return None
