"""Rows that are there and cannot be read."""

from __future__ import annotations

import logging
import pickle

import pytest

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import State
from spark_ssp.checkpoint.leases.conditional_writes import Take
from spark_ssp.checkpoint.leases.lease import (
    AttributeValue,
    Lease,
    LeaseKey,
    MalformedLeaseError,
    ShardEnded,
)
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.checkpoint.leases.lease_store import parse_rows
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from tests.support.leases.agents import FAILOVER_MS, World
from tests.support.leases.states import do, fresh, holding, kinds, scan, steps, writes
from tests.support.leases.values import ANNE, BERT, lease, processed

PARENT, CHILD, THIRD = (f"shardId-{number:012d}" for number in range(3))
KEY = LeaseKey(PARENT)
PARENT_ROW = lease(PARENT, counter=3, progress=processed(100))
MINE = lease(PARENT, counter=7, owner=ANNE, ssp_owner=ANNE, progress=processed(100))
CHILD_ROW = lease(CHILD, parents=(PARENT,))


def spoilt(row: Lease) -> dict[str, AttributeValue]:
    """The row in the table, without an attribute that every lease has."""
    item = encode(row)
    del item["ownerSwitchesSinceCheckpoint"]
    return item


def seen(state: State, *rows: Lease, bad: tuple[Lease, ...], now: int) -> State:
    """A scan that finds rows and, among them, some that cannot be read."""
    found = parse_rows([*map(encode, rows), *map(spoilt, bad)])
    due = steps(state, now)
    begun = lease_coordinator.mark_started(
        state, type(due)(writes=(), scan=True, metrics=False, wake_at=0), now
    )
    return lease_coordinator.apply_scan(begun, found, KclWorkers(), now)


def test_the_error_says_whose_row_it_is_also_from_afar() -> None:
    (error,) = parse_rows([spoilt(PARENT_ROW)]).malformed
    assert error.key == PARENT
    again = pickle.loads(pickle.dumps(error))
    assert (again.key, str(again)) == (PARENT, str(error))
    assert (type(again), again.found) == (MalformedLeaseError, error.found)


def test_a_child_waits_while_its_parents_row_cannot_be_read() -> None:
    state = seen(fresh(), CHILD_ROW, bad=(PARENT_ROW,), now=0)
    assert writes(state, 0) == []
    status = lease_coordinator.build_status(state, 0)
    assert set(status.unreadable) == {KEY}
    assert set(status.rows) == {CHILD_ROW.key}
    mended = scan(state, CHILD_ROW, lease(PARENT, progress=ShardEnded()), now=5_000)
    assert [type(write) for write in writes(mended, 5_000)] == [Take]
    assert lease_coordinator.build_status(mended, 5_000).unreadable == frozenset()


def test_it_is_neither_taken_nor_created_nor_deleted() -> None:
    end = lease(PARENT, progress=ShardEnded(), owner=ANNE, ssp_owner=ANNE, children=(CHILD,))
    begun = lease(CHILD, parents=(PARENT,), progress=processed(5), owner=BERT)
    report = Report(create=(PARENT_ROW,), listed=frozenset({begun.key}))
    told = lease_coordinator.apply_report(scan(fresh(), end, begun, now=0), report, 1)
    state = lease_coordinator.apply_report(
        seen(told, begun, bad=(end,), now=300_000), report, 300_001
    )
    assert not {"Create", "Delete"} & set(kinds(state, 300_001))
    assert all(write.lease.key != KEY for write in writes(state, 300_001))
    assert kinds(scan(told, end, begun, now=300_000), 300_001)[-1:] == ["Delete"]


def test_a_chain_is_not_cleaned_up_past_it() -> None:
    """Its own parent's row would go before it, were it taken for gone."""
    middle = lease(CHILD, parents=(PARENT,), children=(THIRD,), progress=ShardEnded(), owner=ANNE)
    last = lease(THIRD, parents=(CHILD,), progress=processed(5), owner=BERT)
    state = scan(fresh(), PARENT_ROW, middle, last, now=0)
    state = seen(state, middle, last, bad=(PARENT_ROW,), now=300_000)
    assert "Delete" not in kinds(state, 300_001)
    assert "Delete" in kinds(scan(state, middle, last, now=300_500), 300_501)


@pytest.mark.parametrize("reading", [True, False])
def test_it_is_a_problem_of_who_held_it(reading: bool) -> None:
    report = Report(reading=frozenset({KEY} if reading else ()))
    state = lease_coordinator.apply_report(holding(MINE), report, 1)
    for now in (5_000, 10_000):
        state = seen(state, bad=(MINE,), now=now)
        status = lease_coordinator.build_status(state, now)
        assert isinstance(status.problem, MalformedLeaseError)
        assert (status.problem.key, status.held) == (KEY, {})
    mended = do(scan(state, MINE, now=15_000), 15_000)
    assert lease_coordinator.build_status(mended, 15_000).problem is None
    assert set(lease_coordinator.build_status(mended, 15_000).held) == {KEY}


def test_it_is_a_problem_of_who_reads_it_and_of_nobody_else() -> None:
    state = seen(fresh(), bad=(MINE,), now=0)
    assert lease_coordinator.build_status(state, 0).problem is None
    state = lease_coordinator.apply_report(state, Report(reading=frozenset({KEY})), 1)
    assert isinstance(lease_coordinator.build_status(state, 1).problem, MalformedLeaseError)


def test_a_write_that_meets_one_is_a_problem_of_the_holder_alone() -> None:
    error = parse_rows([spoilt(PARENT_ROW)]).malformed[0]
    state = scan(fresh(), PARENT_ROW, now=0)
    (take,) = writes(state, 0)
    state = lease_coordinator.apply_write_results(state, [(take, error, 1)])
    assert lease_coordinator.build_status(state, 1).problem is None
    held = holding(MINE)
    (renewal,) = writes(held, 3_333)
    assert lease_coordinator.build_status(
        lease_coordinator.apply_write_results(held, [(renewal, error, 3_334)]), 3_334
    ).problem


def test_the_agent_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.store.put_item(spoilt(PARENT_ROW))
    world.store.put_item(encode(CHILD_ROW))
    agent = world.agent(ANNE)
    with caplog.at_level(logging.WARNING):
        status = agent.exchange(Report())
        world.run(3 * FAILOVER_MS)
    assert set(status.unreadable) == {KEY}
    assert status.held == {}
    (record,) = caplog.records
    assert f"1 malformed lease rows; their shards and descendants are paused: {PARENT}" in (
        record.getMessage()
    )
    assert "ownerSwitchesSinceCheckpoint" in record.getMessage()


def test_the_rest_of_a_table_is_none_the_worse() -> None:
    other = lease(THIRD)
    state = seen(fresh(), other, bad=(PARENT_ROW,), now=0)
    assert [write.lease for write in writes(state, 0)] == [other]
