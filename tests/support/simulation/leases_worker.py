"""A worker of this project in a simulation: the coordination as the agent runs it, and a reader
that plans by the reports, as the source does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import Report, Status
from spark_ssp.checkpoint.coordination.state import Settings, State, Steps
from spark_ssp.checkpoint.leases.conditional_writes import Assign, Delete, Evict, Outcome, Write
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, ShardEnded
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName, WorkerId
from spark_ssp.kinesis_source.leases.lease_decision import Facts, decide
from spark_ssp.kinesis_source.leases.lease_table import LeaseTableView
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import StartingPosition, TrimHorizon
from tests.support.simulation.leases import (
    FAILOVER_MS,
    NEVER,
    Clock,
    World,
    position_of,
    progress_of,
    unavailable,
)

END = -1
"""The position of a shard that is read to its end."""

METRICS_LIVE_MS = 60_000

STREAM = StreamName("orders")


def _shard_key(key: LeaseKey) -> ShardKey:
    return ShardKey(stream=STREAM, shard=ShardId(key))


@dataclass(slots=True)
class Batch:
    """The ranges being read."""

    done_at: int
    ends: dict[LeaseKey, int]


@dataclass(slots=True)
class OurWorker:
    """An actor of two halves that live and die separately: the reader with the query, the agent
    after it."""

    world: World
    worker: WorkerId
    clock: Clock
    latency: int = 0
    """The duration of a write in each direction."""
    batch_ms: int = 300
    trigger_ms: int = 2_500
    limit: int = 5
    max_leases: int | None = None
    state: State = field(init=False)
    reading: bool = True
    """True while the reader lives."""
    keeping: bool = True
    paused: bool = False
    leaving: bool = False
    committed: dict[LeaseKey, int] = field(default_factory=dict)
    """The offset X that Spark has committed."""
    holes: dict[ShardKey, int] = field(default_factory=dict)
    """The shards whose rows seem to be missing, with the times when they were seen first."""
    batch: Batch | None = None
    next_trigger: int = 0
    flights: deque[tuple[int, Write, Outcome | ServiceUnavailableError | None]] = field(
        default_factory=deque
    )
    """Writes in transit: with None not applied yet, otherwise on the way back."""
    wake: int = 0
    agent_wake: int = 0

    def __post_init__(self) -> None:
        self.state = self._new_state()

    def _new_state(self) -> State:
        return lease_coordinator.initial_state(
            Settings(
                worker=self.worker,
                failover_ms=FAILOVER_MS,
                max_leases=self.max_leases,
                clean_up_interval_ms=2 * FAILOVER_MS,
            )
        )

    @property
    def own(self) -> int:
        return self.clock.own(self.world.now)

    def lives(self) -> bool:
        return self.keeping

    # --- Disturbances ---------------------------------------------------------------------------

    def pause(self) -> None:
        self.paused, self.wake = True, NEVER

    def resume(self) -> None:
        """Drop unsent writes: their signature is too old."""
        self.paused = False
        for at, write, outcome in list(self.flights):
            if outcome is None:
                self.flights.remove((at, write, outcome))
                self.state = lease_coordinator.apply_write_results(
                    self.state, [(write, unavailable(self.worker), self.own)]
                )
        self.wake = self.world.now

    def crash(self) -> None:
        """Kill reader and agent at once."""
        self.reading = self.keeping = False
        self.flights.clear()
        self.batch, self.wake = None, NEVER

    def stop_reader(self) -> None:
        """Stop or kill the query: the agent notices and gives back its leases."""
        self.reading, self.batch = False, None
        self.state = lease_coordinator.start_shutdown(self.state)
        self.agent_wake = self.world.now
        self._sleep()

    def restart_agent(self) -> None:
        """Kill the agent; the reader starts another, under the same name."""
        self.state = self._new_state()
        self.flights.clear()
        self.agent_wake = self.world.now
        self._sleep()

    def leave(self) -> None:
        self.leaving = True

    # --- Acting ----------------------------------------------------------------------------------

    def act(self) -> None:
        now = self.world.now
        while self.flights and self.flights[0][0] <= now:
            self._fly()
            self.agent_wake = now
        if self.batch is not None and self.batch.done_at <= now:
            self.committed, self.batch = self.batch.ends, None
        if self.reading and self.batch is None and self.next_trigger <= now:
            self._trigger()
        if self.agent_wake <= now:
            self._keep()
        self._check_belief()
        self._sleep()

    def _sleep(self) -> None:
        if self.paused or not self.keeping:
            self.wake = NEVER
            return
        times = [self.agent_wake]
        times += [self.flights[0][0]] if self.flights else []
        if self.reading:
            times.append(self.next_trigger if self.batch is None else self.batch.done_at)
        self.wake = max(min(times), self.world.now + 1)

    # --- The agent ------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Perform all due actions."""
        for _ in range(50):
            draw = self.world.chance.random()
            steps = lease_coordinator.next_steps(self.state, self.own, draw)
            anew = replace(self.state, due={}, others_due=0)
            self._check_same(steps, lease_coordinator.next_steps(anew, self.own, draw))
            keys = [write.lease.key for write in steps.writes]
            assert len(keys) == len(set(keys)), "one write per row"
            assert not set(keys) & set(self.state.in_flight)
            if lease_coordinator.is_finished(self.state) and not self.reading:
                self.keeping = False
                self.world.happened["agent finished"] += 1
                return
            if not steps.writes and not steps.scan and not steps.metrics:
                assert steps.wake_at > self.own
                self.agent_wake = self.clock.true(steps.wake_at)
                return
            self.state = lease_coordinator.mark_started(self.state, steps, self.own)
            if steps.metrics:
                self.world.metrics[self.worker] = self.world.now
            if steps.scan:
                self._scan()
            for write in steps.writes:
                if write.lease.key in self.state.reported.ended and isinstance(
                    write, Assign | Evict
                ):
                    self.world.happened["shard left un-ended"] += 1
                self._send(write)
        raise AssertionError(f"{self.worker} does not come to rest: {steps.writes}")

    def _check_same(self, steps: Steps, anew: Steps) -> None:
        """Check that leases which are not planned again would be planned the same. Only a deletion
        may wait for the next scan."""
        found, wanted = (
            [write for write in plan.writes if not isinstance(write, Delete)]
            for plan in (steps, anew)
        )
        assert found == wanted
        assert steps.scan == anew.scan
        if len(anew.writes) == len(wanted):
            assert steps.wake_at <= anew.wake_at, "it would miss a time"

    def _scan(self) -> None:
        try:
            rows = self.world.scan(self.worker)
        except ServiceUnavailableError as error:
            self.state = lease_coordinator.apply_scan_failure(self.state, error, self.own)
            return
        kcl_workers = KclWorkers(
            leader=self.world.living_leader(),
            graceful=frozenset(
                worker
                for worker, at in self.world.metrics.items()
                if self.world.now - at < METRICS_LIVE_MS
            ),
        )
        self.state = lease_coordinator.apply_scan(self.state, rows, kcl_workers, self.own)

    def _send(self, write: Write) -> None:
        if self.latency:
            self.flights.append((self.world.now + self.latency, write, None))
            return
        self.state = lease_coordinator.apply_write_results(
            self.state, [(write, self._outcome(write), self.own)]
        )

    def _fly(self) -> None:
        at, write, outcome = self.flights.popleft()
        if outcome is None:
            self.flights.append((at + self.latency, write, self._outcome(write)))
        else:
            self.state = lease_coordinator.apply_write_results(
                self.state, [(write, outcome, self.own)]
            )

    def _outcome(self, write: Write) -> Outcome | ServiceUnavailableError:
        try:
            return self.world.write(self.worker, write)
        except ServiceUnavailableError as error:
            return error

    def _check_belief(self) -> None:
        """Check that a worker owns the leases that it reports as held: no other worker takes a
        lease before the failover time is over, by the fastest of clocks. (A KCL 2 worker steals at
        any time.)"""
        if self.paused or not self.keeping:
            return
        for key, holding in self.state.held.items():
            row = self.world.rows.get(key)
            young = self.own - holding.renewed_at < 0.9 * FAILOVER_MS
            sure = key not in self.state.in_flight and key not in self.state.in_doubt
            if young and sure and (row is None or row.holder != self.worker):
                stolen = self.world.happened["stolen by a KCL worker"]
                assert stolen, f"{self.worker} believes that it holds {key}"

    def be_refused(self, what: str, millis: int) -> None:
        """Let `reads`, or `writes`, fail for this time: the worker must notice soon."""
        outages = self.world.outages
        outages[self.worker] = max(self.world.now + millis, outages.get(self.worker, 0))
        self.world.refused[self.worker] = what
        self.world.pass_time(millis - 1)
        self._check_outage(what, millis)
        del self.world.refused[self.worker]
        self.world.pass_time(1)

    def _check_outage(self, what: str, millis: int) -> None:
        if self.paused or not self.keeping or self.latency:
            return
        if what == "writes" and not self.state.held:
            return  # it may have had nothing to write
        outage = lease_coordinator.build_status(self.state, self.own).outage_ms
        assert outage >= 0.9 * millis - FAILOVER_MS, f"{self.worker}: {what} fail, {outage} ms"

    # --- The reader ------------------------------------------------------------------------------

    def _exchange(self, report: Report) -> Status:
        self.state = lease_coordinator.apply_report(self.state, report, self.own)
        self._keep()
        return lease_coordinator.build_status(self.state, self.own)

    def _trigger(self) -> None:
        """Simulate `latestOffset` and the batch after it: the previous plan is committed."""
        now = self.world.now
        self.next_trigger = now + self.trigger_ms
        report = self._report()
        status = self._exchange(report)
        if self.leaving:
            if status.released:
                self.stop_reader()
                self.world.happened["left"] += 1
            self.committed = {}
            return
        planned = self._planned(status)
        if set(self.committed) & status.asked_for:
            self._exchange(replace(report, reading=frozenset(planned)))
        if not self.keeping:
            return
        ends = {key: self._read(key, start) for key, start in planned.items()}
        self.batch = Batch(done_at=now + self.batch_ms, ends=ends)
        self.next_trigger = max(self.next_trigger, now + self.batch_ms)

    def _report(self) -> Report:
        unended = {key: at for key, at in self.committed.items() if at != END}
        return Report(
            create=self._to_create(),
            progress={key: progress_of(at) for key, at in unended.items() if at},
            reading=frozenset() if self.leaving else frozenset(unended),
            ended={
                key: tuple(
                    self.world.shards[LeaseKey(child)].row()
                    for child in self.world.shards[key].children
                )
                for key, at in self.committed.items()
                if at == END
            },
            listed=self.world.listed(),
            leave=self.leaving,
        )

    def _to_create(self) -> tuple[Lease, ...]:
        """Return the leases of listed shards that need one, by the decision of the source."""
        if self.state.timestamps.scanned_at is None:
            return ()
        table = LeaseTableView(
            worker=self.worker,
            rows={_shard_key(key): row.lease for key, row in self.state.observed.items()},
            held=frozenset(),
            requested=frozenset(),
            unreadable=frozenset(_shard_key(key) for key in self.state.unreadable),
        )
        facts = Facts(
            option=StartingPosition(default=TrimHorizon()),
            now_ms=self.own,
            holes=self.holes,
            confirmed={
                key for key, since_ms in self.holes.items() if self.own - since_ms >= FAILOVER_MS
            },
        )
        decision = decide(Offset(), table, {STREAM: self.world.listing()}, facts)
        self.holes = decision.holes
        return tuple(self.world.shards[LeaseKey(key.shard)].row() for key in decision.creations)

    def _planned(self, status: Status) -> dict[LeaseKey, int]:
        """Return the next offset's shards, with their start positions."""
        planned: dict[LeaseKey, int] = {}
        for key, lease in status.held.items():
            known = self.committed.get(key)
            written = position_of(lease.progress)
            if key in status.asked_for or known == END or written is None:
                continue
            if known is None and not self._parents_done(lease, status):
                continue
            planned[key] = max(written, known or 0)
        if status.outage_ms:
            planned |= {
                key: at for key, at in self.committed.items() if key in status.overdue and at != END
            }
        for key in set(self.committed) - set(planned):
            if self.committed[key] != END and key not in status.asked_for:
                self.world.happened["shard lost by a reader"] += 1
        return planned

    def _parents_done(self, lease: Lease, status: Status) -> bool:
        if status.unreadable & {LeaseKey(parent) for parent in lease.parents}:
            return False
        rows = [status.rows.get(LeaseKey(parent)) for parent in lease.parents]
        return all(row is None or row.progress == ShardEnded() for row in rows)

    def _read(self, key: LeaseKey, start: int) -> int:
        shard = self.world.shards[key]
        end = min(shard.records, start + self.limit)
        self.world.deliver(key, start, end)
        return END if shard.closed and end == shard.records else end
