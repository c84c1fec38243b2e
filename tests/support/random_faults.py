"""Real queries under faults at random moments, drawn from a seed, and the verdict on their output.

    python -m tests.support.random_faults --runs 20 [--seed 17] [--scene shared] [--folder FOLDER]

A history of the scene `alone`: a driver with a query of each format, which write files, on two
slots. Its stream is on kinesis-mock or on the embedded Kinesis with the service's limits, its topic
on three brokers; both get records all the time, shards split and merge, partitions multiply. In the
scene `shared` two drivers share the stream by leases on DynamoDB Local. Three to five faults follow
each other, each for seconds. A driver that has ended is started again, as a supervisor would; if it
was killed or stopped, an outage of minutes by the service's clock, with records and reshards,
precedes its next start.

The n-th history has the seed of the first plus n - 1: `--seed S --runs 1 --scene SCENE` repeats its
schedule, not the moments of threads and processes. Each prints a timeline, a column a second: the
committed batches and the faults. The judge compares the files that Spark's sink has committed with
the records put, and uses no reader's code. The table at the end counts, by fault, the histories in
which it came. Needs Linux, and root to mount a file system that fills up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import boto3
import pyarrow.parquet as pq

from benchmarks.support.slow_link import SlowLink
from spark_ssp.testing.kinesis import EmbeddedKinesis, Limits, UnusualAnswers
from tests.support.judge import Put, Verdict, Written, judge_readers, late_rows, wide_batches
from tests.support.kafka.feed import kafka_traffic, query_options
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import EmbeddedFeed, Feed, RemoteFeed, options_for
from tests.support.servers.dynamodb_local import DynamoDbLocal
from tests.support.servers.kafka_broker import KafkaBrokers
from tests.support.servers.kinesis_mock import KinesisMock
from tests.support.spark.drivers import Driver, committed_files
from tests.support.spark.supervised import Supervised, send
from tests.support.spark.traffic import SLOTS, Partitions, Shards, planned_batches
from tests.support.waiting import Background, until

_ROOT: Final = Path(__file__).resolve().parents[2]
_FAST: Final = 1e9
_SLOW: Final = 20_000.0
_CUT: Final = 0.01
"""Rates of a link, in bytes a second."""
_WORKERS: Final = "pyspark.daemon pyspark.worker"
_PLANNERS: Final = "python_streaming_source_runner"
_AGENT: Final = "checkpoint.agent.process"
_FAILOVER_S: Final = 10
_PATIENCE_S: Final = 180
_DELAY_S: Final = 12.0
"""The delay of a watermark that no row may be behind: five seconds and `minFetchPeriod`, by the
guide, and the longest time for which a fault stops a reader between two shards."""
_DISK_KIB: Final = 4096


class Step(NamedTuple):
    """A fault of a schedule: `wait_s` after the last one, for `for_s` seconds; `pick` in [0, 1)
    chooses among drivers or brokers."""

    wait_s: float
    fault: str
    for_s: float
    pick: float


def schedule(chance: random.Random, faults: Sequence[str]) -> list[Step]:
    """Draw the faults of a history."""
    return [
        Step(chance.uniform(1, 6), chance.choice(faults), chance.uniform(1, 6), chance.random())
        for _ in range(chance.randint(3, 5))
    ]


# --- Services -------------------------------------------------------------------------------------


class Service:
    """A Kinesis whose clock can be moved, and a feed of one stream."""

    def __init__(self, feed: Feed, advance: Callable[[int], object]) -> None:
        self.feed = feed
        self.advance = advance


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Those that all histories use."""

    kinesis: KinesisMock
    brokers: KafkaBrokers
    topics: KafkaTopics
    dynamodb_url: str
    folder: Path

    def service(self, kind: str, resources: ExitStack) -> Service:
        """Return a service without streams."""
        if kind == "kinesis-mock":
            client = boto3.session.Session().client("kinesis", **self.kinesis.client_settings())
            resources.callback(client.close)
            return Service(RemoteFeed(client, self.kinesis), self.kinesis.advance)
        ahead = [0]
        embedded = resources.enter_context(
            EmbeddedKinesis(
                clock=lambda: time.time_ns() // 1_000_000 + ahead[0],
                limits=Limits.strict(),
                answers=UnusualAnswers.all(),
            )
        )

        def advance(milliseconds: int) -> None:
            ahead[0] += milliseconds

        return Service(EmbeddedFeed(embedded), advance)


# --- A history ------------------------------------------------------------------------------------


@cache
def _read(path: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    table = pq.read_table(path, columns=list(columns))
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


_COLUMNS: Final = {
    "kinesis-ssp": ("partitionKey", "data", "approximateArrivalTimestamp"),
    "kafka-ssp": ("key", "value", "timestamp"),
}


def rows_in(output: Path, source: str) -> list[Written]:
    """Return the committed rows of a file sink."""
    if not (output / "_spark_metadata").exists():
        return []
    rows = []
    for path, batch in committed_files(output).items():
        for position, (key, value, at) in enumerate(_read(path, _COLUMNS[source])):
            text = key if isinstance(key, str) else key.decode()
            rows.append(Written(text, int(value), at.timestamp(), batch, path, position))
    return rows


@dataclass(kw_only=True)
class Findings:
    """The verdict on a history. `again` are the rows that another owner of a shard read once more
    after a fault, as leases allow. `wide`: batches with more files than slots. `ended`: why a
    driver ended by itself. `left`: processes and leases that remained."""

    verdict: Verdict = field(default_factory=Verdict)
    again: int = 0
    wide: int = 0
    ended: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, int]:
        verdict = self.verdict
        return {
            "rows": verdict.rows,
            "lost": verdict.lost,
            "stuck": verdict.stuck,
            "repeated": verdict.repeated - self.again,
            "again": self.again,
            "disordered": verdict.disordered,
            "late": verdict.late or 0,
            "wide": self.wide,
            "ended": len(self.ended),
            "left": len(self.left),
        }

    @property
    def is_right(self) -> bool:
        return not any(n for name, n in self.numbers().items() if name not in ("rows", "again"))


class History:
    """One history of a scene."""

    def __init__(self, servers: Servers, scene: str, seed: int, resources: ExitStack) -> None:
        self.chance = random.Random(f"{scene}/{seed}")
        self.scene = scene
        self.seed = seed
        self.servers = servers
        self.kind = self.chance.choice(("kinesis-mock", "embedded"))
        self.findings = Findings()
        self.marks: list[tuple[float, float, str]] = []
        self.began = time.monotonic()
        self.began_at = time.time()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{scene}-{seed}-", dir=servers.folder))
        self.resources = resources
        self.service = servers.service(self.kind, resources)
        self.feed = self.service.feed
        self._feeding = threading.Lock()
        self.stream = f"orders-{self.folder.name}"
        self.feed.create(self.stream, shards=self.chance.randint(1, 4))
        self.feed.put(self.stream, 50)
        self.links = {
            "kinesis": self._link(self.feed.endpoint_url),
            "dynamodb": self._link(servers.dynamodb_url),
        }
        limit = self.chance.choice((None, None, 40, 200))
        self.limits = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
        self.partitions = None
        names = ("one",) if scene == "alone" else ("anne", "bert")
        self.shards = Shards(
            self.feed, self.stream, self.chance, lambda: planned_batches(self.folder / names[0])
        )
        if scene == "alone":
            self.partitions = Partitions(
                servers.topics, lambda: planned_batches(self.folder / names[0], 1)
            )
        self.drivers = [Supervised(self.folder / name, self._driver) for name in names]
        self.disk = self._disk(self.drivers[0].folder / "checkpoint-0")
        self.steps = schedule(self.chance, [name for name in FAULTS[scene] if self.can(name)])

    @property
    def queries(self) -> int:
        return 2 if self.partitions is not None else 1

    def can(self, fault: str) -> bool:
        """Return whether a fault is possible here."""
        return fault != "disk full" or self.disk is not None

    def run(self) -> None:
        """Read under the faults, then until all is read, and judge."""
        with ExitStack() as ending:
            for driver in self.drivers:
                (self.folder / driver.folder.name).mkdir(exist_ok=True)
                driver.start()
                ending.callback(lambda one: one.driver.kill(), driver)
            with self._traffic():
                for driver in self.drivers:
                    driver.until_it_plans(self.queries)
                for step in self.steps:
                    time.sleep(step.wait_s)
                    for driver in self.drivers:
                        driver.look()
                    begin = time.monotonic() - self.began
                    FAULTS[self.scene][step.fault](self, step)
                    self.marks.append((begin, time.monotonic() - self.began, step.fault))
            self._read_the_rest()
            for driver in self.drivers:
                driver.stop()
            self._judge()

    # --- Parts of a history ---

    def pick(self, step: Step) -> Supervised:
        return self.drivers[int(step.pick * len(self.drivers))]

    def outage(self) -> None:
        """Records and reshards of some minutes by the service's clock, while a driver is away."""
        if len(self.drivers) > 1:
            return
        for _ in range(self.chance.randint(2, 6)):
            with self._feeding:
                self.feed.put(self.stream, 20)
                self.service.advance(self.chance.choice((1_000, 20_000, 60_000)))
                if self.chance.random() < 0.4:
                    self.shards.reshard()

    def _feed(self) -> None:
        with self._feeding:
            self.shards.put()

    def _traffic(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(Background(self._feed, pause_s=0.05))
        if self.partitions is not None:
            stack.enter_context(
                kafka_traffic(
                    self.partitions.feed, self.partitions.topic, meanwhile=self.partitions.expand
                )
            )
        return stack

    def _link(self, url: str) -> SlowLink:
        port = urlsplit(url).port
        assert port is not None
        return self.resources.enter_context(SlowLink(port, _FAST))

    def _disk(self, folder: Path) -> Path | None:
        """Mount a small file system for the checkpoints, if that is possible here."""
        if os.geteuid() != 0:
            return None
        folder.mkdir(parents=True)
        options = ["-o", f"size={_DISK_KIB}k", "tmpfs", str(folder)]
        subprocess.run(["mount", "-t", "tmpfs", *options], check=True)
        self.resources.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
        return folder

    def _driver(self, folder: Path, environment: Mapping[str, str]) -> Driver:
        options = options_for(self.links["kinesis"].url) | self.limits
        options |= {
            "streamName": self.stream,
            "startingPosition": "trim_horizon",
            "slots": str(SLOTS),
        }
        queries, sources = [options], ["kinesis-ssp"]
        if self.partitions is None:
            options |= {
                "applicationName": self.folder.name,
                "workerId": folder.name,
                "dynamodbEndpointUrl": self.links["dynamodb"].url,
                "failoverTime": f"{_FAILOVER_S}s",
                "leaseMaxOutage": "5m",
                "checkpointInterval": "1s",
            }
        else:
            queries.append(query_options(self.servers.brokers.options, self.partitions.topic))
            sources.append("kafka-ssp")
        return Driver(
            folder,
            queries,
            sources=sources,
            session="local[2,4]",
            trigger="as fast as possible",
            environment=environment,
        )

    def _outputs(self) -> list[list[Written]]:
        return [rows_in(driver.folder / "output-0", "kinesis-ssp") for driver in self.drivers]

    def _kafka_output(self) -> list[Written]:
        return rows_in(self.drivers[0].folder / "output-1", "kafka-ssp")

    def _put(self) -> list[Put]:
        return [Put(one.key, int(one.data)) for one in self.feed.records]

    def _kafka_put(self) -> list[Put]:
        assert self.partitions is not None
        found = []
        for one in self.partitions.feed.records:
            assert one.record.key is not None
            assert one.record.value is not None
            found.append(Put(one.record.key.decode(), int(one.record.value)))
        return found

    def _read_the_rest(self) -> None:
        def whole() -> bool:
            for driver in self.drivers:
                driver.look()
            found = {row.number for rows in self._outputs() for row in rows}
            if not found.issuperset(one.number for one in self._put()):
                return False
            if self.partitions is None:
                return True
            read = {row.number for row in self._kafka_output()}
            return read.issuperset(one.number for one in self._kafka_put())

        # What does not come is counted.
        with suppress(AssertionError):
            until(whole, "all rows", within_s=_PATIENCE_S, poll_s=1.0)

    def _judge(self) -> None:
        findings, outputs = self.findings, self._outputs()
        findings.verdict = judge_readers(self._put(), outputs)
        if self.partitions is None:
            findings.left += self._held_leases()
            if any(step.fault in TAKEN_OVER for step in self.steps):
                findings.again = findings.verdict.repeated
        else:
            late = Verdict(late=sum(late_rows(rows, _DELAY_S) for rows in outputs))
            outputs.append(self._kafka_output())
            findings.verdict += judge_readers(self._kafka_put(), outputs[-1:]) + late
        findings.wide = sum(wide_batches(rows, SLOTS) for rows in outputs)
        for driver in self.drivers:
            findings.ended += driver.ended
            findings.left += driver.left()

    def _held_leases(self) -> list[str]:
        with ExitStack() as resources:
            client = boto3.session.Session().client(
                "dynamodb",
                endpoint_url=self.servers.dynamodb_url,
                region_name="us-east-1",
                aws_access_key_id="local",
                aws_secret_access_key="local",
            )
            resources.callback(client.close)
            rows = client.scan(TableName=self.folder.name)["Items"]
        return [
            f"lease {row['leaseKey']['S']} of {row['leaseOwner']['S']}"
            for row in rows
            if "leaseOwner" in row and row.get("checkpoint", {}).get("S") != "SHARD_END"
        ]

    def timeline(self) -> Iterator[str]:
        """A column for each second: committed batches of each driver, and faults."""
        seconds = int(time.monotonic() - self.began) + 1
        yield "        second  " + "".join(f"{s:<10}" for s in range(0, seconds, 10))
        for driver in self.drivers:
            for query in range(self.queries):
                log = driver.folder / f"output-{query}" / "_spark_metadata"
                found = log.glob("[0-9]*")
                counts = Counter(int(one.stat().st_mtime - self.began_at) for one in found)
                marks = (str(min(9, counts[s])) if counts[s] else "." for s in range(seconds))
                name = f"{driver.folder.name} {('kinesis', 'kafka')[query]}"
                yield f"{name:>14}  {''.join(marks)}"
        for begin, end, fault in self.marks:
            yield f"{'':>14}  {' ' * int(begin)}{'#' * max(1, round(end - begin))} {fault}"


# --- Faults ---------------------------------------------------------------------------------------


def _restart(end: Callable[[Supervised], None]) -> Fault:
    def act(history: History, step: Step) -> None:
        driver = history.pick(step)
        end(driver)
        history.outage()
        driver.start()
        driver.until_it_plans(history.queries)

    return act


def _move_clock(driver: Supervised) -> None:
    """Let it be an hour fast or slow, or right again."""
    driver.stop()
    driver.clock_shift_s = {0: 3600, 3600: -3600, -3600: 0}[driver.clock_shift_s]


def _frozen(part: str, more_s: float = 0.0) -> Fault:
    """Stop processes, by a part of their command; all, if it is empty."""

    def act(history: History, step: Step) -> None:
        processes = history.pick(step).processes(part)
        send(signal.SIGSTOP, processes)
        try:
            time.sleep(more_s + step.for_s)
        finally:
            send(signal.SIGCONT, processes)

    return act


def _killed(part: str) -> Fault:
    def act(history: History, step: Step) -> None:
        send(signal.SIGKILL, history.pick(step).processes(part))

    return act


def _planner_killed(history: History, step: Step) -> None:
    """The process of a reader on the driver: Spark ends the query, and so the driver."""
    driver = history.pick(step)
    send(signal.SIGKILL, driver.processes(_PLANNERS)[:1])
    until(lambda: not driver.driver.alive, "the end of its driver", within_s=_PATIENCE_S)
    driver.look(may_end=True)
    driver.until_it_plans(history.queries)


def _broker(kind: str) -> Fault:
    def act(history: History, step: Step) -> None:
        brokers = history.servers.brokers
        with brokers.away(brokers.numbers[int(step.pick * len(brokers.numbers))], kind):
            time.sleep(step.for_s)

    return act


def _link(service: str, rate: float) -> Fault:
    def act(history: History, step: Step) -> None:
        link = history.links[service]
        link.rate = rate
        time.sleep(step.for_s)
        link.rate = _FAST

    return act


def _disk_full(history: History, step: Step) -> None:
    """Until the driver ends, for lack of space."""
    driver, disk = history.drivers[0], history.disk
    assert disk is not None
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    until(lambda: not driver.driver.alive, "a driver without space ends", within_s=_PATIENCE_S)
    filler.unlink()
    driver.look(may_end=True)
    driver.until_it_plans(history.queries)


Fault = Callable[[History, Step], None]
FAULTS: Final[Mapping[str, Mapping[str, Fault]]] = {
    "alone": {
        "driver killed": _restart(Supervised.kill),
        "driver stopped": _restart(Supervised.stop),
        "driver frozen": _frozen(""),
        "planner killed": _planner_killed,
        "workers killed": _killed(_WORKERS),
        "workers frozen": _frozen(_WORKERS),
        "broker killed": _broker("kill"),
        "broker frozen": _broker("freeze"),
        "link to Kinesis cut": _link("kinesis", _CUT),
        "link to Kinesis slow": _link("kinesis", _SLOW),
        "clock off by an hour": _restart(_move_clock),
        "disk full": _disk_full,
    },
    "shared": {
        "driver killed": _restart(Supervised.kill),
        "driver stopped": _restart(Supervised.stop),
        "driver frozen": _frozen("", more_s=_FAILOVER_S),
        "planner killed": _planner_killed,
        "workers killed": _killed(_WORKERS),
        "agent killed": _killed(_AGENT),
        "agent frozen": _frozen(_AGENT, more_s=_FAILOVER_S),
        "link to Kinesis cut": _link("kinesis", _CUT),
        "link to DynamoDB cut": _link("dynamodb", _CUT),
        "clock off by an hour": _restart(_move_clock),
    },
}
"""By scene and name."""

TAKEN_OVER: Final = frozenset(
    {
        "driver killed",
        "driver frozen",
        "planner killed",
        "agent killed",
        "agent frozen",
        "link to DynamoDB cut",
    }
)
"""Faults after which the other driver may take leases over, and read records again."""


# --- The program ----------------------------------------------------------------------------------


def rehearse(seeds: Sequence[int], scenes: Sequence[str], folder: Path) -> Iterator[History]:
    """Run a history for each seed, the scenes in turn; the folders of those that are right are
    deleted."""
    with ExitStack() as resources:
        brokers = resources.enter_context(KafkaBrokers())
        servers = Servers(
            kinesis=resources.enter_context(KinesisMock()),
            brokers=brokers,
            topics=resources.enter_context(
                KafkaTopics({"bootstrap.servers": brokers.bootstrap_servers})
            ),
            dynamodb_url=resources.enter_context(DynamoDbLocal()).endpoint_url,
            folder=folder,
        )
        for number, seed in enumerate(seeds):
            with ExitStack() as own:
                history = History(servers, scenes[number % len(scenes)], seed, own)
                history.run()
                yield history
            if history.findings.is_right:
                shutil.rmtree(history.folder)
            _read.cache_clear()


def table(histories: Sequence[History]) -> Iterator[str]:
    """The sums by scene and fault, each with the histories in which the fault came."""
    heads = ("scene", "fault", "histories", *Findings().numbers())
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for scene, faults in FAULTS.items():
        for fault in ("all", *faults):
            sums: Counter[str] = Counter()
            count = 0
            for history in histories:
                came = fault == "all" or any(step.fault == fault for step in history.steps)
                if history.scene == scene and came:
                    count += 1
                    sums.update(history.findings.numbers())
            if count:
                cells = (scene, fault, f"{count:,}", *(f"{sums[name]:,}" for name in heads[3:]))
                yield f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Real queries under random faults.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, help="of the first history; default: a new one")
    parser.add_argument("--scene", choices=FAULTS, help="default: one after the other")
    parser.add_argument("--folder", type=Path, help="for histories that fail; default: a new one")
    options = parser.parse_args(arguments)
    first = secrets.randbelow(10**6) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    scenes = [options.scene] if options.scene else list(FAULTS)
    done: list[History] = []
    for history in rehearse(range(first, first + options.runs), scenes, folder):
        done.append(history)
        verdict = "right" if history.findings.is_right else f"WRONG, see {history.folder}"
        print(f"--- {history.scene} --seed {history.seed} ({history.kind}): {verdict}")
        print(json.dumps(history.findings.numbers()), *history.findings.ended, sep="\n")
        print(*history.findings.left, sep="\n", end="")
        print(*history.timeline(), sep="\n", flush=True)
    print(*table(done), sep="\n")
    wrong = sum(not history.findings.is_right for history in done)
    print(f"{wrong} of {len(done)} histories went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
