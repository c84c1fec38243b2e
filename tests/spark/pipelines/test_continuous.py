"""A pipeline that runs until it is stopped or fails, on real queries. Streams are folders here."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ssp.planner import Pipeline
from spark_ssp.planner.running import PipelineStageError, RunningPipeline, StageState
from tests.support.fakes.stream_folders import FolderSystem, register, services
from tests.support.pipelines.runs import patiently, session_for_pipelines

_DEADLINE_S: Final = 400


def carriers(frame: DataFrame) -> DataFrame:
    return frame.select(F.get_json_object(F.col("value").cast("string"), "$.carrier").alias("id"))


def named(frame: DataFrame) -> DataFrame:
    name = F.get_json_object(F.col("value").cast("string"), "$.name")
    return frame.select(F.col("key").cast("string").alias("id"), name.alias("name"))


def careful(frame: DataFrame) -> DataFrame:
    """Fails at the carrier XX."""
    refused = F.raise_error(F.lit("an unknown carrier")).cast("string")
    return frame.withColumn("id", F.when(F.col("id") == "XX", refused).otherwise(F.col("id")))


def lenient(frame: DataFrame) -> DataFrame:
    return frame


def described(check: Callable[[DataFrame], DataFrame]) -> Pipeline:
    """Flights with the names of their carriers. These come to their table through a stream between
    the stages, which must be read to its end whenever the pipeline begins."""
    pipeline = Pipeline("delays")
    names = pipeline.table("names", key="id")
    by_id = pipeline.input("kafka", "names").transform(named).partition_by("id", name="by-id")
    names.side_input(by_id)
    flights = pipeline.input("kafka", "flights").transform(carriers)
    flights.join_table(names, how="left").transform(check).output("kafka", "out", name="checked")
    return pipeline


def wait_for_rows(kafka: FolderSystem, running: RunningPipeline, count: int) -> None:
    """Until the output has so many."""
    deadline = time.monotonic() + _DEADLINE_S
    while len(kafka.values("out")) < count:
        assert not running.await_termination(0.2), "the pipeline has ended"
        assert time.monotonic() < deadline, running.status


@pytest.mark.long
def test_it_runs_until_a_stage_fails_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = session_for_pipelines(spark)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    register(session)
    known, kafka = services(tmp_path / "streams")
    for name in ("flights", "names", "out"):
        kafka.create(name, 2)

    def run(check: Callable[[DataFrame], DataFrame]) -> RunningPipeline:
        planned = described(check).plan(known, root=str(tmp_path / "root"))
        return planned.run(session, known, processing_time="200 milliseconds")

    kafka.put("flights", {"carrier": "AA"})
    kafka.put("names", ("AA", {"name": "American"}))
    kafka.put("names", ("AA", {"name": "American Airlines"}))

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
    assert not [q for q in session.streams.active if str(q.name).startswith("delays/")]
    assert kafka.values("out") == [{"id": "AA", "name": "American Airlines"}]

    # Mended, it goes on with what it failed at, and with the names as they were for that batch.
    kafka.put("flights", {"carrier": "UA"})
    kafka.put("names", ("XX", {"name": "Extra"}), ("UA", {"name": "Union"}))
    kafka.put("names", ("UA", {"name": "United"}))

    def run_until_it_is_stopped() -> RunningPipeline:
        with run(lenient) as running:
            wait_for_rows(kafka, running, 3)
            while not all(stage.batch is not None for stage in running.status):
                assert not running.await_termination(0.1)
        return running

    stopped = patiently(run_until_it_is_stopped)
    assert {stage.state for stage in stopped.status} == {StageState.STOPPED}
    assert kafka.values("out")[1:] == [{"id": "XX", "name": None}, {"id": "UA", "name": "United"}]
