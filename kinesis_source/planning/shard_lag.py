"""Computes the lag of each shard behind its latest record after the batch planned last.

The lag of a shard is the age of its oldest record that no planned batch contains, as of the last
probe of the shard; 0 at the latest record. It is never less than the true lag:

* It grows while probes of the shard fail, starting from the last successful one.
* For a shard that was never probed, it is measured from the latest time before which the shard is
  known to have been read: its `last_caught_up_ms`, its start, the creation of the stream, or else
  the retention.
* For a shard that waits for its parents, it is measured from their last probe: its records are
  younger.
* A closed shard that is planned to its end has no lag; its children have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Shard,
    ShardEnd,
    ShardState,
    StreamDescription,
)
from spark_ssp.kinesis_source.planning.shard_lineage import ancestors

MAX_REPORTED_SHARDS = 100
"""The most shards of a stream that a query's progress lists, which Spark keeps and logs for every
batch: those farthest behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastProbe:
    """A successful probe: at `time` no record older than `behind_ms` was unplanned."""

    time: EpochMillis
    behind_ms: int
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
    with_waiting: bool = True,
) -> dict[ShardId, int]:
    """Return the milliseconds behind the latest record, by shard.

    `states`: the shards of the offset, waiting ones included. `with_waiting`: include listed shards
    that will be read after their parents.
    """
    oldest = EpochMillis(max(now - stream.retention_ms, stream.created))
    since = {
        shard: last_probes[shard].since if shard in last_probes else _known_since(state, oldest)
        for shard, state in states.items()
    }
    lag: dict[ShardId, int] = {}
    for shard, state in states.items():
        last_probe = last_probes.get(shard)
        if isinstance(state.position, ShardEnd):
            lag[shard] = 0
        elif last_probe is None:
            lag[shard] = max(0, now - since[shard])
        else:
            lag[shard] = last_probe.behind_ms + (
                max(0, now - last_probe.time) if last_probe.is_failing else 0
            )
    if with_waiting:
        finished = ancestors(listing, states.keys())
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
    oldest = EpochMillis(max(now - stream.retention_ms, stream.created))
    return max(0, now - (_known_since(state, oldest) if last_probe is None else last_probe.since))


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
