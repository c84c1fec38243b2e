"""KCL 3's rows: who lives, who leads, and where our own row belongs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_ssp.checkpoint.leases.lease import Item
from spark_ssp.checkpoint.leases.lease_serializer import ForeignRow, decode
from spark_ssp.checkpoint.leases.worker_metrics import (
    KclObservation,
    KclRows,
    KclWorkers,
    LeaderRow,
    MetricRow,
    RowLocation,
    kcl_rows,
    observe_kcl,
    own_metric_row,
)
from spark_ssp.grouping.identifiers import WorkerId
from tests.support.leases.values import ANNE, BERT, CARL

WALL = 1_800_000_000
NOW = 5_000_000


def metric(
    worker: WorkerId,
    *,
    location: RowLocation = RowLocation.METRICS,
    age: int = 0,
    ours: bool = False,
) -> Any:
    return MetricRow(worker=worker, location=location, updated=WALL - age, ours=ours)


def leader(
    worker: WorkerId, version: str = "a", location: RowLocation = RowLocation.METRICS
) -> LeaderRow:
    return LeaderRow(worker=worker, location=location, version=version, duration_ms=120_000)


def seen(*metrics: MetricRow, leaders: tuple[LeaderRow, ...] = (), versions: str = "") -> KclRows:
    return KclRows(metrics=metrics, leaders=leaders, client_versions=frozenset(versions.split()))


# --- Reading rows --------------------------------------------------------------------------------

METRIC: Item = {
    "wid": {"S": "anne"},
    "lut": {"N": str(WALL)},
    "sts": {"M": {"C": {"L": [{"N": "1.5"}]}}},
    "opr": {"M": {"C": {"L": [{"N": "80"}]}}},
}
LEADER: Item = {
    "key": {"S": "Leader"},
    "ownerName": {"S": "anne"},
    "leaseDuration": {"S": "90000"},
    "recordVersionNumber": {"S": "5f0c"},
}
VERSION: Item = {"key": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_3X"}}


def _in_the_lease_table(item: Item, key: str, entity_type: str) -> ForeignRow:
    rest = {name: value for name, value in item.items() if name not in ("wid", "key")}
    found = decode({**rest, "leaseKey": {"S": key}, "entityType": {"S": entity_type}})
    assert isinstance(found, ForeignRow)
    return found


def test_the_tables_of_kcl_3_1() -> None:
    expected = LeaderRow(
        worker=ANNE, location=RowLocation.METRICS, version="5f0c", duration_ms=90_000
    )
    assert kcl_rows([], [METRIC], [LEADER, VERSION]) == KclRows(
        metrics=(metric(ANNE),),
        leaders=(expected,),
        client_versions=frozenset({"CLIENT_VERSION_3X"}),
    )


def test_the_lease_table_of_kcl_3_5() -> None:
    rows = [
        _in_the_lease_table(METRIC, "anne", "WORKER_METRIC_STATS"),
        _in_the_lease_table(LEADER, "Leader", "LEADER"),
        _in_the_lease_table(VERSION, "Migration3.0", "CLIENT_VERSION_MIGRATION"),
        _in_the_lease_table({}, "TableMigration3.5", "TABLE_MIGRATION"),
        _in_the_lease_table({}, "orders", "STREAM"),
    ]
    expected = LeaderRow(
        worker=ANNE, location=RowLocation.LEASES, version="5f0c", duration_ms=90_000
    )
    assert kcl_rows(rows) == KclRows(
        metrics=(metric(ANNE, location=RowLocation.LEASES),),
        leaders=(expected,),
        client_versions=frozenset({"CLIENT_VERSION_3X"}),
    )


@pytest.mark.parametrize(
    "broken",
    [{}, {"lut": {"S": "1"}}, {"lut": {"N": "1.5"}}, {"lut": {"N": "x"}}, {"wid": {"N": "1"}}],
)
def test_a_metric_row_that_cannot_be_read_is_left_out(broken: Item) -> None:
    item = {"wid": {"S": "anne"}} | dict(broken)
    assert kcl_rows([], [item, METRIC]).metrics == (metric(ANNE),)


def test_a_leader_that_has_let_go_is_none() -> None:
    assert kcl_rows([], [], [{**LEADER, "isReleased": {"S": "1"}}]).leaders == ()
    assert kcl_rows([], [], [{"key": {"S": "Leader"}}]).leaders == ()


def test_a_leader_without_a_duration_has_the_kcls() -> None:
    (row,) = kcl_rows([], [], [{**LEADER, "leaseDuration": {"S": "soon"}}]).leaders
    assert row.duration_ms == 120_000


@pytest.mark.parametrize("location", RowLocation)
def test_our_own_row_reads_as_ours(location: RowLocation) -> None:
    item = own_metric_row(BERT, location, WALL) | {location.value: {"S": "bert"}}
    assert item["sts"] == item["opr"] == {"M": {}}
    assert item["sup"] == {"N": "1"}
    assert item["slu"] == item["lut"] == {"N": str(WALL)}
    if location is RowLocation.LEASES:
        row = decode(item)
        assert isinstance(row, ForeignRow)
        found = kcl_rows([row])
    else:
        assert "entityType" not in item
        found = kcl_rows([], [item])
    assert found.metrics == (metric(BERT, location=location, ours=True),)


# --- Who lives -----------------------------------------------------------------------------------


def test_nobody() -> None:
    assert observe_kcl(KclObservation(), seen(), NOW, WALL) == KclObservation()


@pytest.mark.parametrize(("age", "lives"), [(0, True), (60, True), (61, False), (-61, False)])
def test_at_first_sight_clocks_are_compared(age: int, lives: bool) -> None:
    watch = observe_kcl(KclObservation(), seen(metric(ANNE, age=age)), NOW, WALL)
    assert watch.kcl_workers.graceful == (frozenset({ANNE}) if lives else frozenset())
    assert watch.location is (RowLocation.METRICS if lives else None)


def test_a_row_that_changes_lives_whatever_its_clock_says() -> None:
    watch = observe_kcl(KclObservation(), seen(metric(ANNE, age=500)), NOW, WALL)
    assert not watch.kcl_workers.graceful
    later = seen(metric(ANNE, age=470))
    watch = observe_kcl(watch, later, NOW + 30_000, WALL + 30)
    assert watch.kcl_workers.graceful == {ANNE}
    watch = observe_kcl(watch, later, NOW + 90_000, WALL + 90)
    assert watch.kcl_workers.graceful == {ANNE}
    watch = observe_kcl(watch, later, NOW + 90_001, WALL + 90)
    assert not watch.kcl_workers.graceful


def test_a_row_that_stays_dies_by_the_clock() -> None:
    row = seen(metric(ANNE, age=30))
    watch = observe_kcl(KclObservation(), row, NOW, WALL)
    assert watch.kcl_workers.graceful == {ANNE}
    watch = observe_kcl(watch, row, NOW + 31_000, WALL + 31)
    assert not watch.kcl_workers.graceful


# --- Who leads -----------------------------------------------------------------------------------


def test_a_leader_lives_while_its_heartbeats_and_its_metrics_come() -> None:
    rows = seen(metric(ANNE), metric(BERT), leaders=(leader(ANNE),))
    watch = observe_kcl(KclObservation(), rows, NOW, WALL)
    assert watch.kcl_workers == KclWorkers(leader=ANNE, graceful=frozenset({ANNE, BERT}))


def test_a_leader_whose_metrics_have_stopped_is_dead() -> None:
    rows = seen(metric(ANNE, age=61), metric(BERT), leaders=(leader(ANNE),))
    assert observe_kcl(KclObservation(), rows, NOW, WALL).kcl_workers.leader is None


def test_a_leader_without_heartbeats_is_dead_though_its_worker_lives() -> None:
    watch = observe_kcl(KclObservation(), seen(metric(ANNE), leaders=(leader(ANNE),)), NOW, WALL)
    for seconds, leads in ((40, True), (80, True), (120, True), (121, False)):
        rows = seen(metric(ANNE, age=-seconds), leaders=(leader(ANNE),))
        watch = observe_kcl(watch, rows, NOW + seconds * 1000, WALL + seconds)
        assert watch.kcl_workers.leader == (ANNE if leads else None)
        assert watch.kcl_workers.graceful == {ANNE}
    rows = seen(metric(ANNE, age=-125), leaders=(leader(ANNE, "b"),))
    assert observe_kcl(watch, rows, NOW + 125_000, WALL + 125).kcl_workers.leader == ANNE


@pytest.mark.parametrize(
    ("version", "leads"),
    [
        ("CLIENT_VERSION_2X", False),
        ("CLIENT_VERSION_UPGRADE_FROM_2X", False),
        ("CLIENT_VERSION_3X_WITH_ROLLBACK", True),
        ("CLIENT_VERSION_3X", True),
        ("CLIENT_VERSION_9X", True),
    ],
)
def test_in_the_mode_of_kcl_2_nobody_leads(version: str, leads: bool) -> None:
    rows = seen(metric(ANNE), leaders=(leader(ANNE),), versions=version)
    found = observe_kcl(KclObservation(), rows, NOW, WALL).kcl_workers
    assert found.leader == (ANNE if leads else None)
    assert found.graceful == {ANNE}


def test_an_old_leader_row_left_by_a_migration_does_not_hide_the_new_one() -> None:
    old, new = leader(ANNE), leader(BERT, location=RowLocation.LEASES)
    metrics = (metric(ANNE, age=500), metric(BERT, location=RowLocation.LEASES))
    watch = observe_kcl(KclObservation(), seen(*metrics, leaders=(old, new)), NOW, WALL)
    assert watch.kcl_workers.leader == BERT


def test_heartbeats_of_one_worker_in_two_tables_are_not_mixed() -> None:
    rows = (leader(ANNE, "a"), leader(ANNE, "b", location=RowLocation.LEASES))
    watch = observe_kcl(KclObservation(), seen(metric(ANNE), leaders=rows), NOW, WALL)
    later = seen(metric(ANNE, age=-121), leaders=rows)
    watch = observe_kcl(watch, later, NOW + 121_000, WALL + 121)
    assert watch.kcl_workers.leader is None


# --- Where our row belongs -----------------------------------------------------------------------


def test_our_row_belongs_where_the_kcls_are() -> None:
    old, new = metric(ANNE), metric(BERT, location=RowLocation.LEASES)
    for rows, location in (
        ((old,), RowLocation.METRICS),
        ((new,), RowLocation.LEASES),
        ((old, new), RowLocation.LEASES),
        ((old, replace(new, updated=WALL - 61)), RowLocation.METRICS),
        ((), None),
    ):
        assert observe_kcl(KclObservation(), seen(*rows), NOW, WALL).location is location


def test_our_own_rows_keep_no_row_alive() -> None:
    watch = observe_kcl(
        KclObservation(), seen(metric(CARL, ours=True), metric(ANNE, age=61)), NOW, WALL
    )
    assert watch.location is None
    assert watch.kcl_workers.graceful == {CARL}
