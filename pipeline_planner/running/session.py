"""What a pipeline needs of a Spark session, and what is worth knowing of it before it starts."""

from __future__ import annotations

import importlib.util
import logging
from typing import Final

from pyspark.sql import SparkSession

from pipeline_planner.running.errors import SessionSettingError
from ssp_common.spark.state_store import PROVIDER, PROVIDER_SETTING, is_rocksdb

_log = logging.getLogger(f"spark_ssp.{__name__}")

_SHUFFLE: Final = "spark.sql.shuffle.partitions"
_MANY: Final = 4
"""So many times the tasks that can run at once are too many for a shuffle."""


def is_remote(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_state_store(spark: SparkSession) -> None:
    """What `transformWithState` needs: RocksDB in the JVM, pandas beside PySpark. Raises
    SessionSettingError."""
    found = spark.conf.get(PROVIDER_SETTING)
    if not is_rocksdb(found):
        raise SessionSettingError(
            PROVIDER_SETTING,
            found=str(found),
            expected=f"{PROVIDER}: tables, and repeats that are dropped, are state that no other "
            "provider of Spark's can hold",
            next_step=f'before run: spark.conf.set("{PROVIDER_SETTING}", "{PROVIDER}")',
        )
    if importlib.util.find_spec("pandas") is None:
        raise SessionSettingError(
            "pandas",
            found="no such package in this environment",
            expected="pandas, without which PySpark makes no stateful operator",
            next_step='pip install "pandas<3", here and wherever Python workers of Spark run',
        )


def warn_many_tasks(spark: SparkSession) -> None:
    """Log it where each batch of a stage with state would take far more tasks than can run."""
    if is_remote(spark):
        return
    shuffled = spark.conf.get(_SHUFFLE) or ""
    # On a cluster it is what has been registered so far, and says nothing of what will be there.
    at_once = spark.sparkContext.defaultParallelism
    if shuffled.isdecimal() and int(shuffled) > _MANY * at_once:
        _log.warning(
            "%s is %s, and Spark has places for %d tasks now: each batch of a stage with state (a "
            "table, a stream in between) takes %s Python tasks, and a stage's first batch fixes "
            "the number for its checkpoint. Before the first run set it to about as many as there "
            "are cores when all are there",
            _SHUFFLE,
            shuffled,
            at_once,
            shuffled,
        )
