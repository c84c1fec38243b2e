"""The same histories with Spark's own Kafka source and sink, and with this project's.

    python -m tests.support.kafka.peers [--runs 5] [--history task --history late]

A history has a topic, and a query of each peer that copies or counts its records while the same
faults occur. The records that a reader of committed ones finds, or the counts of the windows, are
compared with those produced, and printed as a table. The faults:

* task: the first attempt of two of three tasks fails after half of its rows.
* driver: `kill -9` after the first task of a batch has written its rows, before the others have.
* files: `kill -9` at random moments, and files as the sink, which Spark makes exactly once.
* late: windows with a watermark over skewed partitions, which expand from 2 to 4 and 8 while the
  query is stopped, read with a limit for each batch. A row is late if its window does not count it.

Each peer has the settings that its documentation recommends for the delivery it promises.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.support.judge import Processed, Put, Verdict, judge
from tests.support.kafka.event_time import LIMIT, count_through_expansions, topic_for_counts
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.servers import spark_kafka
from tests.support.servers.java_client import JavaClient, java_client
from tests.support.servers.kafka_broker import KafkaBrokers
from tests.support.spark.drivers import ENVIRONMENT, Driver, committed_rows, spark_home
from tests.support.waiting import until

_COPY_TOPICS: Final = Path(__file__).parents[2] / "spark" / "programs" / "copy_topics.py"
_RECORDS: Final = 600
_KEYS: Final = 42
"""A multiple of the partitions: all records of a key are in one."""
_PATIENCE_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A source and a sink. `promise`: the documented delivery of the sink."""

    name: str
    format: str
    promise: str
    options: Mapping[str, str] = field(default_factory=dict)


SPARK: Final = Peer(
    name="Spark's Kafka source and sink", format="kafka", promise="at least once into Kafka"
)
AT_LEAST_ONCE: Final = Peer(
    name="kafka-ssp", format="kafka-ssp", promise="at least once, repeats marked by headers"
)
EXACTLY_ONCE: Final = Peer(
    name="kafka-ssp, exactly-once",
    format="kafka-ssp",
    promise="exactly once",
    options={"delivery": "exactly-once"},
)
ALIGNED: Final = Peer(
    name="kafka-ssp, alignBatches",
    format="kafka-ssp",
    promise="no row late",
    options={"alignBatches": "true"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The services of all histories."""

    brokers: KafkaBrokers
    topics: KafkaTopics
    reader: JavaClient
    folder: Path
    chance: random.Random

    def put(self, topic: str, partitions: int, begin: int = 0) -> list[tuple[str, str]]:
        """Produce records whose values ascend, all of a key into one partition."""
        rows = [(f"key-{n % _KEYS}", str(n)) for n in range(begin, begin + _RECORDS)]
        records = [
            Record(key=key.encode(), value=value.encode(), partition=int(value) % partitions)
            for key, value in rows
        ]
        self.topics.put(topic, records)
        return rows

    def found(self, topic: str) -> list[tuple[str, str]]:
        """Return the committed records of a topic, each partition in its order."""
        rows = self.reader.read_committed(self.brokers.bootstrap_servers, topic)
        return [(key, value) for _, key, value in rows]


def _copy(peer: Peer, scene: Scene, *, harm: bool) -> Verdict:
    """Copy a topic by a driver with ten batches of three tasks. It is killed in the first one,
    after a task has written, or, with `harm`, the other two tasks of each fail at first."""
    source, target = scene.topics.create(3), scene.topics.create(3)
    put = scene.put(source, 3)
    folder = Path(tempfile.mkdtemp(dir=scene.folder))
    gate, fault = folder / "gate", folder / "harm"
    options = {
        "brokers": scene.brokers.bootstrap_servers,
        "from": source,
        "to": target,
        "checkpoint": str(folder / "checkpoint"),
        "gate": str(gate),
        "format": peer.format,
        **({"harm": str(fault)} if harm else {}),
        **peer.options,
    }
    if harm:
        gate.touch()
        fault.touch()
    else:
        with _driver(folder / "killed", options) as driver:
            until(lambda: bool(scene.found(target)), "the rows of a task", within_s=_PATIENCE_S)
            driver.kill()
        gate.touch()
    with _driver(folder / "driver", options) as driver:
        driver.results()
    return _judged(put, scene.found(target))


def _judged(put: Sequence[tuple[str, str]], found: Sequence[tuple[str, str]]) -> Verdict:
    """Judge rows in the order in which they were found."""
    return judge(
        [Put(key, int(value)) for key, value in put],
        [Processed(at, key, int(value)) for at, (key, value) in enumerate(found)],
    )


def _driver(folder: Path, options: Mapping[str, str]) -> Driver:
    return Driver(
        folder,
        [options],
        program=_COPY_TOPICS,
        session="local[3,4]",
        settings={"spark.driver.extraClassPath": spark_kafka.install()},
    )


def _files(peer: Peer, scene: Scene) -> Verdict:
    """Write files while the driver is killed at random moments."""
    topic = scene.topics.create(3)
    folder = Path(tempfile.mkdtemp(dir=scene.folder))
    options = {
        "kafka.bootstrap.servers": scene.brokers.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
    }
    put: list[tuple[str, str]] = []

    def driver(trigger: str) -> Driver:
        return Driver(
            folder,
            [options],
            sources=(peer.format,),
            trigger=trigger,
            settings={"spark.driver.extraClassPath": spark_kafka.install()},
        )

    for kill in range(3):
        put += scene.put(topic, 3, begin=kill * _RECORDS)
        with driver("as fast as possible") as running:
            time.sleep(scene.chance.uniform(4, 14))
            running.kill()
    with driver("available now") as running:
        (result,) = running.results()
        if result["failure"] is not None:
            raise AssertionError(result["failure"])
    rows = sorted(
        committed_rows(folder / "output-0", ("key", "value", "partition", "offset")),
        key=lambda row: (row["batch"], row["partition"], row["offset"]),
    )
    return _judged(put, [(row["key"].decode(), row["value"].decode()) for row in rows])


def _late(peers: Sequence[Peer], scene: Scene) -> dict[str, Verdict]:
    """Count by windows, all peers the same topic."""
    topic = topic_for_counts(scene.topics)
    options = {
        "kafka.bootstrap.servers": scene.brokers.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(LIMIT),
    }
    with _session(scene.folder) as spark:
        frames = {
            peer.name: spark.readStream.format(peer.format)
            .options(**options, **peer.options)
            .load()
            for peer in peers
        }
        folder = Path(tempfile.mkdtemp(dir=scene.folder))
        counts, expected = count_through_expansions(
            scene.topics, frames, topic, folder, runs_after=(0, 2)
        )
    outcomes = {}
    for name, one in counts.items():
        counted = Counter(one.minutes)
        outcomes[name] = Verdict(
            rows=expected.total(),
            repeated=(counted - expected).total(),
            # Spark's own number counts rows of one window as one.
            late=(expected - counted).total(),
        )
    return outcomes


@contextmanager
def _session(folder: Path) -> Iterator[SparkSession]:
    os.environ.update(ENVIRONMENT | {"SPARK_HOME": str(spark_home(folder / "spark-home"))})
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraClassPath", spark_kafka.install())
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _each(act: Callable[[Peer, Scene], Verdict]) -> Callable[..., dict[str, Verdict]]:
    def run(peers: Sequence[Peer], scene: Scene) -> dict[str, Verdict]:
        return {peer.name: act(peer, scene) for peer in peers}

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A history, and the peers that it is run with."""

    act: Callable[[Sequence[Peer], Scene], dict[str, Verdict]]
    peers: tuple[Peer, ...]


_SINKS: Final = (SPARK, AT_LEAST_ONCE, EXACTLY_ONCE)
HISTORIES: Final[Mapping[str, History]] = {
    "task": History(act=_each(lambda peer, scene: _copy(peer, scene, harm=True)), peers=_SINKS),
    "driver": History(act=_each(lambda peer, scene: _copy(peer, scene, harm=False)), peers=_SINKS),
    "files": History(act=_each(_files), peers=(SPARK, AT_LEAST_ONCE)),
    "late": History(act=_late, peers=(SPARK, AT_LEAST_ONCE, ALIGNED)),
}


def rehearse(names: Sequence[str], runs: int, *, seed: int) -> Iterator[str]:
    """Run histories, and yield the lines of the table."""
    yield "| history | with | promise | runs | rows | lost | repeated | out of order | late |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    with ExitStack() as resources:
        brokers = resources.enter_context(KafkaBrokers())
        scene = Scene(
            brokers=brokers,
            topics=resources.enter_context(
                KafkaTopics({"bootstrap.servers": brokers.bootstrap_servers})
            ),
            reader=resources.enter_context(java_client()),
            folder=Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="peers-"))),
            chance=random.Random(seed),
        )
        for name in names:
            history = HISTORIES[name]
            total = {peer.name: Verdict() for peer in history.peers}
            for _ in range(runs):
                for who, one in history.act(history.peers, scene).items():
                    total[who] += one
            for peer in history.peers:
                found = total[peer.name]
                yield (
                    f"| {name} | {peer.name} | {peer.promise} | {runs} | {found.rows:,} "
                    f"| {found.lost + found.stuck:,} | {found.repeated:,} | {found.disordered:,} "
                    f"| {found.late or 0:,} |"
                )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="The same histories with Spark's own Kafka source."
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--history", choices=HISTORIES, action="append")
    parser.add_argument("--seed", type=int, default=17, help="of the moments of random kills")
    options = parser.parse_args(arguments)
    # In this order: the last one starts a Spark in this process, whose py4j hides errors of others.
    names = [name for name in HISTORIES if name in (options.history or HISTORIES)]
    for line in rehearse(names, options.runs, seed=options.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
