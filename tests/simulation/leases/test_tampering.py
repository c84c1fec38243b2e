"""Any number of queries on one stream, and a program that shares their leases as the KCL does,
while somebody deletes, damages and invents rows of the table: every record is read, or its shard is
reported as not read by any worker. `SSP_TAMPERING` overrides the number of histories."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ssp.checkpoint.leases.lease import (
    Item,
    Lease,
    Processed,
    ShardEnded,
    StartAtTrimHorizon,
)
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.common.errors import DataLossError, SspError
from spark_ssp.grouping.identifiers import SequenceNumber, ShardId, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Latest,
    StartingPosition,
    StartPoint,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.active_shards import ancestors
from tests.simulation.leases.test_sharing import RARE_DISCOVERY_MS, Scene
from tests.support.leases.values import lease
from tests.support.leases.worlds import FAILOVER_MS, LeaseWorld
from tests.support.simulation.effort import AMOUNT, EFFORT, Effort

ORDERS = StreamName("orders")
PATIENCE_ROUNDS = 400
HISTORIES = int(os.environ.get("SSP_TAMPERING", 250 if EFFORT is Effort.CI else AMOUNT.histories))
COVERED: Counter[str] = Counter()

_number = st.integers(0, 30)
_acts = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 20)),
    st.tuples(st.just("work"), st.integers(1, 8)),
    st.tuples(st.just("work"), st.integers(8, 30)),
    st.tuples(st.just("wait"), st.integers(1, 2 * FAILOVER_MS)),
    st.tuples(st.just("join"), st.integers(0, 1)),
    *(
        st.tuples(st.just(kind), _number)
        for kind in (
            "to the tip",
            "drain",
            "stop",
            "kill",
            "return",
            "split",
            "split",
            "merge",
            "delete",
            "delete a family",
            "damage",
            "repair",
            "invent",
            "other program",
        )
    ),
)
_starts = st.sampled_from(["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"])


class Tampered(Scene):
    """One history."""

    def __init__(self, folder: Path, start: str) -> None:
        super().__init__(folder)
        self.start = start
        self._good: dict[str, Item | None] = {}
        """The damaged rows as they were, and None for the invented ones."""
        self._removed: set[str] = set()
        """The invented rows that were removed again."""
        now = EpochMillis(self.company.clock.now_ms())
        positions: dict[str, StartPoint] = {
            "TRIM_HORIZON": TrimHorizon(),
            "LATEST": Latest(),
            "AT_TIMESTAMP": AtTimestamp(millis=now),
        }
        position = positions[start]
        join, work = self.company.join, self.company.work
        self.company.join = lambda worker, **changes: join(  # type: ignore[method-assign]
            worker, starting_position=StartingPosition(default=position), **changes
        )
        self.company.work = self._work  # type: ignore[method-assign]
        if start == "AT_TIMESTAMP":  # so the rows of parents and children are created together
            self.company.put(5)
            self._reshard("split", 0)
        self.act("join", 0)
        self.read += work(*self.alive, rounds=2)

    # --- What queries do ---------------------------------------------------------------------

    def act(self, kind: str, number: int) -> None:
        match kind:
            case "delete":
                self._delete([number])
            case "delete a family":
                self._delete_family(number)
            case "damage":
                self._damage(number)
            case "repair":
                self._repair(number)
            case "invent":
                self._invent(number)
            case "other program":
                self._other_program(number)
            case _:
                super().act(kind, number)
        COVERED[kind] += 1

    def _work(self, *worlds: LeaseWorld, rounds: int = 20) -> list[str]:
        """As `Company.work`; a query that fails ends, and its error is a report."""
        read: list[str] = []
        for _ in range(rounds):
            for world in worlds:
                if world.agent.alive:
                    read += self._guarded(world, partial(_triggered, world))
            self.company.pass_time(500)
        return read

    def _guarded(self, world: LeaseWorld, action: Callable[[], list[str]]) -> list[str]:
        try:
            return action()
        except SspError as error:
            COVERED[f"failed: {error.kind}"] += 1
            world.stop()
            if world in self.alive:
                self.alive.remove(world)
            self.gone.append(world)
            if isinstance(error, DataLossError):  # as its next step says
                self._remove_invented(error)
            return []

    def _remove_invented(self, error: DataLossError) -> None:
        named = [key for key, item in self._good.items() if item is None and key in str(error)]
        # A query may have met the row before it was removed.
        assert named or any(key in str(error) for key in self._removed), error
        for key in named:
            self.company.table.store.remove_item(key)
            del self._good[key]
            self._removed.add(key)

    def _to_the_tip(self) -> None:
        world = self.company.join(self._name())
        world.planner.stop_at_latest()
        self.read += self._guarded(world, world.drain)
        if world.agent.alive:
            world.stop()
            self.gone.append(world)

    def _leave(self, kind: str, world: LeaseWorld) -> None:
        def leave() -> list[str]:
            super(Tampered, self)._leave(kind, world)
            return []

        self._guarded(world, leave)

    # --- What is done to the table -----------------------------------------------------------

    def _items(self) -> list[Item]:
        return sorted(self.company.table.store.items(), key=lambda item: item["leaseKey"]["S"])

    def _leases(self) -> dict[ShardId, Lease]:
        return {row.shard: row for row in self.company.table.store.scan().leases}

    def _delete(self, numbers: list[int]) -> None:
        """Delete rows; one that shows that the stream was read, not an invented one, remains."""
        items = self._items()
        keys = {items[number % len(items)]["leaseKey"]["S"] for number in numbers if items}
        shown = [row for key, row in self._leases().items() if key not in {*keys, *self._good}]
        if any(row.counter for row in shown):
            for key in sorted(keys):
                self.company.table.store.remove_item(key)
                if key in self._good and self._good.pop(key) is None:
                    self._removed.add(key)

    def _delete_family(self, number: int) -> None:
        """Delete some rows of a shard's line: it, its ancestors, their other children."""
        listing = {shard.shard_id: shard for shard in self._shards()}
        shards = sorted(listing)
        chosen = shards[number % len(shards)]
        line = {chosen, *ancestors(listing, [chosen])}
        near = {s for s in listing if s in line or line & set(listing[s].parents)}
        keys = [item["leaseKey"]["S"] for item in self._items()]
        self._delete([keys.index(s) for s in sorted(near) if s in keys and s != chosen])

    def _shards(self) -> list[Any]:
        return list(self.alive[0].service.list_shards(self._ref)) if self.alive else self._listed()

    def _listed(self) -> list[Any]:
        return list(self.gone[-1].service.list_shards(self._ref)) if self.gone else []

    @property
    def _ref(self) -> Any:
        worlds = [*self.alive, *self.gone]
        return worlds[0].options.streams[0]

    def _damage(self, number: int) -> None:
        items = [item for item in self._items() if item["leaseKey"]["S"] not in self._good]
        if items:
            item = items[number % len(items)]
            self._good[item["leaseKey"]["S"]] = item
            damaged = {name: item[name] for name in item if name != "checkpoint"}
            damaged |= {"leaseCounter": {"S": "many"}} if number % 2 else {}
            self.company.table.store.put_item(damaged)

    def _repair(self, number: int) -> None:
        """Restore the damaged rows, or delete them."""
        for n, (key, item) in enumerate(sorted(self._good.items())):
            if item is not None and (number >> n) % 2:
                self.company.table.store.put_item(item)
                del self._good[key]
            elif item is not None:
                keys = [one["leaseKey"]["S"] for one in self._items()]
                self._delete([keys.index(key)])
        if number == 30:
            for key in [key for key, item in self._good.items() if item is None]:
                self.company.table.store.remove_item(key)
                del self._good[key]
                self._removed.add(key)

    def _invent(self, number: int) -> None:
        key = f"shardId-9000000000{number:02d}"
        row = lease(key, counter=number, progress=StartAtTrimHorizon())
        item = dict(encode(row))
        match number % 3:
            case 1:
                item["entityType"] = {"S": "LEADER"}
            case 2:
                item = {"leaseKey": {"S": f"000000000000:clicks:17:{key}"}}
        self.company.table.store.put_item(item)
        self._good[item["leaseKey"]["S"]] = None

    def _other_program(self, number: int) -> None:
        """A worker of the KCL reads a free shard as far as it goes, ends it, and cleans up."""
        if self.start == "AT_TIMESTAMP":
            return  # it would begin a child whose parent's row is gone, and prove that it was read
        rows = self._leases()
        shards = {shard.shard_id: shard for shard in self._shards()}
        damaged = self._good.keys()
        free = [
            row
            for key, row in sorted(rows.items())
            if row.holder is None
            and not row.has_ended
            and key in shards
            and all(p not in damaged and (p not in rows or rows[p].has_ended) for p in row.parents)
        ]
        for row in free[number % len(free) :][:2] if free else []:
            self._read_as_kcl(row, shards, rows)
        self._clean_up()

    def _read_as_kcl(
        self, row: Lease, shards: dict[ShardId, Any], rows: dict[ShardId, Lease]
    ) -> None:
        if not isinstance(row.progress, Processed | StartAtTrimHorizon):
            return
        done = int(row.progress.sequence_number) if isinstance(row.progress, Processed) else -1
        found = [
            one
            for one in self.company.state.records("orders", row.shard)
            if int(one.sequence_number) > done
        ]
        self.read += [one.data.decode() for one in found]
        store = self.company.table.store
        children = [s for s in shards.values() if row.shard in s.parents]
        if shards[row.shard].closed and children:
            for child in children:
                if len({parent in rows for parent in child.parents}) > 1:
                    return  # as the KCL waits
                known = child.shard_id in rows or child.shard_id in self._good
                if not known:
                    new = lease(child.shard_id, parents=child.parents, hash_range=child.hash_range)
                    store.put_item(encode(new))
            names = tuple(child.shard_id for child in children)
            ended = replace(row, progress=ShardEnded(), children=names, counter=row.counter + 5)
            store.put_item(encode(ended))
        elif found:
            last = Processed(sequence_number=SequenceNumber(str(found[-1].sequence_number)))
            store.put_item(encode(replace(row, progress=last, counter=row.counter + 5)))

    def _clean_up(self) -> None:
        rows = self._leases()
        for key, row in sorted(rows.items()):
            begun = [
                child in rows and isinstance(rows[child].progress, Processed | ShardEnded)
                for child in row.children
            ]
            if row.has_ended and begun and all(begun) and not set(row.parents) & rows.keys():
                self.company.table.store.remove_item(key)

    # --- The end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything is read but what is reported; and that too once the table is repaired."""
        self._settle(lambda: self._unread_shards() <= self._reported())
        assert self._unread_shards() <= self._reported(), "neither read nor reported"
        self._repair(7)
        for key in [key for key, item in self._good.items() if item is None]:
            self.company.table.store.remove_item(key)
            self._removed.add(key)
        self._good.clear()
        self._settle(lambda: not set(self.put) - set(self.read))
        assert sorted(set(self.put) - set(self.read)) == []

    def _settle(self, is_over: Callable[[], bool]) -> None:
        for number in range(PATIENCE_ROUNDS):
            if number == PATIENCE_ROUNDS // 2:
                self.company.pass_time(RARE_DISCOVERY_MS)
            if not self.alive:
                super().act("join", 0)
                self.read += self.company.work(*self.alive, rounds=4)
            if is_over():
                return
            self.read += self.company.work(*self.alive, rounds=1)

    def _unread_shards(self) -> set[ShardId]:
        unread = set(self.put) - set(self.read)
        return {
            shard.shard_id
            for shard in self._shards()
            for record in self.company.state.records("orders", shard.shard_id)
            if record.data.decode() in unread
        }

    def _reported(self) -> set[ShardId]:
        """The shards that every query reports as not read."""
        found = [
            set(world.planner.leases.not_read(ORDERS))
            for world in self.alive
            if world.planner.leases is not None
        ]
        return set.intersection(*found) if found else set()


def _triggered(world: LeaseWorld) -> list[str]:
    batch = world.trigger()
    return batch.read if batch else []


def _run(start: str, acts: list[tuple[str, int]]) -> Tampered:
    folder = Path(tempfile.mkdtemp())
    scene = Tampered(folder / "marks", start)
    try:
        for kind, number in [("put", 10), *acts]:
            scene.act(kind, number)
        scene.finish()
    finally:
        scene.close()
        shutil.rmtree(folder)
    return scene


@pytest.mark.timeout(14_400 if EFFORT is Effort.SOAK else 900)
@settings(max_examples=HISTORIES)
@given(_starts, st.lists(_acts, max_size=20))
def test_whatever_is_done_to_the_table_each_record_is_read_or_reported(
    start: str, acts: list[tuple[str, int]]
) -> None:
    _run(start, acts)


def test_the_sibling_of_the_only_row_left_of_a_family_is_read() -> None:
    """The rows of a split shard and of one child are deleted; a new query finds the hole."""
    scene = _run(
        "LATEST",
        [
            ("split", 0),
            ("put", 20),
            ("work", 30),
            ("stop", 0),
            ("delete a family", 3),
            ("put", 20),
            ("join", 0),
            ("work", 30),
        ],
    )
    assert set(scene.put) == set(scene.read)


def test_a_parent_that_was_not_read_when_the_merged_shard_got_its_row_is_read() -> None:
    """A run to the tip ends the other parent and creates the row of the merged shard; then the row
    of this one is deleted."""
    _run("TRIM_HORIZON", [("merge", 0), ("delete", 1), ("to the tip", 0), ("delete", 0)])


def test_the_sibling_of_a_damaged_row_is_reported_by_all_if_their_parents_is_gone() -> None:
    acts = [("drain", 19), ("damage", 4), ("join", 0), ("delete", 26), ("delete", 24), ("join", 0)]
    _run("AT_TIMESTAMP", acts)


def test_a_row_that_is_damaged_before_it_is_handed_over_stops_nobody() -> None:
    _run("TRIM_HORIZON", [("join", 0), ("to the tip", 0), ("damage", 1), ("drain", 1)])


def test_shards_that_are_not_discovered_yet_are_reported_later() -> None:
    """The query that is left discovers rarely, and a blocked shard is split."""
    acts = [("join", 1), ("merge", 0), ("damage", 0), ("work", 1), ("split", 0), ("put", 1)]
    _run("TRIM_HORIZON", acts)


@pytest.mark.parametrize("begun", [False, True])
def test_shards_of_a_dead_owner_are_reported(begun: bool) -> None:
    """The row of their parent cannot be parsed, so no worker takes their leases."""
    if begun:
        acts = [("put", 6), ("damage", 0), ("work", 8), ("put", 1), ("kill", 0)]
    else:
        acts = [("put", 5), ("join", 0), ("put", 6), ("damage", 0), ("kill", 0)]
    _run("AT_TIMESTAMP", acts)


def test_an_ancestor_of_rows_at_a_time_is_read_from_that_time() -> None:
    """A start at a time creates the rows of a split shard and of its children at once, so the rows
    of the children do not show that the parent was read."""
    scene = _run("AT_TIMESTAMP", [("stop", 0), ("delete", 0), ("join", 0), ("work", 60)])
    assert scene.company.table.lease(0).progress == ShardEnded()
