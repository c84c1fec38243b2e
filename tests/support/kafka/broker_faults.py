"""Faults of one broker of three, and what they do to all that talks to Kafka, without Spark.

    python -m tests.support.kafka.broker_faults --runs 20 --down 60

prints a line for each fault: what died, records lost and read twice, the longest time without
progress, the share of a core before the fault and during it, and lines logged per minute. It fails
if anything died, a record was lost or read twice, or anything stood still for 30 s.

    python -m tests.support.kafka.broker_faults --fault kill --subject source --settle 30 --down 120

measures one query without new records, from 30 s after the fault on.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Self

import pyarrow as pa

from spark_ssp.kafka_source.pipeline_system import KafkaSystem
from spark_ssp.kafka_source.sink.columns import SinkColumns
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.sink.table_sink import write_rows
from spark_ssp.kafka_source.source import KafkaBatchReader, KafkaStreamReader
from spark_ssp.operations.inspection.topics import read_topics
from spark_ssp.testing.kafka.broker import LocalServer
from tests.support.kafka.topics import KafkaTopics
from tests.support.servers.kafka_broker import KafkaBrokers
from tests.support.waiting import until

FAULTS: Final = ("kill", "freeze", "stop")
PARTITIONS: Final = 6
SINK: Final = "sink"
SOURCES: Final = ("source", "source with tasks", "source by pattern")
SUBJECTS: Final = (SINK, *SOURCES, "batch read", "planner", "command")
STALL_S: Final = 30.0

_PAUSE_S: Final = 0.3
_ROWS: Final = 20
_STEADY: Final = 3
"""The steps of each subject by which it is under way, or has recovered."""


class Subject:
    """Repeats a step in a thread until the context ends or a step fails."""

    def __init__(self, name: str, step: Callable[[], object]) -> None:
        self.name = name
        self.failure: Exception | None = None
        self.steps = 0
        self._step = step
        self._ending = threading.Event()
        self._moved_at = time.monotonic()
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def reset(self) -> None:
        """Forget the stalls so far."""
        self._longest_s, self._moved_at = 0.0, time.monotonic()

    def longest_s(self) -> float:
        """Return the longest time between two steps, up to now."""
        return max(self._longest_s, time.monotonic() - self._moved_at)

    def _run(self) -> None:
        while not self._ending.wait(_PAUSE_S):
            try:
                self._step()
            except Exception as error:  # noqa: BLE001  (reported as the end of the subject)
                self.failure = error
                return
            now = time.monotonic()
            self._longest_s = max(self._longest_s, now - self._moved_at)
            self._moved_at = now
            self.steps += 1


@dataclass
class Sink:
    """Writes numbers, at least once each."""

    options: Mapping[str, str]
    topic: str
    written: set[int] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)

    def step(self) -> None:
        numbers = [next(self._numbers) for _ in range(_ROWS)]
        values = [b"%d" % number for number in numbers]
        rows = pa.RecordBatch.from_pydict({"key": values, "value": values})
        options = parse_sink_options({**self.options, "topic": self.topic})
        write_rows([rows], SinkColumns(key=0, value=1), options, None)
        self.written.update(numbers)


class Source:
    """A streaming query: plans a batch and reads all its tasks, as Spark calls it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._reader = KafkaStreamReader({**options, "startingOffsets": "earliest"})
        self._offset = self._reader.initialOffset()
        self.read: Counter[int] = Counter()

    def step(self) -> None:
        end = self._reader.plan_end_of_all(self._offset)
        if end == self._offset:
            return
        for part in self._reader.plan_partitions(self._offset, end):
            for batch in self._reader.read(part):
                self.read.update(map(int, batch.column("value").to_pylist()))
        # As it comes back from Spark's log.
        self._offset = json.loads(json.dumps(end))

    def close(self) -> None:
        self._reader.stop()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The effects of one fault. Shares are of one core."""

    fault: str
    broker: int
    died: Mapping[str, str]
    lost: int
    repeated: int
    stall_s: float
    stalled: str
    cpu_share: float
    cpu_share_before: float
    lines_per_minute: float

    @property
    def is_right(self) -> bool:
        """Return whether nothing ended, was lost or was read twice."""
        return not self.died and not self.lost and not self.repeated

    def __str__(self) -> str:
        died = "; ".join(f"{name}: {why}" for name, why in self.died.items()) or "none"
        return (
            f"{self.fault} {self.broker}: died {died}; lost {self.lost}, repeated {self.repeated}; "
            f"stall {self.stall_s:.1f} s ({self.stalled}); CPU {self.cpu_share:.1%} of a core, "
            f"{self.cpu_share_before:.1%} before; {self.lines_per_minute:.1f} lines a minute"
        )


class Rehearsal(LocalServer):
    """A context manager: `subjects`, by default everything that talks to `cluster`, under way.
    Without the sink, there are no records but some at the begin."""

    def __init__(self, cluster: KafkaBrokers, subjects: Collection[str] = SUBJECTS) -> None:
        self._cluster = cluster
        self._names = subjects
        self._lines = _Lines()

    def _start(self, resources: ExitStack) -> None:
        options = self._cluster.options
        topics = resources.enter_context(
            KafkaTopics({"bootstrap.servers": self._cluster.bootstrap_servers})
        )
        topic = topics.create(PARTITIONS)
        logger = logging.getLogger("spark_ssp")
        logger.addHandler(self._lines)
        resources.callback(logger.removeHandler, self._lines)
        self._sink = Sink(options, topic)
        group = {"subscribe": topic, "commitOffsetsToGroup": f"group-{topic}"}
        pattern = {"subscribePattern": f"^{topic}$", "partitionDiscoveryInterval": "200ms"}
        of_sources = (group, {"subscribe": topic, "tasks": "2"}, pattern)
        self._sources = {
            name: Source({**options, **more})
            for name, more in zip(SOURCES, of_sources, strict=True)
            if name in self._names
        }
        for source in self._sources.values():
            resources.callback(source.close)
        system = KafkaSystem(options)
        steps = {
            SINK: self._sink.step,
            **{name: source.step for name, source in self._sources.items()},
            "batch read": lambda: _read_batch({**options, "subscribe": topic}),
            "planner": lambda: system.partition_count(topic),
            "command": lambda: read_topics([topic], options),
        }
        self._sink.step()
        self._subjects = [Subject(name, steps[name]) for name in steps if name in self._names]
        for subject in self._subjects:
            resources.enter_context(subject)
        self._until_steady("all is under way")

    def fault(self, fault: str, broker: int, *, down_s: float, settle_s: float = 0.0) -> Outcome:
        """Take a broker away for `settle_s` and then `down_s` seconds, and wait until all is well
        again. The share of a core and the lines are those of the last `down_s`."""
        before = self._measure(min(down_s, 30.0 if settle_s else 5.0))
        for subject in self._subjects:
            subject.reset()
        lines = self._lines.count
        with self._cluster.away(broker, fault):
            if settle_s:
                time.sleep(settle_s)
                lines = self._lines.count
            share = self._measure(down_s)
            logged = self._lines.count - lines
            self._until_steady(f"all is well without broker {broker}")
        self._until_steady(f"all is well with broker {broker}")
        slowest = max(self._subjects, key=Subject.longest_s)
        stall_s = slowest.longest_s()
        lost, repeated = self._check()
        return Outcome(
            fault=fault,
            broker=broker,
            died={one.name: str(one.failure) for one in self._subjects if one.failure is not None},
            lost=lost,
            repeated=repeated,
            stall_s=stall_s,
            stalled=slowest.name,
            cpu_share=share,
            cpu_share_before=before,
            lines_per_minute=logged * 60 / down_s,
        )

    def _measure(self, seconds: float) -> float:
        """Return the share of a core that this process takes meanwhile."""
        begun, used = time.monotonic(), _cpu_s()
        time.sleep(seconds)
        return (_cpu_s() - used) / (time.monotonic() - begun)

    def _until_steady(self, what: str) -> None:
        """Wait until each subject has made some steps, or has failed."""
        goals = {one: one.steps + _STEADY for one in self._subjects}
        until(
            lambda: all(one.failure or one.steps >= goal for one, goal in goals.items()),
            what,
            within_s=180,
        )

    def _check(self) -> tuple[int, int]:
        """Return the number of records that any source lost, and that any read twice: by now each
        has read what was written before."""
        written = set(self._sink.written)
        alive = [
            self._sources[one.name]
            for one in self._subjects
            if one.name in self._sources and one.failure is None
        ]
        with suppress(AssertionError):  # counted below
            until(lambda: all(written <= one.read.keys() for one in alive), "all is read")
        lost = sum(len(written - one.read.keys()) for one in alive)
        # The sources go on reading: a copy is made at once.
        return lost, sum(sum(n - 1 for n in dict(one.read).values()) for one in alive)


class _Lines(logging.Handler):
    """Counts lines."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def _read_batch(options: Mapping[str, str]) -> None:
    reader = KafkaBatchReader(options)
    for part in reader.partitions():
        for _ in reader.read(part):
            pass


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all faults, each on a broker after the other."""
    parser = argparse.ArgumentParser(description="Faults of one broker of three.")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--down", type=float, default=60.0, help="seconds that a broker is away")
    parser.add_argument("--settle", type=float, default=0.0, help="seconds before those measured")
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--broker", type=int, choices=(1, 2, 3), action="append")
    parser.add_argument("--subject", choices=SUBJECTS, action="append", help="default: all")
    options = parser.parse_args(arguments)
    wrong = done = 0
    subjects = options.subject or SUBJECTS
    with KafkaBrokers() as cluster, Rehearsal(cluster, subjects) as rehearsal:
        for run in range(options.runs):
            for fault in options.fault or FAULTS:
                for broker in options.broker or cluster.numbers:
                    outcome = rehearsal.fault(
                        fault, broker, down_s=options.down, settle_s=options.settle
                    )
                    done += 1
                    wrong += not outcome.is_right or outcome.stall_s > STALL_S
                    print(f"run {run + 1}: {outcome}", flush=True)
    print(f"{wrong} of {done} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
