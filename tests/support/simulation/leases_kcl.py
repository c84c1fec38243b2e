"""Workers of the Kinesis Client Library in a simulation, by the rules of its source.

`Kcl2Worker` scans, takes and steals by itself (`DynamoDBLeaseTaker`). `Kcl3Worker` starts on its
assigned leases; the leader assigns (`LeaseAssignmentManager`, by the number of leases) and requests
handoffs. Both read and checkpoint immediately, so only the delays of our workers count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Create,
    Delete,
    Renew,
    RequestHandoff,
    SetChildren,
    Take,
    Write,
)
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, ShardEnded, StartAtTrimHorizon
from spark_ssp.grouping.identifiers import WorkerId
from tests.support.simulation.leases import FAILOVER_MS, NEVER, World, position_of, progress_of

READ_MS = 2_500
METRICS_LIVE_MS = 60_000
HAND_OVER_TIMEOUT_MS = 30_000 + FAILOVER_MS


@dataclass(slots=True)
class KclWorker:
    """The common part of both versions."""

    world: World
    worker: WorkerId
    wake: int = 0
    held: dict[LeaseKey, Lease] = field(default_factory=dict)
    views: dict[LeaseKey, tuple[int, int]] = field(default_factory=dict)
    """The last observed counters, and the time of their last change."""
    due: dict[str, int] = field(default_factory=dict)

    def lives(self) -> bool:
        return self.wake < NEVER

    def crash(self) -> None:
        self.wake = NEVER

    def act(self) -> None:
        self._each("renew", FAILOVER_MS // 3, self._renew)
        self._each("read", READ_MS, self._read)
        self._each("own", self._own_interval(), self._own)
        self._each("clean", FAILOVER_MS, self._clean)
        self.wake = max(min(self.due.values()), self.world.now + 1)

    def _own_interval(self) -> int:
        return 2 * FAILOVER_MS

    def _own(self) -> None:
        raise NotImplementedError

    def holder_of(self, row: Lease) -> WorkerId | None:
        """Return the holder by the rule of this version, which does not know our attributes."""
        raise NotImplementedError

    def _each(self, what: str, interval: int, action: Callable[[], None]) -> None:
        if self.due.get(what, 0) <= self.world.now:
            self.due[what] = self.world.now + interval
            action()

    def _write(self, write: Write) -> bool:
        """Write a lease; return whether it succeeded, and update the held leases."""
        outcome = self.world.write_as_kcl(self.worker, write)
        key = write.lease.key
        if isinstance(outcome, Conflict):
            found = outcome.found
            if found is None or self.holder_of(found) != self.worker:
                self.held.pop(key, None)
            elif key in self.held and found.owner != self.worker:
                self.held[key] = found
            return False
        if self.holder_of(outcome.lease) == self.worker and not isinstance(write, Delete | Create):
            self.held[key] = outcome.lease
        else:
            self.held.pop(key, None)
        return True

    # --- Leases it holds -------------------------------------------------------------------------

    def _renew(self) -> None:
        for key in sorted(self.held):
            self._write(Renew(lease=self.held[key]))

    def _read(self) -> None:
        for key in sorted(self.held):
            lease = self.held[key]
            if lease.owner is not None and lease.owner != self.holder_of(lease):
                self.world.happened["KCL hands over"] += self._write(
                    Assign(lease=lease, owner=lease.owner)
                )
            elif lease.progress != ShardEnded() and self.world.is_readable(lease):
                self._read_one(key, lease)

    def _read_one(self, key: LeaseKey, lease: Lease) -> None:
        shard = self.world.shards[key]
        start = position_of(lease.progress) or 0
        end = min(shard.records, start + 5)
        self.world.deliver(key, start, end)
        if shard.closed and end == shard.records:
            self._end(key)
        elif end > start:
            self._write(Checkpoint(lease=lease, progress=progress_of(end)))

    def _end(self, key: LeaseKey) -> None:
        """End a shard in the order of `ShutdownTask`; a merge waits until both or no parents have
        leases."""
        children = [self.world.shards[LeaseKey(c)] for c in self.world.shards[key].children]
        for child in children:
            if len({LeaseKey(parent) in self.world.rows for parent in child.parents}) > 1:
                return
        for child in children:
            if child.key not in self.world.rows:
                self._write(Create(lease=child.row()))
        names = tuple(child.shard for child in children)
        if names and not self._write(SetChildren(lease=self.held[key], children=names)):
            return
        if key in self.held:
            self._write(Checkpoint(lease=self.held[key], progress=ShardEnded()))
            self.world.happened["ended by a KCL worker"] += 1

    def _clean(self) -> None:
        rows = self.world.rows
        for key in sorted(self.held):
            lease = self.held[key]
            children = [rows.get(LeaseKey(child)) for child in lease.children]
            begun = [
                child is not None and not isinstance(child.progress, StartAtTrimHorizon)
                for child in children
            ]
            parents = [parent for parent in lease.parents if LeaseKey(parent) in rows]
            if lease.progress == ShardEnded() and begun and all(begun) and not parents:
                self._write(Delete(lease=lease))

    # --- Observations ----------------------------------------------------------------------------

    def _look(self) -> None:
        now = self.world.now
        self.views = {
            key: (row.counter, now)
            if self.views.get(key, (-1, 0))[0] != row.counter
            else self.views[key]
            for key, row in self.world.rows.items()
        }

    def _free(self) -> list[LeaseKey]:
        return [
            key
            for key, row in sorted(self.world.rows.items())
            if self.holder_of(row) is None or self.world.now - self.views[key][1] > FAILOVER_MS
        ]

    def _counts(self, free: list[LeaseKey]) -> dict[WorkerId, int]:
        counts: dict[WorkerId, int] = {self.worker: 0}
        for key, row in self.world.rows.items():
            if key not in free and row.owner is not None:
                counts[row.owner] = counts.get(row.owner, 0) + 1
        return counts


@dataclass(slots=True)
class Kcl2Worker(KclWorker):
    """Takes and steals by itself."""

    def holder_of(self, row: Lease) -> WorkerId | None:
        return row.owner

    def _own(self) -> None:
        self._look()
        free = self._free()
        counts = self._counts(free)
        target = max(1, -(-len(self.world.rows) // len(counts)))
        needed = target - counts[self.worker]
        if needed <= 0:
            return
        if free:
            self.world.chance.shuffle(free)
            for key in free[:needed]:
                self._write(Take(lease=self.world.rows[key], owner=self.worker))
            return
        loaded = max(sorted(counts), key=lambda worker: counts[worker])
        over = counts[loaded] - target
        if over >= 1 or (over == 0 and needed > 1):
            theirs = [key for key, row in sorted(self.world.rows.items()) if row.owner == loaded]
            key = self.world.chance.choice(theirs)
            self.world.happened["stolen by a KCL worker"] += 1
            self._write(Take(lease=self.world.rows[key], owner=self.worker))


@dataclass(slots=True)
class Kcl3Worker(KclWorker):
    """Starts on its assigned leases, and assigns while it leads."""

    asked: dict[LeaseKey, int] = field(default_factory=dict)
    """The handoffs that the leader has requested, with their times."""

    def holder_of(self, row: Lease) -> WorkerId | None:
        return row.checkpoint_owner or row.owner

    def _own_interval(self) -> int:
        return FAILOVER_MS

    def _own(self) -> None:
        self.world.metrics[self.worker] = self.world.now
        for key, row in sorted(self.world.rows.items()):
            if row.owner == self.worker and row.checkpoint_owner is None and key not in self.held:
                self.held[key] = row
        leader = self.world.leader
        if leader is None or not self.world.actors[leader].lives():
            self.world.leader = self.worker
            self.views = {}
        if self.world.leader == self.worker:
            self._each("assign", 2 * FAILOVER_MS, self._assign)

    def _assign(self) -> None:
        self._look()
        free = self._free()
        counts = self._counts(free)
        live = {
            worker: counts.get(worker, 0)
            for worker, at in sorted(self.world.metrics.items())
            if self.world.now - at < METRICS_LIVE_MS
        }
        for key in free:
            least = min(live, key=lambda worker: live[worker])
            self.world.write_as_kcl(self.worker, Assign(lease=self.world.rows[key], owner=least))
            live[least] += 1
            self.world.happened["assigned by a leader"] += 1
        self._balance(live)
        self._force()

    def _balance(self, live: dict[WorkerId, int]) -> None:
        most = max(live, key=lambda worker: live[worker])
        least = min(live, key=lambda worker: live[worker])
        if live[most] < live[least] + 2:
            return
        for key, row in sorted(self.world.rows.items()):
            plain = row.owner == most and row.checkpoint_owner is None
            if plain and row.progress != ShardEnded():
                self.world.write_as_kcl(self.worker, RequestHandoff(lease=row, to=least))
                self.asked[key] = self.world.now
                self.world.happened["asked for by a leader"] += 1
                return

    def _force(self) -> None:
        """End a handoff that takes too long."""
        for key, at in sorted(self.asked.items()):
            row = self.world.rows.get(key)
            if row is None or row.checkpoint_owner is None or row.owner is None:
                del self.asked[key]
            elif self.world.now - at > HAND_OVER_TIMEOUT_MS:
                self.world.happened["stolen by a KCL worker"] += 1
                self.world.write_as_kcl(self.worker, Assign(lease=row, owner=row.owner))
                del self.asked[key]
