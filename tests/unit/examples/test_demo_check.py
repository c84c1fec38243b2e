"""The demo's check of itself: an honest run passes, and each way of tampering is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from examples.flights.check import Evidence, Finding, ShardFact, check
from examples.lease_table import LeaseFact

KEYS = ("N1", "N2", "N3")
DEPARTURES = 12
SLOTS = 2

ONCE = "exactly once"
CONTENTS = "as in the file"
ORDER = "in the order"
SIDE_TABLE = "side table"
AIRLINE = "airline"
TASKS = "tasks in a batch"
ONE_SLOT = "one slot"
RESHARDED = "split"
ALL_SHARDS = "each shard read"
LEASES = "the lease table"

Row = dict[str, Any]


def row(index: int) -> Row:
    """A departure as it was written: batches of four, shard and slot by key."""
    key = index % len(KEYS)
    return {
        "index": index,
        "carrier": None if index == 5 else "AA",
        "key": KEYS[key],
        "batch": index // 4,
        "row": index % 4,
        "task": key % SLOTS,
        "slot": key % SLOTS,
        "shard": f"shard-{key}",
        "sequence": str(1000 + index),
        "airline": "American",
    }


def spoilt(number: int, batch: int) -> Row:
    return {
        "key": KEYS[0],
        "data": b"spoilt %d" % number,
        "batch": batch,
        "task": 0,
        "slot": 0,
        "shard": "shard-0",
        "sequence": str(2000 + number),
    }


SPOILT = [spoilt(0, 0), spoilt(1, 2)]
HONEST = Evidence(
    expected=pa.table(
        {
            "index": list(range(DEPARTURES)),
            "carrier": [row(index)["carrier"] for index in range(DEPARTURES)],
            "key": [row(index)["key"] for index in range(DEPARTURES)],
        }
    ),
    departures=pa.Table.from_pylist([row(index) for index in range(DEPARTURES)]),
    malformed=pa.Table.from_pylist(SPOILT),
    spoilt=tuple((entry["key"], entry["data"]) for entry in SPOILT),
    tasks={0: 2, 1: 2, 2: 1},
    slots=SLOTS,
    shards=(
        ShardFact(shard="shard-0", parents=(), open=False, records=6, last="2001"),
        ShardFact(shard="shard-1", parents=("shard-0",), open=False, records=4, last="1010"),
        ShardFact(shard="shard-2", parents=("shard-0", "shard-1"), open=True, records=4, last="9"),
    ),
    splits=1,
    merges=1,
    # The row of shard-0 has been cleaned up.
    leases={
        "shard-1": LeaseFact(owner="worker", checkpoint="SHARD_END"),
        "shard-2": LeaseFact(owner=None, checkpoint="9"),
    },
)


def broken(evidence: Evidence) -> list[Finding]:
    return [finding for finding in check(evidence) if not finding.kept]


def with_rows(change: Callable[[list[Row]], object]) -> Evidence:
    rows = HONEST.departures.to_pylist()
    change(rows)
    return replace(HONEST, departures=pa.Table.from_pylist(rows, HONEST.departures.schema))


def with_spoilt(change: Callable[[list[Row]], object]) -> Evidence:
    rows = HONEST.malformed.to_pylist()
    change(rows)
    return replace(HONEST, malformed=pa.Table.from_pylist(rows, HONEST.malformed.schema))


def with_lease(shard: str, owner: str | None, checkpoint: str) -> Evidence:
    changed = {shard: LeaseFact(owner=owner, checkpoint=checkpoint)}
    return replace(HONEST, leases={**HONEST.leases, **changed})


def swap_rows(rows: list[Row]) -> None:
    rows[0]["row"], rows[3]["row"] = rows[3]["row"], rows[0]["row"]


def swap_batches(rows: list[Row]) -> None:
    rows[0]["batch"], rows[9]["batch"] = rows[9]["batch"], rows[0]["batch"]


TAMPERED: dict[str, tuple[Evidence, set[str]]] = {
    "a departure is lost": (with_rows(lambda rows: rows.pop(7)), {ONCE, ALL_SHARDS}),
    "a departure comes twice": (
        with_rows(lambda rows: rows.append({**rows[7], "batch": 2, "row": 9})),
        {ONCE, ORDER, ALL_SHARDS},
    ),
    "one is lost, another comes twice": (
        with_rows(lambda rows: rows.__setitem__(7, {**rows[4]})),
        {ONCE, ORDER, ALL_SHARDS},
    ),
    "a departure that was never put": (
        with_rows(lambda rows: rows[11].update(index=12)),
        {ONCE},
    ),
    "a value is changed": (with_rows(lambda rows: rows[2].update(carrier="UA")), {CONTENTS}),
    "a value is gone": (with_rows(lambda rows: rows[2].update(carrier=None)), {CONTENTS}),
    "a value where there was none": (
        with_rows(lambda rows: rows[5].update(carrier="AA")),
        {CONTENTS},
    ),
    "a departure under another key": (with_rows(lambda rows: rows[0].update(key="N9")), {CONTENTS}),
    "two of a key swap places in a batch": (with_rows(swap_rows), {ORDER}),
    "two of a key swap batches": (with_rows(swap_batches), {ORDER}),
    "a malformed record is lost": (
        with_spoilt(lambda rows: rows.pop(0)),
        {SIDE_TABLE, ALL_SHARDS},
    ),
    "a malformed record comes twice": (
        with_spoilt(lambda rows: rows.append({**rows[0], "sequence": "3000"})),
        {SIDE_TABLE, ALL_SHARDS},
    ),
    "a malformed record is changed": (
        with_spoilt(lambda rows: rows[0].update(data=b"mended")),
        {SIDE_TABLE},
    ),
    "an airline without a name": (with_rows(lambda rows: rows[3].update(airline=None)), {AIRLINE}),
    "a stage with too many tasks": (replace(HONEST, tasks={0: 3, 1: 2, 2: 1}), {TASKS}),
    "a batch whose tasks nobody counted": (replace(HONEST, tasks={0: 2, 2: 1}), {TASKS}),
    "rows of too many tasks": (
        with_rows(lambda rows: rows[3].update(task=2)),
        {TASKS},
    ),
    "a task that read two slots": (with_rows(lambda rows: rows[0].update(slot=1)), {ONE_SLOT}),
    "a shard that moved": (
        with_rows(lambda rows: rows[9].update(task=1, slot=1)),
        {ONE_SLOT},
    ),
    "no split": (replace(HONEST, splits=2), {RESHARDED}),
    "no merge": (replace(HONEST, merges=2), {RESHARDED}),
    "a shard that nobody read": (
        replace(
            HONEST,
            shards=(
                *HONEST.shards,
                ShardFact(shard="shard-3", parents=(), open=True, records=0, last=None),
            ),
        ),
        {ALL_SHARDS, LEASES},
    ),
    "a record less than the service took": (
        replace(HONEST, shards=(replace(HONEST.shards[0], records=7), *HONEST.shards[1:])),
        {ALL_SHARDS},
    ),
    "the same record under two indexes": (
        with_rows(lambda rows: rows[3].update(sequence=rows[0]["sequence"])),
        {ALL_SHARDS},
    ),
    "a lease behind its shard": (with_lease("shard-2", None, "8"), {LEASES}),
    "a lease that is not given back": (with_lease("shard-2", "worker", "9"), {LEASES}),
    "a lease that never saw its shard's end": (with_lease("shard-1", None, "1010"), {LEASES}),
    "an open shard without a lease": (
        replace(HONEST, leases={"shard-1": HONEST.leases["shard-1"]}),
        {LEASES},
    ),
}


def test_an_honest_run_keeps_every_promise() -> None:
    findings = check(HONEST)
    assert [finding for finding in findings if not finding.kept] == []
    assert len(findings) == 10


@pytest.mark.parametrize("case", TAMPERED)
def test_tampering_is_caught_and_named(case: str) -> None:
    evidence, promises = TAMPERED[case]
    found = broken(evidence)
    assert len(found) == len(promises), found
    for promise in promises:
        assert any(promise in finding.promise for finding in found), found


def test_every_promise_can_be_broken() -> None:
    caught = {promise for _, promises in TAMPERED.values() for promise in promises}
    assert len(caught) == len(check(HONEST))


def test_nothing_written_keeps_hardly_a_promise() -> None:
    nothing = replace(
        HONEST,
        departures=HONEST.departures.slice(0, 0),
        malformed=HONEST.malformed.slice(0, 0),
        tasks={},
        leases={},
    )
    kept = [finding.promise for finding in check(nothing) if finding.kept]
    assert len(kept) == 2, kept  # the stream was resharded; no departure lacks its airline's name
