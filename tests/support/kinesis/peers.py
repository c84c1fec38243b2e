"""The same histories of a Kinesis stream with this project's source and with other readers.

    python -m tests.support.kinesis.peers [--runs 3] [--history reshard] [--peer KCL]

Every reader has the same stream on kinesis-mock, written in the same order, and the same fault at
the same point. `tests/support/judge.py` compares the processed records with those put. Histories:

* reshard: the reader is stopped; the stream goes from 4 to 6 to 3 shards with records after each;
  the reader is started again. The queries also count the rows of each minute of event time, with a
  watermark of ten seconds.
* split: the same, and one of the four shards is split, then merged with its neighbour.
* kill: `kill -9` after the output and before the commit of a batch of a query, or between writing
  and checkpointing of a record processor; more records are put, and the reader is started again.
* task: the first attempt of each task with 200 rows or more fails after half of them.

The peers have the settings that their documentation recommends, apart from intervals of the KCL
that are shorter, so that a history takes a minute or two; rows that do not come are waited for
five minutes more. Queries write by `foreachBatch`, a folder for each batch, which replaces that of
an earlier attempt; the KCL's processor appends to a file and checkpoints after each call.

The connector of AWS Labs is in no registry. It takes part if its jar is in `.cache/peers/`, beside
an environment with the PySpark that it is built for:

    git clone --branch v2.0.0 https://github.com/awslabs/spark-sql-kinesis-connector
    (cd spark-sql-kinesis-connector && mvn package -Dmaven.test.skip=true)
    cp spark-sql-kinesis-connector/target/spark-streaming-*.jar .cache/peers/
    uv venv --python 3.11 .cache/peers/pyspark-4.0.2
    uv pip install --python .cache/peers/pyspark-4.0.2/bin/python pyspark==4.0.2
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import boto3

from tests.support.judge import Processed, Put, Verdict, judge
from tests.support.kcl.jars import KclVersion
from tests.support.kcl.workers import KclWorker
from tests.support.kinesis.feeds import RemoteFeed, options_for
from tests.support.servers import cache
from tests.support.servers.cache import CACHE
from tests.support.servers.dynamodb_local import DynamoDbLocal
from tests.support.servers.kinesis_mock import KinesisMock
from tests.support.spark.drivers import Driver
from tests.support.waiting import until

if TYPE_CHECKING:
    from types_boto3_kinesis import KinesisClient

_READ: Final = Path(__file__).parents[2] / "spark" / "programs" / "read_for_peers.py"
_CONNECTOR: Final = "spark-streaming-sql-kinesis-connector_2.13-2.0.0.jar"
_PYSPARK: Final = "pyspark-4.0.2"
_SHARDS: Final = 4
_KEYS: Final = 41
_STARTS: Final = 3
"""A reader that ends by itself is started again as often, as a supervisor would."""
_PATIENCE_S: Final = 600
_STUCK_S: Final = 300
"""A reader that has not read the rest in this time will not."""
_COUNTED_S: Final = 60
"""Windows that have not changed for this time, after all rows are read, will not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The services of all histories."""

    kinesis: KinesisMock
    client: KinesisClient
    feed: RemoteFeed
    dynamodb_url: str
    folder: Path
    chance: random.Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The task of a reader. `folder` holds its state and output: a restart has the same. `hold`:
    stand still before the commit of this number while the file exists. `harm`: fail at this row of
    a task. `counts`: also count by windows."""

    stream: str
    folder: Path
    hold: tuple[Path, int] | None = None
    harm: int | None = None
    counts: bool = False


class Reader(ABC):
    """A context manager: a process that reads, killed at the end of the block."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Return whether it has ended by itself."""

    @property
    @abstractmethod
    def log(self) -> str: ...

    @abstractmethod
    def stop(self) -> None:
        """Stop it as its users would, and wait for its end."""

    @abstractmethod
    def kill(self) -> None:
        """`kill -9` for all of its processes."""

    @abstractmethod
    def processed(self) -> list[Processed]:
        """Return the rows of its output."""

    def windows(self) -> dict[int, int]:
        """Return the counts of the windows."""
        return {}


class Query(Reader):
    """A Spark driver."""

    def __init__(
        self,
        job: Job,
        kind: str,
        options: Mapping[str, str],
        *,
        python: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(job)
        self._stop = job.folder / "stop"
        self._stop.unlink(missing_ok=True)
        orders = {
            "format": kind,
            "reader": json.dumps(dict(options)),
            "folder": str(job.folder),
            "stop": str(self._stop),
            "windows": str(job.counts).lower(),
        }
        if job.hold is not None:
            orders |= {"hold": str(job.hold[0]), "from": str(job.hold[1])}
        if job.harm is not None:
            orders |= {"harm": str(job.harm)}
        self._driver = Driver(
            job.folder,
            [orders],
            program=_READ,
            # Cores for all shards of both queries, and four attempts, as a cluster has.
            session="local[12,4]",
            python=python,
            settings=settings,
        )

    def __enter__(self) -> Self:
        self._driver.__enter__()
        return self

    @property
    def failed(self) -> bool:
        return not self._driver.alive

    @property
    def log(self) -> str:
        return self._driver.log

    def stop(self) -> None:
        self._stop.touch()
        self._driver.results()

    def kill(self) -> None:
        self._driver.kill()

    def processed(self) -> list[Processed]:
        rows = []
        for part in self.job.folder.glob("rows/*/part-*"):
            with suppress(FileNotFoundError):  # the batch is run again
                lines = part.read_text().splitlines()
                rows += [Processed(**json.loads(line)) for line in lines]
        return rows

    def windows(self) -> dict[int, int]:
        paths = [one for one in self.job.folder.glob("windows/*") if one.name.isdigit()]
        counts: dict[int, int] = {}
        for path in sorted(paths, key=lambda one: int(one.name)):
            counts |= {int(minute): n for minute, n in json.loads(path.read_text()).items()}
        return counts


class Worker(Reader):
    """A worker of the KCL."""

    def __init__(self, job: Job, scene: Scene) -> None:
        super().__init__(job)
        self._worker = KclWorker(
            KclVersion.V3_1,
            folder=job.folder,
            name="reader",
            application=f"{job.stream}-{job.folder.name}",
            stream=job.stream,
            kinesis_url=scene.kinesis.endpoint_url,
            dynamodb_url=scene.dynamodb_url,
            failover_ms=10_000,
            hold=job.hold,
        )

    def __enter__(self) -> Self:
        self._worker.__enter__()
        return self

    @property
    def failed(self) -> bool:
        return self._worker.failed

    @property
    def log(self) -> str:
        return self._worker.log

    def stop(self) -> None:
        self._worker.stop()

    def kill(self) -> None:
        self._worker.kill()

    def processed(self) -> list[Processed]:
        """In the order of the file, which its processes share."""
        return [
            Processed(at=place, key=read.key, number=int(read.data))
            for place, read in enumerate(self._worker.reads())
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A reader. `promise`: its documented delivery, with the sink of the histories."""

    name: str
    promise: str
    start: Callable[[Job, Scene], Reader]
    is_query: bool = True


def _ours(job: Job, scene: Scene) -> Reader:
    options = options_for(scene.kinesis.endpoint_url)
    options |= {"streamName": job.stream, "startingPosition": "trim_horizon"}
    return Query(job, "kinesis-ssp", options)


def _aws_labs(job: Job, scene: Scene) -> Reader:
    options = {
        "kinesis.streamName": job.stream,
        "kinesis.endpointUrl": scene.kinesis.endpoint_url,
        "kinesis.region": "us-east-1",
        "kinesis.kinesisRegion": "us-east-1",
        "kinesis.startingPosition": "TRIM_HORIZON",
        "kinesis.awsAccessKeyId": "local",
        "kinesis.awsSecretKey": "local",
    }
    return Query(
        job,
        "aws-kinesis",
        options,
        python=CACHE / "peers" / _PYSPARK / "bin" / "python",
        settings={"spark.driver.extraClassPath": str(CACHE / "peers" / _CONNECTOR)},
    )


OURS: Final = Peer(name="kinesis-ssp", promise="exactly once, in order per key", start=_ours)
KCL: Final = Peer(name="KCL", promise="at least once", start=Worker, is_query=False)
AWS_LABS: Final = Peer(name="awslabs", promise="none stated", start=_aws_labs)
PEERS: Final[Mapping[str, Peer]] = {one.name: one for one in (OURS, KCL, AWS_LABS)}


class Run:
    """One peer with one history: a stream of its own, and all that was put into it."""

    def __init__(self, scene: Scene, peer: Peer, *, keys: Sequence[str]) -> None:
        self.scene = scene
        self.peer = peer
        self.folder = Path(tempfile.mkdtemp(dir=scene.folder))
        self.stream = f"stream-{self.folder.name}"
        self.rows: list[Put] = []
        self._keys = keys
        scene.feed.create(self.stream, shards=_SHARDS)

    def put(self, count: int, *, group: int = _KEYS, spaced: bool = False) -> None:
        """Put records of the keys in turn, in calls of a `group`, in which no key comes twice: so
        their order is that of the calls. Their numbers, which are also their event times in
        seconds, ascend; if `spaced`, the service's clock follows them."""
        for begin in range(0, count, group):
            self.put_at_once(min(group, count - begin))
            if spaced:
                self.scene.kinesis.advance(group * 1000)

    def put_at_once(self, count: int) -> None:
        """Put records by one call."""
        begin = len(self.rows)
        self.rows += [Put(self._keys[n % len(self._keys)], n) for n in range(begin, begin + count)]
        answer = self.scene.client.put_records(
            StreamName=self.stream,
            Records=[
                {"PartitionKey": row.key, "Data": b"%d" % row.number} for row in self.rows[begin:]
            ],
        )
        assert not answer["FailedRecordCount"], answer

    def reshard(self, shards: int) -> None:
        """Change the number of shards, to ranges of one size."""
        self.scene.client.update_shard_count(
            StreamName=self.stream, TargetShardCount=shards, ScalingType="UNIFORM_SCALING"
        )
        until(lambda: len(self.scene.feed.open_shards(self.stream)) == shards, "a reshard")

    def read(self, job: Job) -> Reader:
        """Read until all rows are found, or nothing has changed for long; return the reader."""
        for _ in range(_STARTS):
            with self.peer.start(job, self.scene) as reader:
                self._settle(reader)
                if not reader.failed:
                    reader.stop()
                    break
                print(f"{self.peer.name} has ended:\n{reader.log[-3000:]}", file=sys.stderr)
        return reader

    def judged(self, reader: Reader) -> Verdict:
        """Judge the records that a reader and those before it have processed."""
        right = Counter(row.number // 60 for row in self.rows)
        windows = (right, reader.windows()) if reader.job.counts else None
        return judge(self.rows, reader.processed(), windows)

    def _settle(self, reader: Reader) -> None:
        wanted, counted = set(self.rows), len(self.rows) if reader.job.counts else 0
        seen, since = (-1, -1), time.monotonic()
        while seen != (len(wanted), counted) and not reader.failed:
            found = {Put(row.key, row.number) for row in reader.processed()}
            now = (len(found), sum(reader.windows().values()))
            if now != seen:
                seen, since = now, time.monotonic()
            quiet_s = _STUCK_S if len(found) < len(wanted) else _COUNTED_S
            if time.monotonic() - since > quiet_s:
                return
            time.sleep(0.5)


def _restart_after(act: Callable[[Run], None]) -> Callable[[Run], Verdict]:
    """A history: read, stop, let `act` put records and change shards, and read the rest."""

    def run(history: Run) -> Verdict:
        job = Job(stream=history.stream, folder=history.folder, counts=history.peer.is_query)
        history.put(300, group=5, spaced=True)
        history.read(job)
        history.put(150, group=5, spaced=True)
        act(history)
        return history.judged(history.read(job))

    return run


def _two_reshards(history: Run) -> None:
    for shards in (6, 3):
        history.reshard(shards)
        history.put(150, group=5, spaced=True)


def _split_and_merge(history: Run) -> None:
    feed = history.scene.feed
    _lower, upper = feed.split(history.stream, feed.open_shards(history.stream)[0])
    history.put(150, group=5, spaced=True)
    neighbour = feed.open_shards(history.stream)[2]
    feed.merge(history.stream, upper, neighbour)
    history.put(150, group=5, spaced=True)


def _kill(history: Run) -> Verdict:
    hold = history.folder / "hold"
    job = Job(stream=history.stream, folder=history.folder, hold=(hold, 300))
    history.put(300)
    hold.touch()
    with history.peer.start(job, history.scene) as reader:
        until(lambda: len(reader.processed()) >= 300, "300 rows", within_s=_PATIENCE_S, poll_s=0.5)
        history.put_at_once(150)
        until(lambda: len(reader.processed()) >= 450, "450 rows", within_s=_PATIENCE_S, poll_s=0.5)
        reader.kill()
    hold.unlink()
    history.put(450)
    return history.judged(history.read(job))


def _task(history: Run) -> Verdict:
    # Half of a shard's rows.
    harm = 1600 // _SHARDS // 2
    history.put(1600)
    reader = history.read(Job(stream=history.stream, folder=history.folder, harm=harm))
    assert (history.folder / "harmed").exists(), "no task has failed"
    return history.judged(reader)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A history, and whether only queries can have it."""

    act: Callable[[Run], Verdict]
    only_queries: bool = False


HISTORIES: Final[Mapping[str, History]] = {
    "reshard": History(act=_restart_after(_two_reshards)),
    "split": History(act=_restart_after(_split_and_merge)),
    "kill": History(act=_kill),
    "task": History(act=_task, only_queries=True),
}


def rehearse(
    histories: Sequence[str], peers: Sequence[str], runs: int, *, seed: int
) -> Iterator[str]:
    """Run histories, and yield the lines of the table."""
    yield (
        "| history | with | promise | runs | rows | lost | repeated | out of order | late | stuck |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    with ExitStack() as resources:
        kinesis = resources.enter_context(KinesisMock())
        client = boto3.session.Session().client("kinesis", **kinesis.client_settings())
        resources.callback(client.close)
        scene = Scene(
            kinesis=kinesis,
            client=client,
            feed=RemoteFeed(client, kinesis),
            dynamodb_url=resources.enter_context(DynamoDbLocal()).endpoint_url,
            folder=Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="peers-"))),
            chance=random.Random(seed),
        )
        for name in histories:
            # All peers the same keys.
            keys = [_keys(scene.chance) for _ in range(runs)]
            for peer in (PEERS[one] for one in peers):
                if HISTORIES[name].only_queries and not peer.is_query:
                    continue
                total = Verdict()
                for one in keys:
                    total += HISTORIES[name].act(Run(scene, peer, keys=one))
                late = "" if total.late is None else f"{total.late:,}"
                yield (
                    f"| {name} | {peer.name} | {peer.promise} | {runs} | {total.rows:,} "
                    f"| {total.lost:,} | {total.repeated:,} | {total.disordered:,} | {late} "
                    f"| {total.stuck:,} |"
                )


def _keys(chance: random.Random) -> list[str]:
    return [f"key-{chance.randrange(10**6)}" for _ in range(_KEYS)]


def _available() -> list[str]:
    """The peers whose files are here."""
    files = [CACHE / "peers" / name for name in (_CONNECTOR, _PYSPARK)]
    return [name for name in PEERS if name != AWS_LABS.name or all(one.exists() for one in files)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The same histories with other readers.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--history", choices=HISTORIES, action="append")
    parser.add_argument("--peer", choices=PEERS, action="append")
    parser.add_argument("--seed", type=int, default=17, help="of the keys")
    options = parser.parse_args(arguments)
    cache.use()
    histories = [name for name in HISTORIES if name in (options.history or HISTORIES)]
    peers = [name for name in PEERS if name in (options.peer or _available())]
    for line in rehearse(histories, peers, options.runs, seed=options.seed):
        print(line, flush=True)
    if AWS_LABS.name not in _available():
        print(f"without {AWS_LABS.name}, whose jar is not in .cache/peers", file=sys.stderr)


if __name__ == "__main__":
    main()
