"""Kinesis written while all workers are killed, or the target is resharded at full rate, and a copy
of a million records."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ssp.testing.kafka.broker import free_ports
from spark_ssp.testing.kinesis import EmbeddedKinesis, Limits
from tests.support.kinesis.feeds import options_for
from tests.support.spark.drivers import Driver, kill_workers
from tests.support.spark.queries import wait_until

SOURCE, TARGET = "orders", "copies"

Row = tuple[str | None, bytes]


@pytest.fixture
def kinesis() -> Iterator[EmbeddedKinesis]:
    """A service with the limits of AWS."""
    (port,) = free_ports("127.0.0.1", 1)
    with EmbeddedKinesis(port=port, limits=Limits.strict()) as service:
        yield service


def _put(kinesis: EmbeddedKinesis, count: int, *, keys: int) -> list[Row]:
    """Put records with increasing numbers into the source; return them."""
    rows: list[Row] = [(f"key-{number % keys}", b"%d" % number) for number in range(count)]
    for key, data in rows:
        kinesis.state.put(SOURCE, key, data)
    return rows


def _stored(kinesis: EmbeddedKinesis) -> list[Row]:
    """Return the records of the target, those of a shard in its order."""
    return [(one.partition_key, one.data) for one in kinesis.state.records(TARGET)]


def _wait_for(kinesis: EmbeddedKinesis, records: int, driver: Driver) -> None:
    wait_until(
        lambda: len(_stored(kinesis)) >= records or not driver.alive,
        f"{records} records in the target",
    )
    assert driver.alive, f"{driver.output[-2000:]}\n{driver.log[-4000:]}"


def _runs(rows: list[Row]) -> dict[str | None, list[list[int]]]:
    """Return the numbers of each key, cut where they are not increasing."""
    runs: dict[str | None, list[list[int]]] = {}
    for key, data in rows:
        of_key = runs.setdefault(key, [])
        if of_key and int(data) > of_key[-1][-1]:
            of_key[-1].append(int(data))
        else:
            of_key.append([int(data)])
    return runs


@pytest.mark.long
@pytest.mark.timeout(600)
def test_tasks_whose_workers_are_killed_write_every_row(
    kinesis: EmbeddedKinesis, tmp_path: Path
) -> None:
    """Spark runs the tasks again: each reads what it read before, and writes all of it."""
    kinesis.state.create_stream(SOURCE, shards=2)
    kinesis.state.create_stream(TARGET, shards=2)
    wanted = _put(kinesis, 24_000, keys=101)
    options = options_for(kinesis.endpoint_url)
    driver = Driver(
        tmp_path / "driver",
        [options | {"streamName": SOURCE, "endingPosition": "latest"}],
        session="local[2,9]",
        trigger="batch",
        sinks={0: options | {"streamName": TARGET, "ordering": "key"}},
    )
    kills = 0
    with driver:
        for _ in range(2):
            _wait_for(kinesis, len(_stored(kinesis)) + 2_500, driver)
            # Records that come later are not part of the read, whose end was fixed before.
            kinesis.state.put(SOURCE, "late", b"-1")
            kills += kill_workers(driver)
        driver.results()
    assert kills >= 2
    stored = _stored(kinesis)
    assert set(stored) == set(wanted)
    assert max(Counter(stored).values()) <= 3, "more attempts than kills explain"
    assert len(stored) > len(wanted), "no task was killed after it had written"
    for runs in _runs(stored).values():
        for before, after in pairwise(runs):
            assert before[0] == after[0], "a task repeats its records from the first"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mode", [{}, {"ordering": "key"}, {"aggregation": "true"}], ids=["any", "ordered", "aggregated"]
)
def test_a_target_that_is_resharded_at_full_rate_has_every_row(
    spark: SparkSession, kinesis: EmbeddedKinesis, mode: dict[str, str]
) -> None:
    kinesis.state.create_stream(TARGET, shards=1)
    options = options_for(kinesis.endpoint_url) | {"streamName": TARGET}
    # Aggregates of small rows would be written before the first reshard.
    size = 1_000 if "aggregation" in mode else 1
    rows = spark.range(0, 20_000, 1, 2).selectExpr(
        f"repeat(CAST(id AS STRING), {size}) AS data", "concat('key-', id % 101) AS partitionKey"
    )
    writer = rows.write.format("kinesis-ssp").mode("append").options(**options, **mode)
    started = threading.Event()

    def write() -> None:
        spark.createDataFrame([], "id int")  # gives the thread an active session
        started.set()
        writer.save()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        started.wait(60)
        for fraction, shards in ((0.1, 4), (0.5, 2)):
            wait_until(
                lambda: _bytes(kinesis) >= fraction * 20_000 * 5 * size or writing.done(),  # noqa: B023
                "a part of the rows in the target",
            )
            assert not writing.done(), "the reshard came too late"
            kinesis.state.scale(TARGET, shards)
        writing.result()
    look = spark.read.format("kinesis-ssp").options(**options).load()
    found = look.selectExpr("partitionKey", f"substring(data, 1, length(data) / {size}) AS data")
    read = Counter((row.partitionKey, bytes(row.data)) for row in found.collect())
    assert set(read) == {(f"key-{number % 101}", b"%d" % number) for number in range(20_000)}
    if "aggregation" not in mode:
        assert max(read.values()) == 1, "no reply was lost"
    if "ordering" in mode:
        # Each task has its rows in order.
        for part in (range(10_000), range(10_000, 20_000)):
            of_task = [row for row in _stored(kinesis) if int(row[1]) in part]
            assert all(len(runs) == 1 for runs in _runs(of_task).values())


def _bytes(kinesis: EmbeddedKinesis) -> int:
    return sum(len(one.data) for one in kinesis.state.records(TARGET))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_a_copy_of_a_million_records_keeps_the_order_of_each_key(tmp_path: Path, kind: str) -> None:
    """The target has shards for 64,000 records a second, to which the sink keeps."""
    with EmbeddedKinesis() as kinesis:
        kinesis.state.create_stream(SOURCE, shards=4)
        kinesis.state.create_stream(TARGET, shards=64)
        wanted = _put(kinesis, 1_000_000, keys=5_000)
        options = options_for(kinesis.endpoint_url)
        driver = Driver(
            tmp_path / "driver",
            [options | {"streamName": SOURCE, "startingPosition": "trim_horizon"}],
            trigger="batch" if kind == "batch" else "available now",
            sinks={0: options | {"streamName": TARGET, "ordering": "key"}},
        )
        with driver:
            (result,) = driver.results()
        assert result["failure"] is None
        stored = _stored(kinesis)
    assert Counter(stored) == Counter(wanted)
    assert all(len(runs) == 1 for runs in _runs(stored).values())
