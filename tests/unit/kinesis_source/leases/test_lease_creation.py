"""Which rows of leases are created, and in which order: without an agent."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint.leases.checkpoint_position import ShardEnded, StartAtTrimHorizon
from checkpoint.leases.lease import Lease
from kinesis_source.leases.lease_creation import (
    MissingLeases,
    creatable_leases,
    find_missing,
    find_skipped,
    new_lease,
)
from kinesis_source.leases.lease_planning import can_start
from kinesis_source.model.shard import (
    Position,
    ShardState,
)
from tests.support.kinesis.shards import key
from tests.support.leases.tables import (
    END,
    FAMILY,
    NAMES,
    ORDERS,
    TRIM,
    after,
    listing,
    row,
    table,
)
from tests.support.leases.values import lease, processed


def lacking(
    shards: Mapping[int, tuple[int, ...]],
    rows: tuple[Lease, ...] = (),
    entries: Mapping[int, ShardState] = {},
    unreadable: tuple[int, ...] = (),
) -> tuple[dict[int, object], set[int]]:
    found: MissingLeases = find_missing(
        listing(shards),
        {each.shard: each for each in rows},
        {key(n).shard: state for n, state in entries.items()},
        [key(n).shard for n in unreadable],
    )
    known = {int(shard[-3:]): state.position for shard, state in found.known.items()}
    return dict(known), {int(shard[-3:]) for shard in found.unrelated}


def test_an_empty_table_is_filled_by_the_option() -> None:
    assert lacking(FAMILY) == ({}, {0, 1, 2, 3, 4})


def test_a_full_table_lacks_nothing() -> None:
    assert lacking(FAMILY, tuple(row(n) for n in FAMILY)) == ({}, set())


def test_what_has_a_descendant_is_finished() -> None:
    assert lacking(FAMILY, (row(2), row(4))) == ({}, set())


def test_a_child_gets_its_row_once_all_its_parents_are_done() -> None:
    ended = ShardEnded()
    rows = (row(0, progress=ended), row(1), row(2), row(3, progress=ended))
    assert lacking(FAMILY, rows) == ({}, set())
    rows = (row(0, progress=ended), row(1, progress=ended), row(2), row(3, progress=ended))
    assert lacking(FAMILY, rows) == ({4: TRIM}, set())
    # 0 has expired, and its row is cleaned up.
    assert lacking({2: (0,), 3: (0,)}, (row(0, progress=ended),)) == ({2: TRIM, 3: TRIM}, set())


def test_a_row_that_cannot_be_read_is_there_and_has_not_ended() -> None:
    assert lacking({0: (), 1: ()}, (row(1),), unreadable=(0,)) == ({}, set())
    rows = (row(0, progress=ShardEnded()), row(2))
    assert lacking(FAMILY, (*rows, row(1)), unreadable=(3,)) == ({}, set())
    assert lacking(FAMILY, (*rows, row(3, progress=ShardEnded())), unreadable=(1,)) == ({}, set())
    assert lacking(FAMILY, rows, {3: ShardState(position=after(9))}, (3, 1)) == ({}, set())


def test_a_worker_that_died_while_creating_rows_is_made_good() -> None:
    assert lacking({0: (), 1: (), 2: ()}, (row(1),)) == ({}, {0, 2})


def test_a_query_that_had_no_leases_brings_its_positions() -> None:
    positions: dict[int, Position] = {1: END, 2: after(9), 3: TRIM}
    entries = {n: ShardState(position=position) for n, position in positions.items()}
    assert lacking(FAMILY, (), entries) == (positions, set())


def test_the_children_of_a_shard_that_expired_begin_at_their_beginning() -> None:
    entries = {0: ShardState(position=after(9)), 1: ShardState(position=after(9))}
    assert lacking({1: (), 2: (0,), 3: (0,)}, (), entries) == (
        {1: after(9), 2: TRIM, 3: TRIM},
        set(),
    )


def test_an_old_checkpoint_does_not_bring_back_what_others_have_finished() -> None:
    entries = {0: ShardState(position=after(9))}
    rows = (row(2, progress=processed(5)), row(3, progress=processed(5)), row(1))
    assert lacking(FAMILY, rows, entries) == ({}, set())


def test_a_row_is_created_once_those_of_its_ancestors_are_there() -> None:
    shards = {ORDERS: listing(FAMILY)}
    assert creatable_leases([key(n) for n in FAMILY], shards) == {key(0), key(1)}
    assert creatable_leases([key(0), key(4)], shards) == {key(0)}  # the generation between is there
    assert creatable_leases([key(3), key(4)], shards) == {key(3)}
    assert creatable_leases([key(4)], shards) == {key(4)}


def test_a_generation_that_the_start_skips_is_left_out() -> None:
    at = ShardState(position=TRIM)
    points = {key(n).shard: at for n in (0, 1, 2, 4)}
    assert find_skipped(listing(FAMILY), points) == {key(3).shard}
    assert find_skipped(listing(FAMILY), {key(n).shard: at for n in (0, 1)}) == frozenset()
    assert find_skipped(listing(FAMILY), {key(n).shard: at for n in (2, 4)}) == frozenset()


def test_a_grandchild_waits_for_its_ancestors_where_a_generation_is_skipped() -> None:
    shards = {ORDERS: listing(FAMILY)}
    rows = [row(1, progress=ShardEnded()), row(2), row(4)]
    for between in ([], [row(3, progress=ShardEnded())]):
        assert not can_start(key(4), table(*rows, *between, row(0)), shards)
        ended = row(0, progress=ShardEnded())
        assert can_start(key(4), table(*rows, *between, ended), shards)


def test_a_new_row_is_nobodys_and_knows_its_family() -> None:
    shard = listing(FAMILY)[key(4).shard]
    made = new_lease(key(4), shard, ShardState(position=TRIM), NAMES)
    assert made == lease(
        key(4).shard,
        progress=StartAtTrimHorizon(),
        parents=shard.parents,
        hash_range=shard.hash_range,
        extra_attributes={"sspStream": {"S": "orders"}},
    )
    assert (made.owner, made.counter) == (None, 0)
