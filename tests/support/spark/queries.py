"""Real queries: a sink that keeps the rows of each batch, waiting for conditions, and checks.
Everything waits for a condition with a deadline that is generous, since a machine may be slow."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from tests.support.kinesis.feeds import Feed, Record

R = TypeVar("R")

DEADLINE_S = 240
_POLL_S = 0.05
_STARTS = 5
_TOO_BUSY = "Python worker failed to connect back"

Trigger = Literal["as fast as possible", "available now", "once"]

TakesBatches = Callable[[DataFrame, int], None]
"""A sink for `foreachBatch`."""


class Counting(Protocol):
    """A sink that knows how many rows it has."""

    @property
    def count(self) -> int: ...


class Row(NamedTuple):
    """One row as the sink got it."""

    record: Record
    sub: int
    slot: int
    arrival_ms: int


@dataclass(kw_only=True)
class KeptBatches(Generic[R]):
    """The rows of each batch of a query. `meanwhile`: called while a batch is written."""

    batches: dict[int, tuple[R, ...]] = field(default_factory=dict)
    meanwhile: Callable[[int], None] | None = None

    @property
    def rows(self) -> list[R]:
        """All rows, in the order of the batches and within each batch as they came."""
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def count(self) -> int:
        return sum(map(len, self.batches.values()))

    def sizes(self) -> list[int]:
        """Return the number of rows of each batch, without the empty ones."""
        return [len(self.batches[batch]) for batch in sorted(self.batches) if self.batches[batch]]


@dataclass(kw_only=True)
class Sink(KeptBatches[Row]):
    """A sink on the driver for `foreachBatch`. As sinks should, it treats a known batch as a
    replay, which must have the same rows, and keeps it once. `broken`: raises instead of accepting
    a batch, after its rows were checked."""

    attempts: list[tuple[int, tuple[Row, ...]]] = field(default_factory=list)
    broken: bool = False

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = tuple(_row(row) for row in frame.collect())
        self.attempts.append((batch, rows))
        if self.meanwhile is not None:
            self.meanwhile(batch)
        if self.broken:
            raise RuntimeError("the sink is broken")
        self.batches[batch] = rows


def _row(row: Any) -> Row:
    return Row(
        record=Record(
            stream=row.stream,
            shard=row.shardId,
            sequence=int(row.sequenceNumber),
            key=row.partitionKey,
            data=bytes(row.data),
        ),
        sub=row.subSequenceNumber,
        slot=row.ssp,
        arrival_ms=round(row.approximateArrivalTimestamp.timestamp() * 1000),
    )


# --- Running --------------------------------------------------------------------------------------


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The stream with these options."""
    return spark.readStream.format("kinesis-ssp").options(**options).load()


def start(
    frame: DataFrame, sink: TakesBatches, checkpoint: Path, trigger: Trigger = "as fast as possible"
) -> StreamingQuery:
    """A query that has got as far as asking the source, or has failed."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    match trigger:
        case "as fast as possible":
            writer = writer.trigger(processingTime="0 seconds")
        case "available now":
            writer = writer.trigger(availableNow=True)
        case "once":
            writer = writer.trigger(once=True)
    return start_patiently(writer.start)


def start_patiently(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and wait until it asks the source or has failed. Spark gives a new Python
    process ten seconds to report, regardless of its settings. Where the machine is too busy for
    that, the query is started again: it has not done anything yet."""
    for _ in range(_STARTS):
        query = begin()
        wait_until(lambda: _is_under_way(query), "the query's start")  # noqa: B023
        if query.isActive or _TOO_BUSY not in str(query.exception()):
            break
    return query


def _is_under_way(query: StreamingQuery) -> bool:
    """Return whether it calls its sources, or has ended."""
    starting = query.status["message"].startswith(("Initializing", "Terminated"))
    return not (starting and query.isActive)


@contextmanager
def running(frame: DataFrame, sink: TakesBatches, checkpoint: Path) -> Iterator[StreamingQuery]:
    """A query that runs until the block ends."""
    query = start(frame, sink, checkpoint)
    try:
        yield query
    finally:
        query.stop()


def run_to_end(
    frame: DataFrame, sink: TakesBatches, checkpoint: Path, trigger: Trigger = "available now"
) -> StreamingQuery:
    """Run a query that ends by itself, raise its exception, and return the last run with rows. A
    PySpark that passes no limits runs one batch: it is started until a run adds no batch. The last
    one may have no rows, where only the offset changes."""
    before = _batches(checkpoint)
    query = await_end(start(frame, sink, checkpoint, trigger))
    while not PASSES_LIMITS and trigger == "available now":
        found = _batches(checkpoint)
        if found == before:
            break
        before, last = found, await_end(start(frame, sink, checkpoint, trigger))
        query = last if any(one.numInputRows for one in last.recentProgress) else query
    return query


def _batches(checkpoint: Path) -> set[str]:
    """Return the files of the planned and of the committed batches."""
    return {str(path) for path in checkpoint.glob("[co]*/*") if path.name.isdigit()}


def await_end(query: StreamingQuery) -> StreamingQuery:
    """Wait for a query that ends by itself; its exception is raised."""
    try:
        ended = query.awaitTermination(DEADLINE_S)
    finally:
        query.stop()
    assert ended, f"the query did not end by itself; last progress: {query.lastProgress}"
    return query


def wait_until(reached: Callable[[], bool], what: str, *queries: StreamingQuery) -> None:
    """Wait for a condition; the failure of any of the queries is raised at once."""
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        for query in queries:
            if not query.isActive:
                raise AssertionError(f"a query ended before {what}") from query.exception()
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(_POLL_S)


def wait_for_rows(query: StreamingQuery, sink: Counting, count: int) -> None:
    """Wait until the sink has `count` rows (or more, which a later check detects)."""
    wait_until(lambda: sink.count >= count, f"{count} rows ({sink.count} so far)", query)


def wait_for_idle_reports(query: StreamingQuery, count: int) -> None:
    """Wait until the query has reported `count` more triggers without new rows."""
    begin = datetime.now(UTC).isoformat()[:23]

    def idle() -> bool:
        reports = query.recentProgress
        found = [r for r in reports if r["timestamp"] > begin and r["numInputRows"] == 0]
        return len(found) >= count

    wait_until(idle, f"{count} reports of an idle query", query)


def failure_of(query: StreamingQuery) -> str:
    """Wait until the query fails; its message."""
    wait_until(lambda: not query.isActive, "the failure of the query")
    error = query.exception()
    assert error is not None, "the query ended without a failure"
    return str(error)


def planned_offsets(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the end offset of every batch planned so far, as stored in the checkpoint."""
    files = sorted(
        (path for path in (checkpoint / "offsets").glob("*") if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    # Version, metadata, then one line for each source.
    return [json.loads(path.read_text().splitlines()[2]) for path in files]


# --- The verdict ----------------------------------------------------------------------------------


def check_exactly_once(sink: Sink, expected: Iterable[Record]) -> None:
    """Each record once, none else; each key in the order of its puts; replays equal."""
    wanted = Counter(expected)
    found = Counter(row.record for row in sink.rows)
    assert found - wanted == Counter(), "rows that were not to come, or twice"
    assert wanted - found == Counter(), "records that did not come"
    check_order(sink.rows)
    seen: dict[int, tuple[Row, ...]] = {}
    for batch, rows in sink.attempts:
        before = seen.setdefault(batch, rows)
        assert sorted(before) == sorted(rows), f"batch {batch} was repeated with other rows"


def check_order(rows: Iterable[Row]) -> None:
    """Feeds put growing numbers: each key must see them grow, across its shards."""
    by_key: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        by_key[row.record.stream, row.record.key].append(int(row.record.data))
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"{key} is out of order"


def check_tasks(spark: SparkSession, query: StreamingQuery, *, slots: int) -> None:
    """Spark's scheduler never ran more tasks for a batch than there are slots. A query's jobs form
    a group by its run id; with the sink above each batch is one stage."""
    tracker = spark.sparkContext.statusTracker()
    counts = []
    for job in tracker.getJobIdsForGroup(str(query.runId)):
        info = tracker.getJobInfo(job)
        assert info is not None
        for stage in info.stageIds:
            found = tracker.getStageInfo(stage)
            if found is not None:
                counts.append(found.numTasks)
    assert counts, "Spark knows of no job of this query"
    assert max(counts) <= slots, f"tasks per batch: {counts}"


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(kw_only=True)
class Trial:
    """A checkpoint and its runs. Options that a run changes apply only to that run."""

    spark: SparkSession
    feed: Feed
    options: dict[str, str]
    checkpoint: Path
    sink: Sink = field(default_factory=Sink)

    def create(self, records: int = 0, *, shards: int = 1) -> None:
        """Create the stream, with `records` records."""
        self.feed.create("orders", shards=shards)
        self.feed.put("orders", records)

    def put(self, records: int) -> list[Record]:
        return self.feed.put("orders", records)

    def running(
        self, changed: Mapping[str, str] = _NOTHING
    ) -> AbstractContextManager[StreamingQuery]:
        """A run until the block ends."""
        return running(self.load(changed), self.sink, self.checkpoint)

    def run_to_end(
        self, changed: Mapping[str, str] = _NOTHING, trigger: Trigger = "available now"
    ) -> StreamingQuery:
        """A run that ends by itself."""
        return run_to_end(self.load(changed), self.sink, self.checkpoint, trigger)

    def failure(self, changed: Mapping[str, str] = _NOTHING) -> str:
        """The message of a run that fails."""
        return failure_of(start(self.load(changed), self.sink, self.checkpoint))

    def load(self, changed: Mapping[str, str] = _NOTHING) -> DataFrame:
        return load(self.spark, {**self.options, **changed})

    def wait_for_all(self, query: StreamingQuery) -> None:
        """Until the sink has as many rows as records were put."""
        wait_for_rows(query, self.sink, len(self.feed.records))

    def check(self, expected: Iterable[Record] | None = None) -> None:
        """Check that each record that was put, or is expected, came exactly once."""
        check_exactly_once(self.sink, self.feed.records if expected is None else expected)
