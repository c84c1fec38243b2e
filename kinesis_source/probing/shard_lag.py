"""Computes the lag of each shard behind its latest record after the batch planned last.

The lag of a shard is the age of its oldest record that no planned batch contains, as of the last
probe of the shard; 0 at the latest record. It is never less than the true lag:

* It grows while probes of the shard fail, or are not made, from the last successful one on: a query
  that catches up under a limit does not probe shards that are ahead of the others.
* For a shard that was never probed, it is measured from the latest time before which the shard is
  known to have been read: its `last_caught_up_ms`, its start, the creation of the stream, or else
  the retention.
* For a shard that waits for its parents, it is measured from their last probe while they were
  open: its records are younger.
* A closed shard that is planned to its end has no lag; its children have.

A shard may be throttled for as long as other consumers use up its calls, or those of its KMS key.
That never fails a query, so `ProbeHistory` warns of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from spark_ssp.common.logs import Detail
from spark_ssp.common.structs import replace
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import ThrottledError, UnreachableError
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Shard,
    ShardEnd,
    ShardState,
    StreamDescription,
)
from spark_ssp.kinesis_source.planning.active_shards import ancestors
from spark_ssp.kinesis_source.probing.position_advance import ShardAdvance

MAX_REPORTED_SHARDS = 100
"""The most shards of a stream that a query's progress lists, which Spark keeps and logs for every
batch: those farthest behind."""


class LastProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A successful probe: at `time` no record older than `behind_ms` was unplanned."""

    time: EpochMillis
    behind_ms: int
    open_at: EpochMillis | None
    """The last time at which the service listed the shard as open; None if it never did."""
    is_failing: bool = False
    """True if a later probe failed."""

    @property
    def since(self) -> EpochMillis:
        return EpochMillis(self.time - self.behind_ms)


def stream_lag(
    stream: StreamDescription,
    states: Mapping[ShardId, ShardState],
    listing: Mapping[ShardId, Shard],
    last_probes: Mapping[ShardId, LastProbe],
    *,
    now: EpochMillis,
    planned_at: EpochMillis | None,
    fresh_ms: int,
    with_waiting: bool = True,
) -> dict[ShardId, int]:
    """Return the milliseconds behind the latest record, by shard. `states`: the shards of the
    offset, waiting ones included. `planned_at`: the time of the probes from which the batch planned
    last follows. `fresh_ms`: the age up to which an earlier one that found no unread record means
    that there is none: a shard need not be due in each trigger. `with_waiting`: include listed
    shards that will be read after their parents."""
    oldest = _oldest(stream, now)
    lag: dict[ShardId, int] = {}
    for shard, state in states.items():
        if isinstance(state.position, ShardEnd):
            lag[shard] = 0
            continue
        last_probe = last_probes.get(shard)
        most = max_lag_ms(state, last_probe, stream, now)
        is_read = (
            last_probe is not None
            and not (last_probe.is_failing or last_probe.behind_ms)
            # The probes for one batch may be repeated for longer than `fresh_ms`.
            and (last_probe.time == planned_at or most <= fresh_ms)
        )
        lag[shard] = 0 if is_read else most
    if with_waiting:
        finished = ancestors(listing, states.keys())
        since = {
            shard: children_since(state, last_probes.get(shard), stream, now)
            for shard, state in states.items()
        }
        for shard in sorted(listing.keys() - finished - states.keys()):
            parents = [since[parent] for parent in listing[shard].parents if parent in since]
            since[shard] = max(parents, default=oldest)
            lag[shard] = max(0, now - since[shard])
    return lag


def max_lag_ms(
    state: ShardState, last_probe: LastProbe | None, stream: StreamDescription, now: EpochMillis
) -> int:
    """Return an upper bound of a shard's lag at `now`, including records put since the last
    probe."""
    oldest = _oldest(stream, now)
    return max(0, now - (_known_since(state, oldest) if last_probe is None else last_probe.since))


def children_since(
    state: ShardState, last_probe: LastProbe | None, stream: StreamDescription, now: EpochMillis
) -> EpochMillis:
    """Return a time at or before the arrival of all unread records of a shard's children."""
    known = _known_since(state, _oldest(stream, now))
    if last_probe is None or last_probe.open_at is None:
        return known
    return max(known, min(last_probe.since, last_probe.open_at))


def _oldest(stream: StreamDescription, now: EpochMillis) -> EpochMillis:
    """Return the time of the oldest record that a stream may have."""
    return EpochMillis(max(now - stream.retention_ms, stream.created))


def _known_since(state: ShardState, oldest: EpochMillis) -> EpochMillis:
    known = [oldest]
    if state.last_caught_up_ms is not None:
        known.append(state.last_caught_up_ms)
    if isinstance(state.position, AtTimestamp):
        known.append(state.position.millis)
    return max(known)


def progress_entry(lag: Mapping[ShardId, int]) -> dict[str, object]:
    """Return one stream's lag for the query's progress: the totals, and the shards farthest
    behind."""
    shown = sorted(lag, key=lambda shard: (-lag[shard], shard))[:MAX_REPORTED_SHARDS]
    entry: dict[str, object] = {
        "millisBehindLatest": {shard: lag[shard] for shard in sorted(shown)},
        "maxMillisBehindLatest": max(lag.values(), default=0),
        "sumMillisBehindLatest": sum(lag.values()),
    }
    if len(shown) < len(lag):
        entry["shardsNotShown"] = len(lag) - len(shown)
    return entry


_log = logging.getLogger(__name__)

# --- The last probes ------------------------------------------------------------------------------

WARN_AFTER_PROBES = 3
WARN_AFTER_MS = 10_000
WARN_EVERY_MS = 60_000


@dataclass(slots=True)
class _Failing:
    since: EpochMillis
    probes: int = 0
    warned: EpochMillis | None = None


class ProbeHistory:
    """The probes of one query's shards, for their lag. Times are the service's."""

    def __init__(self) -> None:
        self._last_probes: dict[ShardKey, LastProbe] = {}
        self._failing: dict[ShardKey, _Failing] = {}
        self.planned_at: EpochMillis | None = None
        """The time of the probes from which the batch planned last follows."""
        self.failures = 0
        """Probes that a fault of the service or throttling ended, and that are made again."""
        self.throttles = 0
        """Of these, the throttled ones."""

    def record_success(self, key: ShardKey) -> None:
        """Record a successful probe."""
        self._failing.pop(key, None)

    def record_failure(self, key: ShardKey, now: EpochMillis, error: Exception) -> None:
        """Record a failed probe. Warn of a fault, and of throttling that lasts."""
        if isinstance(error, UnreachableError):
            _log.warning("could not probe %s: %s", Detail(key), Detail(error))
        failing = self._failing.setdefault(key, _Failing(since=now))
        failing.probes += 1
        self.failures += isinstance(error, ThrottledError)
        self.throttles += isinstance(error, ThrottledError) and not isinstance(
            error, UnreachableError
        )
        lasted = now - failing.since
        due = failing.warned is None or now - failing.warned >= WARN_EVERY_MS
        if failing.probes >= WARN_AFTER_PROBES and lasted >= WARN_AFTER_MS and due:
            failing.warned = now
            _log.warning(
                "shard %s could not be probed for %s (%d probes): %s; it is not "
                "planned, and its lag grows, until a probe succeeds; if other consumers use up "
                "the shard's GetRecords calls, raise minFetchPeriod and the trigger's interval "
                "here or there, or read with fewer queries; if KMS throttles, raise the key's "
                "quota",
                *(Detail(key), duration_text(lasted), failing.probes, Detail(error)),
            )

    def record_plan(
        self,
        advances: Mapping[ShardKey, ShardAdvance],
        now: EpochMillis,
        open_at: Callable[[ShardKey], EpochMillis | None],
    ) -> None:
        """Record the end of a batch. A shard that is planned to its end keeps its last probe, for
        its children. `open_at`: see `LastProbe`."""
        self.planned_at = now
        for key, advance in advances.items():
            if not isinstance(advance.state.position, ShardEnd):
                self._last_probes[key] = LastProbe(
                    time=now, behind_ms=advance.millis_behind, open_at=open_at(key)
                )

    def last_probes(self, stream: StreamName) -> dict[ShardId, LastProbe]:
        """Return the last successful probes of the shards of a stream."""
        return {
            key.shard: replace(probe, is_failing=True) if key in self._failing else probe
            for key, probe in self._last_probes.items()
            if key.stream == stream
        }

    def last_probe(self, key: ShardKey) -> LastProbe | None:
        """Return the last successful probe of a shard."""
        return self._last_probes.get(key)

    def is_failing(self, key: ShardKey) -> bool:
        """Return whether the last probe of a shard failed."""
        return key in self._failing

    def retain(self, keys: Collection[ShardKey]) -> None:
        """Drop the probes of shards not among `keys`."""
        for key in self._last_probes.keys() - keys:
            del self._last_probes[key]
        for key in self._failing.keys() - keys:
            del self._failing[key]
