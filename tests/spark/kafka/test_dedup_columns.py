"""Columns on their way through the operator that drops duplicates, by Spark's expressions."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_ssp.kafka_source.dedup.deduplicate import HEADERS, passed_as, spread

HEADER = ("key", b"\x00\xff")


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_headers_return_as_they_were(spark: SparkSession, ansi: str) -> None:
    rows = [
        (None,),
        ([],),
        ([HEADER],),
        ([HEADER, HEADER, ("", b""), ("", None)],),
        ([HEADER] * 5,),
        ([(None, b"value"), (None, None)],),
        ([None, HEADER],),
    ]
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        frame = spark.createDataFrame(rows, f"headers {HEADERS}")
        passed = passed_as(HEADERS)
        columns = passed.pack(F.col("headers"))
        names = [f"column{place}" for place in range(len(columns))]
        packed = frame.select(*(one.alias(name) for one, name in zip(columns, names, strict=True)))
        assert tuple(kind for _, kind in packed.dtypes) == passed.kinds
        found = packed.select(passed.unpack([F.col(name) for name in names]).alias("headers"))
        assert found.collect() == frame.collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


@pytest.mark.parametrize("tasks", [2, 3, 4])
def test_the_partitions_of_a_topic_are_spread_evenly(spark: SparkSession, tasks: int) -> None:
    keys = spark.range(12).selectExpr("'orders' AS topic", "CAST(id AS INT) AS partition")
    keyed = keys.withColumn("spread", spread()).repartition(tasks, "topic", "partition", "spread")
    found = keyed.groupBy(F.spark_partition_id()).count().collect()
    assert [row["count"] for row in found] == [12 // tasks] * tasks
