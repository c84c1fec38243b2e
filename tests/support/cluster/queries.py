"""Drivers of a standalone cluster that ship the packed environment, and their output."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.cluster.packed import PackedEnvironment
from tests.support.cluster.standalone import SPARK_HOME, StandaloneCluster
from tests.support.kinesis.feeds import Record
from tests.support.spark.drivers import Driver, committed_rows

_DEADLINE_S: Final = 240
_POLL_S: Final = 0.3
_RECORD: Final = ("stream", "shardId", "sequenceNumber", "partitionKey", "data")


def cluster_driver(
    folder: Path,
    queries: Sequence[Mapping[str, str]],
    cluster: StandaloneCluster,
    packed: PackedEnvironment,
    *,
    host: str,
    cores: int = 2,
    hold: Path | None = None,
    sources: Sequence[str] = ("kinesis-ssp",),
    sinks: Mapping[int, Mapping[str, str]] | None = None,
) -> Driver:
    """A driver at the address `host`, which runs until it is killed. It has the same environment as
    its executors, and nothing of the checkout."""
    folder.mkdir()
    (folder / "environment").symlink_to(packed.folder / "environment")
    return Driver(
        folder,
        queries,
        session=cluster.url,
        sources=sources,
        sinks=sinks or {},
        trigger="as fast as possible",
        python=Path(packed.python),
        hold=hold,
        settings={
            "spark.archives": packed.archive,
            "spark.driver.host": host,
            "spark.driver.bindAddress": host,
            "spark.executor.memory": "512m",
            # The first batch waits for all executors, each of which has one core.
            "spark.cores.max": str(cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        },
        environment={
            "SPARK_LOCAL_IP": host,
            "SPARK_HOME": str(SPARK_HOME),
            "PYTHONPATH": os.pathsep.join(
                map(str, sorted((SPARK_HOME / "python" / "lib").glob("*.zip")))
            ),
        },
    )


def records_by_batch(output: Path) -> list[tuple[int, Record]]:
    """Return the records that a driver's query has written and committed, with their batches."""
    return [
        (
            row["batch"],
            Record(
                stream=row["stream"],
                shard=row["shardId"],
                sequence=int(row["sequenceNumber"]),
                key=row["partitionKey"],
                data=row["data"],
            ),
        )
        for row in committed_rows(output, _RECORD)
    ]


def cluster_records(output: Path) -> Counter[Record]:
    """Return how often a driver's query has written and committed each record."""
    return Counter(record for _, record in records_by_batch(output))


def wait_for(driver: Driver, what: str, reached: Callable[[], bool]) -> None:
    """Wait for a condition; the end of the driver is an error at once."""
    deadline = time.monotonic() + _DEADLINE_S
    while not reached():
        assert driver.alive, f"{driver.output[-2000:]}\n{driver.log[-4000:]}"
        assert time.monotonic() < deadline, f"not in time: {what}\n{driver.log[-4000:]}"
        time.sleep(_POLL_S)


def wait_for_records(driver: Driver, outputs: Sequence[Path], records: Iterable[Record]) -> None:
    """Wait until the outputs together have all records."""
    wanted = set(records)

    def complete() -> bool:
        return wanted <= {record for output in outputs for record in cluster_records(output)}

    wait_for(driver, f"{len(wanted)} records", complete)
