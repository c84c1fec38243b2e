"""Any number of queries on one stream, joining, draining, dying, coming back, while shards come and
go and the table is out of reach: every record is read, in the order of its key; none twice unless a
query was cut off."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_ssp.kinesis_source.probing.batch_limits import Limits
from tests.support.leases.worlds import FAILOVER_MS, Company, LeaseWorld, out_of_order, twice
from tests.support.simulation.effort import AMOUNT, EFFORT, Effort

MOST_QUERIES = 3
PATIENCE_ROUNDS = 400
RARE_DISCOVERY_MS = 3_600_000
KEYS = 16

_gentle = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 20)),
    st.tuples(st.just("work"), st.integers(1, 8)),
    st.tuples(st.just("work"), st.integers(8, 30)),
    st.tuples(st.just("wait"), st.integers(1, 2 * FAILOVER_MS)),
    st.tuples(st.just("join"), st.integers(0, 1)),
    st.tuples(st.just("to the tip"), st.just(0)),
    st.tuples(st.just("to the tip, slowly"), st.integers(0, 5)),
    st.tuples(st.just("drain"), st.integers(0, 2)),
    st.tuples(st.just("return"), st.integers(0, 5)),
    st.tuples(st.just("split"), st.integers(0, 5)),
    st.tuples(st.just("merge"), st.integers(0, 5)),
    st.tuples(st.just("outage"), st.integers(1, FAILOVER_MS // 2)),
)
_rough = st.one_of(
    st.tuples(st.just("stop"), st.integers(0, 2)),
    st.tuples(st.just("kill"), st.integers(0, 2)),
    st.tuples(st.just("kill with a plan"), st.integers(0, 2)),
    st.tuples(st.just("outage"), st.integers(1, 2 * FAILOVER_MS)),
)
COVERED: Counter[str] = Counter()


class Scene:
    """One history."""

    def __init__(self, folder: Path, shards: int = 3) -> None:
        self.company = Company(folder, shards=shards)
        self.company.leases = self.company.with_max_outage(100 * FAILOVER_MS)
        self.alive: list[LeaseWorld] = []
        self.gone: list[LeaseWorld] = []
        self.put: list[str] = []
        self.read: list[str] = []
        self._names = 0

    def act(self, kind: str, number: int) -> None:
        """One thing happens, if it can."""
        company = self.company
        match kind:
            case "put":
                self.put += company.put(number, keys=KEYS)
            case "work":
                self.read += company.work(*self.alive, rounds=number)
            case "wait":
                company.pass_time(number)
            case "join" if len(self.alive) < MOST_QUERIES:
                rarely = {"shard_discovery_interval_ms": RARE_DISCOVERY_MS} if number else {}
                self.alive.append(company.join(self._name(), **rarely))
            case "to the tip":
                self._to_the_tip()
            case "to the tip, slowly" if self.alive:
                self._slowly_to_the_tip(number)
            case "return" if self.gone and len(self.alive) < MOST_QUERIES:
                self._return(self.gone.pop(number % len(self.gone)))
            case "split" | "merge":
                self._reshard(kind, number)
            case "outage":
                company.table.down = True
                company.pass_time(number)
                # One that has just started would wait, and let the outage last longer than meant.
                begun = [world for world in self.alive if world.agent.exchanges]
                self.read += company.work(*begun, rounds=1)
                company.table.down = False
            case "drain" | "stop" | "kill" | "kill with a plan" if self.alive:
                self._leave(kind, self.alive.pop(number % len(self.alive)))
            case _:
                return
        COVERED[kind] += 1

    def _name(self) -> str:
        self._names += 1
        return f"query-{self._names}"

    def _to_the_tip(self) -> None:
        """A run beside the others, which ends by itself; the others wait meanwhile."""
        world = self.company.join(self._name())
        world.planner.stop_at_latest()
        self.read += world.drain()
        world.stop()
        if not self.alive:
            assert set(self.put) == set(self.read), "a run to the tip that stopped short of it"
        self.gone.append(world)

    def _slowly_to_the_tip(self, number: int) -> None:
        """The others read on, and a shard is split of which the run's listing knows nothing."""
        world = self.company.join(self._name())
        world.planner.stop_at_latest()
        self._reshard("split", number)
        self.put += self.company.put(10, keys=KEYS)
        while (batch := world.trigger(Limits(max_records=3))) is not None:
            self.read += batch.read
            self.read += self.company.work(*self.alive, rounds=1)
        world.stop()
        self.gone.append(world)

    def _leave(self, kind: str, world: LeaseWorld) -> None:
        if kind == "drain":
            world.marks.request()
            for _ in range(100):
                assert world.trigger() is None
                if world.marks.is_drained():
                    break
                self.company.pass_time(500)
            assert world.marks.is_drained(), "a query that does not drain"
            world.marks.clear()
            world.die()
        elif kind == "stop":
            world.stop()
        else:
            world.unfinished = world.plan() if kind == "kill with a plan" else None
            world.die()
        self.gone.append(world)

    def _return(self, world: LeaseWorld) -> None:
        """By its checkpoint, and as somebody else; what was planned is replayed before all else."""
        world.worker = self._name()
        world.restart()
        if world.unfinished is not None:
            self.read += world.run(world.unfinished).read
            world.unfinished = None
        self.alive.append(world)

    def _reshard(self, kind: str, number: int) -> None:
        state = self.company.state
        shards = state.open_shard_ids("orders")
        if kind == "split" and len(shards) < 6:
            state.split("orders", shards[number % len(shards)])
        elif kind == "merge" and len(shards) > 1:
            first = number % (len(shards) - 1)
            state.merge("orders", shards[first], shards[first + 1])

    def finish(self) -> None:
        """Calm, with one query at least, until all is read; see what was read."""
        if not self.alive:
            self.act("join", 0)
        for _ in range(PATIENCE_ROUNDS):
            if not set(self.put) - set(self.read):
                break
            self.read += self.company.work(*self.alive, rounds=1)
        # What is read once must not come again.
        self.read += self.company.work(*self.alive, rounds=4)
        assert sorted(set(self.put) - set(self.read)) == []
        assert out_of_order(self.read, KEYS) == []

    def close(self) -> None:
        for world in (*self.alive, *self.gone):
            world.planner.close()


def _run(acts: list[tuple[str, int]]) -> Scene:
    folder = Path(tempfile.mkdtemp())
    scene = Scene(folder / "marks")
    try:
        for kind, number in [("join", 0), ("put", 10), *acts]:
            scene.act(kind, number)
        scene.finish()
    finally:
        scene.close()
        shutil.rmtree(folder)
    return scene


pytestmark = pytest.mark.timeout(7200 if EFFORT is Effort.SOAK else 900)


def test_a_merged_shard_waits_for_the_parent_that_another_query_reads(tmp_path: Path) -> None:
    """The lease of the merged shard is there as soon as the first parent has ended."""
    scene = Scene(tmp_path / "marks", shards=2)
    scene.act("join", 0)
    scene.act("join", 0)
    scene.act("work", 30)
    fast, slow = scene.alive
    (slow_parent,) = (
        shard for shard, owner in scene.company.table.owners().items() if owner == slow.worker
    )
    scene.act("put", 40)
    scene.act("merge", 0)
    scene.act("put", 40)
    scene.read += scene.company.work(fast, rounds=60)
    assert scene.company.table.owners().keys() == {slow_parent, "02"}
    assert set(scene.put) - set(scene.read)
    scene.read += scene.company.work(slow, rounds=60)
    scene.finish()
    scene.close()
    assert twice(scene.read) == []


_RETURNS_BEHIND_THE_LEASES = [
    ("drain", 0),
    ("to the tip", 0),
    ("put", 20),
    ("join", 0),
    ("work", 30),
    ("drain", 0),
    ("return", 1),
    ("work", 60),
]
"""A run to the tip comes back, after another query has read on in its shards."""
_amount = settings(max_examples=max(10, AMOUNT.histories // 10))


@_amount
@given(st.lists(_gentle, max_size=20))
@example(_RETURNS_BEHIND_THE_LEASES)
def test_whoever_leaves_in_an_orderly_way_leaves_nothing_to_read_twice(
    acts: list[tuple[str, int]],
) -> None:
    scene = _run(acts)
    assert twice(scene.read) == []


@_amount
@given(st.lists(_gentle | _rough, max_size=20))
def test_nothing_is_lost_whatever_happens(acts: list[tuple[str, int]]) -> None:
    _run(acts)
