"""The values of the metrics, from the last snapshot of each running query and from its health now,
and the protocol of the outputs that publish them.

The number of series is bounded, and they do not come and go: shards or partitions have series of
their own if their stream has at most `series` of them. A shard that has ended or left the query has
none.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spark_ssp.common import now_ms
from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.operations.health import DEFAULT_LIMITS, Health, Limits, Verdict
from spark_ssp.operations.metrics import catalogue
from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.observed_queries import ObservedQueries, ObservedQuery
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
    """The values of a session's queries. `series`: the most shards or partitions of a stream that
    have series of their own."""

    def __init__(
        self,
        *,
        series: int,
        limits: Limits = DEFAULT_LIMITS,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._series = series
        self._limits = limits
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._observed = ObservedQueries()

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

    def remove(self, run_id: str) -> None:
        """Remove the values of a query that has ended; its verdict remains."""
        with self._lock:
            for label in [one for one, state in self._states.items() if state.run_id == run_id]:
                del self._states[label]

    def readings(self) -> list[Reading]:
        """Return the current values of all metrics."""
        found = [Reading(catalogue.RUNNING, (), len(self._observed.running()))]
        for query, health in self.assessed():
            found += health_readings(query, health, series=self._series)
        with self._lock:
            for label, state in self._states.items():
                found += [Reading(*key, value) for key, value in state.gauges.items()]
                found += [Reading(metric, (label,), n) for metric, n in state.counts.items()]
        failures = self._observed.failures().items()
        found += [Reading(catalogue.QUERY_FAILURES, (label,), count) for label, count in failures]
        return _largest(found)

    def assessed(self) -> list[tuple[ObservedQuery, Health]]:
        """Return the queries with their health now."""
        return self._observed.assessed(self._limits, self._now_ms())


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
    """Return the gauges of a query after a trigger."""
    largest = _largest(_readings(snapshot, series))
    return {(metric, labels): value for metric, labels, value in largest}


def _largest(readings: Iterable[Reading]) -> list[Reading]:
    """Return one reading of each series: if several sources of a query read one stream, or a stream
    and a topic of one name, the largest value counts."""
    found: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for metric, labels, value in readings:
        key = (metric, labels)
        found[key] = max(value, found.get(key, value))
    return [Reading(*key, value) for key, value in found.items()]


def _readings(snapshot: QuerySnapshot, series: int) -> Iterator[Reading]:
    query = snapshot.label
    if snapshot.rows is not None:
        yield Reading(catalogue.BATCH_ROWS, (query,), snapshot.rows)
    yield Reading(catalogue.LAST_TRIGGER, (query,), snapshot.time_ms / 1000)
    yield Reading(catalogue.LAST_COMMIT, (query,), snapshot.end_ms / 1000)
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
        yield Reading(catalogue.STREAM_DELAY, labels, stream.max_lag / 1000)
    shown = with_series(stream, series)
    for shard in shown:
        yield Reading(catalogue.SHARD_DELAY, (*labels, shard.shard), (shard.lag or 0) / 1000)
    yield from _not_shown(labels, stream, shown)
    if stream.leases is not None:
        for owner, count in _owners(stream.leases).items():
            yield Reading(catalogue.LEASES, (*labels, owner), count)
        yield Reading(catalogue.UNREAD, (*labels, "free"), stream.leases.free)
        if stream.leases.stale is not None:
            yield Reading(catalogue.UNREAD, (*labels, "stale"), stream.leases.stale)
        yield Reading(catalogue.UNREAD, (*labels, "malformed"), stream.leases.not_read)
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
        yield Reading(catalogue.TOPIC_OFFSETS_BEHIND, labels, topic.total_lag)
    shown = with_series(topic, series)
    for partition in shown:
        yield Reading(catalogue.OFFSETS_BEHIND, (*labels, partition.shard), partition.lag or 0)
    yield from _not_shown(labels, topic, shown)


def health_readings(query: ObservedQuery, health: Health, *, series: int) -> Iterator[Reading]:
    """Yield the values of a query's health, those that are known."""
    labels = (query.label,)
    for verdict in Verdict:
        yield Reading(catalogue.VERDICT, (*labels, verdict), verdict is health.verdict)
    if not query.is_running:
        return
    yield Reading(catalogue.UNMEASURED, labels, health.unmeasured)
    for metric, millis in (
        (catalogue.COMMITTED_DELAY, health.committed.ms),
        (catalogue.UNTIL_CAUGHT_UP, health.outlook.until_caught_up_ms),
        (catalogue.UNTIL_EXPIRY, health.outlook.until_expiry_ms),
    ):
        if millis is not None:
            yield Reading(metric, labels, millis / 1000 if math.isfinite(millis) else math.inf)
    sources = query.snapshot.sources if query.snapshot is not None else ()
    for source, known in zip(sources, query.delays, strict=True):
        for topic in source.streams:
            delays = {
                shard.shard: known[topic.name, shard.shard].ms / 1000
                for shard in topic.shards
                if (topic.name, shard.shard) in known
            }
            if not delays:
                continue
            yield Reading(catalogue.STREAM_DELAY, (*labels, topic.name), max(delays.values()))
            for shard in with_series(topic, series):
                if shard.shard in delays:
                    shown = (*labels, topic.name, shard.shard)
                    yield Reading(catalogue.SHARD_DELAY, shown, delays[shard.shard])


def with_series(stream: StreamSnapshot, most: int) -> list[ShardSnapshot]:
    """Return the shards or partitions with a known lag if a stream has at most `most`, else
    none."""
    lagging = [shard for shard in stream.shards if _lags(shard)]
    if len(lagging) > most:
        return []
    return [shard for shard in lagging if shard.lag is not None]


def _not_shown(
    labels: tuple[str, ...], stream: StreamSnapshot, shown: Sequence[ShardSnapshot]
) -> Iterator[Reading]:
    if stream.max_lag is not None:
        lagging = sum(_lags(shard) for shard in stream.shards)
        yield Reading(catalogue.NOT_SHOWN, labels, lagging - len(shown))


def _lags(shard: ShardSnapshot) -> bool:
    """Return whether a shard has records to be read, now or later."""
    return shard.state is not ReadState.ENDED


def _owners(leases: LeaseCounts) -> Mapping[str, int]:
    owners = {**leases.by_owner, NO_OWNER: leases.free}
    return owners | ({OTHER_OWNERS: leases.others} if leases.others else {})


class Output:
    """A destination of metrics. Most are read by others, with the values of `QueryStates`."""

    def tick(self) -> None:
        """Take that some seconds have passed, in which a query may have sent no report."""

    def end(self, run_id: str) -> None:
        """Take the end of a query's run."""

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

    def tick(self) -> None:
        """Pass on that some seconds have passed."""
        for name, output in self._outputs.items():
            self._guard.run(f"metrics for {name}", output.tick)

    def end(self, run_id: str) -> None:
        """Remove a query."""
        for name, output in self._outputs.items():
            self._guard.run(f"metrics for {name}", lambda: output.end(run_id))  # noqa: B023
        self._states.remove(run_id)

    def close(self) -> None:
        """Close the outputs."""
        for name, output in self._outputs.items():
            self._guard.run(f"metrics for {name}", output.close)
