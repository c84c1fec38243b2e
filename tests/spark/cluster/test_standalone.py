"""A standalone cluster whose executors get the project as a packed environment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.cluster.standalone import (
    PackedEnvironment,
    StandaloneCluster,
    cluster_driver,
    cluster_records,
    wait_for,
    wait_for_records,
)
from tests.support.kinesis.feeds import Feed
from tests.support.spark.drivers import committed_rows

_HOSTS = dict.fromkeys(("master", "worker-1", "worker-2"), "127.0.0.1")


@pytest.mark.long
@pytest.mark.core("standalone cluster")
def test_a_query_from_a_packed_environment_survives_a_lost_worker(
    feed: Feed, options: dict[str, str], packed: PackedEnvironment, tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 60)
    hold = tmp_path / "hold"
    output = tmp_path / "driver" / "output-0"
    with StandaloneCluster(tmp_path / "cluster", _HOSTS) as cluster:
        workers = set(cluster.workers)
        driver = cluster_driver(
            tmp_path / "driver",
            [options | {"slots": "2"}],
            cluster,
            packed,
            host="127.0.0.1",
            hold=hold,
        )
        with driver:
            wait_for_records(driver, [output], feed.records)
            before = _executors(output)
            hold.touch()
            feed.split_first("orders")
            late = {record.data for record in feed.put("orders", 60)}
            wait_for(driver, "a task that has rows", lambda: any(tmp_path.glob("held-*")))
            lost = next(tmp_path.glob("held-*")).name.removeprefix("held-")
            cluster.workers[lost].kill()
            wait_for(driver, "the loss of its executor", lambda: "Lost executor" in driver.log)
            hold.unlink()
            wait_for_records(driver, [output], feed.records)
    assert cluster_records(output) == Counter(feed.records)
    after = {data: executor for data, executor in _executors(output).items() if data in late}
    assert {_worker(executor) for executor in before.values()} == workers
    assert {_worker(executor) for executor in after.values()} == workers - {lost}


@pytest.mark.long
def test_executors_come_and_go_by_dynamic_allocation(
    feed: Feed, options: dict[str, str], packed: PackedEnvironment, tmp_path: Path
) -> None:
    """As `questions` says: idle executors are removed between two batches."""
    feed.create("orders", shards=2)
    output = tmp_path / "driver" / "output-0"
    with StandaloneCluster(tmp_path / "cluster", _HOSTS) as cluster:
        driver = cluster_driver(
            tmp_path / "driver",
            [options | {"slots": "2"}],
            cluster,
            packed,
            host="127.0.0.1",
            hold=tmp_path / "hold",
            settings={
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.shuffleTracking.enabled": "true",
                "spark.dynamicAllocation.executorIdleTimeout": "1s",
                "spark.dynamicAllocation.maxExecutors": "2",
                "spark.scheduler.minRegisteredResourcesRatio": "0",
            },
        )

        def all_removed() -> bool:
            logs = [worker.log for worker in cluster.workers.values()]
            begun = sum(log.count("Asked to launch executor") for log in logs)
            return 0 < begun == sum(log.count("finished with state") for log in logs)

        used: list[set[Path]] = []
        with driver:
            for _ in range(3):
                new = {record.data for record in feed.put("orders", 20)}
                wait_for_records(driver, [output], feed.records)
                used.append({folder for data, folder in _executors(output).items() if data in new})
                wait_for(driver, "the end of the executors", all_removed)
                feed.split_first("orders")
    assert cluster_records(output) == Counter(feed.records)
    assert sum(map(len, used)) == len(set().union(*used))


def _executors(output: Path) -> dict[bytes, Path]:
    """Return the folder of the executor that wrote each record, once it is checked that the
    executor imported the source from the archive."""
    found = {}
    for row in committed_rows(output, ["data", "module", "executor"]):
        executor = Path(row["executor"])
        assert Path(row["module"]).is_relative_to(executor / "environment"), row
        found[row["data"]] = executor
    return found


def _worker(executor: Path) -> str:
    return executor.parents[1].name
