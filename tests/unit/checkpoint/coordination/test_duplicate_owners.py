"""Two processes under one name: a query that was started again while its last agent still closes,
and two queries with one `workerId`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Evict,
    Renew,
    RequestHandoff,
    Write,
)
from spark_ssp.checkpoint.leases.lease import LeaseKey, ShardEnded
from spark_ssp.common.errors import ServiceUnavailableError
from tests.support.leases.agents import FAILOVER_MS, World
from tests.support.leases.states import do, effect, fresh, holding, kinds, scan, writes
from tests.support.leases.values import ANNE, BERT, SHARD, lease, processed

KEY = LeaseKey(SHARD)
MINE = lease(counter=7, owner=ANNE, ssp_owner=ANNE, progress=processed(100))
HELD = replace(MINE, counter=8)
RIVALS = replace(MINE, counter=9)
READING = Report(reading=frozenset({KEY}))
DOWN = ServiceUnavailableError("table", found="nothing", expected="an answer", next_step="wait")


def test_who_closes_lets_what_another_holds_in_its_name_be() -> None:
    state = lease_coordinator.start_shutdown(holding(MINE))
    (write,) = writes(state, 1)
    state = lease_coordinator.apply_write_results(state, [(write, Conflict(found=RIVALS), 2)])
    assert writes(state, 2) == []
    assert lease_coordinator.is_finished(state)
    found = scan(lease_coordinator.start_shutdown(holding(MINE)), RIVALS, now=2)
    assert writes(found, 2) == []
    assert lease_coordinator.is_finished(found)


def test_what_is_held_is_given_away_only_with_its_own_counter() -> None:
    """A withdrawn request has no counter of this worker's to go by."""
    assert writes(lease_coordinator.start_shutdown(holding(MINE)), 1) == [
        Evict(lease=HELD, check_counter=True)
    ]
    asked = replace(HELD, owner=BERT, checkpoint_owner=ANNE)
    told = lease_coordinator.apply_report(scan(holding(MINE), asked, now=1), Report(), 2)
    assert writes(told, 2) == [Assign(lease=asked, owner=BERT, check_counter=True)]
    waiting = replace(MINE, owner=ANNE, checkpoint_owner=BERT)
    state = lease_coordinator.start_shutdown(scan(fresh(), waiting, now=0))
    assert writes(state, 1) == [Assign(lease=waiting, owner=BERT)]


def test_who_goes_on_takes_up_its_own_again() -> None:
    state = do(scan(holding(MINE), RIVALS, now=1), 1)
    assert set(lease_coordinator.build_status(state, 1).held) == {KEY}
    assert kinds(lease_coordinator.start_shutdown(state), 2) == ["Evict"]


def test_an_own_renewal_in_doubt_is_no_rivals() -> None:
    """Adopting what the last process left: the reply is lost, and the end comes."""
    state = scan(fresh(), MINE, now=0)
    state = lease_coordinator.apply_write_results(state, [(Renew(lease=MINE), DOWN, 1)])
    state = scan(lease_coordinator.start_shutdown(state), HELD, now=2_000)
    assert writes(state, 2_000) == [Evict(lease=HELD, check_counter=True)]


@pytest.mark.parametrize("after", [replace(RIVALS, owner=BERT), replace(RIVALS, owner=None)])
def test_leases_of_others_are_no_rivals(after: object) -> None:
    assert isinstance(after, type(MINE))
    state = scan(holding(MINE), after, now=1)
    assert (state.duplicate_owners, dict(state.collisions)) == (frozenset(), {})
    ended = scan(holding(MINE), replace(RIVALS, progress=ShardEnded()), now=1)
    assert ended.duplicate_owners == frozenset()


ASKED = replace(HELD, owner=BERT, checkpoint_owner=ANNE)
WITHDRAWN = effect(Assign(lease=ASKED, owner=ANNE))


@pytest.mark.parametrize("in_answer", [True, False])
@pytest.mark.parametrize("request_seen", [True, False])
@pytest.mark.parametrize("asked_again", [True, False])
def test_a_request_that_is_withdrawn_is_no_rivals(
    in_answer: bool, request_seen: bool, asked_again: bool
) -> None:
    """Whoever leaves then writes its progress and gives the lease back, as if nobody had asked."""
    found = WITHDRAWN
    if asked_again:
        found = effect(RequestHandoff(lease=found, to=BERT))
    state = holding(MINE)
    if request_seen:
        state = scan(state, ASKED, now=1)
    report = Report(leave=True, progress={KEY: processed(200)})
    state = lease_coordinator.apply_report(state, report, 2)
    if in_answer:
        (write,) = writes(state, 2)
        state = lease_coordinator.apply_write_results(state, [(write, Conflict(found=found), 3)])
    else:
        state = scan(state, found, now=3)
    assert (state.duplicate_owners, dict(state.collisions)) == (frozenset(), {})
    assert not lease_coordinator.is_finished(state)
    assert writes(state, 3) == [Checkpoint(lease=found, progress=processed(200))]
    state = do(state, 3)
    assert not lease_coordinator.is_finished(state)
    assert kinds(state, 3) == ["Assign" if asked_again else "Evict"]
    assert lease_coordinator.is_finished(do(state, 3))


def test_several_requests_may_be_withdrawn_between_two_looks() -> None:
    again = effect(RequestHandoff(lease=WITHDRAWN, to=BERT))
    twice = effect(Assign(lease=again, owner=ANNE))
    state = scan(holding(MINE), twice, now=1)
    assert state.duplicate_owners == frozenset()
    assert kinds(lease_coordinator.start_shutdown(state), 2) == ["Evict"]
    late = scan(holding(MINE), twice, now=FAILOVER_MS)
    assert late.duplicate_owners == {KEY}, "another may have taken it, and have given it back"
    assert scan(holding(MINE), WITHDRAWN, now=FAILOVER_MS).duplicate_owners == frozenset()


@pytest.mark.parametrize(
    "write", [Renew(lease=WITHDRAWN), Checkpoint(lease=ASKED, progress=processed(200))]
)
def test_a_rival_is_seen_beside_a_request(write: Write) -> None:
    state = scan(scan(holding(MINE), ASKED, now=1), effect(write), now=2)
    assert state.duplicate_owners == {KEY}


def test_what_is_assigned_after_a_rival_has_lost_it_is_given_back() -> None:
    state = scan(holding(MINE), RIVALS, now=1)
    bert = replace(RIVALS, counter=10, owner=BERT)
    assigned = replace(RIVALS, counter=11)
    state = lease_coordinator.start_shutdown(scan(scan(state, bert, now=2), assigned, now=3))
    assert not lease_coordinator.is_finished(state)
    assert writes(state, 4) == [Evict(lease=assigned, check_counter=True)]


def test_after_a_withdrawal_the_reader_may_take_the_shard_up_again() -> None:
    """What it said while the lease was asked for is no consent to the next request."""
    state = lease_coordinator.apply_report(scan(holding(MINE), ASKED, now=1), Report(), 2)
    state = scan(state, WITHDRAWN, now=3)
    assert KEY in lease_coordinator.build_status(state, 3).held
    asked = effect(RequestHandoff(lease=WITHDRAWN, to=BERT))
    state = scan(state, asked, now=4)
    assert writes(state, 4) == []
    assert writes(lease_coordinator.apply_report(state, Report(), 5), 5) == [
        Assign(lease=asked, owner=BERT, check_counter=True)
    ]


def test_it_takes_several_meetings_to_tell_of_a_shared_name() -> None:
    state = holding(MINE)
    for now in (10, 20, 30):
        assert not state.has_duplicate_worker(now)
        state = do(scan(state, replace(MINE, counter=now), now=now), now)
    assert state.has_duplicate_worker(30)
    assert not state.has_duplicate_worker(5 * FAILOVER_MS)


def test_a_query_that_is_started_again_keeps_what_its_last_agent_gives_back() -> None:
    world = World()
    old = world.agent(ANNE)
    old.exchange(Report(create=(lease(),)))
    old.exchange(READING)
    old.write_ms = 400
    old.hang_up()
    new = world.agent(ANNE)
    assert set(new.exchange(READING).held) == {KEY}
    world.run(2_000)
    assert old.is_over()
    assert world.owners() == {KEY: ANNE}
    assert set(new.exchange(READING).held) == {KEY}


def test_two_queries_with_one_name_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    agents = [world.agent(ANNE), world.agent(ANNE)]
    for agent in agents:
        agent.exchange(Report(create=(lease(),)))
    world.run(1_700)
    for _ in range(4):
        world.run(FAILOVER_MS)
        for agent in agents:
            agent.exchange(READING)
    assert "under the same workerId" in caplog.text
