"""Remembers the driver's last successful look at each shard, and since when looks have failed.

A shard may be throttled for as long as other consumers use up its calls, or those of its KMS key.
That never fails a query, so a warning must show it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kinesis_source.model.shard import EpochMillis, ShardEnd
from kinesis_source.planning.shard_lag import Sight
from kinesis_source.probing.position_advance import Advance
from task_grouping.identifiers import ShardId, ShardKey, StreamName

_log = logging.getLogger(f"spark_ssp.{__name__}")

WARN_AFTER_LOOKS = 3
WARN_AFTER_MS = 10_000
WARN_EVERY_MS = 60_000


@dataclass(slots=True)
class _Unseen:
    since: EpochMillis
    looks: int = 0
    warned: EpochMillis | None = None


class Sights:
    """The looks at one query's shards, for their lag. Times are the service's."""

    def __init__(self) -> None:
        self._sights: dict[ShardKey, Sight] = {}
        self._unseen: dict[ShardKey, _Unseen] = {}

    def looked(self, key: ShardKey) -> None:
        """Note a successful look."""
        self._unseen.pop(key, None)

    def failed(self, key: ShardKey, now: EpochMillis, error: Exception) -> None:
        """Note a failed look; warn if looks have failed for some time."""
        unseen = self._unseen.setdefault(key, _Unseen(since=now))
        unseen.looks += 1
        lasted = now - unseen.since
        due = unseen.warned is None or now - unseen.warned >= WARN_EVERY_MS
        if unseen.looks >= WARN_AFTER_LOOKS and lasted >= WARN_AFTER_MS and due:
            unseen.warned = now
            _log.warning(
                "Shard %s could not be looked at for %d s (%d looks): %s. No records of it are "
                "planned, and its lag grows, until a look succeeds. Where other consumers use up "
                "the shard's GetRecords calls, raise minFetchPeriod and the trigger's interval "
                "here or there, or read with fewer queries; where KMS throttles, raise the key's "
                "quota.",
                *(key, lasted // 1000, unseen.looks, error),
            )

    def planned(self, advances: Mapping[ShardKey, Advance], now: EpochMillis) -> None:
        """Note where a batch ends. A shard that is planned to its end keeps its last sight: the
        records of its children are younger."""
        for key, advance in advances.items():
            if not isinstance(advance.state.position, ShardEnd):
                self._sights[key] = Sight(time=now, behind=advance.millis_behind)

    def of(self, stream: StreamName) -> dict[ShardId, Sight]:
        """Return the last successful looks at the shards of a stream."""
        return {key.shard: sight for key, sight in self._sights.items() if key.stream == stream}

    def last(self, key: ShardKey) -> Sight | None:
        """Return the last successful look at a shard."""
        return self._sights.get(key)

    def unseen(self, stream: StreamName) -> set[ShardId]:
        """Return the shards of a stream whose last look failed."""
        return {key.shard for key in self._unseen if key.stream == stream}

    def forget_all_but(self, keys: Collection[ShardKey]) -> None:
        """Drop the looks at shards that have left."""
        for key in self._sights.keys() - keys:
            del self._sights[key]
        for key in self._unseen.keys() - keys:
            del self._unseen[key]
