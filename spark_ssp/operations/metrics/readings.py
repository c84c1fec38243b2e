"""The values of the metrics, from the last snapshot of each running query, and the protocol of the
outputs that publish them. The number of series is
bounded: `series` shards or partitions of a stream, those farthest behind, have one each. A shard
that has ended or left the query has none."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.operations.metrics import catalogue
from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.observed_queries import ObservedQueries
from spark_ssp.operations.progress import FailureGuard
from spark_ssp.operations.snapshot import (
    LeaseCounts,
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    StreamSnapshot,
)

NO_OWNER: Final = "(none)"
OTHER_OWNERS: Final = "(others)"


class Reading(NamedTuple):
    """The value of a metric for the values of its labels, in their order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


@dataclass(slots=True, kw_only=True)
class _State:
    run_id: str
    gauges: dict[tuple[Metric, tuple[str, ...]], float] = field(default_factory=dict)
    counts: dict[Metric, int] = field(default_factory=dict)
    rows: int = 0
    dropped: int = 0
    trigger: tuple[int, int] | None = None
    """The last batch whose rows were counted, and the start of its trigger."""


class QueryStates:
    """The queries of a session. `series`: the most shards or partitions of a stream whose lag is
    published."""

    def __init__(self, *, series: int) -> None:
        self._series = series
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._failures = 0
        self._observed: ObservedQueries | None = None

    def attach(self, queries: ObservedQueries) -> None:
        """Take the queries of the session, for their health."""
        self._observed = queries

    def update(self, snapshot: QuerySnapshot) -> Mapping[Metric, int]:
        """Replace the state of a query, and return its counts since the start of its run."""
        gauges = readings(snapshot, series=self._series)
        with self._lock:
            state = self._states.get(snapshot.label)
            if state is None or state.run_id != snapshot.run_id:
                state = self._states[snapshot.label] = _State(run_id=snapshot.run_id)
            trigger = (snapshot.batch_id, snapshot.time_ms)
            if trigger != state.trigger:  # else it is the same report, with a status
                state.trigger = trigger
                state.rows += snapshot.rows or 0
                state.dropped += snapshot.dropped or 0
            state.gauges = gauges
            state.counts = {
                **_counts(snapshot),
                catalogue.ROWS: state.rows,
                catalogue.ROWS_DROPPED: state.dropped,
            }
            return state.counts

    def remove(self, run_id: str, *, failed: bool) -> None:
        """Remove a query that has ended."""
        with self._lock:
            self._failures += failed
            for label in [one for one, state in self._states.items() if state.run_id == run_id]:
                del self._states[label]

    def readings(self) -> list[Reading]:
        """Return the current values of all metrics."""
        found = []
        with self._lock:
            for label, state in self._states.items():
                found += [Reading(*key, value) for key, value in state.gauges.items()]
                found += [Reading(metric, (label,), n) for metric, n in state.counts.items()]
            found.append(Reading(catalogue.QUERY_FAILURES, (), self._failures))
        return found


def _counts(snapshot: QuerySnapshot) -> Counter[Metric]:
    """Return the sums of the counts of all sources."""
    counts: Counter[Metric] = Counter()
    for source in snapshot.sources:
        for name, count in (source.counters or {}).items():
            if name in catalogue.BY_COUNTER:
                counts[catalogue.BY_COUNTER[name]] += count
    return counts


# --- The values of one query ----------------------------------------------------------------------


def readings(
    snapshot: QuerySnapshot, *, series: int
) -> dict[tuple[Metric, tuple[str, ...]], float]:
    """Return the gauges of a query after a trigger. If several of its sources read one stream, the
    larger value counts."""
    found: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for metric, labels, value in _readings(snapshot, series):
        key = (metric, labels)
        found[key] = max(value, found.get(key, value))
    return found


def _readings(snapshot: QuerySnapshot, series: int) -> Iterator[Reading]:
    query = snapshot.label
    if snapshot.rows is not None:
        yield Reading(catalogue.BATCH_ROWS, (query,), snapshot.rows)
    yield Reading(catalogue.LAST_TRIGGER, (query,), snapshot.time_ms / 1000)
    for phase, taken in snapshot.phases_ms.items():
        yield Reading(catalogue.TRIGGER_SECONDS, (query, phase), taken / 1000)
    if snapshot.sources:
        tasks = sum(len(source.tasks) for source in snapshot.sources)
        yield Reading(catalogue.SLOTS, (query,), tasks)
    for source in snapshot.sources:
        for stream in source.streams:
            if source.format is SourceFormat.KINESIS:
                yield from _stream(query, stream, series)
            else:
                yield from _topic(query, stream, series)


def _stream(query: str, stream: StreamSnapshot, series: int) -> Iterator[Reading]:
    labels = (query, stream.name)
    for state, count in stream.states.items():
        yield Reading(catalogue.SHARDS, (*labels, state.value), count)
    if stream.max_lag is not None:
        yield Reading(catalogue.MAX_MILLIS_BEHIND, labels, stream.max_lag)
    shown = farthest_behind(stream.shards, series)
    for shard in shown:
        yield Reading(catalogue.MILLIS_BEHIND, (*labels, shard.shard), shard.lag or 0)
    yield from _not_shown(labels, stream, shown)
    if stream.leases is not None:
        for owner, count in _owners(stream.leases).items():
            yield Reading(catalogue.LEASES, (*labels, owner), count)
        yield Reading(catalogue.NOT_READ, labels, stream.leases.not_read)
    if stream.fan_out is not None:
        yield Reading(catalogue.FAN_OUT, (*labels, "pushed"), stream.fan_out.pushed)
        yield Reading(catalogue.FAN_OUT, (*labels, "polled"), stream.fan_out.polled)
    if stream.alignment is not None:
        yield Reading(catalogue.SPREAD, (query,), stream.alignment.spread_ms / 1000)
        yield Reading(catalogue.LEFT_BEHIND, labels, stream.alignment.left_behind)


def _topic(query: str, topic: StreamSnapshot, series: int) -> Iterator[Reading]:
    labels = (query, topic.name)
    yield Reading(catalogue.PARTITIONS, labels, topic.states[ReadState.OPEN])
    if topic.max_lag is not None and topic.total_lag is not None:
        yield Reading(catalogue.MAX_OFFSETS_BEHIND, labels, topic.max_lag)
        yield Reading(catalogue.TOTAL_OFFSETS_BEHIND, labels, topic.total_lag)
    shown = farthest_behind(topic.shards, series)
    for partition in shown:
        yield Reading(catalogue.OFFSETS_BEHIND, (*labels, partition.shard), partition.lag or 0)
    yield from _not_shown(labels, topic, shown)


def _not_shown(
    labels: tuple[str, ...], stream: StreamSnapshot, shown: Sequence[ShardSnapshot]
) -> Iterator[Reading]:
    if stream.max_lag is not None:
        lagging = sum(_lags(shard) for shard in stream.shards)
        yield Reading(catalogue.NOT_SHOWN, labels, lagging - len(shown))


def farthest_behind(shards: Sequence[ShardSnapshot], most: int) -> list[ShardSnapshot]:
    """Return the shards with a known lag, at most `most`, those farthest behind, in their order."""
    known = [shard for shard in shards if _lags(shard) and shard.lag is not None]
    if len(known) <= most:
        return known
    chosen = sorted(known, key=lambda shard: -(shard.lag or 0))[:most]
    kept = {shard.shard for shard in chosen}
    return [shard for shard in known if shard.shard in kept]


def _lags(shard: ShardSnapshot) -> bool:
    """Return whether a shard has records to be read, now or later."""
    return shard.state is not ReadState.ENDED


def _owners(leases: LeaseCounts) -> Mapping[str, int]:
    owners = {**leases.by_owner, NO_OWNER: leases.free}
    return owners | ({OTHER_OWNERS: leases.others} if leases.others else {})


class Output:
    """A destination of metrics. Most are read by others, with the values of `QueryStates`."""

    def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
        """Publish a query's state after a trigger. `counts`: its counters, since its start."""

    def close(self) -> None:
        """Free its resources."""


def invalid_argument(
    name: str, *, found: str, expected: str, next_step: str = "correct the argument"
) -> InvalidOptionsError:
    """Return the error for an argument of `publish_metrics`."""
    problem = OptionProblem(option=name, found=found, expected=expected, next_step=next_step)
    return InvalidOptionsError("publish_metrics", [problem])


class MetricsPublisher:
    """The metrics of a session's queries. A failing output does not affect the others."""

    def __init__(self, states: QueryStates, outputs: Mapping[str, Output]) -> None:
        """`outputs`: by the name for warnings."""
        self._states = states
        self._outputs = outputs
        self._guard = FailureGuard()

    def attach(self, queries: ObservedQueries) -> None:
        """Take the queries of the session."""
        self._states.attach(queries)

    def publish(self, snapshot: QuerySnapshot) -> None:
        """Publish a query's state after a trigger."""
        counts = self._states.update(snapshot)
        for name, output in self._outputs.items():
            self._guard.run(
                f"metrics for {name}",
                lambda: output.publish(snapshot, counts),  # noqa: B023
            )

    def end(self, run_id: str, *, failed: bool) -> None:
        """Remove a query."""
        self._states.remove(run_id, failed=failed)

    def close(self) -> None:
        """Close the outputs."""
        for name, output in self._outputs.items():
            self._guard.run(f"metrics for {name}", output.close)
