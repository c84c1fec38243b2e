"""Faults of a query that writes to Kafka exactly once, without Spark, and the rows readers see.

    python -m tests.support.kafka.exactly_once_faults --runs 100
    python -m tests.support.kafka.exactly_once_faults --fault task --seed 4711

Each fault has a topic of its own. A driver with a checkpoint runs batches of three tasks on four
workers; a task that fails is run again, a driver that fails is started again. After all runs of a
fault the Java client reads what is committed. It prints a line for each fault, and fails if a row
was lost or is visible twice, rows of a key are out of order, or a task refused to write. The seed
draws tasks, points and times; what they meet there is up to the machine.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.kafka_source.sink.producer import TRANSACTION_TIMEOUT
from tests.support.kafka.exactly_once_query import TASKS, Kind, Query, finish, rows_of, start
from tests.support.kafka.topics import KafkaTopics
from tests.support.servers.java_client import JavaClient, java_client
from tests.support.servers.kafka_broker import KafkaBrokers
from tests.support.waiting import until

PARTITIONS: Final = 3
_NEWER: Final = "committed already"


def kill_drivers(query: Query, runs: int, _: KafkaBrokers) -> int:
    """Kill the driver at random, mostly in its first batches; its workers end their tasks beside
    those of the next driver."""
    finish(query, 1)
    began = time.monotonic()
    finish(query, 1)
    first_s = time.monotonic() - began
    hits = done = 0
    chance = query.chance("kills")
    while done < runs or not hits:
        driver = start(query)
        time.sleep(chance.uniform(0.4, 1.6) * first_s)
        driver.kill()
        driver.join()
        done += 1
        hits += query.logged("offsets") > query.logged("commits")
    return hits


def harm_tasks(query: Query, runs: int, _: KafkaBrokers) -> int:
    """In each batch one task dies, or stands still, often until the brokers end its transaction."""
    finish(query, runs)
    return query.harms().total()


def kill_brokers(query: Query, runs: int, brokers: KafkaBrokers) -> int:
    """Brokers die and come back while batches run."""
    ending, chance = threading.Event(), query.chance("kills")

    def keep_running() -> None:
        while not ending.is_set():
            driver = start(query)
            while driver.is_alive() and not ending.is_set():
                driver.join(0.1)
            driver.kill()
            driver.join()

    thread = threading.Thread(target=keep_running)
    thread.start()
    try:
        for _run in range(runs):
            done = query.logged("commits")
            with brokers.away(chance.choice(brokers.numbers), "kill"):
                time.sleep(chance.uniform(0, 6))
            until(partial(query.has_completed, done + 1), "a batch", within_s=300)
    finally:
        ending.set()
        thread.join()
    return runs


def two_drivers(query: Query, runs: int, _: KafkaBrokers) -> int:
    """Two drivers run with one checkpoint, until they fail or are killed."""
    hits = done = 0
    chance = query.chance("kills")
    while done < runs or not hits:
        goal = query.logged("commits") + 1
        drivers = [start(query) for _ in range(2)]
        while not query.has_completed(goal) and any(one.is_alive() for one in drivers):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1))
        for driver in drivers:
            driver.kill()
            driver.join()
        done += 1
        hits += query.has_completed(goal)
    return hits


def lose_commits(query: Query, runs: int, _: KafkaBrokers) -> int:
    """Spark's log of completed batches loses the last one, whose tasks have committed."""
    for _run in range(runs):
        finish(query, 1)
        query.lose_commit()
    return runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, and the settings of its query. `act` returns the number of runs that have met a
    batch. `has_several_drivers`: an older one may meet a later batch, and is refused."""

    act: Callable[[Query, int, KafkaBrokers], int]
    kind: Kind | None = None
    pause_s: float = 0.0
    options: Mapping[str, str] = field(default_factory=dict)
    has_several_drivers: bool = False


FAULTS: Final[Mapping[str, Fault]] = {
    "driver": Fault(act=kill_drivers, has_several_drivers=True),
    "task": Fault(act=harm_tasks, kind=Kind.DIE),
    "pause": Fault(
        act=harm_tasks,
        kind=Kind.PAUSE,
        pause_s=6.0,
        options={f"kafka.{TRANSACTION_TIMEOUT}": "1500", "kafka.delivery.timeout.ms": "1500"},
    ),
    "broker": Fault(act=kill_brokers, has_several_drivers=True),
    "two drivers": Fault(act=two_drivers, has_several_drivers=True),
    "commit log": Fault(act=lose_commits),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The committed rows of a topic after the runs of a fault. `hits`: runs that have met a batch.
    `refused`: tasks that refused to write without a reason. `ended`: transactions that the brokers
    have ended."""

    fault: str
    seed: int
    runs: int
    hits: int
    harms: Mapping[str, int]
    ended: int
    refused: int
    batches: int
    rows: int
    lost: int
    repeated: int
    disordered: int

    @property
    def is_right(self) -> bool:
        """Return whether each row is visible once, in order, and the fault has met batches."""
        wrong = self.lost + self.repeated + self.disordered + self.refused
        return not wrong and self.hits > 0

    def __str__(self) -> str:
        harms = "".join(f", {count} {point}" for point, count in sorted(self.harms.items()))
        return (
            f"{self.fault}: seed {self.seed}, {self.runs} runs, {self.hits} within a "
            f"batch{harms}, {self.ended} transactions ended by brokers; {self.batches} batches, "
            f"{self.rows} rows: lost "
            f"{self.lost}, repeated {self.repeated}, out of order {self.disordered}, refused "
            f"{self.refused}"
        )


def rehearse(
    name: str, runs: int, brokers: KafkaBrokers, reader: JavaClient, *, seed: int
) -> Outcome:
    """Run a fault many times, and check the visible rows after all batches."""
    fault = FAULTS[name]
    with ExitStack() as resources:
        topics = resources.enter_context(
            KafkaTopics({"bootstrap.servers": brokers.bootstrap_servers})
        )
        query = Query.create(
            Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="query-"))),
            options={**brokers.options, **fault.options},
            topic=topics.create(PARTITIONS),
            kind=fault.kind,
            pause_s=fault.pause_s,
            seed=seed,
        )
        hits = fault.act(query, runs, brokers)
        finish(query, 1)
        until(query.are_workers_gone, "all workers have ended", within_s=300)
        found = reader.read_committed(brokers.bootstrap_servers, query.topic)
        return _judge(name, runs, hits, query, found)


def _judge(
    name: str, runs: int, hits: int, query: Query, found: Sequence[tuple[int, str, str]]
) -> Outcome:
    batches = query.logged("commits") + 1
    written = Counter(
        row.value
        for batch in range(batches)
        for task in range(TASKS)
        for row in rows_of(batch, task)
    )
    seen = Counter(value for _, _, value in found)
    last: dict[str, tuple[int, ...]] = {}
    disordered = 0
    for _, key, value in found:
        place = tuple(map(int, value.split("/")))
        disordered += place <= last.get(key, ())
        last[key] = place
    failures = query.failures()
    refused = [one for one in failures if one.startswith(IncompatibleStateError.kind)]
    if FAULTS[name].has_several_drivers:
        refused = [one for one in refused if _NEWER not in one]
    return Outcome(
        fault=name,
        seed=query.seed,
        runs=runs,
        hits=hits,
        harms=query.harms(),
        ended=sum("which the brokers have aborted" in one for one in failures),
        refused=len(refused),
        batches=batches,
        rows=written.total(),
        lost=(written - seen).total(),
        repeated=(seen - written).total(),
        disordered=disordered,
    )


@contextmanager
def cluster() -> Iterator[KafkaBrokers]:
    """Start three brokers, which soon look for transactions that are too old."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with KafkaBrokers(settings=settings) as brokers:
        yield brokers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all faults."""
    parser = argparse.ArgumentParser(description="Faults of a query that writes exactly once.")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--seed", type=int, help="default: a new one")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    wrong = 0
    with cluster() as brokers, java_client() as reader:
        for fault in options.fault or FAULTS:
            began = time.monotonic()
            outcome = rehearse(fault, options.runs, brokers, reader, seed=seed)
            wrong += not outcome.is_right
            print(f"{outcome}; {time.monotonic() - began:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
