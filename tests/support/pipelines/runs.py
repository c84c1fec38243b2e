"""Runs of pipelines on real queries, on a machine that may be too busy for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from spark_ssp.common.spark.requirement import PROVIDER, PROVIDER_SETTING
from spark_ssp.planner.running import PipelineStageError

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_TOO_BUSY: Final = "Python worker failed to connect back"

Result = TypeVar("Result")


def session_for_pipelines(spark: SparkSession) -> SparkSession:
    """Return a session with the settings that pipelines need, on the same Spark."""
    own = spark.newSession()
    own.conf.set(PROVIDER_SETTING, PROVIDER)
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


def patiently(run: Callable[[], Result]) -> Result:
    """Return the result of `run`. Spark gives a new Python process ten seconds to report,
    regardless of its settings. On a machine too busy for that, the pipeline fails and is run again
    from its checkpoints. So `run` must not rely on being the first attempt."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return run()
        except PipelineStageError as failure:
            if _TOO_BUSY not in str(failure.__cause__):
                raise
            _log.warning("the machine is too busy, the pipeline is run again: %s", failure)
    return run()
