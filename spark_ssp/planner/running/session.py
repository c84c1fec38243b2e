"""Checks a Spark session before a pipeline starts."""

from __future__ import annotations

import importlib.util
import logging
from typing import Final

from pyspark.sql import SparkSession

from spark_ssp.common.spark.state_store import PROVIDER, PROVIDER_SETTING, is_rocksdb
from spark_ssp.planner.running.errors import SessionSettingError

_log = logging.getLogger(__name__)

_SHUFFLE: Final = "spark.sql.shuffle.partitions"
_MANY: Final = 4
"""Factor by which a shuffle's partitions may exceed the parallel tasks without a warning."""


def is_remote(spark: SparkSession) -> bool:
    """Return whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_state_store(spark: SparkSession) -> None:
    """Check the requirements of `transformWithState`: RocksDB in the JVM, pandas beside PySpark.
    Raises SessionSettingError."""
    found = spark.conf.get(PROVIDER_SETTING)
    if not is_rocksdb(found):
        raise SessionSettingError(
            PROVIDER_SETTING,
            found=str(found),
            expected=f"{PROVIDER}, Spark's only provider for the state of tables and deduplication",
            next_step=f'before run: spark.conf.set("{PROVIDER_SETTING}", "{PROVIDER}")',
        )
    if importlib.util.find_spec("pandas") is None:
        raise SessionSettingError(
            "pandas",
            found="no such package in this environment",
            expected="pandas, which PySpark requires for stateful operators",
            next_step='pip install "pandas<3", here and on all hosts of Spark\'s Python workers',
        )


def warn_many_tasks(spark: SparkSession) -> None:
    """Log a warning if batches of stages with state have far more tasks than can run in
    parallel."""
    if is_remote(spark):
        return
    shuffled = spark.conf.get(_SHUFFLE) or ""
    # On a cluster these are the executors registered so far; more may follow.
    at_once = spark.sparkContext.defaultParallelism
    if shuffled.isdecimal() and int(shuffled) > _MANY * at_once:
        _log.warning(
            "%s is %s, and Spark has cores for %d tasks now: each batch of a stage with state (a "
            "table, an intermediate stream) takes %s Python tasks, and a stage's first batch fixes "
            "the number for its checkpoint. Before the first run set it to about the number of "
            "cores of the complete cluster",
            _SHUFFLE,
            shuffled,
            at_once,
            shuffled,
        )
