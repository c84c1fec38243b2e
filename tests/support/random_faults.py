"""Real queries under faults at random moments, drawn from a seed, and the verdict on their output.

    python -m tests.support.random_faults --runs 20 [--seed 17] [--scene shared] [--folder FOLDER]

A history of the scene `alone`: a driver with a query of each format, which write files, on two
slots. Its stream is on kinesis-mock or on the embedded Kinesis with the service's limits, its topic
on three brokers; both get records all the time, shards split and merge, partitions multiply. In the
scene `shared` two drivers share the stream by leases on DynamoDB Local. Three to five faults follow
each other, each for seconds. A driver that has ended is started again; without leases, an outage of
minutes by the service's clock, with records and reshards, follows each kill and stop.

The n-th history has the seed of the first plus n - 1: `--seed S --runs 1 --scene SCENE` repeats its
schedule, not the moments of threads and processes. Each prints a timeline, a column a second: the
committed batches and the faults. The judge compares the files that Spark's sink has committed with
the records put, and uses no reader's code. The table at the end counts, by fault, the histories in
which it came. Needs Linux, and root to mount a file system that fills up. The clocks that are off
are those of `time.time` in Python; services are on one machine.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
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
from tests.support.spark.drivers import Driver, committed_files, send
from tests.support.spark.small_disk import SmallDisk, small_disk
from tests.support.spark.supervised import Supervised
from tests.support.spark.traffic import SLOTS, Partitions, Shards, planned_batches
from tests.support.waiting import Background, until

_FAST: Final = 1e9
_SLOW: Final = 1_500.0
_CUT: Final = 0.0
"""Rates of a link, in bytes a second."""
_WORKERS: Final = "pyspark.daemon pyspark.worker"
_PLANNERS: Final = "python_streaming_source_runner"
_AGENT: Final = "checkpoint.agent.process"
_FAILOVER_S: Final = 10
_PATIENCE_S: Final = 180
_READ_TIMEOUT_S: Final = 2
_DELAY_S: Final = 18.0
"""The delay of a watermark that no row may be behind: five seconds and `minFetchPeriod`, by the
guide, and twice the longest time for which a fault stops a reader between two shards."""
_DISK_KIB: Final = 4096


class Step(NamedTuple):
    """A fault of a schedule: `wait_s` after the last one, for `for_s` seconds; `pick` in [0, 1)
    chooses among drivers or brokers, and `seed` is of the fault's own draws."""

    wait_s: float
    fault: str
    for_s: float
    pick: float
    seed: int


def schedule(chance: random.Random, faults: Sequence[str]) -> list[Step]:
    """Draw the faults of a history."""
    return [
        Step(
            chance.uniform(1, 6),
            chance.choice(faults),
            chance.uniform(1, 6),
            chance.random(),
            chance.randrange(1 << 32),
        )
        for _ in range(chance.randint(3, 5))
    ]


# --- Services -------------------------------------------------------------------------------------


class Service(NamedTuple):
    """A Kinesis whose clock can be moved, by milliseconds, and a feed of one stream."""

    feed: Feed
    advance: Callable[[int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Those that all histories use."""

    kinesis: KinesisMock
    brokers: KafkaBrokers
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
        written_ns = Path(path).stat().st_mtime_ns
        for position, (key, value, at) in enumerate(_read(path, _COLUMNS[source])):
            rows.append(
                Written(
                    key=key if isinstance(key, str) else key.decode(),
                    number=int(value),
                    at_s=at.timestamp(),
                    batch=batch,
                    file=path,
                    position=position,
                    written_ns=written_ns,
                )
            )
    return rows


@dataclass(kw_only=True)
class Findings:
    """The verdict on a history. `again` are the rows that two drivers have, after a fault for which
    leases allow it. `wide`: batches with more files than slots. `ended`: why a driver, or the
    history, ended by itself. `left`: processes and leases that remained."""

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
            "repeated": verdict.repeated,
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
        self._traffic: list[Background] = []
        self.began = time.monotonic()
        self.began_at = time.time()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{scene}-{seed}-", dir=servers.folder))
        self.resources = resources
        self.feed, self._advance = servers.service(self.kind, resources)
        self._feeding = threading.Lock()
        self.stream = f"orders-{self.folder.name}"
        self.feed.create(self.stream, shards=self.chance.randint(1, 4))
        self.feed.put(self.stream, 50)
        names = ("one",) if scene == "alone" else ("anne", "bert")
        self.links = {
            name: {
                "kinesis": self._link(self.feed.endpoint_url),
                "dynamodb": self._link(servers.dynamodb_url),
            }
            for name in names
        }
        limit = self.chance.choice((None, None, 200))
        self.limits = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
        self.steps = schedule(self.chance, list(FAULTS[scene]))
        self.drivers = [Supervised(self.folder / name, self._driver) for name in names]
        self.shards = Shards(
            self.feed,
            self.stream,
            random.Random(self.chance.randrange(1 << 32)),
            lambda: sum(planned_batches(driver.folder) for driver in self.drivers),
            fewest=len(names),
        )
        self.partitions: Partitions | None = None
        if scene == "alone":
            topics = resources.enter_context(
                KafkaTopics({"bootstrap.servers": servers.brokers.bootstrap_servers})
            )
            self.partitions = Partitions(topics, lambda: planned_batches(self.drivers[0].folder, 1))
        self.disk: SmallDisk | None = None
        if any(step.fault == "disk full" for step in self.steps):
            folder = self.drivers[0].folder / "checkpoint-0"
            self.disk = resources.enter_context(small_disk(folder, _DISK_KIB))

    @property
    def queries(self) -> int:
        return 2 if self.partitions is not None else 1

    def run(self) -> None:
        """Read under the faults, then until all is read, and judge."""
        try:
            with ExitStack() as ending:
                for driver in self.drivers:
                    driver.folder.mkdir(exist_ok=True)
                    ending.callback(driver.kill_all)
                    driver.start()
                self._run()
        except Exception:  # noqa: BLE001 - a finding; other histories follow
            self.findings.ended.append(traceback.format_exc()[-3000:])
        for driver in self.drivers:
            self.findings.ended += driver.ended
        if self.disk is not None and not self.findings.is_right:
            shutil.copytree(self.disk.folder, self.disk.folder.with_name("checkpoint-0-kept"))

    def _run(self) -> None:
        with ExitStack() as traffic:
            self._begin_traffic(traffic)
            for driver in self.drivers:
                driver.until_it_plans(self.queries)
            for step in self.steps:
                time.sleep(step.wait_s)
                assert all(one.alive for one in self._traffic), "no more records are put"
                for driver in self.drivers:
                    driver.look()
                begin = time.monotonic() - self.began
                FAULTS[self.scene][step.fault](self, step)
                self.marks.append((begin, time.monotonic() - self.began, step.fault))
        self._read_the_rest()
        if len(self.drivers) > 1:
            # A driver that takes leases over by now would read some records again.
            time.sleep(1.5 * _FAILOVER_S)
        for driver in self.drivers:
            driver.stop()
        self._judge()

    # --- Parts of a history ---

    def pick(self, step: Step) -> Supervised:
        return self.drivers[int(step.pick * len(self.drivers))]

    def outage(self, step: Step) -> None:
        """Records and reshards while a driver is away: without leases some minutes by the service's
        clock, with them as long as the fault lasts, since the other driver reads on."""
        if len(self.drivers) > 1:
            time.sleep(step.for_s)
            return
        chance = random.Random(step.seed)
        for part in range(chance.randint(2, 6)):
            with self._feeding:
                self.feed.put(self.stream, 20)
                self._advance(chance.choice((20_000, 60_000)))
                if part == 0 or chance.random() < 0.4:
                    self.shards.reshard()

    def _feed(self) -> None:
        with self._feeding:
            self.shards.put()

    def _begin_traffic(self, stack: ExitStack) -> None:
        self._traffic = [stack.enter_context(Background(self._feed, pause_s=0.05))]
        if self.partitions is not None:
            feed, topic = self.partitions.feed, self.partitions.topic
            of_kafka = kafka_traffic(feed, topic, meanwhile=self.partitions.expand)
            self._traffic.append(stack.enter_context(of_kafka))

    def _link(self, url: str) -> SlowLink:
        port = urlsplit(url).port
        assert port is not None
        return self.resources.enter_context(SlowLink(port, _FAST))

    def _driver(self, folder: Path, environment: Mapping[str, str]) -> Driver:
        links = self.links[folder.name]
        options = options_for(links["kinesis"].url) | self.limits
        options |= {
            "readTimeout": f"{_READ_TIMEOUT_S}s",
            "streamName": self.stream,
            "startingPosition": "trim_horizon",
            "slots": str(SLOTS),
        }
        queries, sources = [options], ["kinesis-ssp"]
        if self.partitions is None:
            options |= {
                "applicationName": self.folder.name,
                "workerId": folder.name,
                "dynamodbEndpointUrl": links["dynamodb"].url,
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
            # Old logs say of which batch a file is.
            settings={"spark.sql.streaming.fileSink.log.deletion": "false"},
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
        """Wait until all is read, or nothing has been for long: missing rows are counted."""
        wanted = {(0, one.number) for one in self._put()}
        if self.partitions is not None:
            wanted |= {(1, one.number) for one in self._kafka_put()}
        missing, since = len(wanted), time.monotonic()
        while missing and time.monotonic() - since < _PATIENCE_S:
            time.sleep(1.0)
            for driver in self.drivers:
                driver.look()
            found = {(0, row.number) for rows in self._outputs() for row in rows}
            found |= {(1, row.number) for row in self._kafka_output()}
            if len(wanted - found) < missing:
                missing, since = len(wanted - found), time.monotonic()

    def _judge(self) -> None:
        findings, outputs = self.findings, self._outputs()
        findings.verdict, again = judge_readers(self._put(), outputs)
        if any(step.fault in TAKEN_OVER for step in self.steps):
            findings.again = again
        else:
            findings.verdict += Verdict(repeated=again)
        if self.partitions is None:
            findings.left += self._held_leases()
        else:
            late = Verdict(late=sum(late_rows(rows, _DELAY_S) for rows in outputs))
            outputs.append(self._kafka_output())
            findings.verdict += judge_readers(self._kafka_put(), outputs[-1:])[0] + late
        findings.wide = sum(wide_batches(rows, SLOTS) for rows in outputs)
        for driver in self.drivers:
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


def _restart(end: Callable[[Supervised], None], away_s: float = 0.0) -> Fault:
    def act(history: History, step: Step) -> None:
        driver = history.pick(step)
        end(driver)
        history.outage(step)
        time.sleep(away_s)
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
        processes = history.pick(step).running(part)
        send(signal.SIGSTOP, processes)
        try:
            time.sleep(more_s + step.for_s)
        finally:
            send(signal.SIGCONT, processes)

    return act


def _killed(part: str) -> Fault:
    def act(history: History, step: Step) -> None:
        send(signal.SIGKILL, history.pick(step).running(part))

    return act


def _planner_killed(history: History, step: Step) -> None:
    """The process of a reader on the driver: Spark ends the query, and so the driver."""
    driver = history.pick(step)
    planners = driver.running(_PLANNERS)
    send(signal.SIGKILL, [random.Random(step.seed).choice(planners)])
    until(lambda: not driver.driver.alive, "the end of its driver", within_s=_PATIENCE_S)
    # Any error but those of the source itself, which have a kind in brackets.
    driver.look(may_end=r"\A(?![\s\S]*\[[a-z]+(-[a-z]+)+\])")
    driver.until_it_plans(history.queries)


def _broker(kind: str) -> Fault:
    def act(history: History, step: Step) -> None:
        brokers, partitions = history.servers.brokers, history.partitions
        assert partitions is not None
        number = brokers.numbers[int(step.pick * len(brokers.numbers))]
        with partitions.may_expand, brokers.away(number, kind):
            time.sleep(step.for_s)

    return act


def _limited(service: str, rate: float, more_s: float = 0.0) -> Fault:
    """Pass a driver's requests to a service at a rate of bytes; at 0, none."""

    def act(history: History, step: Step) -> None:
        link = history.links[history.pick(step).folder.name][service]
        link.rate = rate
        time.sleep(0.2)
        passed = link.passed
        time.sleep(more_s + step.for_s)
        assert rate or link.passed == passed, "the link is not cut"
        link.rate = _FAST

    return act


def _disk_full(history: History, step: Step) -> None:
    """Until the driver ends, for lack of space."""
    driver, disk = history.drivers[0], history.disk
    assert disk is not None
    filler = disk.folder / "filler"

    def ended() -> bool:
        # Spark deletes old files meanwhile.
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        return not driver.driver.alive

    until(ended, "a driver without space ends", within_s=_PATIENCE_S, poll_s=0.1)
    filler.unlink()
    driver.look(may_end="No space left on device")
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
        "link to Kinesis cut": _limited("kinesis", _CUT, more_s=_READ_TIMEOUT_S),
        "link to Kinesis slow": _limited("kinesis", _SLOW),
        "clock off by an hour": _restart(_move_clock),
        "disk full": _disk_full,
    },
    "shared": {
        "driver killed": _restart(Supervised.kill),
        "machine lost": _restart(Supervised.kill_all, away_s=_FAILOVER_S),
        "driver stopped": _restart(Supervised.stop),
        "driver frozen": _frozen("", more_s=_FAILOVER_S),
        "planner killed": _planner_killed,
        "workers killed": _killed(_WORKERS),
        "agent killed": _killed(_AGENT),
        "agent frozen": _frozen(_AGENT, more_s=_FAILOVER_S),
        "link to Kinesis cut": _limited("kinesis", _CUT, more_s=_READ_TIMEOUT_S),
        "link to DynamoDB cut": _limited("dynamodb", _CUT),
        "link to DynamoDB cut for long": _limited("dynamodb", _CUT, more_s=_FAILOVER_S),
        "clock off by an hour": _restart(_move_clock),
    },
}
"""By scene and name."""

TAKEN_OVER: Final = frozenset(
    {
        "driver killed",
        "machine lost",
        "driver frozen",
        "planner killed",
        "agent killed",
        "agent frozen",
        "link to DynamoDB cut for long",
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
    # So that a run that is stopped ends its drivers and unmounts its disks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    done: list[History] = []
    print(f"--seed {first}, in {folder}", flush=True)
    for history in rehearse(range(first, first + options.runs), scenes, folder):
        done.append(history)
        verdict = "right" if history.findings.is_right else f"WRONG, see {history.folder}"
        print(f"--- {history.scene} --seed {history.seed} ({history.kind}): {verdict}")
        print(json.dumps(history.findings.numbers()), *history.findings.ended, sep="\n")
        if history.findings.left:
            print(*history.findings.left, sep="\n")
        print(*history.timeline(), sep="\n", flush=True)
    print(*table(done), sep="\n")
    wrong = sum(not history.findings.is_right for history in done)
    print(f"{wrong} of {len(done)} histories went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
