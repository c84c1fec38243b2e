"""The counts of a stream in the progress: shards by state, reshards, leases by owner."""

from __future__ import annotations

import json

from spark_ssp.checkpoint.leases.lease import Lease, Processed, Progress, ShardEnded
from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName, WorkerId
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import SequenceNumber, ShardEnd, ShardState, TrimHorizon
from spark_ssp.kinesis_source.probing.alignment import Alignment
from spark_ssp.kinesis_source.probing.shard_lag import MAX_REPORTED_SHARDS, progress_entry
from spark_ssp.kinesis_source.reader_activity import (
    MAX_LISTED_OWNERS,
    MAX_LISTED_SHARDS,
    alignment_entry,
    count_reshards,
    lease_entry,
    new_shards,
    shard_entry,
)
from tests.support.kinesis.planning import listed, shard_id
from tests.support.kinesis.shards import key

ORDERS = StreamName("orders")
LISTING = {
    shard.shard_id: shard
    for shard in (
        listed(0, closed=True),
        listed(1, closed=True),
        listed(2, closed=True),
        listed(3, 0),
        listed(4, 0),
        listed(5, 1, 2),
        listed(6),
    )
}
"""0 was split into 3 and 4, 1 and 2 were merged into 5; 6 is open."""


def offset(*reading: int, ended: tuple[int, ...] = ()) -> Offset:
    states = {key(n): ShardState(position=TrimHorizon()) for n in reading}
    states |= {key(n): ShardState(position=ShardEnd()) for n in ended}
    return Offset(slots=1, assignment=dict.fromkeys(states, SlotId(0)), states=states)


def test_splits_and_merges_are_counted_once() -> None:
    start = offset(0, 1, 2, 6)
    new = new_shards(start, offset(3, 5, 6), {ORDERS: LISTING})
    assert new == {key(3): (shard_id(0),), key(5): (shard_id(1), shard_id(2))}
    assert count_reshards(new, {}) == 2
    sibling = new_shards(start, offset(3, 4, 5, 6), {ORDERS: LISTING})
    assert count_reshards(sibling, new) == 0


def test_a_reshard_is_counted_where_the_batch_reads_the_parents_too() -> None:
    new = new_shards(Offset(), offset(3, 4, 6, ended=(0,)), {ORDERS: LISTING})
    assert count_reshards(new, {}) == 1


def test_shards_that_a_query_starts_with_are_no_reshard() -> None:
    assert new_shards(Offset(), offset(3, 4, 5, 6), {ORDERS: LISTING}) == {}


def test_shards_are_counted_by_state_and_only_exceptional_ones_listed() -> None:
    waiting = [shard_id(n) for n in (3, 4, 5)]
    lagging = [*(shard_id(n) for n in (0, 1, 2, 6)), *waiting]
    entry = shard_entry(ORDERS, offset(1, 2, 6, ended=(0,)), LISTING, lagging, {})
    assert entry == {
        "shards": {"open": 1, "closed": 2, "waiting": 3, "ended": 1},
        "closedShards": [shard_id(1), shard_id(2)],
    }
    recent = {key(4): (shard_id(0),), ShardKey(stream=StreamName("x"), shard=shard_id(9)): ()}
    later = shard_entry(ORDERS, offset(3, 4, 5, 6), LISTING, [], recent)
    assert later["parents"] == {shard_id(4): [shard_id(0)]}
    assert "closedShards" not in later


def test_the_lists_of_a_large_reshard_are_bounded() -> None:
    many = range(2 * MAX_LISTED_SHARDS)
    listing = {shard_id(n): listed(n, n, closed=True) for n in many}
    recent = {key(n): (shard_id(n),) for n in many}
    entry = shard_entry(ORDERS, offset(*many), listing, [], recent)
    assert len(entry["closedShards"]) == len(entry["parents"]) == MAX_LISTED_SHARDS
    assert entry["shards"]["closed"] == len(many)


def test_the_part_of_a_stream_stays_below_16_kb_at_any_number_of_shards() -> None:
    shards = range(5_000, 10_000)
    listing = {shard_id(n): listed(n, n, closed=True) for n in shards}
    merged = {key(n): (shard_id(n), shard_id(n + 1)) for n in shards}
    week = 7 * 86_400_000
    rows = [
        lease(n, f"{n:04d}-{'driver' * 8}", Processed(sequence_number=SequenceNumber("7")))
        for n in shards
    ]
    alignment = Alignment(spread_ms=week, holds_back=key(7_000), left_behind=frozenset(merged))
    entry = {
        **progress_entry({shard_id(n): week - n for n in shards}),
        **shard_entry(ORDERS, offset(*shards), listing, [], merged),
        **lease_entry(rows, list(listing), stale=len(rows)),
        **alignment_entry(ORDERS, alignment),
    }
    assert len(json.dumps({ORDERS: entry})) < 16_000
    assert entry["shardsNotShown"] == len(shards) - MAX_REPORTED_SHARDS


def lease(number: int, owner: str | None, progress: Progress) -> Lease:
    worker = None if owner is None else WorkerId(owner)
    return Lease(shard=shard_id(number), counter=1, progress=progress, owner=worker)


def test_leases_are_counted_by_owner_without_those_of_ended_shards() -> None:
    reading, ended = Processed(sequence_number=SequenceNumber("7")), ShardEnded()
    rows = [
        lease(0, "anne", ended),
        lease(1, "bert", reading),
        lease(2, "anne", reading),
        lease(3, "bert", reading),
        lease(4, None, reading),
    ]
    counts = {"owners": {"anne": 1, "bert": 2}, "free": 1}
    assert lease_entry(rows) == {"leases": counts}
    for stale in (2, None):
        assert lease_entry(rows, stale=stale) == {"leases": counts | {"stale": stale}}
    assert lease_entry(rows, [ShardId("a"), ShardId("b")]) == {
        "leases": counts | {"notRead": 2},
        "notReadShards": ["a", "b"],
    }
    crowd = [lease(n, f"worker-{n:02d}", reading) for n in range(MAX_LISTED_OWNERS + 3)]
    found = lease_entry([*crowd, *rows])["leases"]
    assert len(found["owners"]) == MAX_LISTED_OWNERS
    assert found["owners"]["bert"] == 2
    assert sum(found["owners"].values()) + found["others"] == len(crowd) + 3
