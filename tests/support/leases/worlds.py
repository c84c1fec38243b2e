"""Several queries that share a stream by leases: no process, no network, and a manual clock. Each
query has an agent in this thread, on one table in memory. Whenever the clock advances, the agents
of all queries run their due steps, as their own processes would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import Report, Status
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.conditional_writes import Create, Outcome, Write
from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.grouping.identifiers import WorkerId
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.leases.drain import DrainSignal, new_token
from spark_ssp.kinesis_source.leases.lease_worker import LeaseWorker
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.options.values import LeaseOptions
from spark_ssp.testing.kinesis import KinesisState, ManualClock
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.fakes.planner_world import World
from tests.support.leases.memory_store import MemoryLeaseStore

FAILOVER_MS = 10_000
_STEP_MS = 500


class Table:
    """The rows, and whether they can be reached."""

    def __init__(self) -> None:
        self.store = MemoryLeaseStore()
        self.down = False

    def lease(self, shard: int) -> Lease:
        """Return the row of one shard."""
        found = {lease.shard: lease for lease in self.store.scan().leases}
        return next(lease for key, lease in found.items() if key.endswith(f"{shard:03d}"))

    def owners(self) -> dict[str, str | None]:
        """Return the holders of shards that have not ended, by the last digits of the shard ids."""
        leases = self.store.scan().leases
        return {row.shard[-2:]: row.holder for row in leases if not row.has_ended}


def _unavailable() -> SspError:
    return ServiceUnavailableError(
        "table", found="no answer", expected="an answer", next_step="wait"
    )


class InProcessAgent:
    """`LeaseClient` directly on the coordinator."""

    def __init__(self, table: Table, settings: Settings, clock: ManualClock) -> None:
        self._table = table
        self._clock = clock
        self._state = lease_coordinator.initial_state(settings)
        self.alive = True
        self.busy = False
        """If true, it answers but neither writes nor scans."""
        self.exchanges = 0
        self.reports: list[Report] = []

    @property
    def restarts(self) -> int:
        return 0

    def exchange(self, report: Report) -> Status:
        """Apply the report and return the status."""
        assert self.alive
        self.exchanges += 1
        self.reports.append(report)
        if self._state.timestamps.scanned_at is None:
            self.work()
        self._state = lease_coordinator.apply_report(self._state, report, self._now())
        self.work()
        return lease_coordinator.build_status(self._state, self._now())

    def close(self) -> None:
        """End the agent."""
        if self.alive:
            self._state = lease_coordinator.start_shutdown(self._state)
            self.work()
            self.alive = False

    def be_replaced(self) -> None:
        """Lose the process; another gets the last report, as from `AgentClient`."""
        self._state = lease_coordinator.initial_state(self._state.settings)
        last = replace(self.reports[-1], create=(), listed_before=True)
        self._scan()
        self._state = lease_coordinator.apply_report(self._state, last, self._now())
        self.work()

    def fail_creations(self, patch: pytest.MonkeyPatch, shard: str) -> Callable[[], None]:
        """Fail to create the lease of a shard; return what ends that."""
        write = self._write

        def throttled(planned: Write) -> Outcome | SspError:
            is_hit = isinstance(planned, Create) and planned.lease.shard == shard
            return _unavailable() if is_hit else write(planned)

        patch.setattr(self, "_write", throttled)
        return lambda: patch.setattr(self, "_write", write)

    def work(self) -> None:
        """Run all steps that are due."""
        if self.busy:
            return
        for _ in range(100):
            steps = lease_coordinator.next_steps(self._state, self._now(), 0.0)
            if not steps.writes and not steps.scan:
                return
            self._state = lease_coordinator.mark_started(self._state, steps, self._now())
            for write in steps.writes:
                outcome = self._failure() or self._write(write)
                self._state = lease_coordinator.apply_write_results(
                    self._state, [(write, outcome, self._now())]
                )
            if steps.scan:
                self._scan()
        raise AssertionError("an agent that never becomes idle")

    def _write(self, write: Write) -> Outcome | SspError:
        try:
            return self._table.store.write(write)
        except SspError as error:  # a malformed row
            return error

    def _scan(self) -> None:
        failure = self._failure()
        if failure is not None:
            self._state = lease_coordinator.apply_scan_failure(self._state, failure, self._now())
            return
        rows = self._table.store.scan()
        self._state = lease_coordinator.apply_scan(self._state, rows, KclWorkers(), self._now())

    def _failure(self) -> SspError | None:
        return _unavailable() if self._table.down else None

    def _now(self) -> int:
        return self._clock.now_ms()


class LeaseWorld(World):
    """One of the queries of a `Company`."""

    def __init__(self, company: Company, worker: str, **changes: Any) -> None:
        self.company = company
        self.worker = worker
        self.state = company.state
        self.unfinished: Offset | None = None
        """The end of a batch that was planned before the query was killed."""
        super().__init__(clock=company.clock, state=company.state, **changes)

    def _planner(self) -> BatchPlanner:
        leases = replace(self.company.leases, **self._changes.pop("leases", {}))
        self.options = self._options(leases=leases)
        settings = Settings(
            worker=WorkerId(self.worker),
            failover_ms=leases.failover_ms,
            max_leases=leases.max_leases,
            checkpoint_interval_ms=leases.checkpoint_interval_ms,
        )
        self.agent = InProcessAgent(self.company.table, settings, self.clock)
        self.marks = DrainSignal(new_token(), folder=self.company.folder)
        self.company.agents.append(self.agent)
        self.service = InProcessKinesis(self.state, attempts=3)
        return BatchPlanner(
            self.options,
            self.service,
            monotonic=self.monotonic,
            sleep=self.sleep,
            worker=LeaseWorker(
                id=WorkerId(self.worker), options=leases, client=self.agent, drain_signal=self.marks
            ),
        )

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.company.pass_time(round(seconds * 1000 + 0.5))

    def die(self) -> None:
        """Kill query and agent (`kill -9`): no lease is released."""
        self.agent.alive = False

    def stop(self) -> None:
        """End the query; its agent detects that."""
        self.planner.close()


class Company:
    """A stream, a table of leases, and the queries that share them."""

    def __init__(self, folder: Path, *, shards: int = 4, failover_ms: int = FAILOVER_MS) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.state = KinesisState(clock=self.clock)
        self.state.create_stream("orders", shards)
        self.clock.advance(60_000)
        self.table = Table()
        self.leases = LeaseOptions(
            application="orders-etl",
            table="orders-etl",
            failover_ms=failover_ms,
            checkpoint_interval_ms=5_000,
            max_outage_ms=failover_ms,
        )
        self.agents: list[InProcessAgent] = []
        self._put = 0

    def with_max_outage(self, milliseconds: int) -> LeaseOptions:
        """Return the common options with another maximum outage."""
        return replace(self.leases, max_outage_ms=milliseconds)

    def join(self, worker: str, **changes: Any) -> LeaseWorld:
        """Return another query of the application, with a new checkpoint."""
        return LeaseWorld(self, worker, **changes)

    def pass_time(self, milliseconds: int) -> None:
        """Advance the clock for all queries."""
        left = milliseconds
        while left > 0:
            step = min(left, _STEP_MS)
            self.clock.advance(step)
            left -= step
            for agent in self.agents:
                if agent.alive:
                    agent.work()

    def put(self, count: int = 1, *, stream: str = "orders", keys: int | None = None) -> list[str]:
        """Put records with keys that spread over all shards; return their texts. `keys`: the number
        of keys, by default one for each record."""
        texts = [str(self._put + number) for number in range(count)]
        for text in texts:
            key = text if keys is None else key_of(text, keys)
            self.state.put(stream, f"key-{key}", text.encode())
            self.clock.advance(1)
        self._put += count
        return texts

    def work(self, *worlds: LeaseWorld, rounds: int = 20) -> list[str]:
        """Run triggers of each query, half a second apart; return the records read."""
        read: list[str] = []
        for _ in range(rounds):
            for world in worlds:
                batch = world.trigger()
                read += batch.read if batch else []
            self.pass_time(500)
        return read


def key_of(text: str, keys: int) -> str:
    """Return the number of the key of a record, of so many keys."""
    return str(int(text) % keys)


def out_of_order(read: list[str], keys: int) -> list[str]:
    """Return the records that were first read after a later one of their key."""
    newest: dict[str, int] = {}
    found: list[str] = []
    for text in dict.fromkeys(read):
        key = key_of(text, keys)
        if int(text) < newest.get(key, -1):
            found.append(text)
        newest[key] = max(int(text), newest.get(key, -1))
    return found


def twice(read: list[str]) -> list[str]:
    """Return the records that were read more than once."""
    return sorted(text for text, count in Counter(read).items() if count > 1)
