"""Drivers that share a lease table, and lose one of them with its machine: the time until the
others hold its leases. The agents' own event loops, in simulated time."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from spark_ssp.checkpoint.agent.event_loop import (
    Job,
    LeaseAgent,
    Ports,
    TableOpened,
    WritesCompleted,
    run_guarded,
)
from spark_ssp.checkpoint.agent.process import GATHER_S, READERS, WRITERS
from spark_ssp.checkpoint.coordination.protocol import AgentSettings
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.conditional_writes import Conflict, Outcome, Write
from spark_ssp.checkpoint.leases.kcl_tables import KclTables
from spark_ssp.checkpoint.leases.lease import Lease, StartAtTrimHorizon
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.checkpoint.leases.lease_store import Rows, TableSettings
from spark_ssp.checkpoint.leases.worker_metrics import KclRows, RowLocation
from spark_ssp.common.errors import SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, WorkerId
from tests.support.leases.memory_store import MemoryLeaseStore

WRITE_MS: Final = 10
"""An update of a row, in its region."""
PAGE_MS: Final = 30
"""A page of a scan: 1 MiB."""
ROWS_A_PAGE: Final = 2_600
"""A row has about 400 bytes (`python -m benchmarks.leases.writes`)."""
_STEP_MS: Final = 5
_GATHER_MS: Final = round(GATHER_S * 1000)


class _Table:
    """The rows as values: parsing them again for every scan is slow. Counts the calls."""

    def __init__(self, rows: Sequence[Lease]) -> None:
        self.rows = {row.key: row for row in rows}
        self.calls: Counter[str] = Counter()
        self._store = MemoryLeaseStore(encode(row) for row in rows)
        self._sorted: tuple[Lease, ...] | None = None

    def prepare(self) -> None:
        """Do nothing: the table exists."""

    def close(self) -> None:
        """Do nothing."""

    def scan(self) -> Rows:
        self.calls["Scan"] += 1
        if self._sorted is None:
            self._sorted = tuple(self.rows[key] for key in sorted(self.rows))
        return Rows(leases=self._sorted, foreign=(), malformed=())

    def write(self, write: Write) -> Outcome:
        outcome = self._store.write(write)
        self.calls["refused" if isinstance(outcome, Conflict) else type(write).__name__] += 1
        if not isinstance(outcome, Conflict):
            self.rows[write.lease.key] = outcome.lease
            self._sorted = None
        return outcome

    @property
    def batch_size(self) -> int:
        return self._store.batch_size

    def write_all(self, writes: Sequence[Write]) -> list[Outcome | SspError]:
        return [self.write(write) for write in writes]


class _NoKcl(KclTables):
    """No workers of the KCL."""

    def __init__(self) -> None: ...

    def read(self, rows: Rows) -> KclRows:
        return KclRows()

    def write_own_metrics(self, worker: WorkerId, location: RowLocation, now: int) -> None: ...

    def remove_own_metrics(self, worker: WorkerId, location: RowLocation) -> None: ...


class _Agent:
    """The loop of one driver's agent with the threads of its process: a call waits for one of them,
    and the results of many writes are gathered."""

    def __init__(self, world: _World, worker: WorkerId) -> None:
        self.worker = worker
        self.cpu_s = 0.0
        self._world = world
        self._numbers = count()
        self._done: list[tuple[int, int, Job]] = []
        self._wake_at = world.now
        self._gathering = False
        self._writers = [0] * WRITERS
        self._readers = [0] * READERS
        scan_ms = PAGE_MS * -(-len(world.table.rows) // ROWS_A_PAGE)
        self._agent = LeaseAgent(
            AgentSettings(
                application="orders",
                table=TableSettings(name="orders"),
                coordination=Settings(worker=worker, failover_ms=world.failover_ms),
                connection=ConnectionOptions(),
            ),
            Ports(
                open=self._open,
                write=lambda job: self._begin(job, self._writers, WRITE_MS),
                read=lambda job: self._begin(job, self._readers, scan_ms),
                answer=lambda answer: None,
                monotonic=lambda: world.now,
                wall=lambda: world.now // 1000,
                random=random.Random(worker).random,
            ),
        )

    def _open(self) -> TableOpened:
        rows = self._world.table.scan()
        return TableOpened(store=self._world.table, kcl=_NoKcl(), rows=rows, kcl_rows=KclRows())

    def _begin(self, job: Job, threads: list[int], takes_ms: int) -> None:
        began = max(self._world.now, heapq.heappop(threads))
        heapq.heappush(threads, began + takes_ms)
        heapq.heappush(self._done, (began + takes_ms, next(self._numbers), job))

    def next_at(self) -> int:
        """Return the time of the next event or step."""
        return min(self._wake_at, self._done[0][0] if self._done else self._wake_at)

    def work(self) -> None:
        """Handle the due events, as `process._handle` does, and take the next step."""
        begun = time.process_time()
        now = self._world.now
        while self._done and self._done[0][0] <= now:
            _, _, job = heapq.heappop(self._done)
            event = run_guarded(job)
            self._agent.handle(event)
            many = self._agent.writes_in_flight > WRITERS
            if isinstance(event, WritesCompleted) and many and not self._gathering:
                self._gathering, self._wake_at = True, now + _GATHER_MS
            elif not isinstance(event, WritesCompleted) or not many:
                self._gathering, self._wake_at = False, now
        if self._wake_at <= now:
            self._gathering = False
            wake_at = self._agent.advance()
            assert wake_at is not None
            self._wake_at = max(wake_at, now + 1)
        self.cpu_s += time.process_time() - begun


@dataclass(slots=True)
class _World:
    """Simulated time, in milliseconds."""

    table: _Table
    failover_ms: int
    now: int = 1_000_000
    agents: list[_Agent] = field(default_factory=list)

    def run(self, until_ms: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let every agent act at its time, rounded up to a few milliseconds."""
        while not is_over():
            at = min((agent.next_at() for agent in self.agents), default=until_ms)
            if at >= until_ms:
                break
            self.now = max(self.now, -(-at // _STEP_MS) * _STEP_MS)
            for agent in self.agents:
                if agent.next_at() <= self.now:
                    agent.work()
        else:
            return
        self.now = until_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The hand-over of one driver's leases. Times since its loss, in seconds."""

    leases: int
    """Those that it held."""
    first_s: float
    """Until the first is held by another."""
    all_s: float
    """Until all are."""
    refused: int
    """Writes to leases that another driver was faster to take."""
    largest: int
    """The most leases of one driver afterwards."""
    cpu_ms_a_second: float
    """Processor time of one agent's loop before the loss, without requests and their parsing."""
    writes_a_second: float
    """Of all drivers, before the loss."""


def lose_a_driver(*, drivers: int, leases: int, failover_ms: int, seed: int = 0) -> Lost:
    """Let `drivers` hold equal shares of `leases`, and lose the first at a random time."""
    chance = random.Random(seed)
    workers = [WorkerId(f"driver-{number:03}") for number in range(drivers)]
    table = _Table(
        [
            Lease(
                shard=ShardId(f"shardId-{number:012}"),
                counter=1,
                progress=StartAtTrimHorizon(),
                owner=workers[number % drivers],
                ssp_owner=workers[number % drivers],
            )
            for number in range(leases)
        ]
    )
    world = _World(table=table, failover_ms=failover_ms)
    for worker in workers:
        world.run(world.now + chance.randrange(failover_ms // 3 // drivers + 1))
        world.agents.append(_Agent(world, worker))
    world.run(world.now + failover_ms // 2)
    table.calls.clear()
    before = [agent.cpu_s for agent in world.agents]
    measured_ms = failover_ms // 3 + chance.randrange(failover_ms // 3)
    world.run(world.now + measured_ms)
    used = [agent.cpu_s - was for agent, was in zip(world.agents, before, strict=True)]
    writes = sum(table.calls.values()) - table.calls["Scan"]
    lost = world.agents.pop(0).worker
    theirs = frozenset(key for key, row in table.rows.items() if row.holder == lost)
    table.calls.clear()
    began = world.now

    def left() -> int:
        return sum(table.rows[key].holder == lost for key in theirs)

    world.run(began + 10 * failover_ms, lambda: left() < len(theirs))
    first = world.now - began
    world.run(began + 10 * failover_ms, lambda: left() == 0)
    assert left() == 0, f"{left()} leases are still those of the lost driver"
    return Lost(
        leases=len(theirs),
        first_s=first / 1000,
        all_s=(world.now - began) / 1000,
        refused=table.calls["refused"],
        largest=max(Counter(row.holder for row in table.rows.values()).values()),
        cpu_ms_a_second=sum(used) / drivers * 1e6 / measured_ms,
        writes_a_second=writes * 1000 / measured_ms,
    )
