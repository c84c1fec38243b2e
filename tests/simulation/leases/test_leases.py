"""Histories of several workers that share a stream's shards by leases, drawn at random.

Two emphases: `Rough`, in which workers crash, pause and meet a failing table, and `Graceful`, in
which they only come, go and take their time, so that no record may be delivered twice. The judge
of every write and of every record is `World`; the rest is looked at here.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from typing import ClassVar

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from spark_ssp.checkpoint.leases.lease import LeaseKey, ShardEnded
from spark_ssp.grouping.identifiers import WorkerId
from tests.support.leases.memory_store import Fault
from tests.support.simulation.effort import AMOUNT, EFFORT, Effort
from tests.support.simulation.leases import FAILOVER_MS, RATES, Clock, Shard, World
from tests.support.simulation.leases_kcl import Kcl2Worker, Kcl3Worker, KclWorker
from tests.support.simulation.leases_worker import OurWorker

STEPS = 12
MANY_WORKERS = 5
MANY_SHARDS = 8

COVERED: Counter[str] = Counter()
"""In how many histories each thing happened."""

FAULTS = [
    [Fault.REPLY_LOST],
    [Fault.REPLY_LOST, Fault.THROTTLED],
    [Fault.REPLY_LOST, Fault.UNAVAILABLE] * 3,
    [Fault.THROTTLED] * 5,
    [Fault.UNAVAILABLE] * 3,
]

small = st.integers(0, 5)
rates = st.sampled_from(sorted(RATES.values()))


class Sharing(RuleBasedStateMachine):
    """The rules that both emphases share."""

    must_happen: ClassVar[tuple[str, ...]] = (
        "Delete",
        "RequestHandoff",
        "handed over",
        "agent finished",
        "left",
        "merge",
        "split",
        "joined",
        "long batch",
    )

    def __init__(self) -> None:
        super().__init__()
        self.world = World(chance=random.Random(0))
        self.joined = 0
        self.patience = 0

    @initialize(workers=st.integers(2, 3), shards=st.integers(1, 4), seed=st.integers(0, 999))
    def begin(self, workers: int, shards: int, seed: int) -> None:
        self.world.chance.seed(seed)
        for _ in range(shards):
            self.world.add_shard().records = 3
        for number in range(workers):
            self._join(1.0, None)
            self.world.pass_time(500 * number)

    def _join(self, rate: float, max_leases: int | None) -> None:
        worker = WorkerId(f"worker-{self.joined}")
        self.joined += 1
        self.world.actors[worker] = OurWorker(
            world=self.world,
            worker=worker,
            clock=Clock(rate=rate, offset=self.joined * 1_000_000),
            max_leases=max_leases,
            next_trigger=self.world.now,
            wake=self.world.now,
            agent_wake=self.world.now,
        )
        self.world.happened["joined"] += 1

    @property
    def ours(self) -> list[OurWorker]:
        return [
            actor
            for actor in self.world.actors.values()
            if isinstance(actor, OurWorker) and actor.keeping
        ]

    @property
    def kcls(self) -> list[KclWorker]:
        return [
            actor
            for actor in self.world.actors.values()
            if isinstance(actor, KclWorker) and actor.lives()
        ]

    @property
    def active(self) -> list[OurWorker]:
        return [worker for worker in self.ours if worker.reading and not worker.leaving]

    def _one(self, number: int) -> OurWorker | None:
        return self.active[number % len(self.active)] if self.active else None

    # --- Rules -----------------------------------------------------------------------------------

    @rule(millis=st.one_of(st.integers(1, 3_000), st.integers(3_000, 15_000)))
    def pass_time(self, millis: int) -> None:
        self.world.pass_time(millis)

    @rule(number=small, records=st.integers(1, 12))
    def put(self, number: int, records: int) -> None:
        shards = self.world.open_shards()
        shards[number % len(shards)].records += records

    @rule(number=small)
    def split(self, number: int) -> None:
        if len(self.world.shards) < MANY_SHARDS:
            shards = self.world.open_shards()
            parent = shards[number % len(shards)]
            for _ in range(2):
                self.world.add_shard(parent).records = 2
            self.world.happened["split"] += 1

    @rule(number=small)
    def merge(self, number: int) -> None:
        shards = self.world.open_shards()
        if len(shards) >= 2 and len(self.world.shards) < MANY_SHARDS:
            at = number % (len(shards) - 1)
            self.world.add_shard(*shards[at : at + 2]).records = 2
            self.world.happened["merge"] += 1

    @rule(rate=rates, max_leases=st.sampled_from([None, None, None, 1, 2]))
    def join(self, rate: float, max_leases: int | None) -> None:
        if len(self.ours) < MANY_WORKERS:
            self._join(rate, max_leases)

    @rule(number=small)
    def leave(self, number: int) -> None:
        worker = self._one(number)
        if worker is not None:
            worker.leave()

    @rule(number=small, millis=st.integers(3_000, 40_000))
    def take_long(self, number: int, millis: int) -> None:
        """Batches of one worker take so long from now on."""
        worker = self._one(number)
        if worker is not None:
            worker.batch_ms = millis
            self.world.happened["long batch"] += 1

    @rule()
    def forget_finished_shards(self) -> None:
        """The service lists a closed shard no longer, once its records are too old: the parents of
        a merged shard, which were closed by the merge, at the same time."""
        shards = self.world.shards
        too_old = {shard.key for shard in shards.values() if self._is_read(shard)}
        for shard in shards.values():
            children = [shards[LeaseKey(child)] for child in shard.children]
            merged_with = {LeaseKey(parent) for child in children for parent in child.parents}
            if shard.key in too_old and merged_with <= too_old and shard.listed:
                shard.listed = False
                self.world.happened["unlisted"] += 1

    def _is_read(self, shard: Shard) -> bool:
        row = self.world.rows.get(shard.key)
        has_ended = row is None or row.progress == ShardEnded()
        return shard.closed and has_ended and shard.delivered >= shard.records

    # --- The end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let calm return, look who owns what, then let everything be read."""
        self._calm()
        self._check_owned()
        self._read_all()
        self._look_at_the_end()

    def teardown(self) -> None:
        if self.world.shards and sys.exc_info()[0] is None:
            self.finish()
        for what, times in sorted(self.world.happened.items()):
            if times:
                COVERED[what] += 1
                event(what)
        COVERED["histories"] += 1

    def _look_at_the_end(self) -> None:
        """All is read, and nothing goes on."""

    def _calm(self) -> None:
        """Nothing is in anybody's way any more. Two failover times of the slowest clock pass."""
        self.world.faults.clear()
        self.world.outages.clear()
        if all(worker.max_leases for worker in self.active):
            self._join(1.0, None)
        for worker in self.ours:
            worker.latency, worker.batch_ms = 0, 300
            if worker.paused:
                worker.resume()
        while any(worker.batch and worker.batch.done_at > self.world.now for worker in self.ours):
            self.world.pass_time(1_000)
        failovers = self._failovers_to_calm()
        self.patience = int(failovers * FAILOVER_MS / min(RATES.values())) + 1_000
        self.world.pass_time(self.patience)

    def _failovers_to_calm(self) -> int:
        """With room for everything two; without, a lease must first be left over by others."""
        return 5 if any(worker.max_leases for worker in self.ours) else 2

    def _check_owned(self) -> None:
        """Every shard that may be read is held, by one that is alive. A lease that is just changing
        hands is nobody's for a moment."""
        for _ in range(4):
            unowned = self._unowned()
            if not unowned:
                return
            self.world.pass_time(FAILOVER_MS if self.kcls else FAILOVER_MS // 6)
        raise AssertionError(f"not owned in time: {unowned}")

    def _unowned(self) -> list[str]:
        holders: dict[LeaseKey, list[WorkerId]] = {}
        for worker in self.ours:
            for key in worker.state.held:
                holders.setdefault(key, []).append(worker.worker)
        for kcl in self.kcls:
            for key in kcl.held:
                holders.setdefault(key, []).append(kcl.worker)
        unowned = []
        for key, row in sorted(self.world.rows.items()):
            since = self.world.shards[key].readable_since
            if not self.world.is_readable(row) or self.world.now - since < self.patience:
                continue
            if row.holder not in holders.get(key, []):
                unowned.append(f"{key} of {row.holder}, held by {holders.get(key)}")
            assert self.kcls or len(holders.get(key, [])) <= 1, f"{key}: {holders[key]}"
        return unowned

    def _read_all(self) -> None:
        for _ in range(60):
            if not self.world.unread():
                return
            self.world.pass_time(FAILOVER_MS)
        raise AssertionError(f"never read: {self.world.unread()}")


class Graceful(Sharing):
    """Nobody fails: no record is delivered twice, and the shards are shared evenly."""

    def _look_at_the_end(self) -> None:
        if any(worker.max_leases for worker in self.ours):
            return
        self.world.pass_time(2 * FAILOVER_MS)
        rows = [row for row in self.world.rows.values() if self.world.is_readable(row)]
        loads = [sum(row.holder == worker.worker for row in rows) for worker in self.active]
        assert sum(loads) == len(rows)
        assert max(loads) - min(loads) <= 1, f"not even: {loads}"


class Rough(Sharing):
    """Workers and the table fail."""

    must_happen = (
        *Sharing.must_happen,
        "conflict",
        "crashed",
        "fault: reply-lost",
        "fault: throttled",
        "fault: unavailable",
        "agent restarted",
        "outage met",
        "paused",
        "reads refused",
        "records delivered twice",
        "request withdrawn",
        "row spoilt",
        "shard lost by a reader",
        "slow writes",
        "stopped",
        "taken from one awake",
        "taken from one gone",
        "write done, reply lost",
        "write failed",
        "writes refused",
    )

    def _rough(self, what: str) -> None:
        self.world.rough = True
        self.world.happened[what] += 1

    @rule(number=small)
    def crash(self, number: int) -> None:
        worker = self._one(number)
        if worker is not None:
            worker.crash()
            self._rough("crashed")

    @rule(number=small, cut_off_ms=st.sampled_from([0, 0, 2_000]))
    def stop(self, number: int, cut_off_ms: int) -> None:
        """The query is stopped in the midst of a batch; the agent gives back, once it can."""
        worker = self._one(number)
        if worker is not None and not worker.paused:
            self.world.outages[worker.worker] = self.world.now + cut_off_ms
            worker.stop_reader()
            self._rough("stopped")

    @rule(number=small, millis=st.integers(1_000, 30_000))
    def pause(self, number: int, millis: int) -> None:
        worker = self._one(number)
        if worker is not None:
            worker.pause()
            self._rough("paused")
            self.world.pass_time(millis)
            worker.resume()

    @rule(number=small)
    def pause_for_long(self, number: int) -> None:
        worker = self._one(number)
        if worker is not None:
            worker.pause()
            self._rough("paused")

    @rule(number=small)
    def restart_agent(self, number: int) -> None:
        worker = self._one(number)
        if worker is not None and not worker.paused:
            worker.restart_agent()
            self._rough("agent restarted")

    @rule(number=small, faults=st.sampled_from(FAULTS))
    def fail(self, number: int, faults: list[Fault]) -> None:
        """The worker's next calls fail so; two failures in a row are an error."""
        worker = self._one(number)
        if worker is not None:
            self.world.faults.setdefault(worker.worker, deque()).extend(faults)
            self.world.rough = True
            self.world.pass_time(FAILOVER_MS // 3 + 200)

    @rule(number=small, everybody=st.booleans(), millis=st.sampled_from([2_000, 15_000, 25_000]))
    def cut_off(self, number: int, everybody: bool, millis: int) -> None:
        """The table cannot be reached."""
        worker = self._one(number)
        for one in self.ours if everybody else [worker] if worker else []:
            self.world.outages[one.worker] = self.world.now + millis
            self.world.rough = True
        self.world.pass_time(millis)

    @rule(number=small, what=st.sampled_from(["reads", "writes"]))
    def refuse(self, number: int, what: str) -> None:
        """The table cannot be read, or cannot be written to, and the worker knows since when."""
        worker = self._one(number)
        if worker is not None and not worker.paused:
            self._rough(f"{what} refused")
            worker.be_refused(what, 3 * FAILOVER_MS)

    @rule(number=small, millis=st.sampled_from([1_000, 8_000, 25_000]))
    def spoil(self, number: int, millis: int) -> None:
        """A row cannot be read for a while."""
        keys = sorted(self.world.rows)
        if keys:
            self.world.spoilt.add(keys[number % len(keys)])
            self._rough("row spoilt")
            self.world.pass_time(millis)
            self.world.spoilt.clear()

    @rule(number=small, millis=st.sampled_from([50, 400, 2_000]))
    def slow_down(self, number: int, millis: int) -> None:
        worker = self._one(number)
        if worker is not None:
            worker.latency = millis
            self._rough("slow writes")


class WithKcl(Sharing):
    """Workers of the KCL share the table; some crash."""

    must_happen = (
        "Delete",
        "KCL hands over",
        "asked for by a leader",
        "assigned by a leader",
        "crashed",
        "ended by a KCL worker",
        "handed over",
        "left",
        "merge",
        "records delivered twice",
        "split",
        "started: kcl2",
        "started: kcl3",
        "stolen by a KCL worker",
        "taken from one awake",
        "taken from one gone",
    )

    @initialize(version=st.sampled_from(["kcl2", "kcl3", "kcl3"]), workers=st.integers(1, 2))
    def choose(self, version: str, workers: int) -> None:
        """One version in each history, as in one application."""
        self.version = version
        self.world.rough = True
        for _ in range(workers):
            self.start_kcl()

    @rule()
    def start_kcl(self) -> None:
        if len(self.kcls) < 2:
            self.joined += 1
            worker = WorkerId(f"{self.version}-{self.joined}")
            kind = Kcl2Worker if self.version == "kcl2" else Kcl3Worker
            self.world.actors[worker] = kind(world=self.world, worker=worker, wake=self.world.now)
            self.world.happened[f"started: {self.version}"] += 1

    @rule(number=small)
    def crash_kcl(self, number: int) -> None:
        if self.kcls:
            self.kcls[number % len(self.kcls)].crash()
            self.world.happened["crashed"] += 1

    @rule(number=small)
    def crash(self, number: int) -> None:
        worker = self._one(number)
        if worker is not None:
            worker.crash()
            self.world.happened["crashed"] += 1

    def _failovers_to_calm(self) -> int:
        """KCL 2 looks every two; a leader assigns every two, and is given six."""
        return 9


SHARES = {Graceful: 0.25, Rough: 0.5, WithKcl: 0.25}


@pytest.mark.parametrize("emphasis", SHARES)
@pytest.mark.timeout(7200 if EFFORT is Effort.SOAK else 900)
def test_every_shard_is_read_by_one_and_to_the_end(emphasis: type[Sharing]) -> None:
    COVERED.clear()
    run_state_machine_as_test(
        emphasis,
        settings=settings(
            max_examples=round(AMOUNT.histories * SHARES[emphasis]), stateful_step_count=STEPS
        ),
    )
    print(f"{emphasis.__name__}:", dict(sorted(COVERED.items())))
    if AMOUNT.histories >= 1000:
        missing = sorted(set(emphasis.must_happen) - set(COVERED))
        assert not missing, f"the histories do not come to {missing}"
