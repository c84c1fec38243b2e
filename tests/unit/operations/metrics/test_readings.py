"""The values of the metrics of queries."""

from __future__ import annotations

from spark_ssp.common.spark.reader_status import ReaderCounters
from spark_ssp.operations.metrics.catalogue import METRICS
from spark_ssp.operations.metrics.readings import QueryStates, Reading
from spark_ssp.operations.snapshot import query_snapshot
from tests.support.kinesis.planning import shard_id
from tests.support.operations.reports import end_offset, report, status


def values(states: QueryStates, name: str) -> dict[tuple[str, ...], float]:
    return {one.labels[1:]: one.value for one in states.readings() if one.metric.name == name}


def test_a_trigger_sets_the_values_of_its_query() -> None:
    states = QueryStates(series=10)
    states.update(query_snapshot(report(end_offset(2), status({0: 5, 1: 70}))))
    assert values(states, "ssp_millis_behind_latest") == {
        ("orders", shard_id(0)): 5,
        ("orders", shard_id(1)): 70,
    }
    assert values(states, "ssp_max_millis_behind_latest") == {("orders",): 70}
    assert values(states, "ssp_shards")["orders", "open"] == 2
    assert values(states, "ssp_slots") == {(): 4}
    assert values(states, "ssp_leases") == {
        ("orders", "anne"): 2,
        ("orders", "bert"): 1,
        ("orders", "(none)"): 1,
    }
    assert values(states, "ssp_shards_not_read") == {("orders",): 2}
    assert values(states, "ssp_fan_out_shards") == {
        ("orders", "pushed"): 3,
        ("orders", "polled"): 1,
    }
    assert values(states, "ssp_arrival_spread_seconds") == {(): 90.5}
    assert values(states, "ssp_shards_left_behind") == {("orders",): 1}
    assert values(states, "ssp_batch_rows") == {(): 40}
    assert values(states, "ssp_trigger_seconds") == {("addBatch",): 0.7, ("triggerExecution",): 0.9}
    assert values(states, "ssp_throttles_total") == {(): 2}
    assert {one.labels[0] for one in states.readings() if one.labels} == {"etl"}


def test_every_count_of_a_reader_has_a_metric_and_every_value_its_labels() -> None:
    states = QueryStates(series=10)
    counters = ReaderCounters(
        retries=1, throttles=1, reshards=1, data_loss_warnings=1, agent_restarts=1
    ).document()
    found = states.update(query_snapshot(report(end_offset(1), status({0: 0}, None, **counters))))
    assert sorted(metric.name for metric in found) == sorted(
        f"ssp_{name}_total"
        for name in (
            *("retries", "throttles", "reshards", "data_loss_warnings", "lease_agent_restarts"),
            *("rows", "rows_dropped_by_watermark"),
        )
    )
    assert {one.metric for one in states.readings()} <= set(METRICS)
    assert all(len(one.labels) == len(one.metric.labels) for one in states.readings())


def test_the_series_of_a_stream_are_bounded_to_those_farthest_behind() -> None:
    states = QueryStates(series=2)
    states.update(query_snapshot(report(end_offset(4), status({0: 9, 1: 1, 2: 7, 3: 0}))))
    lag = values(states, "ssp_millis_behind_latest")
    assert lag == {("orders", shard_id(0)): 9, ("orders", shard_id(2)): 7}
    assert values(states, "ssp_lag_series_not_shown") == {("orders",): 2}
    none = QueryStates(series=0)
    none.update(query_snapshot(report(end_offset(4), status({0: 9}))))
    assert values(none, "ssp_millis_behind_latest") == {}
    assert values(none, "ssp_max_millis_behind_latest") == {("orders",): 9}


def test_an_ended_shard_and_a_query_without_a_status_have_no_lag() -> None:
    states = QueryStates(series=10)
    states.update(query_snapshot(report(end_offset(2, ended=(0,)), status({0: 0, 1: 3}))))
    assert values(states, "ssp_millis_behind_latest") == {("orders", shard_id(1)): 3}
    states.update(query_snapshot(report(end_offset(2), None, batch=8)))
    assert values(states, "ssp_millis_behind_latest") == {}
    assert values(states, "ssp_max_millis_behind_latest") == {}
    assert values(states, "ssp_retries_total") == {}
    assert values(states, "ssp_fan_out_shards") == {}
    assert values(states, "ssp_arrival_spread_seconds") == {}


def test_rows_add_up_once_for_each_trigger_and_start_again_with_a_run() -> None:
    states = QueryStates(series=1)
    first = query_snapshot(report(end_offset(1), status({0: 0}), batch=1))
    for snapshot in (first, first, query_snapshot(report(end_offset(1), None, batch=2))):
        states.update(snapshot)
    assert values(states, "ssp_rows_total") == {(): 80}
    assert values(states, "ssp_rows_dropped_by_watermark_total") == {(): 10}
    states.update(query_snapshot(report(end_offset(1), None, batch=3, run="run-2")))
    assert values(states, "ssp_rows_total") == {(): 40}
    assert values(states, "ssp_rows_dropped_by_watermark_total") == {(): 5}


def test_a_query_that_ends_disappears_and_a_failure_is_counted() -> None:
    states = QueryStates(series=1)
    states.update(query_snapshot(report(end_offset(1), None)))
    states.remove("another run", failed=False)
    assert len(states.readings()) > 1
    states.remove("run-1", failed=True)
    assert [Reading(*one)[1:] for one in states.readings()] == [((), 1)]
