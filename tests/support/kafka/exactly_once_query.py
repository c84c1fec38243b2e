"""A query that writes to Kafka exactly once, without Spark: a driver with a checkpoint, and
workers whose tasks die or stand still where they are told to."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import LifoQueue
from typing import Any, Final, Self

import pyarrow as pa

from spark_ssp.kafka_source.sink import transactions
from spark_ssp.kafka_source.sink.columns import SinkColumns
from spark_ssp.kafka_source.sink.markers import CompletedBatch, Write
from spark_ssp.kafka_source.sink.options import SinkOptions
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.sink.producer import RecordProducer
from spark_ssp.kafka_source.sink.table_sink import write_in_transaction
from spark_ssp.kafka_source.sink.transactions import record_completed

TASKS: Final = 3
_WORKERS: Final = TASKS + 1
_ATTEMPTS: Final = 4
_MOST_ROWS: Final = 60
_KEYS: Final = 12
_ANSWER_S: Final = 300.0
_COLUMNS: Final = SinkColumns(key=0, value=1)
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


class Point(StrEnum):
    """The places of a task where it dies or stands still."""

    BEGUN = "begun"
    SENT = "sent"
    FLUSHED = "flushed"
    CALLED = "called"
    """After one of the calls that initialize the id, send the marker and commit."""
    COMMITTING = "committing"
    """At any time of the marker and the commit."""
    COMMITTED = "committed"


class Kind(StrEnum):
    """The effect on a task at a point."""

    DIE = "die"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """The effect on one attempt of a task, and its place. The file `mark` is created when it
    strikes. `call` and `delay_s`: the call that it follows, and the time within a commit."""

    kind: Kind
    point: Point
    mark: Path
    call: int
    delay_s: float

    def reach(self, point: Point) -> None:
        if self.point is point:
            self.strike()

    def strike(self) -> None:
        self.mark.touch()
        os.kill(os.getpid(), signal.SIGKILL if self.kind is Kind.DIE else signal.SIGSTOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row. Values of one key rise."""

    key: str
    value: str


def rows_of(batch: int, task: int) -> Sequence[Row]:
    """Return the rows of a task, the same for each attempt, for all partitions. Some tasks have
    none."""
    count = random.Random(batch * TASKS + task).choice([0, 1, 5, _MOST_ROWS])
    return [
        Row(key=f"{task}/{number % _KEYS}", value=f"{batch}/{task}/{number}")
        for number in range(count)
    ]


# --- Workers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The answer of an attempt that failed. `kind`: of the SspError."""

    kind: str
    text: str


def _work(link: Connection, options: SinkOptions, sink: str, alive: Path) -> None:
    """Run attempts one after the other until the driver has gone; the last one to its end."""
    # Locked until it has ended, however it ends.
    lock = (alive / uuid.uuid4().hex).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    while True:
        try:
            batch, task, harm = link.recv()
        except (EOFError, OSError):
            return
        try:
            answer: object = _attempt(options, sink, batch, task, harm)
        except Exception as error:  # noqa: BLE001  (the driver decides)
            answer = Failure(kind=getattr(error, "kind", type(error).__name__), text=str(error))
        try:
            link.send(answer)
        except OSError:
            return


def _attempt(options: SinkOptions, sink: str, batch: int, task: int, harm: Harm | None) -> int:
    rows = rows_of(batch, task)
    half = len(rows) // 2

    def frames() -> Iterator[pa.RecordBatch]:
        for number, part in enumerate((rows[:half], rows[half:])):
            if number and harm is not None and harm.point is Point.SENT:
                time.sleep(0.1)  # The rows before are delivered.
                harm.strike()
            yield pa.RecordBatch.from_pydict(
                {
                    "key": pa.array([row.key for row in part], pa.string()),
                    "value": pa.array([row.value for row in part], pa.string()),
                }
            )

    with _harmed(harm):
        write = Write(sink=sink, task=task, batch=batch)
        count = write_in_transaction(frames(), _COLUMNS, options, write, "run")
    if harm is not None:
        harm.reach(Point.COMMITTED)
    return count


@contextmanager
def _harmed(harm: Harm | None) -> Iterator[None]:
    """Reach the points within the sink."""
    places: Mapping[Point, tuple[Any, str]] = {
        Point.BEGUN: (transactions.TransactionalTask, "begin"),
        Point.FLUSHED: (RecordProducer, "flush"),
        Point.CALLED: (transactions, "_bounded"),
        Point.COMMITTING: (transactions._Client, "commit"),
    }
    if harm is None or harm.point not in places:
        yield
        return
    owner, name = places[harm.point]
    plain = getattr(owner, name)
    left = harm.call if harm.point is Point.CALLED else 1

    def harmed(*arguments: Any) -> Any:
        nonlocal left
        if harm.point is Point.COMMITTING:
            timer = threading.Timer(harm.delay_s, harm.strike)
            timer.start()
            try:
                return plain(*arguments)
            finally:
                timer.join()
        found = plain(*arguments)
        left -= 1
        if left == 0:
            harm.strike()
        return found

    setattr(owner, name, harmed)
    try:
        yield
    finally:
        setattr(owner, name, plain)


@dataclass(eq=False)
class _Worker:
    """A process, and the driver's end of its link."""

    options: SinkOptions
    sink: str
    alive: Path
    process: Any = None
    link: Any = None

    def start(self) -> None:
        self.link, other = _CONTEXT.Pipe()
        arguments = (other, self.options, self.sink, self.alive)
        self.process = _CONTEXT.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        other.close()

    def ask(self, batch: int, task: int, harm: Harm | None) -> None:
        self.link.send((batch, task, harm))

    def answer(self, within_s: float = _ANSWER_S) -> int | Failure | None:
        """Return the number of rows or a failure; None if there is no answer in time."""
        if not wait([self.link], within_s):
            return None
        try:
            found: int | Failure = self.link.recv()
        except (EOFError, OSError):
            self.process.join()
            self.start()
            return Failure(kind="death", text="the worker died")
        return found

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


# --- The driver -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query and its checkpoint, in a folder. `kind`: the effect on an attempt of one task in
    each batch. `pause_s`: the time for which it stands still, at most. `seed`: of all that is drawn
    by lot."""

    options: Mapping[str, str]
    topic: str
    folder: Path
    seed: int
    kind: Kind | None = None
    pause_s: float = 0.0

    @classmethod
    def create(cls, folder: Path, **fields: Any) -> Self:
        for name in ("offsets", "commits", "harms", "alive"):
            (folder / name).mkdir()
        return cls(folder=folder, **fields)

    @property
    def sink(self) -> str:
        return f"query/{self.topic}"

    def chance(self, purpose: str, batch: int = 0) -> random.Random:
        """Return the numbers drawn for a purpose, the same in each process."""
        return random.Random(f"{self.seed} {purpose} {batch}")

    def logged(self, log: str) -> int:
        """Return the last batch of a log, -1 if it is empty."""
        return max((int(file.name) for file in (self.folder / log).iterdir()), default=-1)

    def has_completed(self, batch: int) -> bool:
        return self.logged("commits") >= batch

    def log(self, log: str, batch: int) -> None:
        (self.folder / log / str(batch)).touch()

    def lose_commit(self) -> None:
        (self.folder / "commits" / str(self.logged("commits"))).unlink()

    def harms(self) -> Counter[str]:
        """Return the points at which tasks were harmed, and how often."""
        return Counter(file.name.partition("-")[0] for file in (self.folder / "harms").iterdir())

    def failures(self) -> Sequence[str]:
        """Return the failures of attempts, each with its kind."""
        file = self.folder / "failures"
        return file.read_text().splitlines() if file.exists() else []

    def are_workers_gone(self) -> bool:
        return not any(map(_is_locked, (self.folder / "alive").iterdir()))

    def drive(self, until_batch: int) -> None:
        """Run batches up to one. Raises RuntimeError if a task fails again and again."""
        options = parse_sink_options(
            {**self.options, "topic": self.topic, "deliveryGuarantee": "exactly-once"}
        )
        # The last one first: it has a client of the batch before.
        workers = LifoQueue[_Worker]()
        for _ in range(_WORKERS):
            worker = _Worker(options, self.sink, self.folder / "alive")
            worker.start()
            workers.put(worker)
        with ThreadPoolExecutor(TASKS) as threads:
            while (batch := self.logged("commits") + 1) <= until_batch:
                self.log("offsets", batch)
                harmed = None if self.kind is None else self.chance("task", batch).randrange(TASKS)
                results = [
                    threads.submit(self._run, workers, batch, task, task == harmed)
                    for task in range(TASKS)
                ]
                for result in results:
                    result.result()
                completed = CompletedBatch(batch=batch, tasks=TASKS)
                record_completed(options.client, self.sink, self.topic, completed)
                self.log("commits", batch)

    def _run(self, workers: LifoQueue[_Worker], batch: int, task: int, is_harmed: bool) -> None:
        harm = self._harm(batch) if is_harmed else None
        for _ in range(_ATTEMPTS):
            worker = workers.get()
            worker.ask(batch, task, harm)
            if harm is not None and harm.kind is Kind.PAUSE:
                answer = self._outlast(worker, workers, batch, task, harm)
            else:
                answer = worker.answer()
            workers.put(worker)
            if isinstance(answer, int):
                return
            self._note(answer)
            harm = None
        raise RuntimeError(f"batch {batch}, task {task}: {self.failures()[-_ATTEMPTS:]}")

    def _harm(self, batch: int) -> Harm:
        assert self.kind is not None
        chance = self.chance("harm", batch)
        point = chance.choice(list(Point))
        return Harm(
            kind=self.kind,
            point=point,
            mark=self.folder / "harms" / f"{point}-{batch}",
            call=chance.choice([1, 2, 3]),
            delay_s=chance.uniform(0, 0.02),
        )

    def _note(self, answer: Failure | None) -> None:
        text = "no answer" if answer is None else f"{answer.kind}: {answer.text}"
        with (self.folder / "failures").open("a") as file:
            file.write(text.replace("\n", " ") + "\n")

    def _outlast(
        self, worker: _Worker, workers: LifoQueue[_Worker], batch: int, task: int, harm: Harm
    ) -> int | Failure | None:
        """Let a worker stand still for a time from its point on, and often run a copy meanwhile.
        Return one answer: the copy's, if it succeeded."""
        while not harm.mark.exists():
            answer = worker.answer(0.02)
            if answer is not None:
                return answer
        began, chance = time.monotonic(), self.chance("pause", batch)
        copied: int | Failure | None = None
        if chance.random() < 0.5:
            copy = workers.get()
            copy.ask(batch, task, None)
            copied = copy.answer()
            workers.put(copy)
            if not isinstance(copied, int):
                self._note(copied)
        time.sleep(max(0.0, began + chance.uniform(0, self.pause_s) - time.monotonic()))
        answer = None
        while answer is None:
            # Again, if it was about to stop.
            worker.resume()
            answer = worker.answer(0.5)
        if not isinstance(copied, int):
            return answer
        if not isinstance(answer, int):
            self._note(answer)
        return copied


def _is_locked(file: Path) -> bool:
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def start(query: Query, until_batch: int = 1 << 31) -> Any:
    """Start a driver in a process of its own."""
    process = _CONTEXT.Process(target=query.drive, args=(until_batch,))
    process.start()
    return process


def finish(query: Query, more: int = 0) -> None:
    """Complete the batches that are planned, and some more, though the driver fails: raises
    AssertionError if it fails again and again at one batch."""
    goal = query.logged("offsets") + more
    failures = 0
    while not query.has_completed(goal):
        before = query.logged("commits")
        driver = start(query, goal)
        driver.join()
        failures = 0 if query.logged("commits") > before else failures + 1
        assert failures < _ATTEMPTS, f"batch {before + 1} of {query.topic} does not succeed"
