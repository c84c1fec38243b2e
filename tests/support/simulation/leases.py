"""A stream, its lease table and a judge of both, for simulations of several workers. True time is
`World.now`, in milliseconds. Every worker also has a clock. Record number n of a shard (from 1) has
the sequence number 10 * n; a position is the number of processed records."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Create,
    Delete,
    Done,
    Evict,
    Outcome,
    Renew,
    RequestHandoff,
    SetChildren,
    Take,
    UpdateRow,
    Write,
    to_update,
)
from spark_ssp.checkpoint.leases.lease import (
    Item,
    Lease,
    LeaseKey,
    MalformedLeaseError,
    Processed,
    Progress,
    ShardEnded,
    StartAtTrimHorizon,
    is_forward,
)
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, decode, encode
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    HashRange,
    SequenceNumber,
    ShardId,
    WorkerId,
)
from spark_ssp.kinesis_source.model import shard as model
from tests.support.leases.memory_store import Call, Fault, MemoryLeaseStore, changed, permits

FAILOVER_MS = 10_000
NEVER = 1 << 60


@dataclass(slots=True)
class Shard:
    """One shard's true history."""

    shard: ShardId
    parents: tuple[ShardId, ...] = ()
    readable_since: int = NEVER
    """The time when its lease existed and all its parents' leases were at SHARD_END or deleted."""
    children: tuple[ShardId, ...] = ()
    records: int = 0
    delivered: int = 0
    """The number of records, from the first on, that were delivered to an application."""
    closed: bool = False
    listed: bool = True

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.shard)

    def row(self) -> Lease:
        """Return the lease as it is created."""
        return Lease(
            shard=self.shard, parents=self.parents, counter=0, progress=StartAtTrimHorizon()
        )


def position_of(progress: Progress) -> int | None:
    """Return the number of processed records; None: all, to the end."""
    match progress:
        case ShardEnded():
            return None
        case Processed(sequence_number=number):
            return int(number) // 10
    return 0


def progress_of(position: int) -> Progress:
    """Return the checkpoint of a position."""
    if not position:
        return StartAtTrimHorizon()
    return Processed(sequence_number=SequenceNumber(str(position * 10)))


class Actor(Protocol):
    """A participant that performs its due actions when it wakes."""

    worker: WorkerId
    wake: int
    """Return the next wake-up in true time; NEVER while paused or gone."""

    def act(self) -> None: ...

    def lives(self) -> bool:
        """Return whether it continues by itself, now or once its pause is over."""


@dataclass(slots=True)
class Generation:
    """A lease between two changes of its holder."""

    holder: WorkerId | None
    number: int = 0


@dataclass(slots=True)
class World:
    """The stream and the table, with the true state of both."""

    chance: random.Random
    now: int = 0
    shards: dict[LeaseKey, Shard] = field(default_factory=dict)
    rows: dict[LeaseKey, Lease] = field(default_factory=dict)
    generations: dict[LeaseKey, Generation] = field(default_factory=dict)
    actors: dict[WorkerId, Actor] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    faults: dict[WorkerId, deque[Fault]] = field(default_factory=dict)
    outages: dict[WorkerId, int] = field(default_factory=dict)
    """The end of the time in which a worker does not reach the table."""
    refused: dict[WorkerId, str] = field(default_factory=dict)
    """The calls that fail for a worker in an outage: `reads` or `writes`. By default both do."""
    metrics: dict[WorkerId, int] = field(default_factory=dict)
    """The time when a worker wrote its metric row."""
    leader: WorkerId | None = None
    spoilt: set[LeaseKey] = field(default_factory=set)
    """Rows that cannot be parsed in a scan."""
    calling: WorkerId | None = None
    rough: bool = False
    """True after an event that may make a record be delivered twice."""
    store: MemoryLeaseStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryLeaseStore(
            faults=self._fault, retry=RetrySettings(max_attempts=2, max_backoff=0.001)
        )

    # --- Time ------------------------------------------------------------------------------------

    def pass_time(self, millis: int) -> None:
        """Let each actor act at its time."""
        end = self.now + millis
        while True:
            actor = min(self.actors.values(), key=lambda one: one.wake, default=None)
            if actor is None or actor.wake > end:
                break
            self.now = max(self.now, actor.wake)
            before = actor.wake
            actor.act()
            assert actor.wake > self.now or actor.wake > before, f"{actor.worker} never sleeps"
        self.now = end

    def living_leader(self) -> WorkerId | None:
        """Return the one of KCL 3's workers that assigns leases."""
        leader = self.leader
        return leader if leader is not None and self.actors[leader].lives() else None

    # --- The stream ------------------------------------------------------------------------------

    def add_shard(self, *parents: Shard) -> Shard:
        """A new shard; its parents are closed."""
        shard = Shard(
            shard=ShardId(f"shardId-{len(self.shards):012d}"),
            parents=tuple(parent.shard for parent in parents),
        )
        for parent in parents:
            parent.closed = True
            parent.children = (*parent.children, shard.shard)
        self.shards[shard.key] = shard
        return shard

    def open_shards(self) -> list[Shard]:
        return [shard for shard in self.shards.values() if not shard.closed]

    def listed(self) -> frozenset[LeaseKey]:
        return frozenset(key for key, shard in self.shards.items() if shard.listed)

    def listing(self) -> dict[ShardId, model.Shard]:
        """Return the listed shards as the service shows them."""
        return {
            shard.shard: model.Shard(
                shard_id=shard.shard,
                parents=shard.parents,
                hash_range=HashRange(first=0, last=MAX_HASH_KEY),
                first_sequence_number=SequenceNumber("10"),
                closed=shard.closed,
            )
            for shard in self.shards.values()
            if shard.listed
        }

    def deliver(self, key: LeaseKey, start: int, end: int) -> None:
        """Deliver records start + 1 to end to an application."""
        shard = self.shards[key]
        assert start <= shard.delivered, f"records skipped in {key}: {shard.delivered} to {start}"
        for parent in shard.parents:
            before = self.shards[LeaseKey(parent)]
            assert before.delivered == before.records, f"{key} is read before {parent}"
            row = self.rows.get(before.key)
            assert row is None or row.progress == ShardEnded(), f"{key} before {parent}'s end"
        twice = min(end, shard.delivered) - start
        if twice > 0:
            assert self.rough, f"{twice} records of {key} are delivered twice"
            self.happened["records delivered twice"] += 1
        shard.delivered = max(shard.delivered, end)

    def unread(self) -> dict[LeaseKey, int]:
        """Return the records that were not delivered to any application."""
        return {
            key: shard.records - shard.delivered
            for key, shard in self.shards.items()
            if shard.records > shard.delivered
        }

    # --- The table -------------------------------------------------------------------------------

    def scan(self, worker: WorkerId) -> Rows:
        """Return all rows. The values are those of the last writes: parsing them again is slow."""
        if self._fault(Call(operation="Scan"), worker) is not None:
            raise unavailable(worker)
        leases = tuple(self.rows[key] for key in sorted(self.rows) if key not in self.spoilt)
        malformed = tuple(
            MalformedLeaseError(f"lease {key}", key=key, found="x", expected="y", next_step="mend")
            for key in sorted(self.spoilt & self.rows.keys())
        )
        return Rows(leases=leases, foreign=(), malformed=malformed)

    def write(self, worker: WorkerId, write: Write) -> Outcome:
        """Write as a worker of this project, through the store. May raise
        ServiceUnavailableError."""
        self.calling = worker
        key = write.lease.key
        before = self.rows.get(key)
        try:
            outcome = self.store.write(write)
        except ServiceUnavailableError:
            self.happened["write failed"] += 1
            after = self._reread(key)
            if after != before:
                self.happened["write done, reply lost"] += 1
                self._judge(worker, write, before, after)
            raise
        if isinstance(outcome, Done):
            after = None if isinstance(write, Delete) else outcome.lease
            self._judge(worker, write, before, after)
        else:
            self.happened["conflict"] += 1
        return outcome

    def write_as_kcl(self, worker: WorkerId, write: Write) -> Outcome:
        """Write as a KCL worker: the same conditions and changes, without our attributes. A
        take (only KCL 2 has takes) and a renewal leave those of a handoff."""
        key = write.lease.key
        before = self.rows.get(key)
        old = None if before is None else encode(before)
        change = to_update(write)
        if isinstance(change, UpdateRow):
            unknown = {Attribute.SSP_OWNER, Attribute.REQUESTED_BY, Attribute.REQUESTED_FROM}
            if isinstance(write, Take | Renew):
                unknown.add(Attribute.CHECKPOINT_OWNER)
            change = UpdateRow(
                expected=change.expected,
                sets={name: value for name, value in change.sets.items() if name not in unknown},
                adds=change.adds,
                removes=tuple(name for name in change.removes if name not in unknown),
            )
        if not permits(change, old):
            return Conflict(found=before)
        item = changed(change, old)
        if item is None:
            self.store.write(write)
            after = None
        else:
            self.store.put_item(item)
            after = lease_of(item)
        self._judge(worker, write, before, after)
        return Done(lease=write.lease if after is None else after)

    def _reread(self, key: LeaseKey) -> Lease | None:
        found = [item for item in self.store.items() if item[Attribute.KEY]["S"] == key]
        return lease_of(found[0]) if found else None

    def _fault(self, call: Call, worker: WorkerId | None = None) -> Fault | None:
        worker = worker or self.calling
        assert worker is not None
        what = "reads" if call.write is None else "writes"
        if self.now < self.outages.get(worker, 0) and self.refused.get(worker, what) == what:
            self.happened["outage met"] += 1
            return Fault.UNAVAILABLE
        queue = self.faults.get(worker)
        if queue:
            fault = queue.popleft()
            self.happened[f"fault: {fault}"] += 1
            return fault
        return None

    # --- The judge -------------------------------------------------------------------------------

    def _judge(
        self, worker: WorkerId, write: Write, before: Lease | None, after: Lease | None
    ) -> None:
        """Check a write that has changed the row."""
        key = write.lease.key
        self.happened[type(write).__name__] += 1
        _may_write(worker, write, before)
        generation = self.generations.setdefault(key, Generation(holder=None))
        holder = None if after is None else after.holder
        if holder != generation.holder:
            generation.holder = holder
            generation.number += 1
        if before is not None and after is not None:
            assert is_forward(before.progress, after.progress), f"{key} moved back"
            self._note(worker, write, before, after)
        if after is not None and after.progress != (before or after).progress:
            self._judge_progress(key, after.progress)
        if after is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = after
        self._note_readable()

    def _note_readable(self) -> None:
        for key, row in self.rows.items():
            shard = self.shards[key]
            if shard.readable_since == NEVER and self.is_readable(row):
                shard.readable_since = self.now

    def is_readable(self, row: Lease) -> bool:
        """Return whether it has not ended and all its parents have."""
        parents = [self.rows.get(LeaseKey(parent)) for parent in row.parents]
        return row.progress != ShardEnded() and all(
            parent is None or parent.progress == ShardEnded() for parent in parents
        )

    def _judge_progress(self, key: LeaseKey, progress: Progress) -> None:
        shard = self.shards[key]
        position = position_of(progress)
        done = shard.records if position is None else position
        assert done <= shard.delivered, f"{key}: {done} of {shard.delivered} are processed"
        if position is None:
            assert shard.closed
            splits = [self.shards[LeaseKey(child)] for child in shard.children]
            for child in (child for child in splits if len(child.parents) == 1):
                assert child.key in self.generations, f"{child.key} was forgotten"

    def _note(self, worker: WorkerId, write: Write, before: Lease, after: Lease) -> None:
        if isinstance(write, Take) and before.holder not in (None, worker):
            holder = self.actors.get(before.holder) if before.holder else None
            awake = holder is not None and holder.wake < NEVER
            self.happened["taken from one awake" if awake else "taken from one gone"] += 1
        if isinstance(write, Assign) and before.checkpoint_owner == worker:
            self.happened["handed over"] += 1
        if isinstance(write, Assign) and before.owner == worker and after.owner != worker:
            self.happened["request withdrawn"] += 1


def _may_write(worker: WorkerId, write: Write, before: Lease | None) -> None:
    """Check that only the owner renews, checkpoints and gives up, and only an ended lease is
    deleted."""
    holder = None if before is None else before.holder
    match write:
        case Renew() | Checkpoint() | Evict():
            assert holder == worker, f"{worker} writes to {holder}'s {write.lease.key}"
        case Delete():
            assert before is None or before.progress == ShardEnded()
        case Assign() if before is not None and before.checkpoint_owner is not None:
            assert worker in (before.owner, before.checkpoint_owner) or worker.startswith("kcl3")
        case Create() | Take() | RequestHandoff() | Assign() | SetChildren():
            pass


def lease_of(item: Item) -> Lease:
    """Return the row as a value."""
    found = decode(item)
    assert isinstance(found, Lease)
    return found


def unavailable(worker: WorkerId) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "leases in memory", found=f"no answer to {worker}", expected="one", next_step="wait"
    )


@dataclass(slots=True)
class Clock:
    """A worker's monotonic clock: it runs a little fast or slow."""

    rate: float
    offset: int

    def own(self, now: int) -> int:
        """Return its reading."""
        return self.offset + int(now * self.rate)

    def true(self, own: int) -> int:
        """Return the time by which it has certainly reached a reading."""
        return int((own - self.offset) / self.rate) + 1


RATES: Mapping[str, float] = {"slow": 0.95, "right": 1.0, "fast": 1.05}
