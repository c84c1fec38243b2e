"""What leases say of their throughput, by which a KCL 3 leader moves them between workers."""

from __future__ import annotations

from dataclasses import replace

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.lease_renewer import NOMINAL_KBPS
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import State
from spark_ssp.checkpoint.leases.conditional_writes import Renew
from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from spark_ssp.grouping.identifiers import ShardId
from tests.support.leases.states import do, holding, kinds, scan, writes
from tests.support.leases.values import ANNE, BERT, lease, processed

LED = KclWorkers(leader=BERT, graceful=frozenset({BERT}))
MINE = lease("shardId-000000000000", counter=7, owner=ANNE, ssp_owner=ANNE)
OTHER = lease("shardId-000000000001", counter=7, owner=BERT)


def leader_throughput(*rows: Lease) -> State:
    """Anne holds what is hers, and then sees that a leader lives."""
    state = holding(*rows)
    return scan(state, *(seen.lease for seen in state.observed.values()), now=100, kcl_workers=LED)


def said(state: State) -> list[float | None]:
    return [write.throughput_kbps for write in writes(state, 100) if isinstance(write, Renew)]


def test_without_a_leader_nothing_is_said() -> None:
    assert kinds(holding(MINE), 100) == []


def test_where_nobody_has_measured_each_of_ours_says_the_same_once() -> None:
    """Or the leader would see no throughput at all, and move nothing."""
    state = leader_throughput(MINE, OTHER)
    assert said(state) == [NOMINAL_KBPS]
    after = do(state, 100)
    assert after.observed[MINE.key].lease.throughput_kbps == NOMINAL_KBPS
    assert said(after) == []


def test_it_does_not_wait_for_a_renewal_which_checkpoints_may_put_off_forever() -> None:
    report = Report(progress={MINE.key: processed(200)}, reading=frozenset({MINE.key}))
    state = lease_coordinator.apply_report(leader_throughput(MINE), report, 100)
    assert kinds(state, 100) == ["Renew"]
    assert kinds(do(state, 100), 100) == ["Checkpoint"]


def test_a_lease_without_a_measure_counts_as_the_average_of_the_others() -> None:
    assert said(leader_throughput(MINE, replace(OTHER, throughput_kbps=40.0))) == []


def test_once_others_measure_ours_say_their_average() -> None:
    rows = [
        replace(OTHER, throughput_kbps=40.0),
        replace(OTHER, shard=ShardId("shardId-000000000002"), throughput_kbps=20.0),
        replace(OTHER, shard=ShardId("shardId-000000000003"), throughput_kbps=0.0),
    ]
    assert said(leader_throughput(replace(MINE, throughput_kbps=NOMINAL_KBPS), *rows)) == [30.0]


def test_a_measure_of_the_kcl_stays() -> None:
    assert said(leader_throughput(replace(MINE, throughput_kbps=0.5), OTHER)) == []
