"""The verdict on each shard, and what follows from it: without an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.checkpoint.coordination.protocol import Status
from spark_ssp.checkpoint.leases.lease import (
    Lease,
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
)
from spark_ssp.common import structs
from spark_ssp.grouping.identifiers import (
    ShardId,
    ShardKey,
)
from spark_ssp.kinesis_source.leases.lease_decision import (
    Create,
    Decision,
    Elsewhere,
    Facts,
    Finished,
    Hole,
    Lost,
    NotRead,
    Verdict,
    Waiting,
    decide,
    find_skipped,
    overtaken,
)
from spark_ssp.kinesis_source.leases.lease_session import (
    WAIT_FAILOVERS,
    LeaseWait,
    ahead_of_checkpoint,
    claimable_shards,
    creatable_leases,
    departed,
    new_lease,
    repeated_checkpoint,
    start_checkpoints,
    still_held,
    update_wait,
)
from spark_ssp.kinesis_source.leases.lease_table import LeaseTableView, lease_table_view
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset, StreamEntry
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Latest,
    Position,
    Shard,
    ShardState,
    StartingPosition,
)
from tests.support.kinesis.shards import key
from tests.support.leases.tables import (
    END,
    FAMILY,
    FROM_TRIM,
    NAMES,
    ORDERS,
    SPLIT,
    TRIM,
    after,
    listing,
    offset,
    row,
    table,
)
from tests.support.leases.values import ANNE, BERT, CARL, lease, processed

NOON = AtTimestamp(millis=EpochMillis(43_200_000))
SEEN, LATER = EpochMillis(43_200_077), EpochMillis(43_200_099)


def shared(
    start: Offset, found: LeaseTableView, shards: Mapping[ShardId, Shard] = SPLIT, **facts: Any
) -> Decision:
    return decide(start, found, {ORDERS: shards}, Facts(**({"option": FROM_TRIM} | facts)))


def can_start(number: int, found: LeaseTableView, shards: Mapping[ShardId, Shard]) -> bool:
    """Return whether a shard is read as soon as its lease is held."""
    held = replace(found, held=frozenset({key(number)}))
    return key(number) in shared(offset({}), held, shards).reading


def test_a_shard_that_comes_back_goes_on_where_it_left() -> None:
    left = {key(1): ShardState(position=after(9), last_caught_up_ms=EpochMillis(5))}
    behind = table(row(1, owner=ANNE, progress=processed(7)), held=(1,))
    found = shared(structs.replace(offset({}), lost_shards=left), behind)
    assert (found.states, found.resume_from) == (left, left)
    ahead = table(row(1, owner=ANNE, progress=processed(12)), held=(1,))
    found = shared(structs.replace(offset({}), lost_shards=left), ahead)
    assert found.resume_from == {key(1): ShardState(position=after(12))}
    not_mine = table(row(1, owner=BERT, progress=processed(12)))
    found = shared(structs.replace(offset({}), lost_shards=left), not_mine)
    assert (found.states, found.dropped) == ({}, {})


@pytest.mark.parametrize(
    ("stood", "its_row", "kept"),
    [
        (after(9), row(1, owner=BERT, progress=processed(7)), True),
        (after(9), row(1, owner=BERT, progress=processed(9)), False),
        (after(9), row(1, owner=BERT, progress=StartAtTrimHorizon()), True),
        (after(9), row(1, owner=BERT, progress=ShardEnded()), False),
        (TRIM, row(1, owner=BERT, progress=StartAtTrimHorizon()), False),
        (END, row(1, owner=BERT, progress=processed(9)), True),
        (after(9), None, True),
    ],
)
def test_a_shard_that_leaves_stays_known_until_its_row_is_as_far(
    stood: Position, its_row: Lease | None, kept: bool
) -> None:
    state = ShardState(position=stood, last_caught_up_ms=EpochMillis(5))
    seen = table(*([] if its_row is None else [its_row]))
    for start in (offset({1: state}), structs.replace(offset({}), lost_shards={key(1): state})):
        found = shared(start, seen)
        assert departed(start, (), seen, found) == ({key(1): state} if kept else {})
        assert departed(start, {key(1)}, seen, found) == {}


def test_a_shard_without_a_row_stays_known_while_it_may_get_one() -> None:
    start = structs.replace(
        offset({}), lost_shards={key(n): ShardState(position=after(9)) for n in (0, 7)}
    )
    for seen, left in ((table(), {key(0)}), (table(row(2)), set())):
        assert departed(start, (), seen, shared(start, seen)).keys() == left


# --- Which shards ---------------------------------------------------------------------------------


def test_only_what_is_held_is_read() -> None:
    found = shared(BEFORE_FIRST_BATCH, table(row(0, owner=ANNE), row(1, owner=BERT), held=(0,)))
    assert found.states == {key(0): ShardState(position=TRIM)}
    assert found.resume_from == found.states
    assert found.reading == {key(0)}


def test_a_shard_goes_on_where_the_offset_is() -> None:
    state = ShardState(position=after(9), last_caught_up_ms=EpochMillis(5))
    found = shared(offset({1: state}), table(row(1, owner=ANNE, progress=processed(7)), held=(1,)))
    assert found.states == {key(1): state}
    assert found.resume_from == {}


def test_a_shard_goes_on_where_its_row_is_when_that_is_further() -> None:
    state = ShardState(position=after(9), last_caught_up_ms=EpochMillis(5))
    found = shared(offset({1: state}), table(row(1, owner=ANNE, progress=processed(12)), held=(1,)))
    assert found.states == {key(1): ShardState(position=after(12))}
    assert found.resume_from == {key(1): ShardState(position=after(12))}


def test_a_shard_of_which_the_offset_knows_nothing_begins_where_its_row_is() -> None:
    found = shared(offset({}), table(row(1, owner=ANNE, progress=processed(12)), held=(1,)))
    assert found.resume_from == {key(1): ShardState(position=after(12))}


def test_a_kcls_latest_is_to_be_found_out() -> None:
    found = shared(offset({}), table(row(1, owner=ANNE, progress=StartAtLatest()), held=(1,)))
    assert found.unresolved == [key(1)]
    assert found.states == {}
    assert found.reading == {key(1)}


def test_a_lost_shard_leaves_and_it_is_said_who_has_it() -> None:
    state = ShardState(position=after(9))
    assert shared(offset({1: state}), table(row(1, owner=BERT))).dropped == {
        key(1): "its lease is held by bert"
    }
    assert shared(offset({1: state}), table(row(1))).dropped == {
        key(1): "its lease is held by no worker"
    }
    assert shared(offset({1: state}), table(row(1, owner=ANNE))).dropped == {
        key(1): "its lease may have expired"
    }
    ended = row(1, owner=BERT, progress=ShardEnded())
    assert shared(offset({1: state}), table(ended)).dropped == {key(1): "finished"}
    start = offset({0: state})
    assert "cleaned up" in shared(start, table(row(2), row(3))).dropped[key(0)]
    assert "missing" in shared(offset({1: state}), table()).dropped[key(1)]
    assert "cannot be read" in shared(offset({1: state}), table(unreadable=(1,))).dropped[key(1)]


def test_a_shard_that_somebody_asked_for_leaves() -> None:
    asked = row(1, owner=BERT, checkpoint_owner=ANNE)
    found = shared(offset({1: ShardState(position=after(9))}), table(asked, held=(1,), asked=(1,)))
    assert found.states == {}
    assert found.dropped == {key(1): "handed over to bert"}
    surplus = table(row(1, owner=ANNE), held=(1,), asked=(1,))
    assert shared(offset({1: ShardState(position=after(9))}), surplus).dropped == {
        key(1): "its lease is released"
    }


@pytest.mark.parametrize(
    ("parent", "reads"),
    [
        (row(0, owner=BERT), False),
        (row(0, owner=BERT, progress=processed(3)), False),
        (row(0, owner=BERT, progress=ShardEnded()), True),
        (None, True),
    ],
)
def test_a_child_waits_for_its_parents_row_to_end(parent: Lease | None, reads: bool) -> None:
    rows = [row(2, owner=ANNE), *([] if parent is None else [parent])]
    found = shared(offset({}), table(*rows, held=(2,)))
    assert (key(2) in found.states) is reads


def test_a_child_inherits_the_proof_of_its_parents() -> None:
    start = offset({0: ShardState(position=END, last_caught_up_ms=EpochMillis(77))})
    rows = (row(0, owner=ANNE, progress=ShardEnded()), row(2, owner=ANNE))
    assert shared(start, table(*rows, held=(2,))).states == {
        key(2): ShardState(position=TRIM, last_caught_up_ms=EpochMillis(77))
    }


def test_latest_is_its_own_proof() -> None:
    """The application has read, or will read, all that arrived since."""
    seen = table(row(1, owner=ANNE, progress=StartAtLatest(since_ms=NOON.millis)), held=(1,))
    assert shared(offset({}), seen).states == {
        key(1): ShardState(position=NOON, last_caught_up_ms=NOON.millis)
    }


def test_a_start_beside_a_parent_that_is_skipped_proves_nothing() -> None:
    """A start by shard: older records of the child were not promised."""
    rows = table(row(0, progress=ShardEnded()), row(2, owner=ANNE), held=(2,))
    found = shared(BEFORE_FIRST_BATCH, rows, created={ORDERS: EpochMillis(7)})
    assert found.states == {key(2): ShardState(position=TRIM)}


def test_the_checkpoint_of_a_start_has_only_times_that_are_of_it() -> None:
    at = {
        0: ShardState(position=TRIM, last_caught_up_ms=SEEN),
        1: ShardState(position=NOON, last_caught_up_ms=SEEN),
        2: ShardState(position=NOON, last_caught_up_ms=SEEN),
        3: ShardState(position=TRIM, last_caught_up_ms=SEEN),
        4: ShardState(position=TRIM, last_caught_up_ms=SEEN),
    }
    rows = table(
        row(0),
        row(1),
        row(2, progress=StartAtLatest()),
        row(3, progress=StartAtLatest()),
        row(4, progress=StartAtTrimHorizon(last_caught_up_ms=EpochMillis(SEEN - 99))),
    )
    assert start_checkpoints({}, offset(at), rows, {ORDERS: 100}) == {
        key(0): StartAtTrimHorizon(last_caught_up_ms=SEEN),
        key(2): StartAtLatest(since_ms=NOON.millis, last_caught_up_ms=SEEN),
        key(3): StartAtLatest(since_ms=SEEN),
    }


def test_a_missing_lease_of_a_child_is_created_with_a_proof() -> None:
    """Another worker has read the parent: the child is younger than the stream."""
    rows = table(row(0, progress=ShardEnded()), row(1, progress=processed(5)))
    found = shared(offset({}), rows, created={ORDERS: EpochMillis(7)})
    proven = Create(state=ShardState(position=TRIM, last_caught_up_ms=EpochMillis(7)))
    assert set(found.creations.values()) == {proven}


def test_a_shard_that_was_read_to_its_end_stays_until_its_row_says_so() -> None:
    start = offset({0: ShardState(position=END)})
    for held in ((0,), ()):  # the agent holds it, or is just writing its end
        found = shared(start, table(row(0, owner=ANNE, progress=processed(9)), held=held))
        assert found.states == {key(0): ShardState(position=END)}
        assert found.ended == {key(0): (key(2), key(3))}
        assert found.reading == frozenset()
    done = shared(start, table(row(0, owner=ANNE, progress=ShardEnded())))
    assert (done.states, done.dropped) == ({}, {key(0): "finished"})
    lost = shared(start, table(row(0, owner=BERT, progress=processed(9))))
    assert (lost.states, lost.dropped) == ({}, {key(0): "its lease is held by bert"})


def test_an_end_without_children_waits_for_their_discovery() -> None:
    start = offset({1: ShardState(position=END)})
    found = shared(start, table(row(1, owner=ANNE), held=(1,)))
    assert found.undiscovered == [ORDERS]
    assert found.ended == {}
    assert found.reading == {key(1)}


def test_a_held_shard_that_is_not_listed_any_more_has_vanished() -> None:
    seen = table(row(9, owner=ANNE), held=(9,))
    found = shared(offset({}), seen, expired={key(9)})
    assert found.lost == {key(9): Lost(at_end=False, children=())}
    assert found.ended == {key(9): ()}
    at_end = offset({9: ShardState(position=END)})
    found = shared(at_end, table(row(9, owner=ANNE), held=(9,)))
    assert found.lost == {key(9): Lost(at_end=True, children=())}


def test_a_held_shard_that_the_listing_does_not_show_yet_is_left_alone() -> None:
    found = shared(offset({}), table(row(9, owner=ANNE), held=(9,)))
    assert found.unlisted == [key(9)]
    assert (found.lost, found.ended, found.reading) == ({}, {}, frozenset())


def test_what_was_not_said_to_be_read_is_not_read() -> None:
    found = shared(
        offset({1: ShardState(position=after(9))}),
        table(row(0, owner=ANNE), row(1, owner=ANNE), held=(0, 1)),
    )
    later = table(row(0, owner=ANNE), row(1, owner=BERT), held=(0,))
    for reading, left in (({key(0), key(1)}, {key(0)}), ({key(1)}, set())):
        kept = Decision(verdicts=still_held(found, later, reading))
        assert kept.states.keys() == left


@pytest.mark.parametrize(
    ("leases", "rows", "lost"),
    [
        (None, (), True),
        (None, (row(1),), True),
        (None, (row(2, parents=(key(0).shard,)),), False),
        ("old", (row(1),), True),
        ("etl", (), True),  # emptied
        ("etl", (row(1),), True),  # its children's rows were not created
        ("etl", (row(1), row(2)), False),  # cleaned up
    ],
)
@pytest.mark.parametrize("position", [after(9), END])
def test_a_shard_that_expired_before_it_had_a_row_is_lost(
    leases: str | None, rows: tuple[Lease, ...], lost: bool, position: Position
) -> None:
    start = offset({0: ShardState(position=position)})
    start = structs.replace(
        start, streams={ORDERS: StreamEntry(created=EpochMillis(1), leases=leases)}
    )
    shards = listing({1: (), 2: (0,), 3: (0,)})
    found = shared(start, table(*rows), shards, table="etl")
    assert found.lost == ({key(0): Lost(at_end=position == END)} if lost else {})
    assert (key(0) in found.dropped) is not lost


def test_it_is_known_whether_the_lease_or_the_checkpoint_is_further() -> None:
    start = offset({n: ShardState(position=after(9)) for n in (0, 1)})
    seen = table(
        row(0, owner=ANNE, progress=processed(7)),
        row(1, owner=ANNE, progress=processed(12)),
        held=(0, 1),
    )
    found = shared(start, seen)
    both = {key(0): "the checkpoint", key(1): "the lease"}
    assert ahead_of_checkpoint(found, start, seen, restarted=True) == both
    assert ahead_of_checkpoint(found, start, seen, restarted=False) == {key(1): "the lease"}
    back = structs.replace(offset({}), lost_shards=start.states)
    assert ahead_of_checkpoint(shared(back, seen), back, seen, restarted=False) == both


# --- The table ------------------------------------------------------------------------------------


def status(*rows: Lease, held: tuple[int, ...], outage_ms: int = 0, **more: Any) -> Status:
    by_key = {each.key: each for each in rows}
    held_keys = [NAMES.key(key(n)) for n in held]
    fields: dict[str, Any] = {"asked_for": frozenset(), "released": False, "problem": None}
    return Status(
        held={k: by_key[k] for k in held_keys},
        rows=by_key,
        outage_ms=outage_ms,
        **(fields | more),
    )


def test_in_an_outage_what_is_read_goes_on() -> None:
    overdue = frozenset(NAMES.key(key(n)) for n in (0, 1))
    rows = row(0, owner=ANNE), row(1, owner=ANNE)
    calm = status(*rows, held=(), overdue=overdue)
    assert lease_table_view(calm, NAMES, ANNE, {key(0)}).held == frozenset()
    outage = status(*rows, held=(), overdue=overdue, outage_ms=12_000)
    assert lease_table_view(outage, NAMES, ANNE, {key(0)}).held == {key(0)}


def test_stale_leases_are_those_of_shards() -> None:
    stale = frozenset(NAMES.key(key(n)) for n in (1, 7))
    found = lease_table_view(status(row(0), row(1), held=(), stale=stale), NAMES, ANNE, ())
    assert found.stale is not None
    assert set(found.stale) == {key(1)}
    assert lease_table_view(status(held=()), NAMES, ANNE, ()).stale is None


def test_a_parent_whose_row_cannot_be_read_is_not_done() -> None:
    spoilt = frozenset({NAMES.key(key(0))})
    found = lease_table_view(status(row(2), held=(), unreadable=spoilt), NAMES, ANNE, ())
    assert found.unreadable == {key(0)}
    assert not can_start(2, found, SPLIT)
    assert can_start(2, table(row(2)), SPLIT)


# --- Any number of workers ------------------------------------------------------------------------


@given(
    owners=st.dictionaries(
        st.integers(0, 4), st.sampled_from([ANNE, BERT, CARL, None]), min_size=1
    ),
    ended=st.sets(st.integers(0, 4)),
)
def test_a_shard_is_never_in_two_offsets(owners: dict[int, Any], ended: set[int]) -> None:
    shards = listing(FAMILY)
    rows = [
        row(n, owner=owner, progress=ShardEnded() if n in ended else StartAtTrimHorizon())
        for n, owner in owners.items()
    ]
    everywhere: list[ShardKey] = []
    for worker in (ANNE, BERT, CARL):
        seen = LeaseTableView(
            worker=worker,
            rows={key(int(each.shard[-3:])): each for each in rows},
            held=frozenset(
                key(n) for n, owner in owners.items() if owner == worker and n not in ended
            ),
            requested=frozenset(),
        )
        everywhere += shared(offset({}), seen, shards).states
    assert len(everywhere) == len(set(everywhere))
    for shard in everywhere:
        for parent in shards[shard.shard].parents:
            number = int(parent[-3:])
            assert number not in owners or number in ended


# --- Proofs ---------------------------------------------------------------------------------------


def test_a_proof_comes_with_the_lease() -> None:
    progress = structs.replace(processed(12), last_caught_up_ms=EpochMillis(77))
    found = shared(offset({}), table(row(1, owner=ANNE, progress=progress), held=(1,)))
    assert found.resume_from == {
        key(1): ShardState(position=after(12), last_caught_up_ms=EpochMillis(77))
    }


@pytest.mark.parametrize(
    ("progress", "position"),
    [
        (StartAtTrimHorizon(last_caught_up_ms=SEEN), TRIM),
        (
            StartAtTimestamp(at_ms=NOON.millis, last_caught_up_ms=SEEN),
            NOON,
        ),
        (
            StartAtLatest(since_ms=NOON.millis, last_caught_up_ms=SEEN),
            NOON,
        ),
    ],
)
def test_a_proof_comes_with_the_lease_of_a_shard_without_a_record(
    progress: Progress, position: Position
) -> None:
    seen = table(row(1, owner=ANNE, progress=progress), held=(1,))
    proven = ShardState(position=position, last_caught_up_ms=SEEN)
    assert shared(offset({}), seen).resume_from == {key(1): proven}
    for own in (None, EpochMillis(5), LATER):
        start = offset({1: ShardState(position=position, last_caught_up_ms=own)})
        latest = max(own or SEEN, SEEN)
        assert shared(start, seen).states == {
            key(1): ShardState(position=position, last_caught_up_ms=latest)
        }
    another = ShardState(position=AtTimestamp(millis=EpochMillis(3)))
    assert shared(offset({1: another}), seen).states == {key(1): another}


def test_a_proof_after_an_earlier_record_is_one_after_a_later_record() -> None:
    progress = structs.replace(processed(12), last_caught_up_ms=EpochMillis(77))
    seen = table(row(1, owner=ANNE, progress=progress), held=(1,))
    start = offset({1: ShardState(position=after(13), last_caught_up_ms=EpochMillis(5))})
    later = {key(1): ShardState(position=after(13), last_caught_up_ms=EpochMillis(77))}
    found = shared(start, seen)
    assert (found.states, found.resume_from) == (later, later)  # tasks need it too


@pytest.mark.parametrize(
    ("said", "now", "told"),
    [
        (None, (12, 1000), (12, 1000)),
        ((12, 1000), (12, 1999), (12, 1000)),
        ((12, 1000), (12, 2000), (12, 2000)),
        ((12, 1000), (13, 1001), (13, 1001)),
        ((12, None), (12, 1001), (12, 1001)),
        ((12, 1000), (12, None), (12, 1000)),
    ],
)
def test_a_later_proof_without_other_changes_is_rarely_reported(
    said: tuple[int, int | None] | None, now: tuple[int, int | None], told: tuple[int, int | None]
) -> None:
    def progress(what: tuple[int, int | None]) -> Processed:
        number, seen = what
        return structs.replace(
            processed(number), last_caught_up_ms=None if seen is None else EpochMillis(seen)
        )

    before = None if said is None else progress(said)
    assert repeated_checkpoint(before, progress(now), 1000) == progress(told)


# --- Shards without a row -------------------------------------------------------------------------


def lacking(
    shards: Mapping[int, tuple[int, ...]],
    rows: tuple[Lease, ...] = (),
    entries: Mapping[int, ShardState] = {},
    unreadable: tuple[int, ...] = (),
    **facts: Any,
) -> dict[int, Verdict]:
    """Return the verdicts on the shards without a row. The offset has the stream."""
    found = shared(
        offset(entries), table(*rows, unreadable=unreadable), listing(shards), **facts
    ).verdicts
    there = {each.shard for each in rows} | {key(n).shard for n in unreadable}
    return {n: found[key(n)] for n in shards if key(n).shard not in there}


def at(position: Position, *, is_hole: bool = False) -> Create:
    return Create(state=ShardState(position=position), is_hole=is_hole)


def waits(*numbers: int) -> Waiting:
    return Waiting(ancestors=tuple(key(n) for n in numbers))


HOLE, DONE = Hole(since_ms=0), Finished()
LATEST = StartingPosition(default=Latest())


def test_a_new_table_is_filled_by_the_option() -> None:
    def created(option: StartingPosition) -> dict[int, Verdict]:
        found = shared(BEFORE_FIRST_BATCH, table(), listing(FAMILY), option=option).verdicts
        return {int(each.shard[-3:]): verdict for each, verdict in found.items()}

    start = Create(state=None)
    below = {2: waits(0), 3: waits(0), 4: waits(1, 3)}
    assert created(FROM_TRIM) == {0: start, 1: start, **below}
    assert created(LATEST) == {0: DONE, 1: DONE, 2: start, 3: DONE, 4: start}
    assert created(StartingPosition(default=AtTimestamp(millis=EpochMillis(5)))) == dict.fromkeys(
        FAMILY, start
    )
    by_shard = StartingPosition(default=Latest(), by_shard={key(0): TRIM})
    assert created(by_shard) == {0: start, 1: DONE, 2: start, 3: at(END), 4: start}


def test_a_table_without_rows_is_filled_from_the_beginning() -> None:
    root = at(TRIM, is_hole=True)
    assert lacking(FAMILY, option=LATEST) == {
        0: root, 1: root, 2: waits(0), 3: waits(0), 4: waits(1, 3)
    }  # fmt: skip


def test_what_has_a_descendant_is_finished() -> None:
    rows = (row(2), row(4, progress=processed(5)))
    assert lacking(FAMILY, rows) == {0: DONE, 1: DONE, 3: DONE}


def test_a_merged_shard_that_was_not_begun_accounts_for_no_parent() -> None:
    """The first of its parents to end creates its row."""
    ended = row(1, progress=ShardEnded(), children=(key(4).shard,))
    assert lacking(FAMILY, (ended, row(2), row(4))) == {0: DONE, 3: HOLE}
    assert lacking(FAMILY, (ended, row(2), row(4)), {3: ShardState(position=after(9))}) == {
        0: DONE, 3: HOLE
    }  # fmt: skip
    assert lacking(FAMILY, (row(2), row(4)), confirmed={key(1), key(3)}) == {
        0: DONE, 1: at(TRIM, is_hole=True), 3: at(TRIM, is_hole=True)
    }  # fmt: skip
    assert lacking(FAMILY, (ended, row(2)), unreadable=(4,)) == {0: DONE, 3: NotRead(row=key(4))}


def test_a_child_gets_its_row_once_all_its_parents_are_done() -> None:
    ended = ShardEnded()
    rows = (row(0, progress=ended), row(1), row(2), row(3, progress=ended))
    assert lacking(FAMILY, rows) == {4: waits(1)}
    rows = (row(0, progress=ended), row(1, progress=ended), row(2), row(3, progress=ended))
    assert lacking(FAMILY, rows) == {4: at(TRIM)}
    # 0 has expired.
    assert lacking({2: (0,), 3: (0,)}, (row(0, progress=ended),)) == {2: at(TRIM), 3: at(TRIM)}


@pytest.mark.parametrize("progress", [StartAtTrimHorizon(), processed(5), ShardEnded()])
def test_the_sibling_of_a_shard_with_a_row_is_a_hole(progress: Progress) -> None:
    rows = (row(1), row(2, progress=progress))
    assert lacking(FAMILY, rows) == {0: DONE, 3: HOLE, 4: waits(1, 3)}
    assert lacking(FAMILY, rows, now_ms=7, holes={key(3): 2})[3] == Hole(since_ms=2)
    found = lacking(FAMILY, rows, option=LATEST, confirmed={key(3)})
    assert found[3] == at(TRIM, is_hole=True)
    assert lacking(FAMILY, rows, finished={key(3)}) == {0: DONE, 3: DONE, 4: waits(1)}


def test_a_hole_is_filled_at_the_position_of_the_checkpoint() -> None:
    entries = {3: ShardState(position=after(9))}
    assert lacking(FAMILY, (row(1), row(2)), entries)[3] == HOLE
    found = lacking(FAMILY, (row(1), row(2)), entries, confirmed={key(3)})
    assert found[3] == at(after(9))


def test_rows_at_a_time_account_only_for_what_the_start_skips() -> None:
    """A start at a time creates the rows of all shards; a start at LATEST only those of open
    ones, at a time too."""
    time = EpochMillis(5)
    rows = [row(n, progress=StartAtTimestamp(at_ms=time), counter=3) for n in (1, 2, 3, 4)]
    assert lacking(FAMILY, tuple(rows), option=LATEST) == {0: DONE}
    at_time = StartingPosition(default=AtTimestamp(millis=time))
    assert lacking(FAMILY, tuple(rows), option=at_time) == {0: HOLE}
    found = lacking(FAMILY, tuple(rows), option=at_time, confirmed={key(0)})
    assert found == {0: at(AtTimestamp(millis=time), is_hole=True)}
    rows[1] = row(2, progress=processed(9))
    assert lacking(FAMILY, tuple(rows), option=at_time) == {0: DONE}


def test_a_row_that_cannot_be_read_is_there_and_has_not_ended() -> None:
    assert lacking({0: (), 1: ()}, (row(1),), unreadable=(0,)) == {}
    rows = (row(0, progress=ShardEnded()), row(2))
    assert lacking(FAMILY, (*rows, row(1)), unreadable=(3,)) == {4: waits(1, 3)}
    assert lacking(FAMILY, (*rows, row(3, progress=ShardEnded())), unreadable=(1,)) == {4: waits(1)}
    # Its row was created once 0 was finished; unless the start created both.
    assert lacking(FAMILY, (row(1),), unreadable=(2, 3))[0] == DONE
    at_time = StartingPosition(default=AtTimestamp(millis=EpochMillis(5)))
    assert lacking(FAMILY, (row(1),), unreadable=(2, 3), option=at_time)[0] == NotRead(row=key(2))


def test_nobody_reads_what_waits_for_a_row_that_cannot_be_read() -> None:
    rows = (row(0, progress=ShardEnded()), row(1), row(2))
    found = shared(offset({}), table(*rows, unreadable=(3,)), listing(FAMILY))
    assert found.not_read == {key(3): key(3), key(4): key(3)}


def test_a_worker_that_died_while_creating_rows_is_made_good() -> None:
    shards = {0: (), 1: (), 2: ()}
    for rows, filled in (
        ((row(1),), Create(state=None)),
        ((row(1, counter=1),), HOLE),
        ((row(1, progress=ShardEnded()),), HOLE),
    ):
        found = shared(BEFORE_FIRST_BATCH, table(*rows), listing(shards)).verdicts
        assert found[key(0)] == found[key(2)] == filled


def test_a_query_that_had_no_leases_brings_its_positions() -> None:
    positions: dict[int, Position] = {1: END, 2: after(9), 3: TRIM}
    entries = {n: ShardState(position=position) for n, position in positions.items()}
    assert lacking(FAMILY, (), entries) == {
        0: DONE, 1: at(END), 2: at(after(9)), 3: at(TRIM), 4: waits(1, 3)
    }  # fmt: skip


def test_the_children_of_a_shard_that_expired_begin_at_their_beginning() -> None:
    entries = {0: ShardState(position=after(9)), 1: ShardState(position=after(9))}
    new = at(TRIM, is_hole=True)
    assert lacking({1: (), 2: (0,), 3: (0,)}, (), entries) == {1: at(after(9)), 2: new, 3: new}


def test_an_old_checkpoint_does_not_bring_back_what_others_have_finished() -> None:
    entries = {0: ShardState(position=after(9))}
    rows = (row(2, progress=processed(5)), row(3, progress=processed(5)), row(1))
    assert lacking(FAMILY, rows, entries) == {0: DONE, 4: waits(1, 3)}


@st.composite
def families(draw: st.DrawFn) -> dict[int, tuple[int, ...]]:
    """Draw shards by number, each with its parents: any splits and merges, some roots expired."""
    shards: dict[int, tuple[int, ...]] = dict.fromkeys(range(draw(st.integers(1, 3))), ())
    leaves = list(shards)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(leaves) - 1))
        new = len(shards)
        if draw(st.booleans()) or len(leaves) == 1:
            shards |= {new: (leaves[at],), new + 1: (leaves[at],)}
            leaves[at : at + 1] = [new, new + 1]
        else:
            at = min(at, len(leaves) - 2)
            shards[new] = (leaves[at], leaves[at + 1])
            leaves[at : at + 2] = [new]
    gone = draw(st.integers(0, len(shards) - len(leaves)))
    return {n: parents for n, parents in shards.items() if n >= gone or n in leaves}


_rows = st.sampled_from(
    ["none", "none", "unreadable", StartAtTrimHorizon(), processed(5), ShardEnded()]
)


@given(data=st.data(), shards=families(), is_known=st.booleans())
def test_whatever_the_table_has_no_shard_is_forgotten(
    data: st.DataObject, shards: dict[int, tuple[int, ...]], is_known: bool
) -> None:
    """Each unfinished shard is read, or it is known who or what reads it first; the open shards,
    which cover all hash keys, never count as finished without a row that says so."""
    drawn = {n: data.draw(_rows, label=f"row {n}") for n in shards}
    owners = st.sampled_from([ANNE, BERT, None])
    rows = [
        row(n, progress=progress, owner=data.draw(owners), counter=1)
        for n, progress in drawn.items()
        if not isinstance(progress, str)
    ]
    unreadable = tuple(n for n, progress in drawn.items() if progress == "unreadable")
    listed = listing(shards)
    found = shared(
        offset({}) if is_known else BEFORE_FIRST_BATCH,
        table(*rows, unreadable=unreadable),
        listed,
    )
    assert found.verdicts.keys() == {ShardKey(stream=ORDERS, shard=shard) for shard in listed}
    for each, verdict in found.verdicts.items():
        match verdict:
            case Waiting(ancestors=above):
                assert above
                for one in above:
                    assert found.verdicts.get(one, DONE) != DONE, "it waits for what is finished"
            case Finished():
                has_ended = drawn[int(each.shard[-3:])] == ShardEnded()
                assert has_ended or listed[each.shard].closed
                children = [s for s in listed.values() if each.shard in s.parents]
                assert has_ended or children
            case Elsewhere() | Hole() | Create() | NotRead():
                pass
            case _:
                raise AssertionError(f"{each}: {verdict} without a held lease")
    for each in found.holes:
        for parent in listed[each.shard].parents:
            known = found.verdicts.get(ShardKey(stream=ORDERS, shard=parent), DONE)
            assert known == DONE


def test_a_row_is_created_once_those_of_its_ancestors_are_there() -> None:
    shards = {ORDERS: listing(FAMILY)}
    assert creatable_leases([key(n) for n in FAMILY], shards) == {key(0), key(1)}
    assert creatable_leases([key(0), key(4)], shards) == {key(0)}  # the generation between is there
    assert creatable_leases([key(3), key(4)], shards) == {key(3)}
    assert creatable_leases([key(4)], shards) == {key(4)}


@pytest.mark.parametrize("progress", [processed(5), ShardEnded()])
def test_a_shard_is_overtaken_once_a_descendant_was_read(progress: Progress) -> None:
    assert overtaken({key(4): row(4, progress=progress)}, {ORDERS: listing(FAMILY)}) == {
        key(0), key(1), key(3)
    }  # fmt: skip
    unlisted = row(4, progress=progress, parents=(key(1).shard, key(3).shard))
    before = listing({0: (), 1: (), 3: (0,)})
    assert overtaken({key(4): unlisted}, {ORDERS: before}) == {key(0), key(1), key(3)}


@pytest.mark.parametrize(
    "progress", [StartAtTrimHorizon(), StartAtTimestamp(at_ms=EpochMillis(5)), StartAtLatest()]
)
def test_a_start_below_a_shard_does_not_overtake_it(progress: Progress) -> None:
    assert overtaken({key(4): row(4, progress=progress)}, {ORDERS: listing(FAMILY)}) == set()


def test_a_generation_that_the_start_skips_is_left_out() -> None:
    at = ShardState(position=TRIM)
    points = {key(n).shard: at for n in (0, 1, 2, 4)}
    assert find_skipped(listing(FAMILY), points) == {key(3).shard}
    assert find_skipped(listing(FAMILY), {key(n).shard: at for n in (0, 1)}) == frozenset()
    assert find_skipped(listing(FAMILY), {key(n).shard: at for n in (2, 4)}) == frozenset()


def test_a_grandchild_waits_for_its_ancestors_where_a_generation_is_skipped() -> None:
    rows = [row(1, progress=ShardEnded()), row(2), row(4, progress=processed(5))]
    for between in ([], [row(3, progress=ShardEnded())]):
        assert not can_start(4, table(*rows, *between, row(0)), listing(FAMILY))
        ended = row(0, progress=ShardEnded())
        assert can_start(4, table(*rows, *between, ended), listing(FAMILY))


def test_a_new_row_is_nobodys_and_knows_its_family() -> None:
    shard = listing(FAMILY)[key(4).shard]
    made = new_lease(key(4), shard, ShardState(position=TRIM), NAMES)
    assert made == lease(
        key(4).shard,
        progress=StartAtTrimHorizon(),
        parents=shard.parents,
        hash_range=shard.hash_range,
        extra_attributes={"sspStream": {"S": "orders"}, "sspStreamCreated": {"N": "1"}},
    )
    assert (made.owner, made.counter) == (None, 0)


# --- Waiting for leases ---------------------------------------------------------------------------

FAILOVER_MS = 10_000


def claimable(
    found: LeaseTableView, *numbers: int, child: int | None = None, most: int | None = None
) -> list[ShardKey]:
    """Shards without parents, and perhaps one whose parent is 0."""
    shards = dict.fromkeys(numbers, ()) | ({} if child is None else {child: (0,)})
    return claimable_shards(shared(offset({}), found, listing(shards)), found, most)


def test_what_is_nobodys_is_free() -> None:
    rows = table(
        row(0), row(1, owner=ANNE), row(2, owner=BERT), row(3, progress=ShardEnded()), held=(1,)
    )
    assert claimable(rows, 0, 1, 2, 3) == [key(0)]
    assert claimable(rows, 0, 1, 2, 3, 4) == [key(0), key(4)]  # 4 is a hole


def test_a_child_is_free_once_its_parent_has_ended() -> None:
    assert claimable(table(row(0, owner=BERT), row(5)), 0, child=5) == []
    ended = table(row(0, owner=BERT, progress=ShardEnded()), row(5))
    assert claimable(ended, 0, child=5) == [key(5)]


def test_nothing_is_free_for_a_worker_that_holds_all_it_may() -> None:
    rows = table(row(0), row(1, owner=ANNE), held=(1,))
    assert claimable(rows, 0, 1, most=1) == []
    assert claimable(rows, 0, 1, most=2) == [key(0)]


def look(
    before: LeaseWait, *rows: Lease, held: tuple[int, ...] = (), now_ms: int = 0
) -> tuple[LeaseWait, list[ShardKey]]:
    seen, shards = table(*rows, held=held), listing({int(each.shard[-3:]): () for each in rows})
    decision = shared(offset({}), seen, shards)
    free = claimable_shards(decision, seen, None)
    found = update_wait(before, decision, seen, claimable=free, now_ms=now_ms)
    return found, list(found.pending)


def test_all_is_read_when_every_shard_is_done_or_read() -> None:
    rows = (row(0, progress=ShardEnded()), row(1, owner=ANNE))
    found, pending = look(LeaseWait(), *rows, held=(1,))
    assert pending == []
    assert found.is_over(0, FAILOVER_MS)


def test_another_worker_counts_once_it_has_renewed() -> None:
    first, pending = look(LeaseWait(), row(0, owner=BERT, counter=7))
    assert pending == [key(0)]
    assert not first.is_over(0, FAILOVER_MS)
    again, pending = look(first, row(0, owner=BERT, counter=7))
    assert pending == [key(0)]
    renewed, pending = look(again, row(0, owner=BERT, counter=8))
    assert pending == []
    assert renewed.is_over(0, FAILOVER_MS)


def test_a_lease_of_mine_that_is_not_read_is_about_to_go() -> None:
    assert look(LeaseWait(), row(0, owner=ANNE))[1] == [key(0)]
    assert look(LeaseWait(), row(0, owner=ANNE), held=(0,))[1] == []


def test_patience_ends_when_nothing_changes() -> None:
    first, _ = look(LeaseWait(), row(0), row(1), now_ms=1000)
    changed, _ = look(first, row(0, owner=ANNE), row(1), held=(0,), now_ms=30_000)
    late = 30_000 + WAIT_FAILOVERS * FAILOVER_MS
    same, pending = look(changed, row(0, owner=ANNE), row(1), held=(0,), now_ms=late)
    assert pending == [key(1)]
    assert not same.is_over(late, FAILOVER_MS)
    assert same.is_over(late + 1, FAILOVER_MS)
