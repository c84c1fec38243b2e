"""Lease agents without processes: their loops over one store in memory and one manual clock."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from spark_ssp.checkpoint.agent.event_loop import (
    Job,
    LeaseAgent,
    Ports,
    ReaderExited,
    ReportReceived,
    TableOpened,
    run_guarded,
)
from spark_ssp.checkpoint.coordination.protocol import AgentSettings, Report, Status
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.kcl_tables import KclTables
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey
from spark_ssp.checkpoint.leases.lease_store import LeaseStore, Rows, TableSettings
from spark_ssp.checkpoint.leases.worker_metrics import KclRows, RowLocation
from spark_ssp.common.errors import SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import WorkerId
from tests.support.leases.memory_store import MemoryLeaseStore

FAILOVER_MS: Final = 10_000


class ManualKclTables(KclTables):
    """Tables whose rows a test sets; our own are recorded."""

    def __init__(self) -> None:
        self.rows = KclRows()
        self.error: SspError | None = None
        """Raised by reads."""
        self.refusal: SspError | None = None
        """Raised by writes."""
        self.own: dict[tuple[RowLocation, WorkerId], list[int]] = {}
        """The times of writes by row."""

    def read(self, rows: Rows) -> KclRows:
        if self.error is not None:
            raise self.error
        return self.rows

    def write_own_metrics(self, worker: WorkerId, location: RowLocation, now: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.own.setdefault((location, worker), []).append(now)

    def remove_own_metrics(self, worker: WorkerId, location: RowLocation) -> None:
        del self.own[location, worker]


@dataclass
class World:
    """A clock, a table, and the agents on it."""

    store: MemoryLeaseStore = field(default_factory=MemoryLeaseStore)
    kcl: ManualKclTables = field(default_factory=ManualKclTables)
    now: int = 1_000_000
    wall: int = 1_800_000_000
    running: list[ManualAgent] = field(default_factory=list)

    def agent(
        self, worker: WorkerId, *, opening_ms: int = 5, max_leases: int | None = None
    ) -> ManualAgent:
        """Return an agent that was just started and whose table is ready after `opening_ms`."""
        settings = Settings(worker=worker, failover_ms=FAILOVER_MS, max_leases=max_leases)
        agent = ManualAgent(self, settings, opening_ms)
        self.running.append(agent)
        return agent

    def run(self, milliseconds: int) -> None:
        """Advance the clock: each agent runs its due steps on time."""
        end = self.now + milliseconds
        while True:
            for agent in list(self.running):
                agent.work()
            at = min((agent.next_at() for agent in self.running), default=end)
            if at >= end:
                break
            self._pass(max(at, self.now + 1))
        self._pass(end)
        for agent in list(self.running):
            agent.work()

    def _pass(self, at: int) -> None:
        self.wall += at // 1000 - self.now // 1000
        self.now = at

    def owners(self) -> dict[LeaseKey, WorkerId | None]:
        return {lease.key: lease.holder for lease in self.store.scan().leases}

    def lease(self, key: LeaseKey) -> Lease:
        (found,) = (lease for lease in self.store.scan().leases if lease.key == key)
        return found


class ManualAgent:
    """An agent whose jobs take a time set by the test."""

    def __init__(self, world: World, settings: Settings, opening_ms: int) -> None:
        self.world = world
        self.answers: list[Status | SspError] = []
        self.write_ms = 5
        self.read_ms = opening_ms
        self._over = False
        self.opening: SspError | None = None
        """Raised when the table is opened."""
        self.wrap: Callable[[LeaseStore], LeaseStore] = lambda store: store
        self._wake_at = world.now
        self._numbers = count()
        self._jobs: list[tuple[int, int, Job]] = []
        self._random = random.Random(settings.worker)
        self.agent = LeaseAgent(
            AgentSettings(
                application="orders",
                table=TableSettings(name="orders"),
                coordination=settings,
                connection=ConnectionOptions(),
            ),
            Ports(
                open=self._open,
                write=lambda job: self._begin(job, self.write_ms),
                read=lambda job: self._begin(job, self.read_ms),
                answer=self.answers.append,
                monotonic=lambda: world.now,
                wall=lambda: world.wall,
                random=self._random.random,
            ),
        )
        self.read_ms = 5

    def _open(self) -> TableOpened:
        if self.opening is not None:
            raise self.opening
        world = self.world
        rows = world.store.scan()
        store = self.wrap(world.store)
        return TableOpened(store=store, kcl=world.kcl, rows=rows, kcl_rows=world.kcl.read(rows))

    def _begin(self, job: Job, milliseconds: int) -> None:
        heapq.heappush(self._jobs, (self.world.now + milliseconds, next(self._numbers), job))

    # --- Time ------------------------------------------------------------------------------------

    def next_at(self) -> int:
        """Return the time of the next step."""
        return min([self._wake_at, *(at for at, _, _ in self._jobs)])

    def work(self) -> None:
        """Run the due steps. Jobs take effect at their end."""
        while self._jobs and self._jobs[0][0] <= self.world.now:
            _, _, job = heapq.heappop(self._jobs)
            self.agent.handle(run_guarded(job))
        wake_at = self.agent.advance()
        if wake_at is None:
            self._over = True
            self.world.running.remove(self)
        else:
            assert wake_at > self.world.now
            self._wake_at = wake_at

    def is_over(self) -> bool:
        """Return whether the agent has ended by itself."""
        return self._over

    def die(self) -> None:
        """End at once, with all jobs in flight."""
        self.world.running.remove(self)

    # --- The reader ------------------------------------------------------------------------------

    def exchange(self, report: Report) -> Status:
        """Send a report, as `LeaseClient` does; the clock advances until the answer."""
        begin, count = self.world.now, len(self.answers)
        self.agent.handle(ReportReceived(report=report))
        while len(self.answers) == count:
            assert self.world.now - begin < 60_000, "no answer"
            self.world.run(10)
        answer = self.answers[-1]
        if isinstance(answer, SspError):
            raise answer
        return answer

    def hang_up(self) -> None:
        """End the reader."""
        self.agent.handle(ReaderExited(why="of a test"))
