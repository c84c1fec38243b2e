"""Many leases: what a worker does at a time grows no faster than they do. Calls are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import MAX_IN_FLIGHT, State
from spark_ssp.checkpoint.leases.conditional_writes import Done
from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from tests.support.leases.states import effect, fresh, holding, scan, steps
from tests.support.leases.values import ANNE, BERT, lease, processed
from tests.support.spark.work import growth

LINEAR = 1.1
LED = KclWorkers(leader=BERT, graceful=frozenset({BERT}))


def rows(number: int) -> list[Lease]:
    """Anne's, marked as ours."""
    return [
        lease(f"shardId-{n:012d}", counter=7, owner=ANNE, ssp_owner=ANNE) for n in range(number)
    ]


def seen(state: State) -> list[Lease]:
    return [row.lease for row in state.observed.values()]


def beside_a_leader(number: int) -> Callable[[], object]:
    state = holding(*rows(number))
    return partial(steps, scan(state, *seen(state), now=100, kcl_workers=LED), 100)


def renewing(number: int) -> Callable[[], object]:
    return partial(steps, holding(*rows(number)), 5_000)


def checkpointing(number: int) -> Callable[[], object]:
    state = holding(*rows(number))
    done = dict.fromkeys(state.held, processed(100))
    report = Report(progress=done, reading=frozenset(state.held))
    return partial(steps, lease_coordinator.apply_report(state, report, 100), 100)


def taking_free_ones(number: int) -> Callable[[], object]:
    free = [replace(row, owner=None, ssp_owner=None) for row in rows(number)]
    return partial(steps, scan(fresh(), *free, now=100), 100)


def asking_for_half(number: int) -> Callable[[], object]:
    others = [replace(row, owner=BERT, ssp_owner=BERT) for row in rows(number)]
    return partial(steps, scan(fresh(), *others, now=100), 100)


def reporting(number: int) -> Callable[[], object]:
    state = holding(*rows(number))
    done = dict.fromkeys(state.held, processed(100))
    report = Report(create=tuple(rows(number)), progress=done, reading=frozenset(state.held))
    return partial(lease_coordinator.apply_report, state, report, 100)


def answering(number: int) -> Callable[[], object]:
    return partial(lease_coordinator.build_status, holding(*rows(number)), 100)


def resting(number: int) -> Callable[[], object]:
    """A step in which nothing is due."""
    state = holding(*rows(number))
    planned = lease_coordinator.mark_started(state, steps(state, 100), 100)
    return partial(steps, planned, 200)


def applying_results(number: int) -> Callable[[], object]:
    state = holding(*rows(number))
    due = steps(state, 5_000)
    state = lease_coordinator.mark_started(state, due, 5_000)
    results = [(write, Done(lease=effect(write)), 5_010) for write in due.writes]
    return partial(lease_coordinator.apply_write_results, state, results)


def losing_all(number: int) -> Callable[[], object]:
    state = holding(*rows(number))
    others = [replace(row, owner=BERT, counter=9) for row in seen(state)]
    return partial(scan, state, *others, now=100)


@pytest.mark.parametrize(
    "work",
    [
        beside_a_leader,
        renewing,
        checkpointing,
        taking_free_ones,
        asking_for_half,
        reporting,
        answering,
        losing_all,
        applying_results,
    ],
)
def test_work_grows_as_the_leases_do(work: Callable[[int], Callable[[], object]]) -> None:
    assert growth(work, 50) < LINEAR


def test_a_step_without_due_writes_costs_the_same_for_any_number_of_leases() -> None:
    assert growth(resting, 50) < 0.1


def test_no_more_writes_begin_than_may_be_in_flight() -> None:
    state = holding(*rows(MAX_IN_FLIGHT + 100))
    due = steps(state, 5_000)
    assert len(due.writes) == MAX_IN_FLIGHT
    state = lease_coordinator.mark_started(state, due, 5_000)
    assert steps(state, 5_010).writes == ()
    results = [(write, Done(lease=effect(write)), 5_020) for write in due.writes]
    state = lease_coordinator.apply_write_results(state, results)
    rest = {write.lease.key for write in steps(state, 5_020).writes}
    assert rest == state.held.keys() - {write.lease.key for write in due.writes}
