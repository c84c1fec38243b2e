"""How often the driver looks at a shard.

A shard answers five GetRecords a second, for everybody together (Kinesis API reference). A look at
a shard at its tip is one call, and may be repeated every `minFetchPeriod`. A look at a busy one is
several, and its executors are reading meanwhile: once a second at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from task_grouping.identifiers import ShardKey

BUSY_PERIOD_MS = 1000
PATIENT_AFTER = 3
"""After so many looks in a row that met faults, one is made that retries, and fails the query if
that does not help. Throttling does not count: it only means no news."""


class Pacing:
    """When each shard may be looked at next. `monotonic` and `sleep` are in seconds."""

    def __init__(
        self,
        *,
        period_ms: int,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._period = period_ms / 1000
        self._busy_period = max(period_ms, BUSY_PERIOD_MS) / 1000
        self._monotonic = monotonic
        self._sleep = sleep
        self._due: dict[ShardKey, float] = {}
        self._faults: dict[ShardKey, int] = {}

    def due(self, key: ShardKey) -> bool:
        """Whether the shard may be looked at now."""
        return self._due.get(key, float("-inf")) <= self._monotonic()

    def wait(self, keys: Collection[ShardKey]) -> None:
        """Sleep until one of the shards may be looked at; Spark asks again at once otherwise.

        Never for long, whatever the period: Spark can only end the query in between.
        """
        if keys:
            earliest = min(self._due.get(key, float("-inf")) for key in keys)
            delay = min(earliest - self._monotonic(), BUSY_PERIOD_MS / 1000)
            if delay > 0:
                self._sleep(delay)

    def looked(self, key: ShardKey, *, busy: bool) -> None:
        """Note a look. `busy`: it took several GetRecords calls."""
        period = self._busy_period if busy else self._period
        self._due[key] = self._monotonic() + period
        self._faults.pop(key, None)

    def throttled(self, key: ShardKey) -> None:
        """Note a look that was throttled: leave the shard alone for a while."""
        self._due[key] = self._monotonic() + self._busy_period

    def failed(self, key: ShardKey) -> None:
        """Note a look that met a fault."""
        self.throttled(key)
        self._faults[key] = self._faults.get(key, 0) + 1

    def patience_is_due(self, key: ShardKey) -> bool:
        """Whether the next look at the shard should retry, and report it if that does not help."""
        return self._faults.get(key, 0) >= PATIENT_AFTER

    def forget_all_but(self, keys: Collection[ShardKey]) -> None:
        """Drop what is known of shards that have left."""
        for table in (self._due, self._faults):
            for key in [key for key in table if key not in keys]:
                del table[key]
