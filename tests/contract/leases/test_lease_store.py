"""What every store of leases does: over the one in memory, moto's DynamoDB and DynamoDB Local."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Final

import pytest

from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Create,
    Delete,
    Done,
    Evict,
    Renew,
    RequestHandoff,
    SetChildren,
    Take,
    Write,
)
from spark_ssp.checkpoint.leases.lease import (
    AttributeValue,
    Item,
    Lease,
    LeaseTableError,
    MalformedLeaseError,
    PendingCheckpoint,
    ShardEnded,
    StartAtTimestamp,
)
from spark_ssp.checkpoint.leases.lease_serializer import ForeignRow, encode
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.grouping.identifiers import EpochMillis, HashRange, ShardId, WorkerId
from tests.support.leases.stores import ATTEMPTS, LOST_REPLIES, Maker, Mishap, Table
from tests.support.leases.values import ANNE, BERT, CARL, alike, lease, processed

# On first use DynamoDB Local is fetched.
pytestmark = pytest.mark.timeout(1200)

LEFT, RIGHT = ShardId("shardId-000000000001"), ShardId("shardId-000000000002")
HALF = HashRange(first=0, last=(1 << 127) - 1)
COLOUR: Final[dict[str, AttributeValue]] = {
    "colour": {"S": "blue"},
    "pairs": {"M": {"a": {"L": [{"N": "1"}, {"BOOL": True}]}}},
}
MINE = lease(
    counter=7,
    owner=ANNE,
    ssp_owner=ANNE,
    progress=processed(100, sub=2),
    switches=3,
    extra_attributes=COLOUR,
)
HANDED = replace(MINE, owner=BERT, checkpoint_owner=ANNE, requested_by=BERT, requested_from=ANNE)
FREE = replace(MINE, owner=None)


@pytest.fixture(params=["memory_leases", "moto_leases", "dynamodb_local_leases"])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """A new table of every kind in turn."""
    make: Maker = request.getfixturevalue(request.param)
    made = make()
    yield made
    made.store.close()


def expect_row(table: Table, lease: Lease) -> None:
    """It is the table's only row, attribute by attribute."""
    assert [alike(item) for item in table.items()] == [alike(encode(lease))]


@pytest.mark.parametrize("kind", ["moto_leases", "dynamodb_local_leases"])
def test_updates_and_scans_are_direct_calls(kind: str, request: pytest.FixtureRequest) -> None:
    """Also a refused one, whose error has the row; a binary attribute is left to botocore."""
    make: Maker = request.getfixturevalue(kind)
    table = make()
    assert table.direct is not None
    made = table.direct.made
    mine = replace(MINE, extra_attributes={})
    table.put_item(encode(mine))
    renewed = table.store.write(Renew(lease=mine))
    assert renewed == Done(lease=replace(mine, counter=8))
    assert table.direct.made == made + 1
    assert table.store.write(Renew(lease=mine)) == Conflict(found=replace(mine, counter=8))
    assert table.direct.made == made + 2
    assert table.store.scan().leases == (replace(mine, counter=8),)
    assert table.direct.made == made + 3
    table.mishaps.append(Mishap.DROPPED)
    assert table.store.write(Renew(lease=replace(mine, counter=8))) == Done(
        lease=replace(mine, counter=9)
    )
    assert table.direct.made == made + 5
    pending = PendingCheckpoint(progress=processed(200), state=b"\x00\xff")
    with_bytes = replace(mine, pending=pending)
    table.put_item(encode(with_bytes))
    assert table.store.scan().leases == (with_bytes,)
    table.store.close()


# --- Each write: what it changes -----------------------------------------------------------------

DONE: Final[dict[str, tuple[Lease, Callable[[Lease], Write], Lease]]] = {
    "renew": (MINE, lambda seen: Renew(lease=seen), replace(MINE, counter=8)),
    "renew what another kind of worker has held before": (
        replace(MINE, ssp_owner=BERT),
        lambda seen: Renew(lease=seen),
        replace(MINE, counter=8),
    ),
    "renew, with throughput": (
        MINE,
        lambda seen: Renew(lease=seen, throughput_kbps=0.000837),
        replace(MINE, counter=8, throughput_kbps=0.000837),
    ),
    "renew while a known hand-over is under way": (
        HANDED,
        lambda seen: Renew(lease=seen),
        replace(HANDED, counter=8),
    ),
    "take what is free": (
        FREE,
        lambda seen: Take(lease=seen, owner=ANNE),
        replace(MINE, counter=8),
    ),
    "take from another": (
        MINE,
        lambda seen: Take(lease=seen, owner=BERT),
        replace(MINE, counter=8, owner=BERT, ssp_owner=BERT, switches=4),
    ),
    "take again": (
        MINE,
        lambda seen: Take(lease=seen, owner=ANNE),
        replace(MINE, counter=8),
    ),
    "take in the midst of a hand-over": (
        HANDED,
        lambda seen: Take(lease=seen, owner=CARL),
        replace(MINE, counter=8, owner=CARL, ssp_owner=CARL, switches=4),
    ),
    "checkpoint": (
        replace(MINE, pending=PendingCheckpoint(progress=processed(101), state=b"x")),
        lambda seen: Checkpoint(lease=seen, progress=processed(102, sub=1)),
        replace(MINE, counter=8, progress=processed(102, sub=1), switches=0),
    ),
    "checkpoint the end during a hand-over": (
        HANDED,
        lambda seen: Checkpoint(lease=seen, progress=ShardEnded()),
        replace(HANDED, counter=8, progress=ShardEnded(), switches=0),
    ),
    "checkpoint after a start time": (
        replace(MINE, progress=StartAtTimestamp(at_ms=EpochMillis(1))),
        lambda seen: Checkpoint(lease=seen, progress=processed(5)),
        replace(MINE, counter=8, progress=processed(5), switches=0),
    ),
    "request a hand-over": (
        MINE,
        lambda seen: RequestHandoff(lease=seen, to=BERT),
        HANDED,
    ),
    "assign at the end of a hand-over": (
        HANDED,
        lambda seen: Assign(lease=seen, owner=BERT),
        replace(MINE, counter=8, owner=BERT),
    ),
    "assign back in the midst of a hand-over": (
        HANDED,
        lambda seen: Assign(lease=seen, owner=ANNE),
        replace(MINE, counter=8, owner=ANNE, switches=4),
    ),
    "assign what is free": (
        FREE,
        lambda seen: Assign(lease=seen, owner=ANNE),
        replace(MINE, counter=8),
    ),
    "evict": (MINE, lambda seen: Evict(lease=seen), replace(MINE, counter=8, owner=None)),
    "evict in the midst of a hand-over": (
        HANDED,
        lambda seen: Evict(lease=seen),
        replace(MINE, counter=8, owner=BERT),
    ),
    "children": (
        MINE,
        lambda seen: SetChildren(lease=seen, children=(RIGHT, LEFT)),
        replace(MINE, children=(LEFT, RIGHT)),
    ),
}
every_write = pytest.mark.parametrize(("before", "write", "after"), DONE.values(), ids=DONE)


@every_write
def test_a_write_changes_what_it_says_and_nothing_else(
    table: Table, before: Lease, write: Callable[[Lease], Write], after: Lease
) -> None:
    table.put_item(encode(before))
    assert table.store.write(write(before)) == Done(lease=after)
    expect_row(table, after)
    assert table.store.scan().leases == (after,)


@every_write
def test_a_write_to_a_row_that_is_gone_is_a_conflict(
    table: Table, before: Lease, write: Callable[[Lease], Write], after: Lease
) -> None:
    assert table.store.write(write(before)) == Conflict(found=None)
    assert table.items() == []


def test_creating(table: Table) -> None:
    assert table.store.write(Create(lease=MINE)) == Done(lease=MINE)
    expect_row(table, MINE)


def test_creating_what_exists_is_a_conflict(table: Table) -> None:
    table.put_item(encode(MINE))
    assert table.store.write(Create(lease=lease())) == Conflict(found=MINE)
    expect_row(table, MINE)


def test_deleting(table: Table) -> None:
    table.put_item(encode(MINE))
    assert table.store.write(Delete(lease=MINE)) == Done(lease=MINE)
    assert table.items() == []
    assert table.store.write(Delete(lease=MINE)) == Done(lease=MINE)


# --- Each write: what it expects -----------------------------------------------------------------

NEWER = replace(MINE, counter=8)
REFUSED: Final[dict[str, tuple[Write, Lease]]] = {
    "renew, renewed by another": (Renew(lease=MINE), NEWER),
    "renew, a hand-over was asked for": (Renew(lease=MINE), HANDED),
    "take, renewed meanwhile": (Take(lease=MINE, owner=BERT), NEWER),
    "checkpoint, renewed by another": (Checkpoint(lease=MINE, progress=ShardEnded()), NEWER),
    "hand-over, of another owner": (
        RequestHandoff(lease=MINE, to=BERT),
        replace(MINE, owner=CARL),
    ),
    "hand-over, of nobody's": (RequestHandoff(lease=MINE, to=BERT), FREE),
    "hand-over, one is under way": (
        RequestHandoff(lease=MINE, to=CARL),
        replace(MINE, checkpoint_owner=BERT),
    ),
    "assign, another owner": (Assign(lease=MINE, owner=BERT), replace(MINE, owner=CARL)),
    "assign, no owner": (Assign(lease=MINE, owner=BERT), FREE),
    "assign, was free": (Assign(lease=FREE, owner=BERT), MINE),
    "assign, a hand-over began": (
        Assign(lease=MINE, owner=BERT),
        replace(MINE, checkpoint_owner=CARL),
    ),
    "assign, the hand-over ended": (Assign(lease=HANDED, owner=BERT), replace(MINE, owner=BERT)),
    "evict, renewed since": (Evict(lease=MINE, check_counter=True), replace(MINE, counter=8)),
    "assign, renewed since": (
        Assign(lease=HANDED, owner=BERT, check_counter=True),
        replace(HANDED, counter=HANDED.counter + 1),
    ),
    "evict, another owner": (Evict(lease=MINE), replace(MINE, owner=BERT)),
    "evict, a hand-over began": (Evict(lease=MINE), replace(MINE, checkpoint_owner=BERT)),
}


@pytest.mark.parametrize(("write", "found"), REFUSED.values(), ids=REFUSED)
def test_a_write_that_finds_the_row_otherwise_changes_nothing(
    table: Table, write: Write, found: Lease
) -> None:
    table.put_item(encode(found))
    assert table.store.write(write) == Conflict(found=found)
    expect_row(table, found)


def test_owners_are_expected_and_not_the_counter_where_the_kcl_does_so(table: Table) -> None:
    """The owner renews all the time; a leader's write must get through all the same."""
    table.put_item(encode(NEWER))
    assert table.store.write(RequestHandoff(lease=MINE, to=BERT)) == Done(
        lease=replace(HANDED, counter=8)
    )
    again = replace(HANDED, counter=7)
    assert table.store.write(Assign(lease=again, owner=BERT)) == Done(
        lease=replace(MINE, counter=9, owner=BERT)
    )


def test_only_one_of_many_takes_a_lease(table: Table) -> None:
    table.put_item(encode(FREE))
    workers = [WorkerId(f"worker-{number}") for number in range(8)]
    together = Barrier(len(workers))

    def take(worker: WorkerId) -> Done | Conflict:
        together.wait(timeout=30)
        return table.store.write(Take(lease=FREE, owner=worker))

    with ThreadPoolExecutor(len(workers)) as pool:
        outcomes = list(pool.map(take, workers))
    winners = [outcome for outcome in outcomes if isinstance(outcome, Done)]
    assert len(winners) == 1
    expect_row(table, winners[0].lease)


# --- Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mishap", LOST_REPLIES)
@every_write
def test_a_write_whose_reply_was_lost_is_done_once(
    table: Table,
    before: Lease,
    write: Callable[[Lease], Write],
    after: Lease,
    mishap: Mishap,
) -> None:
    table.put_item(encode(before))
    table.mishaps.append(mishap)
    assert table.store.write(write(before)) == Done(lease=after)
    expect_row(table, after)


@pytest.mark.parametrize("mishap", LOST_REPLIES)
def test_creating_and_deleting_with_replies_lost(table: Table, mishap: Mishap) -> None:
    table.mishaps.append(mishap)
    assert table.store.write(Create(lease=MINE)) == Done(lease=MINE)
    expect_row(table, MINE)
    table.mishaps.append(mishap)
    assert table.store.write(Delete(lease=MINE)) == Done(lease=MINE)
    assert table.items() == []


def test_a_lost_reply_and_then_throttling_and_then_nothing_to_do(table: Table) -> None:
    table.put_item(encode(MINE))
    table.mishaps.extend([Mishap.DROPPED, Mishap.THROTTLED, Mishap.REFUSED])
    assert table.store.write(Renew(lease=MINE)) == Done(lease=NEWER)
    expect_row(table, NEWER)
    assert len(table.slept) == 3


def test_a_conflict_is_no_lost_reply_however_the_row_looks(table: Table) -> None:
    """Another process under the same id has done the same: no attempt of ours was in doubt."""
    table.put_item(encode(NEWER))
    assert table.store.write(Renew(lease=MINE)) == Conflict(found=NEWER)
    table.mishaps.append(Mishap.THROTTLED)  # refused for certain: still no doubt
    assert table.store.write(Renew(lease=MINE)) == Conflict(found=NEWER)


def test_a_conflict_after_an_attempt_in_doubt_is_a_conflict(table: Table) -> None:
    taken = replace(MINE, counter=8, owner=BERT, switches=4)
    table.put_item(encode(taken))
    table.mishaps.append(Mishap.REFUSED)
    assert table.store.write(Renew(lease=MINE)) == Conflict(found=taken)


@pytest.mark.parametrize("mishap", [Mishap.THROTTLED, Mishap.REFUSED])
def test_what_passes_is_ridden_out(table: Table, mishap: Mishap) -> None:
    table.put_item(encode(MINE))
    table.mishaps.extend([mishap] * (ATTEMPTS - 1))
    assert table.store.write(Renew(lease=MINE)) == Done(lease=NEWER)
    table.mishaps.extend([mishap] * (ATTEMPTS - 1))
    assert table.store.scan().leases == (NEWER,)
    assert len(table.slept) == 2 * (ATTEMPTS - 1)
    assert all(0 <= seconds <= 10 for seconds in table.slept)


@pytest.mark.parametrize("mishap", [*LOST_REPLIES, Mishap.THROTTLED, Mishap.REFUSED])
def test_what_does_not_pass_is_an_error(table: Table, mishap: Mishap) -> None:
    for call in (lambda: table.store.write(Renew(lease=MINE)), table.store.scan):
        table.mishaps.extend([mishap] * ATTEMPTS)
        with pytest.raises(ServiceUnavailableError, match=f"{ATTEMPTS} times"):
            call()
        assert not table.mishaps


# --- Reading -------------------------------------------------------------------------------------

LEADER: Final[Item] = {
    "leaseKey": {"S": "Leader"},
    "entityType": {"S": "LEADER"},
    "ownerName": {"S": "anne"},
    "leaseDuration": {"S": "120000"},
    "recordVersionNumber": {"S": "1"},
}


def test_a_table_without_rows(table: Table) -> None:
    rows = table.store.scan()
    assert (rows.leases, rows.foreign, rows.malformed) == ((), (), ())


def test_preparing_again_keeps_the_rows(table: Table) -> None:
    table.put_item(encode(MINE))
    table.store.prepare()
    assert table.store.scan().leases == (MINE,)


def test_a_scan_tells_leases_from_other_rows(table: Table) -> None:
    broken: Item = {"leaseKey": {"S": LEFT}, "leaseCounter": {"N": "1"}}
    for item in (LEADER, broken, encode(lease(RIGHT)), encode(MINE)):
        table.put_item(item)
    rows = table.store.scan()
    assert rows.leases == (MINE, lease(RIGHT))
    assert rows.foreign == (ForeignRow(key="Leader", entity_type="LEADER"),)
    assert [type(error) for error in rows.malformed] == [MalformedLeaseError]
    assert LEFT in rows.malformed[0].subject
    with pytest.raises(MalformedLeaseError):
        table.store.write(Create(lease=lease(LEFT)))


def test_a_row_whose_counter_is_no_number_is_an_error(table: Table) -> None:
    broken = encode(MINE) | {"leaseCounter": {"S": "many"}}
    table.put_item(broken)
    with pytest.raises(SspError):
        table.store.write(Assign(lease=MINE, owner=BERT))
    # moto applies the rest of the update, which DynamoDB does not.
    assert [item["leaseCounter"] for item in table.items()] == [{"S": "many"}]


def test_a_row_of_another_kind_is_never_written(table: Table) -> None:
    table.put_item(LEADER)
    with pytest.raises(LeaseTableError, match="LEADER"):
        table.store.write(Create(lease=lease("Leader")))
    assert [alike(item) for item in table.items()] == [alike(LEADER)]


def test_a_scan_goes_on_past_the_first_page(table: Table) -> None:
    """A page of DynamoDB ends at one megabyte."""
    many = [
        lease(f"shardId-{number:012d}", extra_attributes={"fill": {"S": "x" * 300_000}})
        for number in range(8)
    ]
    for one in many:
        table.put_item(encode(one))
    assert table.store.scan().leases == tuple(many)
