"""Lists the shards of streams (ListShards, cached) and describes streams (DescribeStreamSummary, on
doubt, and rarely with a listing); and proves, as far as a running query can, that a stream's
records are placed by their keys.

The service has no history of the record distribution strategy, so the proof is a chain of answers
of DescribeStreamSummary, none far from the next, which all report placement by key. It starts again
after a different answer, a failed call or a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.logs import Detail, abbreviate
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Retention,
    Shard,
    StreamDescription,
    StreamRef,
)
from spark_ssp.kinesis_source.planning.active_shards import Listings

T = TypeVar("T")

_log = logging.getLogger(__name__)

UNDISCOVERED_INTERVAL_MS = 1000
"""The shortest interval of refreshes before the interval is over."""
DESCRIBE_INTERVAL_MS = 600_000
"""The time after which a listing renews the description too: the retention may have changed."""
FAILING_INTERVALS = 10
"""The number of discovery intervals that a listing may fail before the query does."""
CONFIRMATIONS = 3
"""The number of new answers that must agree that a stream, a shard or its records are gone."""
CONFIRM_PERIOD_S = 1.0
"""The pause between two of them."""


class Doubts(msgspec.Struct, frozen=True, kw_only=True):
    """The streams whose listings may be behind."""

    lost: Collection[StreamName]
    """A shard with unread records, or whose children are unread, is missing."""
    outdated: Collection[StreamName] = ()
    """The children of a shard are missing that was read to its end, or a shard is begun."""


@dataclass(slots=True)
class _Known:
    description: StreamDescription
    shards: dict[ShardId, Shard]
    open_at: dict[ShardId, EpochMillis]
    """The service's time before the request for the last listing that had a shard as open."""
    listed_at: float
    described_at: float
    retention: Retention
    failing_since: float | None = None
    listed_now_at: float | None = None


class ShardDiscovery:
    """The streams of one query as the service lists them, never older than `interval_ms`, nor than
    `DESCRIBE_INTERVAL_MS`: a listing also proves until when its shards were open. `monotonic` is a
    clock in seconds. No request is made before the first use."""

    def __init__(
        self, service: KinesisService, *, interval_ms: int, monotonic: Callable[[], float]
    ) -> None:
        self._service = service
        self._interval_ms = min(interval_ms, DESCRIBE_INTERVAL_MS)
        self._monotonic = monotonic
        self._known: dict[StreamName, _Known] = {}
        self._recalled: dict[StreamName, tuple[EpochMillis, Retention]] = {}
        self._frozen = False

    def service_time(self) -> EpochMillis:
        """Return the service's current time."""
        return self._service.service_time()

    def description(self, stream: StreamRef) -> StreamDescription:
        """Return the description, at most `DESCRIBE_INTERVAL_MS` older than the listing."""
        return self._get(stream).description

    def recall(self, name: StreamName, created: EpochMillis, retention: Retention) -> None:
        """Take the retention of a stream from a checkpoint: it may have been raised since. Only the
        first call for a stream counts."""
        if name in self._recalled:
            return
        self._recalled[name] = created, retention
        known = self._known.get(name)
        if known is not None:
            known.retention = self._retention(known.description, (created, retention))

    def retention(self, stream: StreamRef) -> Retention:
        """Return the retention as described, and since when it holds."""
        return self._get(stream).retention

    def kept_ms(self, stream: StreamRef, now: EpochMillis | None = None) -> int:
        """Return the age up to which records are surely kept. Those that were trimmed before the
        retention was raised do not return, so that the age grows to the new one only in time."""
        return self._get(stream).retention.kept_ms(self.service_time() if now is None else now)

    def shards(self, stream: StreamRef) -> dict[ShardId, Shard]:
        """Return the shards by id, the same object until they are listed again: after the interval.
        A failure keeps the old listing."""
        known = self._get(stream)
        if not self._frozen and self._age_ms(known) >= self._interval_ms:
            self._refresh(stream, known)
        return known.shards

    def lists_parent(self, stream: StreamRef, shard: ShardId) -> bool:
        """Return whether the stream lists a parent of the shard."""
        listing = self.shards(stream)
        found = listing.get(shard)
        return found is not None and any(parent in listing for parent in found.parents)

    def open_at(self, stream: StreamRef, shard: ShardId) -> EpochMillis | None:
        """Return the last time at which the service listed the shard as open: all records of its
        children arrived later. None if it was closed when it was listed first, or is not listed."""
        return self._get(stream).open_at.get(shard)

    def known_shards(self, stream: StreamRef, created: EpochMillis) -> Mapping[ShardId, Shard]:
        """Return the shards by id, as listed last, without a request: none if the stream was not
        listed yet, or if the listed one was not created at `created`."""
        known = self._known.get(stream.name)
        return known.shards if known is not None and known.description.created == created else {}

    def refresh(self, stream: StreamRef, *, doubt: bool = False) -> None:
        """List the shards before the interval is over; with `doubt`, also describe the stream."""
        known = self._get(stream)
        if doubt:
            self._describe(stream, known)
        if doubt or self._age_ms(known) >= UNDISCOVERED_INTERVAL_MS:
            self._refresh(stream, known)

    def list_now(self, stream: StreamRef) -> dict[ShardId, Shard] | None:
        """Return the shards that the service lists now, without changing the cached listing. None
        if the service does not answer, or if this was requested a moment ago."""
        known, now = self._get(stream), self._monotonic()
        last = known.listed_now_at
        if last is not None and (now - last) * 1000 < UNDISCOVERED_INTERVAL_MS:
            return None
        known.listed_now_at = now
        try:
            return self._list(stream)
        except ServiceUnavailableError as error:
            _log.warning("could not list the shards of %s: %s", stream.name, Detail(error))
            return None

    def listings(self, streams: Mapping[StreamName, StreamRef]) -> Listings:
        """Return the shards of all streams."""
        return {name: self.shards(ref) for name, ref in streams.items()}

    def confirm(
        self,
        streams: Mapping[StreamName, StreamRef],
        listings: Listings,
        decide: Callable[[Listings], T],
        doubts: Callable[[T], Doubts],
        *,
        sleep: Callable[[float], None],
    ) -> tuple[Listings, T]:
        """Return the result of `decide`, and the listings that it follows from: the given ones, or
        new ones if its `doubts` ask for them.

        A loss is believed once `CONFIRMATIONS` new listings have shown it, also in a run that stops
        at the latest records, whose listing is not renewed otherwise.
        """
        result = decide(listings)
        for attempt in range(CONFIRMATIONS):
            found = doubts(result)
            lost = set(found.lost)
            early = set() if attempt or self._frozen else set(found.outdated)
            if not lost | early:
                break
            if attempt:
                sleep(CONFIRM_PERIOD_S)
            for name in sorted(lost | early):
                self.refresh(streams[name], doubt=name in lost)
            listings = self.listings(streams)
            result = decide(listings)
        return listings, result

    def freeze(self, streams: Iterable[StreamRef]) -> None:
        """List a last time: only shards that exist now are read."""
        for stream in streams:
            known = self._get(stream)
            if self._age_ms(known) > 0:
                began = self.service_time()
                _keep(known, self._list(stream), began)
        self._frozen = True

    def unfreeze(self) -> None:
        """Discover new shards again."""
        self._frozen = False

    @property
    def frozen(self) -> bool:
        return self._frozen

    def _get(self, stream: StreamRef) -> _Known:
        known = self._known.get(stream.name)
        if known is None:
            description = self._service.describe(stream)
            began = self.service_time()
            shards = self._list(stream)
            known = _Known(
                description=description,
                shards=shards,
                open_at=_open_at({}, shards, began),
                listed_at=self._monotonic(),
                described_at=self._monotonic(),
                retention=self._retention(description, self._recalled.get(stream.name)),
            )
            self._known[stream.name] = known
        return known

    def _age_ms(self, known: _Known) -> float:
        return (self._monotonic() - known.listed_at) * 1000

    def _describe(self, stream: StreamRef, known: _Known) -> None:
        self._take(known, self._service.describe(stream))

    def _take(self, known: _Known, description: StreamDescription) -> None:
        before = (known.description.created, known.retention)
        known.retention = self._retention(description, before)
        known.description, known.described_at = description, self._monotonic()

    def _retention(
        self, description: StreamDescription, before: tuple[EpochMillis, Retention] | None
    ) -> Retention:
        """Return the retention of a stream, which had the one `before` if it is the same stream."""
        known = before[1] if before is not None and before[0] == description.created else None
        return Retention.described(description.retention_ms, now=self.service_time(), before=known)

    def _renewed(self, stream: StreamRef, known: _Known, now: float) -> StreamDescription | None:
        """Return a new description if it is time. Throttling is not waited out, and no error ends a
        query: what concerns its records, the listing finds too."""
        if (now - known.described_at) * 1000 < DESCRIBE_INTERVAL_MS:
            return None
        try:
            return self._service.describe(stream, retry=False)
        except SspError as error:
            _log.warning(
                "could not describe %s, using the old description: %s",
                *(stream.name, Detail(error)),
            )
            return None

    def _list(self, stream: StreamRef) -> dict[ShardId, Shard]:
        return {shard.shard_id: shard for shard in self._service.list_shards(stream)}

    def _refresh(self, stream: StreamRef, known: _Known) -> None:
        now = self._monotonic()
        known.listed_at = now
        # Before the listing, which would otherwise be of the stream before, if it is recreated.
        description = self._renewed(stream, known, now)
        began = self.service_time()
        try:
            fresh = self._list(stream)
        except ServiceUnavailableError as error:
            known.failing_since = now if known.failing_since is None else known.failing_since
            if (now - known.failing_since) * 1000 > FAILING_INTERVALS * self._interval_ms:
                raise
            _log.warning(
                "could not list the shards of %s, using the old listing: %s",
                *(stream.name, Detail(error)),
            )
            return
        known.failing_since = None
        # The same id with another first record is another shard: the stream was recreated.
        replaced = any(
            shard_id in fresh and fresh[shard_id].first_sequence_number != old.first_sequence_number
            for shard_id, old in known.shards.items()
        )
        if replaced:
            self._describe(stream, known)
            known.open_at = {}
        elif description is not None:
            self._take(known, description)
        new = sorted(fresh.keys() - known.shards.keys())
        if new:
            _log.debug("stream %s has new shards: %s", stream.name, abbreviate(new))
        _keep(known, fresh, began)


def _keep(known: _Known, fresh: dict[ShardId, Shard], began: EpochMillis) -> None:
    """Keep a listing that was requested at `began`."""
    known.shards, known.open_at = fresh, _open_at(known.open_at, fresh, began)


def _open_at(
    before: Mapping[ShardId, EpochMillis], fresh: Mapping[ShardId, Shard], began: EpochMillis
) -> dict[ShardId, EpochMillis]:
    """Return the last time at which each listed shard was open, if it ever was; `before` is that of
    the listing before."""
    return {
        shard_id: before[shard_id] if shard.closed else began
        for shard_id, shard in fresh.items()
        if not shard.closed or shard_id in before
    }


# --- The placement of records by their keys -------------------------------------------------------

CHECK_PERIOD_S: Final = 10.0
"""The interval of descriptions of a stream if nothing requires one earlier."""
SHORTEST_PERIOD_S: Final = 1.0
"""The shortest interval of descriptions: an account has 20 calls a second for all its streams."""
LONGEST_GAP_S: Final = 60.0
"""A chain of answers ends after a gap of this length: the strategy may have changed and changed
back."""
SETTLING_MS: Final = 60_000
"""Records count as placed by key only if they arrived this long after the chain began. Arrival
times are approximate, and the service's clock is known to the second."""


@dataclass(slots=True, kw_only=True)
class _Chain:
    checked: float
    """The time of the last description, by the monotonic clock."""
    answered: EpochMillis
    """The same by the service's clock, which also advances while this machine is suspended."""
    since: EpochMillis | None
    """None if the last answer does not report placement by key."""


class PlacementWatch:
    """The chains of one query's streams. `monotonic` is a clock in seconds."""

    def __init__(self, service: KinesisService, *, monotonic: Callable[[], float]) -> None:
        self._service = service
        self._monotonic = monotonic
        self._chains: dict[StreamName, _Chain] = {}

    def observe(self, stream: StreamRef, created: EpochMillis) -> None:
        """Describe the stream if it is time to, so that the chain continues."""
        if self._age(stream) >= CHECK_PERIOD_S:
            self._check(stream, created)

    def proven_since(self, stream: StreamRef, created: EpochMillis) -> EpochMillis | None:
        """Return the time from which all records that exist now are proven to have been placed by
        key. None means no proof. Call this after the end of a batch was determined: the answer is
        about the records that exist at this moment."""
        if self._age(stream) < SHORTEST_PERIOD_S:
            return None
        return self._check(stream, created).since

    def _age(self, stream: StreamRef) -> float:
        chain = self._chains.get(stream.name)
        return float("inf") if chain is None else self._monotonic() - chain.checked

    def _check(self, stream: StreamRef, created: EpochMillis) -> _Chain:
        before, gap = self._chains.get(stream.name), self._age(stream)
        placed_by_key = self._is_placed_by_key(stream, created)
        now = self._service.service_time()
        since: EpochMillis | None = None
        if placed_by_key:
            if before is not None and max(gap, (now - before.answered) / 1000) <= LONGEST_GAP_S:
                since = before.since
            if since is None:
                since = EpochMillis(now + SETTLING_MS)
        chain = _Chain(checked=self._monotonic(), answered=now, since=since)
        self._chains[stream.name] = chain
        if before is not None and (before.since is None) != (since is None):
            _log.debug(
                "stream %s: records are %s placed by their keys",
                stream.name,
                "not known to be" if since is None else "again",
            )
        return chain

    def _is_placed_by_key(self, stream: StreamRef, created: EpochMillis) -> bool:
        try:
            description = self._service.describe(stream, retry=False)
        except SspError as error:
            # Planning does not depend on this answer; the calls that it depends on meet the same
            # error.
            _log.debug("could not describe stream %s: %s", stream.name, error)
            return False
        return description.placed_by_key is True and description.created == created
