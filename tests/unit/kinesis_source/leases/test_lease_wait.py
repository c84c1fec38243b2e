"""For which leases a query waits: before its first batch, and at the end of a run to the tip."""

from __future__ import annotations

from checkpoint.leases.checkpoint_position import ShardEnded
from checkpoint.leases.lease import Lease
from kinesis_source.leases.lease_planning import LeaseTableView
from kinesis_source.leases.lease_wait import (
    WAIT_FAILOVERS,
    LeaseWait,
    claimable_shards,
    update_wait,
)
from kinesis_source.model.shard import SequenceNumber, Shard
from kinesis_source.planning.active_shards import Listings
from task_grouping.identifiers import MAX_HASH_KEY, HashRange, ShardKey, StreamName
from tests.support.kinesis.shards import key
from tests.support.leases.values import ANNE, BERT, lease

FAILOVER_MS = 10_000


def listings(*numbers: int, child: int | None = None) -> Listings:
    """Shards without parents, and perhaps one whose parent is 0."""
    every = [*numbers, *([] if child is None else [child])]
    return {
        StreamName("orders"): {
            key(n).shard: Shard(
                shard_id=key(n).shard,
                parents=(key(0).shard,) if n == child else (),
                hash_range=HashRange(first=0, last=MAX_HASH_KEY),
                first_sequence_number=SequenceNumber("1"),
                closed=False,
            )
            for n in every
        }
    }


def table(*rows: Lease, held: tuple[int, ...] = ()) -> LeaseTableView:
    return LeaseTableView(
        worker=ANNE,
        rows={key(int(row.shard[-3:])): row for row in rows},
        held=frozenset(key(n) for n in held),
        requested=frozenset(),
    )


def row(number: int, owner: object = None, counter: int = 0, *, ended: bool = False) -> Lease:
    more = {"progress": ShardEnded()} if ended else {}
    return lease(key(number).shard, owner=owner, counter=counter, **more)


# --- Free -----------------------------------------------------------------------------------------


def test_what_is_nobodys_is_free() -> None:
    rows = table(row(0), row(1, ANNE), row(2, BERT), row(3, ended=True), held=(1,))
    assert claimable_shards(rows, listings(0, 1, 2, 3, 4), (), None) == [key(0)]
    assert claimable_shards(rows, listings(0, 1, 2, 3, 4), {key(4)}, None) == [key(0), key(4)]


def test_a_child_is_free_once_its_parent_has_ended() -> None:
    assert claimable_shards(table(row(0, BERT), row(5)), listings(0, child=5), (), None) == []
    ended = table(row(0, BERT, ended=True), row(5))
    assert claimable_shards(ended, listings(0, child=5), (), None) == [key(5)]


def test_nothing_is_free_for_a_worker_that_holds_all_it_may() -> None:
    rows = table(row(0), row(1, ANNE), held=(1,))
    assert claimable_shards(rows, listings(0, 1), (), 1) == []
    assert claimable_shards(rows, listings(0, 1), (), 2) == [key(0)]


# --- The end of a run -----------------------------------------------------------------------------


def look(
    before: LeaseWait, *rows: Lease, reading: tuple[int, ...] = (), now_ms: int = 0
) -> tuple[LeaseWait, list[ShardKey]]:
    seen, shards = table(*rows), listings(*(int(each.shard[-3:]) for each in rows))
    found = update_wait(
        before,
        seen,
        shards,
        claimable=claimable_shards(seen, shards, (), None),
        reading={key(n) for n in reading},
        now_ms=now_ms,
    )
    return found, list(found.pending)


def test_all_is_read_when_every_shard_is_done_or_read() -> None:
    found, pending = look(LeaseWait(), row(0, ended=True), row(1, ANNE), reading=(1,))
    assert pending == []
    assert found.is_over(0, FAILOVER_MS)


def test_another_worker_counts_once_it_has_renewed() -> None:
    first, pending = look(LeaseWait(), row(0, BERT, 7))
    assert pending == [key(0)]
    assert not first.is_over(0, FAILOVER_MS)
    again, pending = look(first, row(0, BERT, 7))
    assert pending == [key(0)]
    renewed, pending = look(again, row(0, BERT, 8))
    assert pending == []
    assert renewed.is_over(0, FAILOVER_MS)


def test_a_lease_of_mine_that_is_not_read_is_about_to_go() -> None:
    assert look(LeaseWait(), row(0, ANNE))[1] == [key(0)]
    assert look(LeaseWait(), row(0, ANNE), reading=(0,))[1] == []


def test_patience_ends_when_nothing_changes() -> None:
    first, _ = look(LeaseWait(), row(0), row(1), now_ms=1000)
    changed, _ = look(first, row(0, ANNE), row(1), reading=(0,), now_ms=30_000)
    late = 30_000 + WAIT_FAILOVERS * FAILOVER_MS
    same, pending = look(changed, row(0, ANNE), row(1), reading=(0,), now_ms=late)
    assert pending == [key(1)]
    assert not same.is_over(late, FAILOVER_MS)
    assert same.is_over(late + 1, FAILOVER_MS)
