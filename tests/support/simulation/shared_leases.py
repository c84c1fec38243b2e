"""Drivers that share a lease table: the time until the others hold the leases of one that is lost
with its machine, and the age of renewals while writes are throttled. The agents' own event loops,
in simulated time.

    python -m tests.support.simulation.shared_leases --leases 10000 --seconds 3600 --throttled 0.01

prints the latter. It fails if a lease changed its driver, or was not renewed within the failover
time.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
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
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, StartAtTrimHorizon
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.checkpoint.leases.lease_store import Rows, TableSettings
from spark_ssp.checkpoint.leases.worker_metrics import KclRows
from spark_ssp.common.aws.error_translation import Severity
from spark_ssp.common.aws.service_calls import backoff, retry_settings
from spark_ssp.common.errors import SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, WorkerId
from tests.support.leases.agents import ManualKclTables
from tests.support.leases.memory_store import MemoryLeaseStore

WRITE_MS: Final = 10
"""An update of a row, in its region."""
PAGE_MS: Final = 30
"""A page of a scan: 1 MiB."""
ROWS_A_PAGE: Final = 2_600
"""A row has about 400 bytes (`python -m benchmarks.leases.writes`)."""
_STEP_MS: Final = 5
_GATHER_MS: Final = round(GATHER_S * 1000)
_RETRY: Final = retry_settings(ConnectionOptions())


class _Table:
    """The rows as values: parsing them again for every scan is slow. Counts the calls."""

    def __init__(self, rows: Sequence[Lease]) -> None:
        self.now = 0
        self.written: dict[LeaseKey, int] = {}
        """The time of the last write of each row."""
        self.oldest_ms = 0
        """The longest time between two writes of a row."""
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
            key = write.lease.key
            self.rows[key] = outcome.lease
            self.oldest_ms = max(self.oldest_ms, self.now - self.written.get(key, self.now))
            self.written[key] = self.now
            self._sorted = None
        return outcome

    @property
    def batch_size(self) -> int:
        return self._store.batch_size

    def write_all(self, writes: Sequence[Write]) -> list[Outcome | SspError]:
        return [self.write(write) for write in writes]


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
                write=lambda job: self._begin(job, self._writers, world.write_ms()),
                read=lambda job: self._begin(job, self._readers, scan_ms),
                answer=lambda answer: None,
                monotonic=lambda: world.now,
                wall=lambda: world.now // 1000,
                random=random.Random(worker).random,
            ),
        )

    def _open(self) -> TableOpened:
        rows = self._world.table.scan()
        return TableOpened(
            store=self._world.table, kcl=ManualKclTables(), rows=rows, kcl_rows=KclRows()
        )

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
    throttled: float = 0.0
    """The part of the writes that are throttled."""
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def write_ms(self) -> int:
        """Return the time of a batch of writes, which is repeated for those that were throttled."""
        takes, attempt, pending = WRITE_MS, 1, self.table.batch_size
        while self.throttled and self.chance.random() > (1 - self.throttled) ** pending:
            pause_s = backoff(_RETRY, Severity.THROTTLE, attempt, self.chance.random())
            takes, attempt, pending = takes + round(1000 * pause_s) + WRITE_MS, attempt + 1, 1
        return takes

    def run(self, until_ms: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let every agent act at its time, rounded up to a few milliseconds."""
        while not is_over():
            at = min((agent.next_at() for agent in self.agents), default=until_ms)
            if at >= until_ms:
                break
            self.now = self.table.now = max(self.now, -(-at // _STEP_MS) * _STEP_MS)
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


def _world(drivers: int, leases: int, failover_ms: int, chance: random.Random) -> _World:
    """Return drivers that hold equal shares of the leases, and are not started at once."""
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
    return world


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Drivers that nothing happens to, while writes are throttled."""

    moved: int
    """Leases that another driver holds at the end."""
    refused: int
    """Writes to leases that another driver had written."""
    oldest_s: float
    """The longest time without a renewal of a lease, in seconds."""
    cpu_ms_a_second: float
    """Processor time of all agents' loops, without requests and their parsing."""
    writes_a_second: float
    """Of all drivers."""


def keep_leases(
    *, drivers: int, leases: int, failover_ms: int, seconds: int, throttled: float, seed: int = 0
) -> Kept:
    """Let `drivers` hold equal shares of `leases` for a time, with a part of the writes
    `throttled`."""
    world = _world(drivers, leases, failover_ms, random.Random(seed))
    world.chance, world.throttled = random.Random(seed), throttled
    world.run(world.now + 2 * failover_ms)
    table = world.table
    holders = {key: row.holder for key, row in table.rows.items()}
    table.calls.clear()
    table.oldest_ms = 0
    before = [agent.cpu_s for agent in world.agents]
    world.run(world.now + 1000 * seconds)
    used = [agent.cpu_s - was for agent, was in zip(world.agents, before, strict=True)]
    ages = [world.now - written for written in table.written.values()]
    return Kept(
        moved=sum(table.rows[key].holder != holder for key, holder in holders.items()),
        refused=table.calls["refused"],
        oldest_s=max(table.oldest_ms, *ages) / 1000,
        cpu_ms_a_second=sum(used) * 1000 / seconds,
        writes_a_second=(sum(table.calls.values()) - table.calls["Scan"]) / seconds,
    )


def lose_a_driver(*, drivers: int, leases: int, failover_ms: int, seed: int = 0) -> Lost:
    """Let `drivers` hold equal shares of `leases`, and lose the first at a random time."""
    chance = random.Random(seed)
    world = _world(drivers, leases, failover_ms, chance)
    table = world.table
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Let drivers keep their leases."""
    parser = argparse.ArgumentParser(description="Drivers that keep their leases.")
    parser.add_argument("--drivers", type=int, default=1)
    parser.add_argument("--leases", type=int, default=1000)
    parser.add_argument("--failover", type=float, default=10.0, help="seconds")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--throttled", type=float, default=0.01, help="the part of the writes")
    options = parser.parse_args(arguments)
    found = keep_leases(
        drivers=options.drivers,
        leases=options.leases,
        failover_ms=round(1000 * options.failover),
        seconds=options.seconds,
        throttled=options.throttled,
    )
    print(
        f"{options.drivers} drivers, {options.leases} leases, {options.seconds} s, "
        f"{found.writes_a_second:.0f} writes a second, {options.throttled:.1%} throttled: "
        f"{found.moved} leases moved, {found.refused} writes refused, renewals at most "
        f"{found.oldest_s:.1f} s apart, CPU of the agents {found.cpu_ms_a_second:.0f} ms a second"
    )
    return 1 if found.moved or found.refused or found.oldest_s >= options.failover else 0


if __name__ == "__main__":
    sys.exit(main())
