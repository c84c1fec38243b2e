"""Counts what a stream reader does on the driver, for its status in the query's progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_ssp.common.aws.error_translation import THROTTLES
from spark_ssp.common.spark.reader_counters import COUNTERS, ReaderCounters
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.planning.data_loss import tolerated_losses
from spark_ssp.kinesis_source.planning.status_counts import (
    count_reshards,
    lease_entry,
    new_shards,
    shard_entry,
)

if TYPE_CHECKING:
    from spark_ssp.kinesis_source.leases.lease_worker import LeaseWorker

RECENT_S: Final = 300.0
"""The time for which the status contains the parents of a new shard."""


class CountsRetries(Protocol):
    """A connection to the service."""

    def retries(self) -> Mapping[tuple[str, str], int]:
        """Return the number of retries so far, by (operation, error code)."""


class ReaderActivity:
    """The counts of one reader, since it was made. Used by one thread. `monotonic` is in
    seconds."""

    def __init__(
        self,
        planner: BatchPlanner,
        service: CountsRetries,
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
            entry |= lease_entry(rows, leases.not_read(stream))
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
