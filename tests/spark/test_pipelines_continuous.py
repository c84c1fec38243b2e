"""A pipeline that runs until it is stopped or fails, on real queries. Streams are folders here."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline_planner import Pipeline
from pipeline_planner.running import PipelineStageError, RunningPipeline, StageState
from tests.support.pipeline_runs import patiently
from tests.support.stream_folders import FolderSystem, register, services

_DEADLINE_S: Final = 400


def carriers(frame: DataFrame) -> DataFrame:
    return frame.select(F.get_json_object(F.col("value").cast("string"), "$.carrier").alias("id"))


def careful(frame: DataFrame) -> DataFrame:
    """Fails at the carrier XX."""
    refused = F.raise_error(F.lit("an unknown carrier")).cast("string")
    return frame.withColumn("id", F.when(F.col("id") == "XX", refused).otherwise(F.col("id")))


def lenient(frame: DataFrame) -> DataFrame:
    return frame


def described(check: Callable[[DataFrame], DataFrame]) -> Pipeline:
    pipeline = Pipeline("delays")
    by_id = pipeline.input("kafka", "flights").transform(carriers).partition_by("id", name="by-id")
    by_id.transform(check).output("kafka", "out", name="checked")
    return pipeline


def wait_for_rows(kafka: FolderSystem, running: RunningPipeline, count: int) -> None:
    """Until the output has so many."""
    deadline = time.monotonic() + _DEADLINE_S
    while len(kafka.values("out")) < count:
        assert not running.await_termination(0.2), "the pipeline has ended"
        assert time.monotonic() < deadline, running.status


def test_it_runs_until_a_stage_fails_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    known, kafka = services(tmp_path / "streams")
    for name in ("flights", "out"):
        kafka.create(name, 2)

    def run(check: Callable[[DataFrame], DataFrame]) -> RunningPipeline:
        planned = described(check).plan(known, root=str(tmp_path / "root"))
        return planned.run(spark, known, processing_time="0 seconds")

    kafka.put("flights", {"carrier": "AA"})

    def run_until_it_fails() -> None:
        with run(careful) as running:
            runs.append(running)
            if len(kafka.values("flights")) == 1:
                wait_for_rows(kafka, running, 1)
                assert {stage.state for stage in running.status} == {StageState.RUNNING}
                kafka.put("flights", {"carrier": "XX"})
            assert running.await_termination(_DEADLINE_S), running.status

    runs: list[RunningPipeline] = []
    with pytest.raises(PipelineStageError, match="stage checked") as caught:
        patiently(run_until_it_fails)
    assert caught.value.stage == "checked"
    assert "an unknown carrier" in str(caught.value.__cause__)
    assert {stage.stage: stage.state for stage in runs[-1].status} == {
        "by-id": StageState.STOPPED,
        "checked": StageState.FAILED,
    }
    assert not [q for q in spark.streams.active if str(q.name).startswith("delays/")]
    assert kafka.values("out") == [{"id": "AA"}]

    # Mended, it goes on with what it failed at.
    kafka.put("flights", {"carrier": "UA"})

    def run_until_it_is_stopped() -> RunningPipeline:
        with run(lenient) as running:
            wait_for_rows(kafka, running, 3)
            while not all(stage.batch is not None for stage in running.status):
                assert not running.await_termination(0.1)
        return running

    stopped = patiently(run_until_it_is_stopped)
    assert {stage.state for stage in stopped.status} == {StageState.STOPPED}
    assert kafka.values("out") == [{"id": name} for name in ("AA", "XX", "UA")]
