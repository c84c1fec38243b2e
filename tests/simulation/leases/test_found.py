"""What the histories of shared leases found, told plainly: one test for each, so that it stays
found."""

from __future__ import annotations

from tests.simulation.leases.test_leases import Rough, WithKcl
from tests.support.leases.memory_store import Fault


def test_one_that_stops_does_not_end_a_shard_whose_children_it_could_not_create() -> None:
    """Who lists its shards next would have found the parent done, and of its children nothing."""
    history = Rough()
    history.begin(workers=2, shards=1, seed=0)
    history.split(number=0)
    history.fail(faults=[Fault.REPLY_LOST], number=0)
    history.cut_off(number=0, everybody=False, millis=2_000)
    history.stop(number=0, cut_off_ms=2_000)
    history.pass_time(millis=1)
    history.finish()
    assert history.world.happened["shard left un-ended"]


def test_leases_of_others_are_planned_again_within_the_failover_time() -> None:
    """Also if the first plan waits for a lease to expire that is this worker's own by then."""
    history = Rough()
    history.begin(workers=3, shards=1, seed=0)
    history.fail(faults=[Fault.REPLY_LOST], number=0)
    history.pass_time(millis=3301)
    history.put(number=0, records=1)
    history.crash(number=0)
    history.finish()


def test_a_kcl_2_worker_holds_what_it_takes_during_a_handoff() -> None:
    """It leaves the attributes of the handoff, which it does not know."""
    history = WithKcl()
    history.begin(workers=2, shards=4, seed=0)
    history.choose(version="kcl2", workers=0)
    history.pass_time(millis=10_000)
    for number in (0, 1):
        history.take_long(number=number, millis=40_000)
    history.put(number=0, records=12)
    history.pass_time(millis=5_000)
    history.join(rate=1.0, max_leases=None)
    history.pass_time(millis=2_000)
    asked = {key for key, row in history.world.rows.items() if row.checkpoint_owner}
    assert asked
    for _ in range(3):
        history.crash(number=0)
    history.start_kcl()
    history.pass_time(millis=40_000)
    (kcl,) = history.kcls
    rows = history.world.rows
    assert {rows[key].holder for key in asked} == {kcl.worker}
    assert all(rows[key].checkpoint_owner for key in asked)
    history.finish()
