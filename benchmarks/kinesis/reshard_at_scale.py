"""A reshard of thousands of busy shards in mid-query, and the start of that query from its
checkpoint.

    python -m benchmarks.kinesis.reshard_at_scale [--shards 5000] [--slots 4] [--batches 10]

Each shard of the beginning receives two records of 200 B a second, and each of its children one. A
trigger begins when the one before has ended. While the query runs, all shards are split at once;
`during` are the triggers from there to the first one after which each child is read and no parent
is left. Then the query is stopped, just after the end of a batch, and started again.

`restart` has the seconds from `start()`, added up: to the first request, after Spark has started
the reader's process and passed it the checkpointed offset; to the first probe, after the listing;
to the first planned end, after the probes; and to the first commit of a batch with records, which
is another one if Spark first replays a batch that it had planned before. The time that the reader
takes to read that offset is measured again in this process.

The query writes each record's number into files of Spark's own sink, which delivers exactly once.
In the end these are compared with the records of the service: the records of each key must be
there, once, in the order in which they were put, across all batches and shards. Anything else is an
error.

The service (`formula_service`) runs in its own process on the same machine, and takes little
processor time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.kinesis.formula_service import FormulaService, formula_service
from benchmarks.kinesis.many_shards import measure
from benchmarks.kinesis.service import NUMBER_BYTES, RECORD_BYTES, STREAM
from benchmarks.kinesis.triggers import last_batch, wait_for_batches, wait_until
from benchmarks.support.growth import cpu_ms
from benchmarks.support.processes import cpu_seconds, used_since
from benchmarks.support.report import Report, quantile
from benchmarks.support.sessions import checkpoint_in
from spark_ssp.kinesis_source.model.offset import decode
from tests.support.spark.drivers import committed_files

WARM_UP: Final = 3
"""Batches that do not count."""
_DEADLINE_S: Final = 600.0
_NUMBER: Final = f"CAST(CAST(substring(data, 1, {NUMBER_BYTES}) AS STRING) AS BIGINT) AS number"

Progress = dict[str, Any]


def run(
    spark: SparkSession, folder: Path, *, shards: Sequence[int], slots: int, batches: int
) -> Report:
    """Measure a reshard of each number of shards to twice as many, with `batches` batches before
    and after it."""
    report = Report(
        name="kinesis.reshard_at_scale",
        command="python -m benchmarks.kinesis.reshard_at_scale "
        f"--shards {' '.join(map(str, shards))} --slots {slots} --batches {batches}",
        columns=(
            "shards",
            "phase",
            "triggers s",
            "planning s: median, most",
            "planner CPU s a trigger",
            "JVM",
            "workers",
            "service",
            "restart: s from start()",
        ),
    )
    for count in shards:
        _measure(report, spark, folder, count, slots, batches)
    return report


@dataclass(frozen=True, slots=True)
class _Query:
    """The query, which may be started several times."""

    frame: DataFrame
    checkpoint: Path
    files: Path

    def start(self) -> StreamingQuery:
        writer = self.frame.writeStream.format("parquet").option("path", str(self.files))
        return writer.option("checkpointLocation", str(self.checkpoint)).start()


def _measure(
    report: Report, spark: SparkSession, folder: Path, shards: int, slots: int, batches: int
) -> None:
    with formula_service(shards, rate=2, size=RECORD_BYTES) as service:
        options = {**service.options(), "slots": str(slots)}
        stream = spark.readStream.format("kinesis-ssp").options(**options).load()
        given = _Query(
            stream.selectExpr(_NUMBER),
            Path(checkpoint_in(folder, f"{shards}-resharded")),
            folder / f"{shards}-files",
        )
        query = given.start()
        wait_for_batches(query, WARM_UP)
        add = partial(_phase, report, shards, service, query)
        with add("before"):
            wait_for_batches(query, batches)
        with add("during"):
            service.split()
            _wait_for_children(query, 2 * shards)
        with add("after"):
            wait_for_batches(query, batches)
        # Just after the end of a batch the next one is still to be planned.
        query.stop()
        query = _restart(report, shards, service, given)
        put = service.end()
        query.processAllAvailable()
        query.stop()
    check_order(_numbers(given.files), put, keys=2 * shards)


# --- Triggers -------------------------------------------------------------------------------------


@contextmanager
def _phase(
    report: Report, shards: int, service: FormulaService, query: StreamingQuery, name: str
) -> Iterator[None]:
    """Add the batches that end within the block."""
    first, of_service, used = last_batch(query), service.cpu_seconds(), cpu_seconds()
    yield
    last, spent = last_batch(query), used_since(used)
    of_service = service.cpu_seconds() - of_service
    reports = [
        entry
        for entry in query.recentProgress
        if first < entry["batchId"] <= last and entry["numInputRows"] > 0
    ]
    triggers = [entry["durationMs"]["triggerExecution"] / 1000 for entry in reports]
    planning = [entry["durationMs"]["latestOffset"] / 1000 for entry in reports]
    each = {role: seconds / len(reports) for role, seconds in spent.items()}
    report.add(
        f"{shards:,}",
        name,
        ", ".join(f"{seconds:.1f}" for seconds in triggers),
        f"{quantile(planning, 0.5):.1f}, {max(planning):.1f}",
        *(f"{each[role]:.1f}" for role in ("planner", "jvm", "workers")),
        f"{of_service / len(reports):.1f}",
        "",
        shards=shards,
        phase=name,
        triggers_s=triggers,
        planning_s=planning,
        rows=[entry["numInputRows"] for entry in reports],
        cpu_ms_per_trigger={role: 1000 * seconds for role, seconds in each.items()},
        service_cpu_ms_per_trigger=1000 * of_service / len(reports),
    )


def _wait_for_children(query: StreamingQuery, children: int) -> None:
    """Wait until a batch has left `children` open shards and no other."""
    wanted = {"open": children, "closed": 0, "waiting": 0, "ended": 0}
    wait_until(
        lambda: _shards(query.lastProgress) == wanted,
        query,
        f"a batch that leaves {children} open shards",
        within_s=_DEADLINE_S,
    )


def _shards(progress: Progress | None) -> Any:
    """Return the shards by state, after the batch of a report."""
    if progress is None:
        return None
    status: Any = progress["sources"][0]["latestOffset"]
    found = json.loads(status) if isinstance(status, str) else status
    return None if found is None else found[STREAM].get("shards")


# --- The start from a checkpoint ------------------------------------------------------------------


def _restart(report: Report, shards: int, service: FormulaService, given: _Query) -> StreamingQuery:
    """Start the query again, and add the times to its first batch."""
    offsets, commits = given.checkpoint / "offsets", given.checkpoint / "commits"
    planned, committed = _newest(offsets), _newest(commits)
    replayed = planned > committed
    stored = (offsets / str(planned)).read_text(encoding="utf-8").splitlines()[-1]
    service.forget_first_calls()
    began_at, began = time.time(), time.monotonic()
    query = given.start()
    planned_s = _seconds_until(offsets / str(planned + 1), query, began)
    committed_s = _seconds_until(commits / str(committed + 1), query, began)
    called = service.first_calls()
    # A stream is described before it is listed, and each position is verified by an iterator.
    asked_s, listed_s = (
        called[operation] - began_at for operation in ("DescribeStreamSummary", "GetShardIterator")
    )
    read = cpu_ms(lambda: decode(json.loads(stored)), 1)
    report.add(
        f"{shards:,}",
        "restart with a replay" if replayed else "restart",
        *("",) * 6,
        f"first request {asked_s:.1f}, listed {listed_s:.1f}, planned {planned_s:.1f}, "
        f"first batch {committed_s:.1f}; offset read in {read.median:.0f} ms",
        shards=shards,
        phase="restart",
        replayed=replayed,
        first_request_s=asked_s,
        listed_s=listed_s,
        planned_s=planned_s,
        committed_s=committed_s,
        offset_read_ms=read.median,
    )
    return query


def _newest(log: Path) -> int:
    return max(int(path.name) for path in log.iterdir() if path.name.isdecimal())


def _seconds_until(file: Path, query: StreamingQuery, began: float) -> float:
    what = f"{file.parent.name}/{file.name}"
    wait_until(file.exists, query, what, within_s=_DEADLINE_S, poll_s=0.01)
    return max(file.stat().st_mtime - (time.time() - (time.monotonic() - began)), 0.001)


# --- The check ------------------------------------------------------------------------------------


def _numbers(files: Path) -> Iterator[int]:
    """Yield the records' numbers in the order of batches and, within a task, of rows."""
    for path in committed_files(files):
        yield from pq.read_table(path, columns=["number"])["number"].to_pylist()


def check_order(numbers: Iterable[int], put: int, *, keys: int) -> None:
    """Raise AssertionError unless the records are the `put` ones from 0 on, each once, and those of
    each key in their order: of `keys` keys, which follow each other in turn."""
    expected = list(range(keys))
    for number in numbers:
        key = number % keys
        if number != expected[key] or number >= put:
            raise AssertionError(
                f"of key {key} record {number} came, not {expected[key]}, of {put} records"
            )
        expected[key] += keys
    missing = [number for number in expected if number < put]
    if missing:
        raise AssertionError(f"{len(missing)} keys lack records, one of them {missing[0]}")


def main() -> None:
    measure(run, __doc__, shards=[5_000], batches=10)


if __name__ == "__main__":
    main()
