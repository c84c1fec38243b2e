"""Kinesis written while one task, or the driver with its JVM, is killed by `kill -9`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_ssp.kinesis_source.model.offset import decode
from spark_ssp.kinesis_source.model.shard import AfterRecord
from spark_ssp.testing.kinesis import EmbeddedKinesis, Limits
from tests.support.kinesis.feeds import EmbeddedFeed, Record, options_for
from tests.support.spark.drivers import Driver
from tests.support.spark.queries import load, planned_offsets, start_patiently, wait_until

pytestmark = pytest.mark.long

START = {"streamName": "orders", "startingPosition": "trim_horizon"}
COPIES = {"streamName": "copies"}


@pytest.fixture
def target() -> Iterator[EmbeddedKinesis]:
    """Another service than that of the source, so that a connection shows which worker writes. Its
    limits make a task of some thousand rows last for seconds."""
    with EmbeddedKinesis(limits=Limits.strict()) as service:
        yield service


def _connected(service: EmbeddedKinesis) -> list[psutil.Process]:
    """Return the Python workers that have a connection to a service."""
    port = urlsplit(service.endpoint_url).port
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            connections = process.net_connections("tcp")
            is_python = process.name().startswith("python")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if is_python and any(one.raddr[1:] == (port,) for one in connections):
            found.append(process)
    return found


def _written(service: EmbeddedKinesis) -> Counter[bytes]:
    return Counter(record.data for record in service.state.records("copies"))


def _until(put: Iterable[Record], checkpoint: Path, batch: int) -> set[bytes]:
    """Return the data of the records up to the end of a batch, by the source's offset."""
    states = decode(planned_offsets(checkpoint)[batch]).states
    ends: dict[str, int] = {
        key.shard: int(state.position.sequence_number)
        for key, state in states.items()
        if isinstance(state.position, AfterRecord)
    }
    return {record.data for record in put if record.sequence <= ends.get(record.shard, -1)}


def test_a_task_whose_worker_is_killed_is_the_only_one_that_writes_again(
    spark_environment: None,
    kinesis: EmbeddedKinesis,
    target: EmbeddedKinesis,
    tmp_path: Path,
) -> None:
    """A stream is copied by a batch query. While both of its tasks write, the Python worker that
    writes for one of them is killed; the source gets more records and shards before the task is
    repeated."""
    feed = EmbeddedFeed(kinesis)
    feed.create("orders", shards=2)
    put = [feed.put_data("orders", f"key-{n}", b"%d," % n + b"x" * 500) for n in range(24_000)]
    target.state.create_stream("copies", shards=4)
    driver = Driver(
        tmp_path / "driver",
        [options_for(kinesis.endpoint_url) | START | {"slots": "2"}],
        # A failed task is repeated; workers without a task end.
        session="local[2,4]",
        trigger="batch",
        settings={"spark.python.worker.reuse": "false"},
        sinks={0: options_for(target.endpoint_url) | COPIES},
        log_everything=True,
    )
    shard_of = {record.data: record.shard for record in put}

    def of_both() -> bool:
        counts = Counter(shard_of[data] for data in _written(target))
        return len(counts) == 2 and min(counts.values()) > 500

    with driver:
        wait_until(
            lambda: of_both() or not driver.alive,
            "rows of both tasks",
        )
        workers = _connected(target)
        assert len(workers) == 2, f"one of each task: {workers}\n{driver.log[-4000:]}"
        assert len(_written(target)) < len(put)
        workers[0].kill()
        feed.put("orders", 100)
        feed.split_first("orders")
        (result,) = driver.results()
    assert result["failure"] is None
    assert "Python worker exited unexpectedly (crashed)" in driver.log
    copies = _written(target)
    assert set(copies) == {record.data for record in put}
    repeated = {data for data, count in copies.items() if count > 1}
    assert len({shard_of[data] for data in repeated}) == 1, "repeats of one task"
    assert max(copies.values()) == 2


def test_a_stream_that_is_copied_by_a_killed_driver(
    spark: SparkSession, kinesis: EmbeddedKinesis, target: EmbeddedKinesis, tmp_path: Path
) -> None:
    """It is killed in the middle of a batch; the rows of the batches before are there once."""
    feed = EmbeddedFeed(kinesis)
    feed.create("orders", shards=2)
    put = [feed.put_data("orders", f"key-{n}", b"%d" % n) for n in range(12_000)]
    target.state.create_stream("copies", shards=1)
    source = options_for(kinesis.endpoint_url) | START
    source |= {"slots": "2", "maxRecordsPerTrigger": "2000", "trigger": "processingTime"}
    sink = options_for(target.endpoint_url) | COPIES
    folder = tmp_path / "driver"
    driver = Driver(folder, [source], trigger="as fast as possible", sinks={0: sink})
    checkpoint = folder / "checkpoint-0"

    def commits() -> int:
        return sum(path.name.isdigit() for path in (checkpoint / "commits").glob("*"))

    def in_the_middle() -> bool:
        """Return whether a batch has written half of its rows, after two that are committed."""
        count = commits()
        if count < 2:
            return False
        uncommitted = _written(target).keys() - _until(put, checkpoint, count - 1)
        return 500 < len(uncommitted) < 1_500

    with driver:
        wait_until(lambda: in_the_middle() or not driver.alive, "half of a batch")
        assert driver.alive, driver.log[-4000:]
        assert "java" in driver.kill()
    before = _written(target).keys()
    committed = _until(put, checkpoint, commits() - 1)
    begun = before - committed
    assert begun, "it was killed before the batch was committed"
    assert committed < before < {record.data for record in put}
    again = (
        load(spark, source)
        .select("data", "partitionKey")
        .writeStream.format("kinesis-ssp")
        .options(**sink)
        .option("checkpointLocation", str(checkpoint))
    )
    query = start_patiently(again.start)
    everything = {record.data for record in put}
    wait_until(lambda: _written(target).keys() >= everything, "all rows", query)
    query.stop()
    copies = _written(target)
    assert set(copies) == everything
    assert {data for data, count in copies.items() if count > 1} == begun, "one batch is repeated"
    assert max(copies.values()) == 2
