"""Facts that one run of a query learns from listings in time: the shards that have expired, and the
holes in the lease table that are confirmed.

A listing may be behind: it is refreshed periodically, a refresh may fail, and a run to fixed
targets keeps its first one. So a lease of an unlisted shard proves nothing by itself. The shard has
*expired* once the service listed it and no longer does, or when a listing that was made after the
lease was first seen lacks it; never while a parent is listed, since a child expires after its
parents. A hole is *confirmed* if it is seen for a failover time, in which another worker that is
creating the lease would have done so, and if it is one by a new listing too: that may show children
which account for the shard, or lack the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from spark_ssp.checkpoint.leases.lease import Lease, ShardEnded
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.leases.lease_decision import Create, Decision
from spark_ssp.kinesis_source.model.shard import Shard, StreamRef
from spark_ssp.kinesis_source.planning.active_shards import Listings
from spark_ssp.kinesis_source.planning.shard_discovery import (
    CONFIRM_PERIOD_S,
    CONFIRMATIONS,
    ShardDiscovery,
)

Listing = Mapping[ShardId, Shard]


class ListingFacts:
    """The facts that one run has learned so far. Listings are compared by identity: a new answer of
    the service is a new one, also if it is equal."""

    def __init__(
        self,
        discovery: ShardDiscovery,
        streams: Mapping[StreamName, StreamRef],
        *,
        sleep: Callable[[float], None],
    ) -> None:
        self._discovery = discovery
        self._streams = streams
        self._sleep = sleep
        self._listed: set[ShardKey] = set()
        self._since: dict[ShardKey, Listing] = {}
        """Leases whose shards were never listed, with the listing when first seen."""
        self._new: set[ShardKey] = set()
        self._closed: set[ShardKey] = set()
        """Listed as open, and known to be closed."""
        self.expired: set[ShardKey] = set()
        self.undecided: set[ShardKey] = set()
        """Shards that may be new or expired."""
        self.holes: dict[ShardKey, int] = {}
        """The holes of the last decision, with the times when they were seen first."""
        self.confirmed: frozenset[ShardKey] = frozenset()
        self._finished: dict[ShardKey, Listing] = {}
        """Shards without a lease that a newer listing accounts for, with the current one."""

    @property
    def finished(self) -> frozenset[ShardKey]:
        """Shards without a lease that a newer listing than the current one accounts for."""
        return frozenset(self._finished)

    def observe(self, rows: Mapping[ShardKey, Lease], listings: Listings) -> None:
        """Compare the current leases with the current listings."""
        for name, listing in listings.items():
            self._listed |= {ShardKey(stream=name, shard=shard) for shard in listing}
        unlisted = {key for key in rows if key.shard not in listings[key.stream]}
        self._since = {
            key: self._since.get(key, listings[key.stream]) for key in unlisted - self._listed
        }
        self._new &= unlisted
        missing = {
            key
            for key in unlisted
            if key in self._listed or listings[key.stream] is not self._since[key]
        }
        self.expired = {
            key
            for key in unlisted & (missing | self.expired)
            if not any(parent in listings[key.stream] for parent in rows[key].parents)
        }
        self.undecided = unlisted - self.expired
        self.confirmed -= rows.keys()
        self._finished = {
            key: listing
            for key, listing in self._finished.items()
            if key not in rows and listing is listings[key.stream]
        }

    def confirm_holes(
        self,
        listings: Listings,
        holes: Mapping[ShardKey, int],
        seen_before_ms: int,
        decide: Callable[[Listings], Decision],
    ) -> bool:
        """Check the holes seen first at `seen_before_ms` or earlier with a new listing; return
        whether one of them was decided. `decide` is used with the new listing."""
        self.holes = dict(holes)
        due = {key for key, since in holes.items() if since <= seen_before_ms}
        decided = False
        for name in sorted({key.stream for key in due}):
            listed = self._discovery.list_now(self._streams[name])
            if listed is None:
                continue
            own = {key for key in due if key.stream == name}
            before, self.confirmed = self.confirmed, self.confirmed | own
            verdicts = decide({**listings, name: listed}).verdicts
            still = {key for key in own if isinstance(verdicts.get(key), Create)}
            self.confirmed = before | still
            self._finished |= dict.fromkeys(own - still, listings[name])
            decided = True
        return decided

    def recreated_shard(
        self, rows: Mapping[ShardKey, Lease], listings: Listings
    ) -> ShardKey | None:
        """Return a shard whose lease has ended and that the service lists as open: a recreated
        stream's.

        A shard that closed a moment ago is listed as open, too, so several new listings must agree.
        """
        doubtful = {
            key
            for key, row in rows.items()
            if isinstance(row.progress, ShardEnded)
            and (shard := listings[key.stream].get(key.shard)) is not None
            and not shard.closed
        }
        self._closed &= doubtful
        for name in sorted({key.stream for key in doubtful - self._closed}):
            own = {key for key in doubtful if key.stream == name}
            still = self._confirmed_open(name, own)
            if still:
                return min(still)
            if still is not None:
                self._closed |= own
        return None

    def _confirmed_open(self, name: StreamName, keys: set[ShardKey]) -> set[ShardKey] | None:
        """Return those of the shards that are open by several new listings; None if there are
        none."""
        still = keys
        for attempt in range(CONFIRMATIONS):
            if attempt:
                self._sleep(CONFIRM_PERIOD_S)
            listed = self._discovery.list_now(self._streams[name])
            if listed is None:
                return None
            still = {key for key in still if key.shard in listed and not listed[key.shard].closed}
            if not still:
                break
        return still

    def refresh(self, keys: Collection[ShardKey]) -> None:
        """Decide these shards by a new listing, if there was none a moment ago. In a run to fixed
        targets, which keeps its listing, the service is asked only for these leases."""
        checked = {key for key in keys if key in self.undecided and key not in self._new}
        for name in sorted({key.stream for key in checked}):
            ref = self._streams[name]
            if not self._discovery.frozen:
                self._discovery.refresh(ref)
                continue
            listed = self._discovery.list_now(ref)
            if listed is None:
                continue
            own = {key for key in checked if key.stream == name}
            self._new |= {key for key in own if key.shard in listed}
            self.expired |= own - self._new
        self.undecided -= self.expired
