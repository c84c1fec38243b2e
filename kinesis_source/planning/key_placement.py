"""Proves, as far as a running query can, that a stream's records are placed by their keys.

The service has no history of the record distribution strategy, so the proof is a chain of answers
of DescribeStreamSummary, none far from the next, which all report placement by key. It starts again
after a different answer, a failed call or a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import HashRange, ShardId, StreamName
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    Shard,
    StreamRef,
)
from spark_ssp.kinesis_source.planning.active_shards import ancestors

_log = logging.getLogger(__name__)

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


def families(
    listed: Mapping[ShardId, Shard], shards: Collection[ShardId]
) -> dict[ShardId, HashRange]:
    """Return the hash keys of each shard and its listed ancestors, if they are more than its own.
    Only such a shard may hold an aggregate that was made for an ancestor. A merge removes no keys,
    so its child has a family only if a split came before."""
    found: dict[ShardId, HashRange] = {}
    for shard_id in shards:
        shard = listed.get(shard_id)
        if shard is None or listed.keys().isdisjoint(shard.parents):
            continue
        own = shard.hash_range
        line = [own, *(listed[one].hash_range for one in ancestors(listed, [shard_id]))]
        family = HashRange(
            first=min(keys.first for keys in line), last=max(keys.last for keys in line)
        )
        if family != own:
            found[shard_id] = family
    return found
