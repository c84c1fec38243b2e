"""Benchmarks that need nothing run; and each one there is runs in some test."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks.catalogue import CATALOGUE, Benchmark, modules
from benchmarks.kafka.triggers import latencies
from benchmarks.kinesis.bulk import CORES, tenth
from benchmarks.kinesis.reshard_at_scale import check_order
from benchmarks.leases.hand_overs import EVENTS, Other
from benchmarks.support.growth import Grown, draw
from benchmarks.support.page_server import Load
from benchmarks.support.report import OUTPUT_VARIABLE, quantile, spread
from benchmarks.support.sessions import local_spark
from tests.support.spark.benchmark_runs import (
    ON_SPARK,
    PURE,
    SERVED,
    arguments_of,
    check,
    is_picture,
    parsed,
    run_of,
)


def test_every_benchmark_is_in_the_catalogue_and_in_a_test() -> None:
    names = [benchmark.name for benchmark in CATALOGUE]
    assert sorted(names) == sorted(modules())
    assert sorted([*PURE, *SERVED, *ON_SPARK]) == sorted(modules())


@pytest.mark.parametrize("benchmark", CATALOGUE, ids=lambda benchmark: benchmark.name)
def test_a_small_run_is_a_command(benchmark: Benchmark) -> None:
    arguments = vars(parsed(f"python -m benchmarks.{benchmark.name} {benchmark.small}"))
    assert arguments
    run = inspect.signature(run_of(benchmark.name))
    fixtures = (p for p in run.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD)
    run.bind(*fixtures, **arguments)


@pytest.mark.parametrize("name", PURE)
def test_it_runs(name: str, tmp_path: Path) -> None:
    check(run_of(name)(**arguments_of(name)), name, tmp_path)


def test_latency_lasts_from_the_timestamp_to_the_end_of_the_trigger() -> None:
    progress = [
        {
            "batchId": 7,
            "timestamp": "2026-01-01T00:00:01.250Z",
            "numInputRows": 2,
            "durationMs": {"triggerExecution": 100},
        }
    ]
    begun = 1_767_225_600_000  # 2026-01-01
    arrivals = {7: [begun + 1_000.0, begun + 1_240.0], 8: [begun + 1_300.0]}
    assert latencies(progress, arrivals) == [350.0, 110.0]


def test_records_that_were_not_seen_are_reported() -> None:
    progress = [
        {
            "batchId": 7,
            "timestamp": "2026-01-01T00:00:01.250Z",
            "numInputRows": 2,
            "durationMs": {"triggerExecution": 100},
        }
    ]
    with pytest.raises(AssertionError, match="batch 7 had 2 rows, 1 were seen"):
        latencies(progress, {7: [0.0]})


def test_records_of_different_keys_may_come_in_any_order() -> None:
    check_order([1, 0, *range(2, 9), 10, 9], 11, keys=9)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([0, 1, 1, 2], "of key 1 record 1 came"),
        ([0, 10, 1, 2], "of key 1 record 10 came, not 1"),
        ([0, 2], "1 keys lack records, one of them 1"),
        ([0, 1, 2, 3], "of key 3 record 3 came, not 3, of 3 records"),
    ],
    ids=["twice", "out of order", "missing", "never put"],
)
def test_a_record_that_is_not_read_once_and_in_order_is_an_error(
    numbers: list[int], found: str
) -> None:
    with pytest.raises(AssertionError, match=found):
        check_order(numbers, 3, keys=9)


@pytest.mark.parametrize(("part", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_quantile_is_the_nearest_rank(part: float, value: int) -> None:
    assert quantile(range(100, 0, -1), part) == value
    assert quantile([7.0], part) == 7


@pytest.mark.parametrize(("shards", "pages"), [(1, 100), (2, 5), (16, 6), (16, 12), (128, 2)])
def test_a_part_of_the_pages_is_shared_out_as_evenly_as_all(shards: int, pages: int) -> None:
    work = tenth(Load(shards=shards, pages=pages, size=200))
    assert all(0 <= shard < shards and 0 < many <= pages for shard, many in work)
    assert 0 < sum(many for _, many in work) <= max(shards * pages / 5, CORES)
    assert min(shards, CORES) == len({shard % CORES for shard, _ in work})
    assert len(work) % min(shards, CORES) == 0


def test_the_command_runs_the_given_parts(tmp_path: Path) -> None:
    name = "planning.partition_planning"
    command = [sys.executable, "-m", "benchmarks", "--small", name]
    environment = {**os.environ, OUTPUT_VARIABLE: str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert f"[1/1] {name}" in ended.stdout
    written = json.loads((tmp_path / "small" / f"{name}.json").read_text(encoding="utf-8"))
    assert written["figures"]
    assert is_picture(tmp_path / "small" / f"{name}.png")


def test_growth_is_drawn(tmp_path: Path) -> None:
    report = run_of("planning.partition_planning")(partitions=100, tasks=[2], rounds=1)
    assert is_picture(draw(report, tmp_path / "growth.png"))


def test_growth_is_the_slope_on_logarithmic_axes() -> None:
    def grown(*milliseconds: float) -> Grown:
        return Grown(
            sizes=(250, 500, 1000),
            milliseconds=tuple(spread([ms]) for ms in milliseconds),
            bare=spread([2.0]),
        )

    assert grown(1, 2, 4).exponent == pytest.approx(1)
    assert grown(1, 4, 16).exponent == pytest.approx(2)
    assert grown(3, 3, 3).exponent == pytest.approx(0)
    assert grown(1, 2, 4).times_bare == 2


# --- What hand-overs and sessions are made of ----------------------------------------------------


@pytest.mark.parametrize("event", EVENTS)
def test_what_happens_to_a_worker_is_what_its_name_says(event: str) -> None:
    sleep = [sys.executable, "-S", "-c", "input()"]
    ours, theirs = multiprocessing.Pipe()
    with (
        subprocess.Popen(sleep, stdin=subprocess.PIPE) as reader,
        subprocess.Popen(sleep, stdin=subprocess.PIPE) as agent,
    ):
        process: Any = reader
        EVENTS[event](Other(process=process, pipe=ours), agent.pid)
        told = theirs.recv() if theirs.poll() else None
        for one in (reader, agent):
            one.communicate(b"\n")
    killed = {
        "it leaves (stop_gracefully)": (),
        "its reader ends": (),
        "its reader is killed": (reader,),
        "reader and agent are killed": (reader, agent),
    }[event]
    for one in (reader, agent):
        assert one.returncode == (-signal.SIGKILL if one in killed else 0)
    words = {"it leaves (stop_gracefully)": "leave", "its reader ends": "end"}
    assert told == words.get(event)


def test_a_session_of_benchmarks_has_what_the_guide_recommends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing of a JVM but where further jars are."""
    asked: dict[str, str] = {}
    levels: list[str] = []

    def get_or_create(builder: Any) -> Any:
        asked.update(builder._options)
        return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=levels.append))

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", get_or_create)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    local_spark(3, class_path="one.jar")
    assert asked.pop("spark.app.name")
    assert asked == {
        "spark.master": "local[3]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": "one.jar",
        "spark.driver.host": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.ui.enabled": "false",
    }
    assert levels == ["ERROR"]
