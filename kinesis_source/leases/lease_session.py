"""The leases of a query as the batch planner uses them, once or twice per trigger.

The offset that Spark passes is committed: its positions are reported as checkpoints. Then the
shards of the next offset are chosen (`lease_driver.py`), and reported before they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.common.logs import abbreviate
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.leases.lease_decision import (
    LeaseWait,
    ahead_of_checkpoint,
    children_of_ended,
    departed,
    update_wait,
)
from spark_ssp.kinesis_source.leases.lease_driver import LeaseDriver, LeaseSnapshot
from spark_ssp.kinesis_source.leases.lease_worker import LeaseWorker
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
from spark_ssp.kinesis_source.model.shard import (
    ShardEnd,
    ShardState,
    StreamRef,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.active_shards import ActiveShards, ActiveShardsResult
from spark_ssp.kinesis_source.planning.shard_discovery import ShardDiscovery
from spark_ssp.kinesis_source.probing.initial_positions import ResolveLatest

_log = logging.getLogger(__name__)

WAITING_PERIOD_S: Final = 0.2
"""The pause between two exchanges while leases are about to change."""
IDLE_PERIOD_S: Final = 0.2
"""The shortest duration of a trigger without records to read."""


class LeaseSession:
    """One run of a query with leases. Used by one thread. The first use starts the lease agent.

    `monotonic` and `sleep` are in seconds.
    """

    def __init__(
        self,
        options: KinesisOptions,
        worker: LeaseWorker,
        discovery: ShardDiscovery,
        *,
        resolve_latest: ResolveLatest,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._worker = worker
        self._leases = worker.options
        self._discovery = discovery
        self._monotonic = monotonic
        self._sleep = sleep
        self._streams: dict[StreamName, StreamRef] = {ref.name: ref for ref in options.streams}
        self._driver = LeaseDriver(
            options, worker, discovery, resolve_latest, monotonic=monotonic, sleep=sleep
        )
        self._snapshot: LeaseSnapshot | None = None
        self._not_read: dict[ShardKey, ShardKey] = {}
        self._is_draining = False
        self._wait = LeaseWait()

    @property
    def rows(self) -> Mapping[ShardKey, Lease]:
        """The leases of the query's streams, as last observed."""
        return {} if self._snapshot is None else self._snapshot.table.rows

    def not_read(self, stream: StreamName) -> list[ShardId]:
        """Return the shards of a stream that no worker reads before the table is repaired."""
        return [key.shard for key in self._not_read if key.stream == stream]

    def close(self) -> None:
        """Let the lease agent give back all leases."""
        self._worker.client.close()

    def drain(self, start: Offset) -> bool:
        """Return whether the query was asked to drain; if so, give its leases back."""
        self._is_draining = self._is_draining or self._worker.drain_signal.is_requested()
        if not self._is_draining:
            return False
        listings = self._driver.listings()
        at_end = [k for k, state in start.states.items() if isinstance(state.position, ShardEnd)]
        ended = children_of_ended(at_end, listings)
        unknown = sorted({key.stream for key in at_end if key not in ended})
        for name in unknown:
            self._discovery.refresh(self._streams[name])
        # Not released before the end is written: the next worker would read it again.
        waiting = [key for key in at_end if key not in ended]
        status = self._driver.report(start, listings, waiting, ended, leave=True)
        if status.released:
            if not self._worker.drain_signal.is_drained():
                _log.info("worker %s has given back its shards, as requested", self._worker.id)
            self._worker.drain_signal.confirm()
        return True

    def pause(self) -> None:
        """Wait before the next exchange, while leases are about to change."""
        self._sleep(WAITING_PERIOD_S)

    def active_shards(self, start: Offset) -> ActiveShardsResult:
        """Return the shards of the next offset. `start` is committed."""
        self._driver.check_not_recreated(start)
        is_first = self._snapshot is None
        began = self._monotonic()
        snapshot = self._driver.choose(start)
        while is_first and self._is_claimable(snapshot) and not self._is_wait_over(began):
            self.pause()
            snapshot = self._driver.choose(start)
        self._snapshot = snapshot
        self._log_differences(start, snapshot, restarted=is_first)
        self._log_not_read(snapshot)
        latest = self._driver.resolve_latest(start, snapshot)
        result = self._result(start, snapshot, latest)
        if not result.active.states and not self._discovery.frozen:
            self._sleep(IDLE_PERIOD_S)
        return result

    def _log_differences(self, start: Offset, snapshot: LeaseSnapshot, *, restarted: bool) -> None:
        decision = snapshot.decision
        ahead = ahead_of_checkpoint(decision, start, snapshot.table, restarted=restarted)
        for where in sorted(set(ahead.values())):
            shards = [str(key) for key in ahead if ahead[key] == where]
            _log.info("reading resumes at %s, which is further: %s", where, abbreviate(shards))

    def _log_not_read(self, snapshot: LeaseSnapshot) -> None:
        found = snapshot.decision.not_read
        if found and found != self._not_read:
            _log.warning(
                "shards that no worker reads until the rows that cannot be parsed in lease table "
                "%s are restored or deleted (%s): %s",
                self._leases.table,
                abbreviate(sorted({str(row) for row in found.values()})),
                abbreviate([str(key) for key in found]),
            )
        self._not_read = found

    def _is_claimable(self, snapshot: LeaseSnapshot) -> bool:
        return bool(self._driver.claimable(snapshot))

    def _is_wait_over(self, began: float) -> bool:
        return (self._monotonic() - began) * 1000 >= self._leases.failover_ms

    def _result(
        self, start: Offset, snapshot: LeaseSnapshot, latest: Mapping[ShardKey, ShardState]
    ) -> ActiveShardsResult:
        decision = snapshot.decision
        states = {**decision.states, **latest}
        resume_from = decision.resume_from | {
            key: state for key, state in latest.items() if not isinstance(state.position, ShardEnd)
        }
        active = ActiveShards(resume_from=resume_from)
        for name, ref in sorted(self._streams.items()):
            entry = StreamEntry(
                created=self._discovery.description(ref).created, leases=self._leases.table
            )
            own = {key.shard: state for key, state in states.items() if key.stream == name}
            active.add(name, entry, own, {})
        active.lost_shards |= departed(start, states.keys(), snapshot.table, decision)
        return ActiveShardsResult(
            active=active,
            resolved=set(latest),
            listings=snapshot.listings,
            dropped=decision.dropped,
        )

    def is_finished(self) -> bool:
        """Return whether a run to fixed targets has read everything this worker can read."""
        if self._snapshot is None or not self._discovery.frozen:
            return True
        now_ms = round(self._monotonic() * 1000)
        self._wait = update_wait(
            self._wait,
            self._snapshot.decision,
            self._snapshot.table,
            claimable=self._driver.claimable(self._snapshot),
            now_ms=now_ms,
        )
        over = self._wait.is_over(now_ms, self._leases.failover_ms)
        if over and self._wait.pending:
            dropped = [str(key) for key in self._wait.pending]
            _log.warning(
                "shards left to other workers, which do not seem to read them: %s",
                abbreviate(dropped),
            )
        return over
