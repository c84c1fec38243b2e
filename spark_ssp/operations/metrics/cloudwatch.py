"""Metrics for CloudWatch: documents in its Embedded Metric Format, from which CloudWatch Logs
extracts metrics; an agent or a log driver sends them there.

Two families, in one namespace:

* The Kinesis Client Library's (KCL), for alarms that were made for it. As of KCL 3.5
  (`ProcessTask.java`, `DynamoDBLeaseRenewer.java`): `MillisBehindLatest` by (Operation=ProcessTask,
  ShardId), and over all shards by (Operation=ApplicationTracker); `CurrentLeases` by
  (Operation=RenewAllLeases, WorkerIdentifier). The KCL's namespace is the application name. With
  several streams its dimension StreamId contains the account, which a progress report does not:
  there the dimension is StreamName.
* The others of this package, by Query.

Limits of the format: 100 metrics and 100 values of a metric in a document, one value of each
dimension, so each shard has its own document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from spark_ssp.operations.metrics import catalogue
from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.metrics.readings import Output, farthest_behind, invalid_argument
from spark_ssp.operations.snapshot import (
    QuerySnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
)

PERIOD_S: Final = 10.0
"""The shortest time between the lines of two triggers of a query: the KCL's default buffer time."""
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


class CloudWatchOutput(Output):
    """Writes documents in the Embedded Metric Format, a line each. Used under a lock. `monotonic`
    is in seconds."""

    def __init__(
        self,
        target: TextIO | Path,
        *,
        namespace: str,
        series: int,
        monotonic: Callable[[], float],
    ) -> None:
        """`target`: an open stream, which is not closed, or a file, which is appended to. Raises
        InvalidOptionsError if the file cannot be opened."""
        self._namespace = namespace
        self._series = series
        self._monotonic = monotonic
        self._is_own = isinstance(target, Path)
        self._target = _opened(target) if isinstance(target, Path) else target
        self._last: dict[str, tuple[float, Mapping[Metric, int]]] = {}
        """By run of a query: the time of its last lines, and its counts then."""

    def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
        """Write the lines of a trigger, if the period has passed."""
        now = self._monotonic()
        last, before = self._last.get(snapshot.run_id, (None, {}))
        if last is not None and now - last < PERIOD_S:
            return
        self._last = {run: one for run, one in self._last.items() if now - one[0] < 60 * PERIOD_S}
        self._last[snapshot.run_id] = (now, counts)
        increases = {metric: max(0, n - before.get(metric, 0)) for metric, n in counts.items()}
        found = documents(snapshot, increases, namespace=self._namespace, series=self._series)
        self._target.write("".join(f"{json.dumps(one)}\n" for one in found))
        self._target.flush()

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._is_own:
            self._target.close()


def _opened(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
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
    *,
    namespace: str,
    series: int,
) -> list[Document]:
    """Return the documents of a query after a trigger. `increases`: of its counters, since the
    documents before. `series`: the most shards or partitions of a stream with their own."""
    bound = _Bound(namespace, snapshot.time_ms)
    found = [_query(bound, snapshot, increases)]
    for source in snapshot.sources:
        for stream in source.streams:
            if source.format is SourceFormat.KINESIS:
                found += _stream(bound, snapshot.label, source, stream, series)
            else:
                found += _topic(bound, snapshot.label, stream, series)
        if source.worker is not None:
            held = sum(_held(stream, source.worker) for stream in source.streams)
            renewer = {"Operation": "RenewAllLeases", "WorkerIdentifier": source.worker}
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
    """Return a dimension's value within CloudWatch's limits: ASCII, not empty, no leading colon."""
    text = value.encode("ascii", "backslashreplace").decode()[:_MAX_DIMENSION]
    return f"_{text}" if not text.strip() or text.startswith(":") else text


def _query(bound: _Bound, snapshot: QuerySnapshot, increases: Mapping[Metric, int]) -> Document:
    values: dict[str, tuple[float | list[int], str]] = {
        name: (increases[metric], "Count")
        for metric, name in _COUNTERS.items()
        if metric in increases
    }
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
    bound: _Bound, query: str, source: SourceSnapshot, stream: StreamSnapshot, series: int
) -> Iterator[Document]:
    by_stream = {"StreamName": stream.name} if len(source.streams) > 1 else {}
    lags = [shard.lag for shard in farthest_behind(stream.shards, MAX_VALUES)]
    known = [lag for lag in lags if lag is not None]
    if known:
        tracker = {"Operation": "ApplicationTracker", **by_stream}
        yield bound.document(tracker, {"MillisBehindLatest": (known, "Milliseconds")})
    for shard in farthest_behind(stream.shards, series):
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
    for partition in farthest_behind(topic.shards, series):
        yield bound.document(
            {**labels, "Partition": partition.shard},
            {"OffsetsBehindLatest": (partition.lag or 0, "Count")},
        )


def _held(stream: StreamSnapshot, worker: str) -> int:
    return 0 if stream.leases is None else stream.leases.by_owner.get(worker, 0)
