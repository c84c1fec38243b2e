"""`kill -9` for the driver and its JVM, again and again, while records and reshards go on."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.background import Background
from tests.support.drivers import Driver, files_per_batch, records_in
from tests.support.effort import AMOUNT
from tests.support.feeds import Feed
from tests.support.queries import (
    await_end,
    load,
    start_patiently,
    wait_until,
)

SLOTS = 2


class Traffic:
    """Puts records, and splits or merges now and then: whenever `batches`, which counts those of a
    query, has gone up by three, so that it can follow."""

    def __init__(
        self, feed: Feed, stream: str, chance: random.Random, batches: Callable[[], int]
    ) -> None:
        self._feed = feed
        self._stream = stream
        self._chance = chance
        self._batches = batches
        self._due = 1
        self.reshards = 0

    def put(self) -> None:
        self._feed.put(self._stream, 5)
        if self._batches() >= self._due:
            self._reshard()
            self._due = self._batches() + 3

    def _reshard(self) -> None:
        self.reshards += 1
        if len(self._feed.open_shards(self._stream)) < self._chance.randint(2, 4):
            self._feed.split_first(self._stream)
        else:
            self._feed.merge_first(self._stream)


@pytest.mark.timeout(600 + 120 * AMOUNT.kills)
@pytest.mark.parametrize(
    ("feed", "kills"),
    [("embedded", AMOUNT.kills), ("kinesis_mock", max(1, AMOUNT.kills // 10))],
    indirect=["feed"],
)
def test_killed_at_random_moments(
    spark: SparkSession, feed: Feed, kills: int, options: dict[str, str], tmp_path: Path
) -> None:
    chance = random.Random(kills)
    feed.create("orders", shards=2)
    feed.put("orders", 50)
    query = options | {"slots": str(SLOTS)}
    folder = tmp_path / "driver"
    checkpoint, output = folder / "checkpoint-0", folder / "output-0"

    def batches() -> int:
        return len([path for path in (checkpoint / "offsets").glob("*") if path.name.isdigit()])

    traffic = Traffic(feed, "orders", chance, batches)
    with Background(traffic.put, pause_s=0.05):
        for _ in range(kills):
            with Driver(folder, [query], trigger="as fast as possible") as driver:
                enough = batches() + chance.randint(1, 8)
                wait_until(
                    lambda: batches() >= enough or not driver.alive,  # noqa: B023
                    f"the plan of batch {enough}",
                )
                # Somewhere between this plan and the next ones.
                threading.Event().wait(chance.uniform(0, 1.5))
                assert driver.alive, driver.log[-4000:]
                assert "java" in driver.kill()
        assert traffic.reshards > 0
    rest = (
        load(spark, query)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(output))
    )
    await_end(start_patiently(lambda: rest.trigger(availableNow=True).start()))
    found, wanted = Counter(records_in(spark, output)), Counter(feed.records)
    assert found - wanted == Counter(), "records that came twice"
    assert wanted - found == Counter(), "records that did not come"
    assert max(files_per_batch(output).values()) <= SLOTS
