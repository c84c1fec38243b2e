"""Records the driver's last successful probe of each shard, and since when probes have failed.

A shard may be throttled for as long as other consumers use up its calls, or those of its KMS key.
That never fails a query, so a warning must show it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from spark_ssp.common.logs import Detail
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import ThrottledError, UnreachableError
from spark_ssp.kinesis_source.model.shard import EpochMillis, ShardEnd
from spark_ssp.kinesis_source.planning.shard_lag import LastProbe
from spark_ssp.kinesis_source.probing.position_advance import ShardAdvance

_log = logging.getLogger(__name__)

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

    def record_plan(self, advances: Mapping[ShardKey, ShardAdvance], now: EpochMillis) -> None:
        """Record the end of a batch. A shard that is planned to its end keeps its last probe: the
        records of its children are younger."""
        for key, advance in advances.items():
            if not isinstance(advance.state.position, ShardEnd):
                self._last_probes[key] = LastProbe(time=now, behind_ms=advance.millis_behind)

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

    def retain(self, keys: Collection[ShardKey]) -> None:
        """Drop the probes of shards not among `keys`."""
        for key in self._last_probes.keys() - keys:
            del self._last_probes[key]
        for key in self._failing.keys() - keys:
            del self._failing[key]
