"""A pipeline on Kinesis and Kafka that is killed in each of its stages while its inputs expand."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from examples.flights import data
from spark_ssp.grouping.assignment import decode_assignment
from spark_ssp.planner import PlanContradictionError
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.kinesis.feeds import EmbeddedFeed
from tests.support.pipelines import flights_pipeline as pipeline
from tests.support.pipelines.flights_pipeline import FIRST, SECOND, STREAM, Streams, Written
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.simulation.effort import AMOUNT
from tests.support.spark.drivers import Driver
from tests.support.spark.queries import wait_until

PROGRAM: Final = Path(__file__).parents[1] / "programs" / "run_pipeline.py"


class Scene:
    """The streams of one test, and all that was put into them."""

    def __init__(
        self, broker: KafkaBroker, topics: KafkaTopics, feed: EmbeddedFeed, folder: Path
    ) -> None:
        self._topics = topics
        self._feed = feed
        self.brokers = broker.bootstrap_servers
        self._chosen: list[pa.Table] = []
        self.folder = folder
        self.root = folder / "root"
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.airlines = dict(zip(*data.airlines().to_pydict().values(), strict=True))
        feed.create(STREAM, shards=2)
        name = topics.create(2, config={"cleanup.policy": "compact"})
        between = f"{name}-by-carrier"
        topics.adopt(between)
        self.streams = Streams(
            brokers=self.brokers,
            endpoint=feed.endpoint_url,
            airlines=name,
            between=between,
            totals=topics.create(2),
        )

    @property
    def put(self) -> pa.Table:
        """All departures so far."""
        return pa.concat_tables(self._chosen)

    def put_airlines(self, carriers: list[str], *, to: str | None = None) -> None:
        """The names of these carriers, or another one for all."""
        names = self.airlines if to is None else dict.fromkeys(carriers, to)
        self._topics.put(
            self.streams.airlines,
            [Record(key=c.encode(), value=names[c].encode()) for c in carriers],
        )

    def put_flights(self, flights: pa.Table) -> None:
        keys = data.partition_keys(flights).to_pylist()
        for key, message in zip(keys, pipeline.messages(flights), strict=True):
            self._feed.put_data(STREAM, key, message)
        self._chosen.append(flights)

    def expand_airlines(self, partitions: int) -> None:
        self._topics.expand(self.streams.airlines, partitions)

    def split(self) -> None:
        self._feed.split_first(STREAM)

    def driver(self, *, to_end: bool = True) -> Driver:
        options = {
            **self.streams._asdict(),
            "root": str(self.root),
            "gates": str(self.gates),
            "to_end": "yes" if to_end else "no",
        }
        return Driver(self.folder / "driver", [options], program=PROGRAM)

    def open(self, stage: str) -> None:
        (self.gates / stage).touch()

    def batches(self, stage: str, of: str = "offsets") -> list[int]:
        """The batches of a stage that were planned, or (`commits`) have ended."""
        names = [path.name for path in (self.root / "stages" / stage / of).glob("*")]
        return sorted(int(name) for name in names if name.isdigit())

    def offsets(self, stage: str) -> list[dict[str, Any]]:
        """Those of the stage's sources, as its last batch was planned."""
        number = self.batches(stage)[-1]
        lines = (self.root / "stages" / stage / "offsets" / str(number)).read_text().splitlines()
        return [orjson.loads(line) for line in lines[2:]]

    def in_topic(self, topic: str) -> list[Written]:
        return pipeline.written(self.brokers, topic)

    def run_to_end(self, spark: SparkSession) -> None:
        pipeline.run(spark, self.streams, self.root, self.gates)


@pytest.fixture
def scene(
    kafka_broker: KafkaBroker, topics: KafkaTopics, embedded_feed: EmbeddedFeed, tmp_path: Path
) -> Scene:
    return Scene(kafka_broker, topics, embedded_feed, tmp_path)


def check(spark: SparkSession, scene: Scene) -> None:
    """Right to the row, between the stages and at the end."""
    between = pipeline.without_repeats(spark, scene.brokers, scene.streams.between)
    wanted = Counter(orjson.dumps(row) for row in pipeline.rows(scene.put))
    found = Counter(orjson.dumps(orjson.loads(one.value)) for one in between)
    assert found - wanted == Counter(), "departures that came twice, or from nowhere"
    assert wanted - found == Counter(), "departures that did not come"

    rows = pipeline.without_repeats(spark, scene.brokers, scene.streams.totals)
    by_batch: dict[int, dict[str, dict[str, Any]]] = {}
    for one in rows:
        row = orjson.loads(one.value)
        carriers = by_batch.setdefault(one.batch, {})
        assert row["carrier"] not in carriers, f"batch {one.batch} has {row['carrier']} twice"
        carriers[row["carrier"]] = row
    # Each batch adds to what the one before had.
    flights = [
        sum(row["flights"] for row in by_batch[batch].values()) for batch in sorted(by_batch)
    ]
    assert flights == sorted(flights)
    assert by_batch[max(by_batch)] == pipeline.totals(scene.put, scene.airlines)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_each_stage_is_killed_in_mid_batch_while_the_inputs_expand(
    spark: SparkSession, scene: Scene
) -> None:
    flights = data.departures(1_000)
    carriers = sorted(scene.airlines)
    early, late, last = carriers[::3], carriers[1::3], carriers[2::3]
    first, second, third = (
        flights.filter(pc.is_in(flights["carrier"], pa.array(part))) for part in (early, late, last)
    )
    scene.put_airlines(early)
    scene.put_flights(first)

    # In the first stage's first batch one of two tasks has written its rows.
    def between() -> list[Written]:
        return scene.in_topic(scene.streams.between)

    with scene.driver() as driver:
        wait_until(lambda: bool(between()) or not driver.alive, "rows of the first stage")
        assert driver.alive, driver.log[-4000:]
        assert "java" in driver.kill()
    assert scene.batches(FIRST, "commits") == []
    again = len(between())
    assert 0 < again < first.num_rows

    scene.split()
    scene.put_airlines(late)
    scene.put_flights(second)
    scene.open(FIRST)

    # The first stage ends. In the second batch of the second one, one of two tasks has written.
    def second_batch() -> list[Written]:
        return [one for one in scene.in_topic(scene.streams.totals) if one.batch == 1]

    with scene.driver() as driver:
        wait_until(lambda: bool(second_batch()) or not driver.alive, "rows of the second stage")
        assert driver.alive, driver.log[-4000:]
        assert "java" in driver.kill()
    assert scene.batches(SECOND, "commits") == [0]
    assert len(between()) >= first.num_rows + second.num_rows + again

    # The topic of airlines has twice the partitions before that batch is done again. The names that
    # lie in the new ones come after those in the old ones.
    scene.put_airlines(last, to="another name")
    scene.expand_airlines(4)
    scene.put_airlines(last)
    scene.put_flights(third)
    scene.open(SECOND)
    scene.run_to_end(spark)
    check(spark, scene)
    airlines, _ = scene.offsets(SECOND)
    owners = decode_assignment(airlines["assignment"]).owners()
    assert {ssp.partition: task for ssp, task in owners.items()} == {
        0: "Partition 0",
        1: "Partition 1",
        2: "Partition 0",
        3: "Partition 1",
    }
    values = [one.value for one in second_batch()]
    assert len(values) > len(set(values)), "no row was written again"

    # What the checkpoints cannot follow is refused before anything starts.
    stages = scene.root / "stages"
    before = sorted(stages.rglob("*"))
    admin = pipeline.services(scene.streams)
    renamed = pipeline.described(scene.streams, scene.gates, second="sums")
    with pytest.raises(PlanContradictionError, match="found stage sums, which does the same"):
        renamed.plan(admin, root=str(scene.root))
    scene.expand_airlines(6)
    unchanged = pipeline.described(scene.streams, scene.gates)
    with pytest.raises(PlanContradictionError, match=f"{scene.streams.airlines}: found 6"):
        unchanged.plan(admin, root=str(scene.root))
    assert sorted(stages.rglob("*")) == before


@pytest.mark.soak
@pytest.mark.timeout(1_200 + 180 * AMOUNT.kills)
def test_killed_at_random_moments(spark: SparkSession, scene: Scene) -> None:
    chance = random.Random(AMOUNT.kills)
    scene.open(FIRST)
    scene.open(SECOND)
    scene.put_airlines(sorted(scene.airlines))
    flights = data.departures(1_000 * AMOUNT.kills)
    for turn in range(AMOUNT.kills):
        scene.put_flights(flights.slice(1_000 * turn, 1_000))
        if turn == AMOUNT.kills // 3:
            scene.expand_airlines(4)
        if turn % 5 == 1:
            scene.split()
        with scene.driver(to_end=False) as driver:
            stage = chance.choice((FIRST, SECOND))
            enough = len(scene.batches(stage)) + chance.randint(1, 2)
            wait_until(
                lambda: len(scene.batches(stage)) >= enough or not driver.alive,  # noqa: B023
                f"the plan of batch {enough} of {stage}",
            )
            # Somewhere between this plan and the next ones.
            threading.Event().wait(chance.uniform(0, 2))
            assert driver.alive, driver.log[-4000:]
            assert "java" in driver.kill()
    scene.run_to_end(spark)
    check(spark, scene)
