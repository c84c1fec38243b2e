"""Checks of a Spark session before a pipeline starts, without a JVM."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from spark_ssp.common.spark.requirement import PROVIDER, PROVIDER_SETTING
from spark_ssp.planner.graph.operators import OperatorName
from spark_ssp.planner.graph.systems import SparkFormat
from spark_ssp.planner.running import SessionSettingError
from spark_ssp.planner.running.dataframes import StageQuery
from spark_ssp.planner.running.start import (
    RunSettings,
    check_state_store,
    is_remote,
    start_in,
    warn_many_tasks,
)


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


def test_a_stage_that_updates_is_refused_on_a_remote_session() -> None:
    frame: Any = SimpleNamespace(sparkSession=Remote(), writeStream=None)
    query = StageQuery(
        stage=OperatorName("totals"),
        frame=frame,
        writer=SparkFormat("kafka-ssp", {}),
        batch_write_option="batchWriteId",
        keeps_state=False,
    )
    with pytest.raises(SessionSettingError, match=r"Spark Connect: found .* for stage totals"):
        start_in("update", "p", query, "root", RunSettings(), finite=True)
