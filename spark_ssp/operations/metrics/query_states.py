"""The last snapshot of each running query, as readings. Shared by threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ssp.operations.metrics import catalogue
from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.metrics.readings import Reading, readings
from spark_ssp.operations.model.snapshot import QuerySnapshot


@dataclass(slots=True, kw_only=True)
class _State:
    run_id: str
    gauges: dict[tuple[Metric, tuple[str, ...]], float] = field(default_factory=dict)
    counts: dict[Metric, int] = field(default_factory=dict)
    rows: int = 0
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
            state.gauges = gauges
            state.counts = {**_counts(snapshot), catalogue.ROWS: state.rows}
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
