"""Checks the demo: the written departures against those that were put.

Tables in, findings out. `expected` comes from the package's own file and the script, `found` from
the Parquet files, the rest from Spark and from the service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from examples.lease_table import LeaseFact

SHARD_END = "SHARD_END"

ROW = ("index", "key", "batch", "row", "task", "slot", "shard", "sequence", "airline")
"""Columns that a written departure needs for the check, in addition to its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFact:
    """A shard as the service lists it, and how many records it took."""

    shard: str
    parents: tuple[str, ...]
    open: bool
    records: int
    last: str | None
    """The sequence number of its last record; None without records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that the check looks at.

    `expected`: the departures with their `key`, the row at place i having `index` i.
    `departures`: the table written, with the columns of `expected` and `ROW`.
    `malformed`: the side table (`key`, `data`, `batch`, `task`, `slot`, `shard`, `sequence`).
    `spoilt`: the malformed records put, as (key, data).
    `tasks`: the most tasks that a stage of each batch had, as Spark counted them.
    `leases`: the lease table after the query had stopped, by shard.
    """

    expected: pa.Table
    departures: pa.Table
    malformed: pa.Table
    spoilt: tuple[tuple[str, bytes], ...]
    tasks: Mapping[int, int]
    slots: int
    shards: tuple[ShardFact, ...]
    splits: int
    merges: int
    leases: Mapping[str, LeaseFact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One promise, and whether it was kept."""

    promise: str
    found: str
    kept: bool


def check(evidence: Evidence) -> list[Finding]:
    """Every promise of the demo."""
    promises: list[Callable[[Evidence], Finding]] = [
        _every_departure_once,
        _contents,
        _order,
        _malformed,
        _enriched,
        _tasks,
        _slots,
        _resharded,
        _all_shards_read,
        _leases_given_back,
    ]
    return [promise(evidence) for promise in promises]


def _every_departure_once(evidence: Evidence) -> Finding:
    wanted = evidence.expected.num_rows
    counts = Counter(evidence.departures["index"].to_pylist())
    missing = sum(index not in counts for index in range(wanted))
    repeated = sum(count - 1 for count in counts.values())
    foreign = sum(index is None or not 0 <= index < wanted for index in counts)
    return Finding(
        promise=f"each of the {wanted:,} departures exactly once",
        found=f"{missing:,} missing, {repeated:,} repeated, {foreign:,} unknown",
        kept=missing == repeated == foreign == 0,
    )


def _contents(evidence: Evidence) -> Finding:
    columns = evidence.expected.column_names
    found = evidence.departures.select(columns)
    known = pc.and_(
        pc.greater_equal(found["index"], 0), pc.less(found["index"], evidence.expected.num_rows)
    )
    found = found.filter(known)
    wanted = evidence.expected.take(found["index"])
    wrong = sum(_differences(found[name], wanted[name]) for name in columns)
    return Finding(
        promise=f"all {len(columns) - 2} columns as in the file, and the key",
        found=f"{found.num_rows * (len(columns) - 1):,} values compared, {wrong:,} differ",
        kept=wrong == 0 and found.num_rows > 0,
    )


def _differences(one: pa.ChunkedArray, other: pa.ChunkedArray) -> int:
    same = pc.fill_null(pc.equal(one, other), False)
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    return len(one) - int(pc.sum(pc.or_(same, both_null)).as_py() or 0)


def _order(evidence: Evidence) -> Finding:
    """The order in which Spark delivered a key's departures: by batch, then by row within it."""
    rows = evidence.departures.select(["key", "batch", "row", "index"]).sort_by(
        [("key", "ascending"), ("batch", "ascending"), ("row", "ascending")]
    )
    keys, places = rows["key"].combine_chunks(), rows["index"].combine_chunks()
    same_key = pc.equal(keys[1:], keys[:-1])
    backwards = pc.less_equal(places[1:], places[:-1])
    wrong = int(pc.sum(pc.and_(same_key, backwards)).as_py() or 0)
    planes = pc.count_distinct(keys).as_py()
    return Finding(
        promise="the departures of each key in the order in which they were put",
        found=f"{planes:,} keys, {wrong:,} departures out of order",
        kept=wrong == 0 and planes > 0,
    )


def _malformed(evidence: Evidence) -> Finding:
    wanted = Counter(evidence.spoilt)
    table = evidence.malformed
    found = Counter(zip(table["key"].to_pylist(), table["data"].to_pylist(), strict=True))
    missing = (wanted - found).total()
    surplus = (found - wanted).total()
    return Finding(
        promise=f"each of the {wanted.total():,} malformed records in the side table once",
        found=f"{missing:,} missing, {surplus:,} too many",
        kept=missing == surplus == 0,
    )


def _enriched(evidence: Evidence) -> Finding:
    nameless = evidence.departures["airline"].null_count
    return Finding(
        promise="each departure with its airline's name",
        found=f"{nameless:,} without",
        kept=nameless == 0,
    )


def _tasks(evidence: Evidence) -> Finding:
    """By Spark's own count of the tasks of each stage, and by the tasks in the rows."""
    tasks = (
        _rows_of_all_tables(evidence, "batch", "task")
        .group_by("batch")
        .aggregate([("task", "count_distinct")])
    )
    in_rows = max(tasks["task_count_distinct"].to_pylist(), default=0)
    batches = set(tasks["batch"].to_pylist())
    uncounted = len(batches - evidence.tasks.keys())
    most = max(in_rows, *evidence.tasks.values(), 0)
    return Finding(
        promise=f"never more than {evidence.slots} tasks in a batch",
        found=f"at most {most}, in {len(batches):,} batches with records"
        + (f"; {uncounted:,} batches not counted" if uncounted else ""),
        kept=0 < most <= evidence.slots and uncounted == 0,
    )


def _slots(evidence: Evidence) -> Finding:
    """A task reads one slot, and a shard stays in one slot."""
    rows = _rows_of_all_tables(evidence, "batch", "task", "slot", "shard")
    by_task = rows.group_by(["batch", "task"]).aggregate([("slot", "count_distinct")])
    by_shard = rows.group_by("shard").aggregate([("slot", "count_distinct")])
    mixed = sum(count != 1 for count in by_task["slot_count_distinct"].to_pylist())
    moved = sum(count != 1 for count in by_shard["slot_count_distinct"].to_pylist())
    return Finding(
        promise="one slot for each task, and no shard changes its slot",
        found=f"{mixed:,} tasks with several slots, {moved:,} shards moved",
        kept=mixed == moved == 0 and rows.num_rows > 0,
    )


def _resharded(evidence: Evidence) -> Finding:
    children = Counter(fact.parents[0] for fact in evidence.shards if len(fact.parents) == 1)
    splits = len(children)
    merges = sum(len(fact.parents) == 2 for fact in evidence.shards)
    return Finding(
        promise=f"the stream split {_times(evidence.splits)} and merged {_times(evidence.merges)}",
        found=f"split {_times(splits)}, merged {_times(merges)}, {len(evidence.shards)} shards",
        kept=splits == evidence.splits and merges == evidence.merges,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _all_shards_read(evidence: Evidence) -> Finding:
    """Check that each shard's records are in the tables, as many as the service took, each once."""
    rows = _rows_of_all_tables(evidence, "shard", "sequence")
    read = Counter(rows["shard"].to_pylist())
    wrong = [fact.shard for fact in evidence.shards if read[fact.shard] != fact.records]
    unread = [fact.shard for fact in evidence.shards if read[fact.shard] == 0]
    distinct = rows.group_by(["shard", "sequence"]).aggregate([]).num_rows
    return Finding(
        promise="each shard read to its last record, each record once",
        found=f"{len(evidence.shards) - len(unread)} of {len(evidence.shards)} shards read, "
        f"{len(wrong)} not as the service counted, {rows.num_rows - distinct:,} records twice",
        kept=not wrong and not unread and distinct == rows.num_rows and rows.num_rows > 0,
    )


def _leases_given_back(evidence: Evidence) -> Finding:
    """Check that an open shard's lease is at its last record, a closed one's at the end (or deleted
    with leases of its children), and that no shard has an owner."""
    behind = [fact.shard for fact in evidence.shards if not _is_where_it_ended(fact, evidence)]
    held = sum(
        lease.owner is not None and lease.checkpoint != SHARD_END
        for lease in evidence.leases.values()
    )
    return Finding(
        promise="the lease table ends where the query did, and every shard is given back",
        found=f"{len(evidence.leases)} leases, {len(behind)} not at the last record, {held} held",
        kept=not behind and held == 0 and len(evidence.leases) > 0,
    )


def _is_where_it_ended(fact: ShardFact, evidence: Evidence) -> bool:
    lease = evidence.leases.get(fact.shard)
    if fact.open:
        return lease is not None and (lease.checkpoint == fact.last or fact.last is None)
    if lease is not None:
        return lease.checkpoint == SHARD_END
    children = [child.shard for child in evidence.shards if fact.shard in child.parents]
    return bool(children)


def _rows_of_all_tables(evidence: Evidence, *columns: str) -> pa.Table:
    names = list(columns)
    return pa.concat_tables([evidence.departures.select(names), evidence.malformed.select(names)])
