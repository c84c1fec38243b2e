"""Metrics for CloudWatch: documents in its Embedded Metric Format, from which CloudWatch Logs
extracts metrics; an agent or a log driver sends them there.

Two families, in one namespace:

* The Kinesis Client Library's (KCL), for alarms that were made for it. As of KCL 3.5
  (`ProcessTask.java`, `DynamoDBLeaseRenewer.java`): `MillisBehindLatest` by (Operation=ProcessTask,
  ShardId), and over all shards by (Operation=ApplicationTracker); `CurrentLeases` by
  (Operation=RenewAllLeases, WorkerIdentifier). The KCL's namespace is the application name. With
  several streams its dimension StreamId contains the account, which a progress report does not:
  there the dimension is StreamName. An application of the KCL is one query: if several run, the
  dimension Query is added.
* The others of this package, by Query. A query that sends no reports, as in a batch that hangs, has
  those of its health.

Limits of the format: 100 metrics and 100 values of a metric in a document, one value of each
dimension, so each shard has its own document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from spark_ssp.common.errors import printable
from spark_ssp.operations.health import Health, Verdict
from spark_ssp.operations.metrics import catalogue
from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.metrics.readings import (
    Output,
    QueryStates,
    invalid_argument,
    with_series,
)
from spark_ssp.operations.snapshot import (
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
)

PERIOD_S: Final = 10.0
"""The shortest time between the lines of two triggers of a query: the KCL's default buffer time."""
QUIET_S: Final = 60.0
"""After this time without lines, the health of a query is written."""
MAX_VALUES: Final = 100
_MAX_DIMENSION: Final = 1024
_COUNTERS: Final = {
    catalogue.ROWS: "Rows",
    catalogue.ROWS_DROPPED: "RowsDroppedByWatermark",
    catalogue.THROTTLES: "Throttles",
    catalogue.RETRIES: "Retries",
    catalogue.RESHARDS: "Reshards",
    catalogue.DATA_LOSS_WARNINGS: "DataLossWarnings",
    catalogue.AGENT_RESTARTS: "LeaseAgentRestarts",
}
Document = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class _Run:
    """The last report of a run of a query, and the counts that were written of it."""

    snapshot: QuerySnapshot
    counts: Mapping[Metric, int]
    written_at: float | None = None
    written: Mapping[Metric, int] = field(default_factory=dict)


class CloudWatchOutput(Output):
    """Writes documents in the Embedded Metric Format, a line each. Used under a lock. `monotonic`
    is in seconds, `now_ms` in epoch milliseconds."""

    def __init__(
        self,
        target: TextIO | Path,
        states: QueryStates,
        *,
        namespace: str,
        series: int,
        monotonic: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        """`target`: an open stream, which is not closed, or a file, which is appended to. Raises
        InvalidOptionsError if the file cannot be opened."""
        self._namespace = namespace
        self._series = series
        self._states = states
        self._monotonic = monotonic
        self._now_ms = now_ms
        self._is_own = isinstance(target, Path)
        self._target: _File | TextIO = _opened(target) if isinstance(target, Path) else target
        self._runs: dict[str, _Run] = {}
        self._quiet_since: dict[str, float] = {}
        """The time of the last lines of each run that is or was observed."""

    def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
        """Write the lines of a trigger, if the period has passed."""
        run = self._runs.setdefault(snapshot.run_id, _Run(snapshot=snapshot, counts=counts))
        run.snapshot, run.counts = snapshot, counts
        if run.written_at is None or self._monotonic() - run.written_at >= PERIOD_S:
            self._write_run(run, is_only=self._is_only())

    def tick(self) -> None:
        """Write the health of queries that were quiet for long."""
        now = self._monotonic()
        running = [one for one in self._states.assessed() if one[0].is_running]
        known = {query.run_id for query, _ in running}
        self._quiet_since = {run: since for run, since in self._quiet_since.items() if run in known}
        for query, health in running:
            if now - self._quiet_since.setdefault(query.run_id, now) >= QUIET_S:
                self._quiet_since[query.run_id] = now
                bound = _Bound(self._namespace, self._now_ms())
                of_health = bound.document({"Query": query.label}, _health(health))
                self._target.write(_lines([of_health]))
                self._target.flush()

    def end(self, run_id: str) -> None:
        """Write the counts since the last lines."""
        self._end(run_id, is_only=self._is_only())

    def close(self) -> None:
        """Write the counts since the last lines, and close the file if it was opened here."""
        is_only = self._is_only()
        for run_id in list(self._runs):
            self._end(run_id, is_only=is_only)
        if self._is_own:
            self._target.close()

    def _is_only(self) -> bool:
        return len(self._runs) <= 1

    def _end(self, run_id: str, *, is_only: bool) -> None:
        run = self._runs.pop(run_id, None)
        if run is not None and run.counts != run.written:
            self._write_run(run, is_only=is_only)

    def _write_run(self, run: _Run, *, is_only: bool) -> None:
        increases = {
            metric: max(0, count - run.written.get(metric, 0))
            for metric, count in run.counts.items()
        }
        run.written_at = self._monotonic()
        self._quiet_since[run.snapshot.run_id] = run.written_at
        assessed = {query.run_id: health for query, health in self._states.assessed()}
        found = documents(
            run.snapshot,
            increases,
            assessed.get(run.snapshot.run_id),
            namespace=self._namespace,
            series=self._series,
            is_only=is_only,
        )
        self._target.write(_lines(found))
        run.written = run.counts  # or, of a stream that was given, in its buffer
        self._target.flush()


def _lines(found: Iterable[Document]) -> str:
    return "".join(f"{json.dumps(one)}\n" for one in found)


class _File:
    """A file to append to. A text that it cannot take is an error at once: a buffer would drop it
    later."""

    def __init__(self, path: Path) -> None:
        self._raw = path.open("ab", buffering=0)
        self._is_cut = False
        """True if a line was written in part: the next one begins after it."""

    def write(self, text: str) -> None:
        whole = memoryview((f"\n{text}" if self._is_cut else text).encode())
        rest = whole
        try:
            while rest:
                rest = rest[self._raw.write(rest) or 0 :]
        finally:
            if len(rest) < len(whole):
                self._is_cut = bool(rest)

    def flush(self) -> None:
        """Do nothing: all is written."""

    def close(self) -> None:
        self._raw.close()


def _opened(path: Path) -> _File:
    try:
        return _File(path)
    except OSError as error:
        raise invalid_argument(
            "cloudwatch",
            found=f"the file {path}, which cannot be opened ({error.strerror})",
            expected="a file that can be appended to",
            next_step="choose another path, or create its folder",
        ) from error


# --- Documents ------------------------------------------------------------------------------------


def documents(
    snapshot: QuerySnapshot,
    increases: Mapping[Metric, int],
    health: Health | None,
    *,
    namespace: str,
    series: int,
    is_only: bool,
) -> list[Document]:
    """Return the documents of a query after a trigger. `increases`: of its counters, since the
    documents before. `series`: the most shards or partitions of a stream with their own. `is_only`:
    whether no other query writes to the namespace."""
    bound = _Bound(namespace, snapshot.time_ms)
    found = [_query(bound, snapshot, increases, health)]
    of_kcl = {} if is_only else {"Query": snapshot.label}
    for source in snapshot.sources:
        for stream in source.streams:
            if source.format is SourceFormat.KINESIS:
                found += _stream(bound, snapshot.label, source, stream, series, of_kcl)
            else:
                found += _topic(bound, snapshot.label, stream, series)
        if source.worker is not None:
            held = sum(_held(stream, source.worker) for stream in source.streams)
            renewer = {
                "Operation": "RenewAllLeases",
                **of_kcl,
                "WorkerIdentifier": source.worker,
            }
            found.append(bound.document(renewer, {"CurrentLeases": (held, "Count")}))
    return found


class _Bound:
    """The parts of a document that are the same in all of a trigger."""

    def __init__(self, namespace: str, time_ms: int) -> None:
        self._namespace = namespace
        self._time_ms = time_ms

    def document(
        self, dimensions: Mapping[str, str], values: Mapping[str, tuple[float | list[int], str]]
    ) -> Document:
        """Return a document of metrics, each with its value, or a list of them, and its unit."""
        directive = {
            "Namespace": self._namespace,
            "Dimensions": [list(dimensions)],
            "Metrics": [{"Name": name, "Unit": unit} for name, (_, unit) in values.items()],
        }
        return {
            "_aws": {"Timestamp": self._time_ms, "CloudWatchMetrics": [directive]},
            **{name: _dimension(value) for name, value in dimensions.items()},
            **{name: value for name, (value, _) in values.items()},
        }


def _dimension(value: str) -> str:
    """Return a dimension's value within CloudWatch's limits: ASCII without control characters, not
    empty, no leading colon."""
    text = printable(value).encode("ascii", "backslashreplace").decode()[:_MAX_DIMENSION]
    return f"_{text}" if not text.strip() or text.startswith(":") else text


def _health(health: Health) -> dict[str, tuple[float | list[int], str]]:
    """Return the values of a query's health. `Healthy` is 1 or 0, for an alarm on its minimum."""
    values: dict[str, tuple[float | list[int], str]] = {
        "Healthy": (int(health.verdict is Verdict.OK), "None"),
        "UnmeasuredParts": (health.unmeasured, "Count"),
    }
    if health.committed.ms is not None:
        values["CommittedDelay"] = (health.committed.ms, "Milliseconds")
    return values


def _query(
    bound: _Bound,
    snapshot: QuerySnapshot,
    increases: Mapping[Metric, int],
    health: Health | None,
) -> Document:
    values: dict[str, tuple[float | list[int], str]] = {
        name: (increases[metric], "Count")
        for metric, name in _COUNTERS.items()
        if metric in increases
    }
    if health is not None:
        values |= _health(health)
    if "triggerExecution" in snapshot.phases_ms:
        values["TriggerTime"] = (snapshot.phases_ms["triggerExecution"], "Milliseconds")
    if snapshot.sources:
        values["Slots"] = (sum(len(source.tasks) for source in snapshot.sources), "Count")
    spreads = [
        stream.alignment.spread_ms
        for source in snapshot.sources
        for stream in source.streams
        if stream.alignment is not None
    ]
    if spreads:
        values["ArrivalSpread"] = (max(spreads), "Milliseconds")
    return bound.document({"Query": snapshot.label}, values)


def _stream(
    bound: _Bound,
    query: str,
    source: SourceSnapshot,
    stream: StreamSnapshot,
    series: int,
    of_kcl: Mapping[str, str],
) -> Iterator[Document]:
    by_stream = {**of_kcl, **({"StreamName": stream.name} if len(source.streams) > 1 else {})}
    known = _largest_lags(stream.shards)
    if known:
        tracker = {"Operation": "ApplicationTracker", **by_stream}
        yield bound.document(tracker, {"MillisBehindLatest": (known, "Milliseconds")})
    for shard in with_series(stream, series):
        task = {"Operation": "ProcessTask", **by_stream, "ShardId": shard.shard}
        yield bound.document(task, {"MillisBehindLatest": (shard.lag or 0, "Milliseconds")})
    counts = {state.value: count for state, count in stream.states.items()}
    if stream.fan_out is not None:
        counts |= {"pushed": stream.fan_out.pushed, "polled": stream.fan_out.polled}
    if stream.alignment is not None:
        counts["leftBehind"] = stream.alignment.left_behind
    yield bound.document(
        {"Query": query, "StreamName": stream.name},
        {f"Shards.{name}": (count, "Count") for name, count in counts.items()},
    )


def _largest_lags(shards: Sequence[ShardSnapshot]) -> list[int]:
    """Return the largest known lags of shards that are read: as many as a document can have."""
    known = [
        shard.lag
        for shard in shards
        if shard.lag is not None and shard.state is not ReadState.ENDED
    ]
    return sorted(known, reverse=True)[:MAX_VALUES]


def _topic(bound: _Bound, query: str, topic: StreamSnapshot, series: int) -> Iterator[Document]:
    labels = {"Query": query, "Topic": topic.name}
    if topic.max_lag is not None and topic.total_lag is not None:
        yield bound.document(
            labels,
            {
                "MaxOffsetsBehindLatest": (topic.max_lag, "Count"),
                "SumOffsetsBehindLatest": (topic.total_lag, "Count"),
            },
        )
    for partition in with_series(topic, series):
        yield bound.document(
            {**labels, "Partition": partition.shard},
            {"OffsetsBehindLatest": (partition.lag or 0, "Count")},
        )


def _held(stream: StreamSnapshot, worker: str) -> int:
    return 0 if stream.leases is None else stream.leases.by_owner.get(worker, 0)
