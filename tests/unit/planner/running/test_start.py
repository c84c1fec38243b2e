"""Checks of a Spark session before a pipeline starts, without a JVM."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from spark_ssp.common.spark.batch_plan import ADAPTIVE_QUERY, ADAPTIVE_STREAM
from spark_ssp.common.spark.pyspark_api import WRITES_ARROW
from spark_ssp.common.spark.requirement import PROVIDER, PROVIDER_SETTING
from spark_ssp.kafka_source.pipeline_system import KafkaSystem
from spark_ssp.kinesis_source.pipeline_system import KinesisSystem
from spark_ssp.planner import Pipeline, Services
from spark_ssp.planner.graph.operators import OperatorName
from spark_ssp.planner.graph.systems import SparkFormat
from spark_ssp.planner.running import SessionSettingError
from spark_ssp.planner.running.dataframes import StageQuery
from spark_ssp.planner.running.start import (
    RunSettings,
    check_division,
    check_state_store,
    is_remote,
    phases_of,
    reader_problems,
    start_in,
    trigger_problems,
    warn_many_tasks,
)
from spark_ssp.planner.running.supervisor import Phase


def session(*, provider: str = PROVIDER, tasks: str = "200", cores: int = 2) -> SparkSession:
    conf = {PROVIDER_SETTING: provider, "spark.sql.shuffle.partitions": tasks}
    context = SimpleNamespace(defaultParallelism=cores)
    return cast(SparkSession, SimpleNamespace(conf=conf, sparkContext=context))


class Remote:
    """As a session of Spark Connect, which has no `sparkContext`."""


Remote.__module__ = "pyspark.sql.connect.session"


@pytest.mark.parametrize("provider", [PROVIDER, "com.vendor.streaming.RocksDBStateStoreProvider"])
def test_rocksdb_will_do_whoever_ships_it(provider: str) -> None:
    check_state_store(session(provider=provider))


@pytest.mark.parametrize("provider", ["a.HDFSBackedStateStoreProvider", "an.NoRocksDBAtAll"])
def test_another_state_store_will_not(provider: str) -> None:
    with pytest.raises(SessionSettingError, match=f"providerClass: found {provider}; expected org"):
        check_state_store(session(provider=provider))


def test_an_environment_without_pandas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Callable[..., ModuleSpec | None] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "pandas" else found(name)
    )
    with pytest.raises(SessionSettingError, match=r"pandas: found no such .*pip install \"pandas"):
        check_state_store(session())


def test_many_more_tasks_than_can_run_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    warn_many_tasks(session(cores=2))
    (message,) = caplog.messages
    assert message == (
        "spark.sql.shuffle.partitions is 200, and Spark has cores for 2 tasks now: each batch of "
        "a stage with state (a table, an intermediate stream) takes 200 Python tasks, and a "
        "stage's first batch fixes the number for its checkpoint. Before the first run set it "
        "to about the number of cores of the complete cluster"
    )


@pytest.mark.parametrize(("tasks", "cores"), [("8", 2), ("200", 50), ("1", 1), ("auto", 2)])
def test_a_few_more_are_not(caplog: pytest.LogCaptureFixture, tasks: str, cores: int) -> None:
    warn_many_tasks(session(tasks=tasks, cores=cores))
    assert caplog.messages == []


def test_a_remote_session_is_known_and_not_asked_for_what_it_has_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    remote = cast(SparkSession, Remote())
    assert is_remote(remote)
    assert not is_remote(session())
    warn_many_tasks(remote)
    assert caplog.messages == []


def totals(frame: Any, *, exactly_once: bool) -> StageQuery:
    return StageQuery(
        stage=OperatorName("totals"),
        frame=frame,
        writer=SparkFormat("kafka-ssp", {}),
        batch_write_option="batchWriteId",
        needs_fixed_division=exactly_once,
        keeps_state=False,
    )


@pytest.mark.parametrize("mode", ["append", "complete", "update"])
@pytest.mark.parametrize("value", ["true", "false", None])
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_stage_in_transactions_needs_rows_in_the_same_tasks(
    mode: str, value: str | None, exactly_once: bool
) -> None:
    setting = ADAPTIVE_QUERY if mode == "update" else ADAPTIVE_STREAM
    other = ADAPTIVE_STREAM if mode == "update" else ADAPTIVE_QUERY
    conf = {other: "true"} | ({} if value is None else {setting: value})
    spark = cast(SparkSession, SimpleNamespace(conf=conf))
    query = totals(SimpleNamespace(sparkSession=spark, writeStream=None), exactly_once=exactly_once)
    is_checked = exactly_once and (mode == "update" or WRITES_ARROW)
    if not is_checked or value == "false":
        check_division(spark, query, mode)
        return
    with pytest.raises(SessionSettingError) as caught:
        check_division(spark, query, mode)
    assert caught.value.subject == setting
    if mode == "update":
        # If Spark supports no append mode, `prepare` did not know.
        with pytest.raises(SessionSettingError):
            start_in(mode, "p", query, "root", RunSettings(), finite=True)


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("batch", ["true", "false"])
def test_a_stage_of_an_unknown_mode_needs_one_that_its_session_permits(
    stream: str, batch: str
) -> None:
    """Only Spark knows which stages cannot append, and tells when they start."""
    conf = {ADAPTIVE_STREAM: stream, ADAPTIVE_QUERY: batch}
    spark = cast(SparkSession, SimpleNamespace(conf=conf))
    query = totals(SimpleNamespace(), exactly_once=True)
    if "false" in (stream, batch) or not WRITES_ARROW:
        check_division(spark, query, "append", "update")
        return
    with pytest.raises(SessionSettingError) as caught:
        check_division(spark, query, "append", "update")
    assert caught.value.subject == ADAPTIVE_STREAM


def test_a_stage_that_updates_is_refused_on_a_remote_session() -> None:
    frame: Any = SimpleNamespace(sparkSession=Remote(), writeStream=None)
    query = totals(frame, exactly_once=False)
    with pytest.raises(SessionSettingError, match=r"Spark Connect: found .* for stage totals"):
        start_in("update", "p", query, "root", RunSettings(), finite=True)


# --- Phases ---------------------------------------------------------------------------------------


def of_prices(*, bootstrap: bool = False) -> Pipeline:
    """The table of prices is filled through a stage, which runs to completion first."""
    pipeline = Pipeline("p", systems={"kafka": "kafka", "kinesis": "kinesis", "old": "kafka"})
    prices = pipeline.table("prices", key="item")
    changes = pipeline.input("kafka", "prices", bootstrap=bootstrap)
    prices.side_input(changes.partition_by("item", name="by-item"))
    orders = pipeline.input("kinesis", "orders").merge(pipeline.input("old", "returns"))
    orders.partition_by("item", name="by-order").join_table(prices).output("kafka", "out")
    return pipeline


def phases(
    *, available_now: bool, version: str | None, bootstrap: bool = False
) -> tuple[Phase, ...]:
    stages = ("by-item", "by-order", "to-out")
    settings = RunSettings(available_now=available_now)
    return phases_of(of_prices(bootstrap=bootstrap).build(), stages, settings, version)


@pytest.mark.parametrize(("version", "runs"), [("4.1.1", 2), (None, 1)])
def test_a_stage_runs_again_if_its_first_run_may_only_repeat_a_batch(
    version: str | None, runs: int
) -> None:
    first, *others = (
        Phase(stages=(name,), finite=True, runs=runs) for name in ("by-item", "by-order", "to-out")
    )
    assert phases(available_now=True, version=version) == (first, *others)
    everything = Phase(stages=("by-item", "by-order", "to-out"), finite=False)
    assert phases(available_now=False, version=version) == (first, everything)


@pytest.mark.parametrize(
    ("available_now", "bootstrap", "version", "refused"),
    [
        (False, False, "4.1.1", ["kafka"]),
        (False, True, "4.1.1", []),
        (True, False, "4.1.1", ["kafka", "kinesis"]),
        (False, False, None, []),
        (True, False, None, []),
    ],
)
def test_a_declared_trigger_is_refused_where_stages_run_by_another(
    available_now: bool, bootstrap: bool, version: str | None, refused: list[str]
) -> None:
    """With it limits would apply to the only batch of a run, which would leave records unread;
    those of a bootstrap input do not apply."""
    limited = {"maxOffsetsPerTrigger": "1000", " Trigger ": "processingTime"}
    cluster = {"kafka.bootstrap.servers": "localhost:1"}
    services = Services(
        {
            "kafka": KafkaSystem(cluster, reader=limited),
            "kinesis": KinesisSystem({"region": "eu-west-1", "trigger": "processingTime"}),
            "old": KafkaSystem(cluster),
        }
    )
    known = phases(available_now=available_now, version=version, bootstrap=bootstrap)
    graph = of_prices(bootstrap=bootstrap).build()
    problems = [*trigger_problems(graph, services, known, version)]
    assert [problem.option for problem in problems] == ["trigger"] * len(refused)
    assert [problem.found.split()[3].rstrip(",") for problem in problems] == refused


@pytest.mark.parametrize(
    ("streams", "refused"),
    [
        (["orders"], []),
        (["orders", "returns"], ["ApplicationName", "consumerArn"]),
        (["orders", "orders"], ["ApplicationName", "consumerArn", "consumerName"]),
    ],
)
@pytest.mark.parametrize("same_stage", [False, True])
def test_readers_of_kinesis_share_no_application_and_no_consumer(
    streams: list[str], refused: list[str], same_stage: bool
) -> None:
    pipeline = Pipeline("p")
    inputs = {name: pipeline.input("kinesis", name) for name in sorted(set(streams))}
    lines = [inputs[name].filter(f"{number} >= 0") for number, name in enumerate(streams)]
    if same_stage and len(lines) > 1:
        lines = [lines[0].merge(*lines[1:])]
    for number, line in enumerate(lines):
        # Others read the output of this stage.
        made = line.partition_by("item", name=f"made-{number}")
        for part in range(2):
            made.output("kafka", f"out-{number}-{part}")
    own = {"ApplicationName": "a", "consumerName": "c", "consumerArn": "arn", "region": "r"}
    services = Services(
        {
            "kinesis": KinesisSystem(own),
            "kafka": KafkaSystem({"kafka.bootstrap.servers": "localhost:1"}),
        }
    )
    problems = [*reader_problems(pipeline.build(), services)]
    assert [problem.option for problem in problems] == refused
