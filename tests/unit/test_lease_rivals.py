"""Two processes under one name: a query that was started again while its last keeper still closes,
and two queries with one `workerId`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpoint import coordination
from checkpoint.coworking import Report
from checkpoint.lease import LeaseKey
from checkpoint.progress import ShardEnded
from checkpoint.writes import Assign, Conflict, Evict, Renew
from ssp_common.errors import ServiceUnavailableError
from tests.support.keepers import FAILOVER_MS, World
from tests.support.lease_states import do, fresh, holding, kinds, scan, writes
from tests.support.leases import ANNE, BERT, SHARD, lease, processed

KEY = LeaseKey(SHARD)
MINE = lease(counter=7, owner=ANNE, ssp_owner=ANNE, progress=processed(100))
HELD = replace(MINE, counter=8)
RIVALS = replace(MINE, counter=9)
READING = Report(reading=frozenset({KEY}))
DOWN = ServiceUnavailableError("table", found="nothing", expected="an answer", next_step="wait")


def test_who_closes_lets_what_another_holds_in_its_name_be() -> None:
    state = coordination.closing(holding(MINE), 1)
    (write,) = writes(state, 1)
    state = coordination.written(state, write, Conflict(found=RIVALS), 2)
    assert writes(state, 2) == []
    assert coordination.finished(state)
    found = scan(coordination.closing(holding(MINE), 1), RIVALS, now=2)
    assert writes(found, 2) == []
    assert coordination.finished(found)


def test_what_is_held_is_given_away_only_with_its_own_counter() -> None:
    """A withdrawn request has no counter of this worker's to go by."""
    assert writes(coordination.closing(holding(MINE), 1), 1) == [Evict(lease=HELD, mine=True)]
    asked = replace(HELD, owner=BERT, checkpoint_owner=ANNE)
    told = coordination.reported(scan(holding(MINE), asked, now=1), Report(), 2)
    assert writes(told, 2) == [Assign(lease=asked, owner=BERT, mine=True)]
    waiting = replace(MINE, owner=ANNE, checkpoint_owner=BERT)
    state = coordination.closing(scan(fresh(), waiting, now=0), 1)
    assert writes(state, 1) == [Assign(lease=waiting, owner=BERT)]


def test_who_goes_on_takes_up_its_own_again() -> None:
    state = do(scan(holding(MINE), RIVALS, now=1), 1)
    assert set(coordination.status(state, 1).held) == {KEY}
    assert kinds(coordination.closing(state, 2), 2) == ["Evict"]


def test_an_own_renewal_in_doubt_is_no_rivals() -> None:
    """Adopting what the last process left: the reply is lost, and the end comes."""
    state = scan(fresh(), MINE, now=0)
    state = coordination.written(state, Renew(lease=MINE), DOWN, 1)
    state = scan(coordination.closing(state, 2), HELD, now=2_000)
    assert writes(state, 2_000) == [Evict(lease=HELD, mine=True)]


@pytest.mark.parametrize("after", [replace(RIVALS, owner=BERT), replace(RIVALS, owner=None)])
def test_leases_of_others_are_no_rivals(after: object) -> None:
    assert isinstance(after, type(MINE))
    state = scan(holding(MINE), after, now=1)
    assert (state.rivals, dict(state.meetings)) == (frozenset(), {})
    ended = scan(holding(MINE), replace(RIVALS, progress=ShardEnded()), now=1)
    assert ended.rivals == frozenset()


def test_it_takes_several_meetings_to_tell_of_a_shared_name() -> None:
    state = holding(MINE)
    for now in (10, 20, 30):
        assert not state.shares_its_name(now)
        state = do(scan(state, replace(MINE, counter=now), now=now), now)
    assert state.shares_its_name(30)
    assert not state.shares_its_name(5 * FAILOVER_MS)


def test_a_query_that_is_started_again_keeps_what_its_last_keeper_gives_back() -> None:
    world = World()
    old = world.keeper(ANNE)
    old.exchange(Report(create=(lease(),)))
    old.exchange(READING)
    old.write_ms = 400
    old.hang_up()
    new = world.keeper(ANNE)
    assert set(new.exchange(READING).held) == {KEY}
    world.run(2_000)
    assert old.is_over()
    assert world.owners() == {KEY: ANNE}
    assert set(new.exchange(READING).held) == {KEY}


def test_two_queries_with_one_name_are_told(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    keepers = [world.keeper(ANNE), world.keeper(ANNE)]
    for keeper in keepers:
        keeper.exchange(Report(create=(lease(),)))
    world.run(1_700)
    for _ in range(4):
        world.run(FAILOVER_MS)
        for keeper in keepers:
            keeper.exchange(READING)
    assert "under the same workerId" in caplog.text
