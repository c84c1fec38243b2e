"""Remembers the shards of a query with enhanced fan-out whose GetRecords other readers use up.

The records of such a shard are pushed, but its ends are found by GetRecords, of which few succeed.
So a throttled probe is repeated within the trigger, at most `RETRIES` times, and the first call
that succeeds finds an end near the latest record (`batch_end_probe.probe_starved`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.probing.probe_protocol import ProbeResult

STARVED_S: Final = 60.0
"""The time after a throttled probe in which a shard counts as starved."""
RETRIES: Final = 20
PAUSE_S: Final = 0.1


class StarvedShards:
    """The starved shards of one query; none if it is not `enabled`. `monotonic` and `sleep` are in
    seconds."""

    def __init__(
        self, *, enabled: bool, monotonic: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._enabled = enabled
        self._monotonic = monotonic
        self._sleep = sleep
        self._throttled: dict[ShardKey, float] = {}

    def __contains__(self, key: ShardKey) -> bool:
        throttled = self._throttled.get(key)
        return throttled is not None and self._monotonic() - throttled < STARVED_S

    def record_throttle(self, key: ShardKey) -> None:
        """Record a probe that was throttled."""
        if self._enabled:
            self._throttled[key] = self._monotonic()

    def repeat(
        self,
        keys: Collection[ShardKey],
        results: dict[ShardKey, ProbeResult],
        probe_again: Callable[[Sequence[ShardKey]], Mapping[ShardKey, ProbeResult]],
    ) -> None:
        """Probe those of the shards again that are starved and have no result; add the results."""
        for _ in range(RETRIES):
            missing = [key for key in keys if key in self and key not in results]
            if not missing:
                return
            self._sleep(PAUSE_S)
            results.update(probe_again(missing))

    def retain(self, keys: Collection[ShardKey]) -> None:
        """Drop shards not among `keys`."""
        self._throttled = {key: at for key, at in self._throttled.items() if key in keys}
