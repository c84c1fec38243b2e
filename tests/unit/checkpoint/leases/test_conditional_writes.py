"""What writes expect and change, refuse, and how they are seen to be done. The contract suite shows
the same on every store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Create,
    Delete,
    Evict,
    PutRow,
    Renew,
    RequestHandoff,
    SetChildren,
    Take,
    UpdateRow,
    Write,
    determines_row,
    is_applied,
    row_after,
    to_update,
)
from spark_ssp.checkpoint.leases.dynamodb_store import request_of
from spark_ssp.checkpoint.leases.lease import (
    Lease,
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    is_forward,
)
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.checkpoint.leases.lease_store import parse_lease
from spark_ssp.grouping.identifiers import EpochMillis, ShardId, WorkerId
from tests.support.leases.memory_store import changed, permits
from tests.support.leases.values import ANNE, BERT, CARL, any_lease, any_progress, lease, processed

MAX_LONG = (1 << 63) - 1
LEFT = ShardId("shardId-000000000001")
MINE = lease(counter=7, owner=ANNE, ssp_owner=ANNE, progress=processed(100), switches=3)
HANDED = replace(MINE, owner=BERT, checkpoint_owner=ANNE, requested_by=BERT, requested_from=ANNE)
TAKEN = replace(HANDED, owner=CARL)
HANDOFF = ("checkpointOwner", "sspRequestedBy", "sspRequestedFrom")

N7, N8 = {"N": "7"}, {"N": "8"}
A, B = {"S": "anne"}, {"S": "bert"}

CHANGES: list[tuple[Write, UpdateRow]] = [
    (
        Renew(lease=MINE),
        UpdateRow(
            expected={"leaseCounter": N7, "checkpointOwner": None}, sets={"leaseCounter": N8}
        ),
    ),
    (
        Renew(lease=replace(MINE, ssp_owner=BERT)),
        UpdateRow(
            expected={"leaseCounter": N7, "checkpointOwner": None},
            sets={"leaseCounter": N8, "sspOwner": A},
        ),
    ),
    (
        Renew(lease=HANDED, throughput_kbps=1.5),
        UpdateRow(
            expected={"leaseCounter": N7},
            sets={"leaseCounter": N8, "throughputKBps": {"N": "1.5"}},
        ),
    ),
    (
        Renew(lease=TAKEN),
        UpdateRow(
            expected={"leaseCounter": N7},
            sets={"leaseCounter": N8, "sspOwner": {"S": "carl"}},
            removes=HANDOFF,
        ),
    ),
    (
        Take(lease=MINE, owner=BERT),
        UpdateRow(
            expected={"leaseCounter": N7},
            sets={"leaseCounter": N8, "leaseOwner": B, "sspOwner": B},
            adds={"ownerSwitchesSinceCheckpoint": 1},
            removes=HANDOFF,
        ),
    ),
    (
        Checkpoint(lease=MINE, progress=processed(101, sub=4)),
        UpdateRow(
            expected={"leaseCounter": N7, "checkpointOwner": None},
            sets={
                "leaseCounter": N8,
                "checkpoint": {"S": "101"},
                "checkpointSubSequenceNumber": {"N": "4"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
            },
            removes=(
                "pendingCheckpoint",
                "pendingCheckpointState",
                "pendingCheckpointSubSequenceNumber",
                "sspCheckpointTimestamp",
                "sspCaughtUpTimestamp",
            ),
        ),
    ),
    (
        RequestHandoff(lease=MINE, to=BERT),
        UpdateRow(
            expected={"leaseOwner": A, "checkpointOwner": None},
            sets={
                "leaseOwner": B,
                "checkpointOwner": A,
                "sspRequestedBy": B,
                "sspRequestedFrom": A,
            },
        ),
    ),
    (
        Assign(lease=HANDED, owner=BERT),
        UpdateRow(
            expected={"leaseOwner": B, "checkpointOwner": A},
            sets={"leaseOwner": B},
            adds={"leaseCounter": 1},
            removes=HANDOFF,
        ),
    ),
    (
        Evict(lease=MINE),
        UpdateRow(
            expected={"leaseOwner": A, "checkpointOwner": None},
            adds={"leaseCounter": 1},
            removes=("leaseOwner", *HANDOFF),
        ),
    ),
    (
        Assign(lease=HANDED, owner=BERT, check_counter=True),
        UpdateRow(
            expected={"leaseCounter": N7, "leaseOwner": B, "checkpointOwner": A},
            sets={"leaseOwner": B},
            adds={"leaseCounter": 1},
            removes=HANDOFF,
        ),
    ),
    (
        Evict(lease=MINE, check_counter=True),
        UpdateRow(
            expected={"leaseCounter": N7, "leaseOwner": A, "checkpointOwner": None},
            adds={"leaseCounter": 1},
            removes=("leaseOwner", *HANDOFF),
        ),
    ),
    (
        Evict(lease=HANDED),
        UpdateRow(
            expected={"leaseOwner": B, "checkpointOwner": A},
            adds={"leaseCounter": 1},
            removes=HANDOFF,
        ),
    ),
    (SetChildren(lease=MINE, children=(LEFT,)), UpdateRow(sets={"childShardIds": {"SS": [LEFT]}})),
]


@pytest.mark.parametrize(("write", "change"), CHANGES)
def test_a_write_is_the_kcls(write: Write, change: UpdateRow) -> None:
    assert to_update(write) == change


def test_a_lease_is_created_whole() -> None:
    assert to_update(Create(lease=MINE)) == PutRow(item=encode(MINE))


# --- As requests ---------------------------------------------------------------------------------


def test_an_update_as_dynamodb_gets_it() -> None:
    operation, request = request_of("orders", MINE.key, to_update(Take(lease=MINE, owner=BERT)))
    assert operation == "UpdateItem"
    assert request == {
        "TableName": "orders",
        "Key": {"leaseKey": {"S": MINE.key}},
        "ConditionExpression": "attribute_exists(leaseKey) AND #leaseCounter = :v0",
        "UpdateExpression": "SET #leaseCounter = :v1, #leaseOwner = :v2, #sspOwner = :v3 "
        "ADD #ownerSwitchesSinceCheckpoint :v4 "
        "REMOVE #checkpointOwner, #sspRequestedBy, #sspRequestedFrom",
        "ExpressionAttributeNames": {
            "#checkpointOwner": "checkpointOwner",
            "#leaseCounter": "leaseCounter",
            "#leaseOwner": "leaseOwner",
            "#ownerSwitchesSinceCheckpoint": "ownerSwitchesSinceCheckpoint",
            "#sspOwner": "sspOwner",
            "#sspRequestedBy": "sspRequestedBy",
            "#sspRequestedFrom": "sspRequestedFrom",
        },
        "ExpressionAttributeValues": {":v0": N7, ":v1": N8, ":v2": B, ":v3": B, ":v4": {"N": "1"}},
        "ReturnValues": "ALL_NEW",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def test_a_row_is_put_where_there_is_none_and_deleted_whatever_it_is() -> None:
    operation, request = request_of("orders", MINE.key, to_update(Create(lease=MINE)))
    assert (operation, request["ConditionExpression"]) == (
        "PutItem",
        "attribute_not_exists(leaseKey)",
    )
    operation, request = request_of("orders", MINE.key, to_update(Delete(lease=MINE)))
    assert (operation, "ConditionExpression" in request) == ("DeleteItem", False)


# --- What cannot be asked for --------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Renew(lease=lease()),
        lambda: Checkpoint(lease=lease(), progress=processed(1)),
        lambda: Checkpoint(lease=MINE, progress=processed(99)),
        lambda: Checkpoint(lease=MINE, progress=StartAtLatest()),
        lambda: Checkpoint(lease=replace(MINE, progress=ShardEnded()), progress=processed(101)),
        lambda: RequestHandoff(lease=lease(), to=BERT),
        lambda: RequestHandoff(lease=MINE, to=ANNE),
        lambda: RequestHandoff(lease=HANDED, to=CARL),
        lambda: SetChildren(lease=MINE, children=()),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Write]) -> None:
    with pytest.raises(ValueError, match=r"only|owner|children"):
        make()


def test_a_start_time_is_kept_and_then_cleared() -> None:
    start = StartAtTimestamp(at_ms=EpochMillis(5))
    seen = replace(MINE, progress=start)
    kept = to_update(Checkpoint(lease=seen, progress=start))
    assert isinstance(kept, UpdateRow)
    assert kept.sets["sspCheckpointTimestamp"] == {"N": "5"}
    assert "sspCheckpointTimestamp" not in kept.removes
    # No record is processed: what a KCL worker has prepared stays.
    assert set(kept.removes) == {"sspCaughtUpTimestamp"}
    assert "ownerSwitchesSinceCheckpoint" not in kept.sets
    cleared = to_update(Checkpoint(lease=seen, progress=processed(1)))
    assert isinstance(cleared, UpdateRow)
    assert "sspCheckpointTimestamp" in cleared.removes


# --- Seen to be done -----------------------------------------------------------------------------


@st.composite
def writes(draw: st.DrawFn) -> Write:
    """Any write to any lease."""
    seen = draw(any_lease)
    seen = replace(seen, counter=min(seen.counter, 1 << 60), switches=min(seen.switches, 1 << 60))
    worker = draw(st.sampled_from([ANNE, BERT, seen.owner or CARL, seen.checkpoint_owner or CARL]))
    kinds: list[Write] = [
        Create(lease=seen),
        Take(lease=seen, owner=worker),
        Assign(lease=seen, owner=worker),
        Evict(lease=seen),
        SetChildren(lease=seen, children=(LEFT,)),
        Delete(lease=seen),
    ]
    if seen.holder is not None:
        kinds.append(Renew(lease=seen))
        kinds.append(Renew(lease=seen, throughput_kbps=2.5))
        progress: Progress = draw(any_progress)
        if isinstance(progress, Processed | ShardEnded) and seen.progress != ShardEnded():
            start = replace(seen, progress=StartAtLatest())
            kinds.append(Checkpoint(lease=start, progress=progress))
        kinds.append(Checkpoint(lease=seen, progress=seen.progress))
    if seen.owner is not None and not seen.is_in_handoff and worker != seen.owner:
        kinds.append(RequestHandoff(lease=seen, to=worker))
    return draw(st.sampled_from(kinds))


def carried_out(write: Write) -> Lease | None:
    """The row after the write, on the row that it expects."""
    old = None if isinstance(write, Create) else encode(write.lease)
    change = to_update(write)
    assert permits(change, old)
    return parse_lease(changed(change, old))


@given(writes())
def test_a_write_that_was_carried_out_shows(write: Write) -> None:
    assert is_applied(write, carried_out(write))


@given(writes())
def test_a_write_that_was_not_does_not_show(write: Write) -> None:
    """But for those that change nothing when they find what they want."""
    assume(not isinstance(write, SetChildren))
    before = None if isinstance(write, Create) else write.lease
    assert not is_applied(write, before)


@given(writes(), st.sampled_from([ANNE, BERT, CARL]))
def test_a_hand_over_asked_for_since_hides_nothing(write: Write, to: str) -> None:
    """It leaves the counter alone and the holder in place."""
    after = carried_out(write)
    if not isinstance(write, Renew | Take | Checkpoint | Assign) or after is None:
        return
    if after.owner is None or after.is_in_handoff or after.owner == to:
        return
    request = to_update(RequestHandoff(lease=after, to=type(after.owner)(to)))
    assert is_applied(write, parse_lease(changed(request, encode(after))))


@given(any_lease)
def test_a_request_counts_until_the_owner_changes(before: Lease) -> None:
    """A KCL 2 worker that takes the lease changes nothing else. A handoff that KCL 3 requests
    later, of the next owner, has its own attributes."""
    free = replace(before, counter=1, owner=ANNE, checkpoint_owner=None)
    asked = parse_lease(changed(to_update(RequestHandoff(lease=free, to=BERT)), encode(free)))
    assert asked is not None
    assert (asked.owner, asked.holder, asked.is_in_handoff) == (BERT, ANNE, True)
    for taken in (replace(asked, owner=CARL), replace(asked, owner=None)):
        assert (taken.holder, taken.is_in_handoff) == (taken.owner, False)
    by_kcl_3 = replace(asked, owner=ANNE, checkpoint_owner=CARL)
    assert (by_kcl_3.holder, by_kcl_3.is_in_handoff) == (CARL, True)


STRANGERS: list[tuple[Write, Lease]] = [
    (Renew(lease=MINE), replace(MINE, counter=8, owner=BERT)),
    (Renew(lease=MINE), replace(MINE, counter=8, owner=None)),
    (Renew(lease=MINE), replace(MINE, counter=9)),
    (Renew(lease=MINE, throughput_kbps=2.0), replace(MINE, counter=8, throughput_kbps=1.0)),
    (Take(lease=MINE, owner=BERT), replace(MINE, counter=8, owner=CARL)),
    (Checkpoint(lease=MINE, progress=processed(101)), replace(MINE, counter=8)),
    (
        Checkpoint(lease=MINE, progress=processed(101)),
        replace(MINE, counter=8, progress=processed(102), switches=0),
    ),
    (RequestHandoff(lease=MINE, to=BERT), replace(MINE, owner=BERT)),
    (RequestHandoff(lease=MINE, to=BERT), replace(MINE, owner=BERT, checkpoint_owner=CARL)),
    (Assign(lease=HANDED, owner=BERT), replace(MINE, counter=8, owner=CARL)),
    (Evict(lease=MINE), replace(MINE, counter=8, owner=BERT)),
    (Create(lease=MINE), replace(MINE, counter=0)),
]


@pytest.mark.parametrize(("write", "found"), STRANGERS)
def test_what_another_did_is_not_taken_for_ours(write: Write, found: Lease) -> None:
    assert not is_applied(write, found)
    assert not is_applied(write, None)


# --- The new row ---------------------------------------------------------------------------------


@given(row=any_lease, progress=any_progress, owner=st.sampled_from([ANNE, BERT]))
def test_the_new_row_is_known_beforehand(row: Lease, progress: Progress, owner: WorkerId) -> None:
    assume(max(row.counter, row.switches) < MAX_LONG)
    writes: list[Write] = [
        Take(lease=row, owner=owner),
        Assign(lease=row, owner=owner, check_counter=True),
        Evict(lease=row, check_counter=True),
    ]
    if row.holder is not None:
        writes += [Renew(lease=row), Renew(lease=row, throughput_kbps=2.5)]
        if is_forward(row.progress, progress):
            writes.append(Checkpoint(lease=row, progress=progress))
    for write in writes:
        change = to_update(write)
        assert isinstance(change, UpdateRow)
        assert "leaseCounter" in change.expected
        assert determines_row(write)
        after = row_after(write)
        assert after == parse_lease(changed(change, encode(row)))
        assert after is not None
        assert after.extra_attributes == row.extra_attributes


def test_no_row_is_known_where_the_counter_may_have_risen() -> None:
    for write in (
        Create(lease=MINE),
        Delete(lease=MINE),
        Assign(lease=HANDED, owner=BERT),
        Evict(lease=HANDED),
        RequestHandoff(lease=MINE, to=BERT),
        SetChildren(lease=MINE, children=(LEFT,)),
    ):
        assert row_after(write) is None
        assert not determines_row(write)
