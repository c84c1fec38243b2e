"""Many leases: what a worker does at a time grows no faster than they do. Calls are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from spark_ssp.checkpoint.coordination import lease_coordinator
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import State
from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.checkpoint.leases.worker_metrics import KclWorkers
from tests.support.leases.states import fresh, holding, scan, steps
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
    ],
)
def test_work_grows_as_the_leases_do(work: Callable[[int], Callable[[], object]]) -> None:
    assert growth(work, 50) < LINEAR
