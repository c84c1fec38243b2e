"""Counts what a stream reader does on the driver, for its status in the query's progress. The
shards by state and the leases by owner are totals, since Spark keeps and logs each report. Single
shards are listed only for a while after a reshard, at most `MAX_LISTED_SHARDS` of a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.common.aws.error_translation import THROTTLES
from spark_ssp.common.spark.reader_status import COUNTERS, ReaderCounters
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import Shard, ShardEnd
from spark_ssp.kinesis_source.planning.active_shards import Listings
from spark_ssp.kinesis_source.planning.data_loss import tolerated_losses
from spark_ssp.kinesis_source.probing.alignment import Alignment

if TYPE_CHECKING:
    from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
    from spark_ssp.kinesis_source.leases.lease_worker import LeaseWorker

RECENT_S: Final = 300.0
"""The time for which the status contains the parents of a new shard."""


class ReaderActivity:
    """The counts of one reader, since it was made. Used by one thread. `monotonic` is in
    seconds."""

    def __init__(
        self,
        planner: BatchPlanner,
        service: Boto3Kinesis,
        worker: LeaseWorker | None,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._planner = planner
        self._service = service
        self._worker = worker
        self._monotonic = monotonic
        self._losses_before = tolerated_losses()
        self._reshards = 0
        self._recent: dict[ShardKey, tuple[float, tuple[ShardId, ...]]] = {}
        """The time and the parents of the shards that came from a reshard."""

    def record_batch(self, start: Offset, end: Offset) -> None:
        """Record a planned batch."""
        planned, now = self._planner.last_batch, self._monotonic()
        if planned is None or start.states.keys() == end.states.keys():
            return
        new = new_shards(start, end, planned.listings)
        self._reshards += count_reshards(new, self._recent_parents(now))
        self._recent |= {key: (now, parents) for key, parents in new.items()}

    def entry(self, stream: StreamName, lagging: Collection[ShardId]) -> dict[str, Any]:
        """Return the counts of the reader and of a stream after the batch planned last. `lagging`:
        its shards that have a lag."""
        entry: dict[str, Any] = {COUNTERS: self._counters().document()}
        planned, leases = self._planner.last_batch, self._planner.leases
        if planned is not None and stream in planned.listings:
            listing, recent = planned.listings[stream], self._recent_parents(self._monotonic())
            entry |= shard_entry(stream, planned.offset, listing, lagging, recent)
        if leases is not None:
            rows = [row for key, row in leases.rows.items() if key.stream == stream]
            entry |= lease_entry(rows, leases.not_read(stream), stale=leases.stale(stream))
        if self._planner.alignment.outcome is not None:
            entry |= alignment_entry(stream, self._planner.alignment.outcome)
        return entry

    def _counters(self) -> ReaderCounters:
        history = self._planner.history
        retries = self._service.retries()
        throttled = sum(count for (_, code), count in retries.items() if code in THROTTLES)
        return ReaderCounters(
            retries=sum(retries.values()) + history.failures,
            throttles=throttled + history.throttles,
            reshards=self._reshards,
            data_loss_warnings=tolerated_losses() - self._losses_before,
            agent_restarts=None if self._worker is None else self._worker.client.restarts,
        )

    def _recent_parents(self, now: float) -> dict[ShardKey, tuple[ShardId, ...]]:
        self._recent = {
            key: (since, parents)
            for key, (since, parents) in self._recent.items()
            if now - since < RECENT_S
        }
        return {key: parents for key, (_, parents) in self._recent.items()}


# --- Entries of the status ------------------------------------------------------------------------

MAX_LISTED_SHARDS: Final = 50
"""With these, a stream's part of a report stays below 16 KB at any number of shards: Spark keeps a
hundred reports, and an event log has every one."""
MAX_LISTED_OWNERS: Final = 20

NewShards = Mapping[ShardKey, tuple[ShardId, ...]]
"""Shards that came from a reshard, with their parents."""


def new_shards(
    start: Offset, end: Offset, listings: Listings
) -> dict[ShardKey, tuple[ShardId, ...]]:
    """Return the shards of a batch that continue others of its start, or of the batch itself, with
    their parents."""
    found = {}
    for key in sorted(end.states.keys() - start.states.keys()):
        listed = listings.get(key.stream, {}).get(key.shard)
        parents = () if listed is None else listed.parents
        known = (ShardKey(stream=key.stream, shard=one) for one in parents)
        if any(parent in start.states or parent in end.states for parent in known):
            found[key] = parents
    return found


def count_reshards(new: NewShards, known: NewShards) -> int:
    """Return the number of splits and merges that the new shards came from. The second child of a
    split may follow in a later batch: `known` has the shards of recent ones."""
    counted = {(key.stream, parents) for key, parents in known.items()}
    return len({(key.stream, parents) for key, parents in new.items()} - counted)


def shard_entry(
    stream: StreamName,
    offset: Offset,
    listing: Mapping[ShardId, Shard],
    lagging: Collection[ShardId],
    recent: NewShards,
) -> dict[str, Any]:
    """Return the shards of a stream by state, and the exceptional ones: those that are closed and
    still read, and the parents of recent ones. `lagging`: the shards of the offset, and those that
    wait for their parents."""
    own = {key.shard: state for key, state in offset.states.items() if key.stream == stream}
    ended = {shard for shard, state in own.items() if isinstance(state.position, ShardEnd)}
    closed = sorted(
        shard
        for shard in own.keys() - ended
        if (listed := listing.get(shard)) is not None and listed.closed
    )
    entry: dict[str, Any] = {
        "shards": {
            "open": len(own) - len(ended) - len(closed),
            "closed": len(closed),
            "waiting": len(set(lagging) - own.keys()),
            "ended": len(ended),
        }
    }
    if closed:
        entry["closedShards"] = closed[:MAX_LISTED_SHARDS]
    parents = {key.shard: list(recent[key]) for key in sorted(recent) if key.stream == stream}
    if parents:
        entry["parents"] = dict(list(parents.items())[:MAX_LISTED_SHARDS])
    return entry


def lease_entry(
    leases: Collection[Lease], not_read: Sequence[ShardId] = (), *, stale: int | None = 0
) -> dict[str, Any]:
    """Return the number of leases by owner, without those of ended shards; the number of those with
    an owner that are `stale`, None if it is not known; and the shards that no worker reads before
    the table is repaired."""
    owners = Counter(lease.holder for lease in leases if not lease.has_ended)
    free = owners.pop(None, 0)
    named = sorted(
        ((owner, count) for owner, count in owners.items() if owner is not None),
        key=lambda one: (-one[1], one[0]),
    )
    shown = dict(sorted(named[:MAX_LISTED_OWNERS]))
    others = sum(count for _, count in named[MAX_LISTED_OWNERS:])
    counts = {"owners": shown, "free": free} | ({"others": others} if others else {})
    counts |= {} if stale == 0 else {"stale": stale}
    if not not_read:
        return {"leases": counts}
    listed = list(not_read[:MAX_LISTED_SHARDS])
    return {"leases": counts | {"notRead": len(not_read)}, "notReadShards": listed}


def alignment_entry(stream: StreamName, alignment: Alignment) -> dict[str, Any]:
    """Return how far the batch is from one instant: the spread over all streams of the reader, and
    the shards of this stream that hold others back or are left behind."""
    holds_back = alignment.holds_back
    left_behind = sum(key.stream == stream for key in alignment.left_behind)
    entry: dict[str, Any] = {"spreadMillis": alignment.spread_ms, "leftBehind": left_behind}
    if holds_back is not None and holds_back.stream == stream:
        entry["holdsBack"] = holds_back.shard
    return {"alignment": entry}
