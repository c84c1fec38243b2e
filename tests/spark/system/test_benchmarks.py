"""Benchmarks of real queries run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.benchmark_runs import ON_SPARK, check, run_on_spark


@pytest.mark.long
@pytest.mark.parametrize("name", ON_SPARK)
def test_it_runs(name: str, spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    report = run_on_spark(name, spark, kafka_broker, tmp_path)
    check(report, name, tmp_path)
    # Those of tests/spark/conf: they make figures others than a user's.
    assert {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"} <= {*report.jvm}
