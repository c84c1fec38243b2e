"""The values of the metrics of queries."""

from __future__ import annotations

from spark_ssp.common.spark.reader_status import ReaderCounters
from spark_ssp.operations.health import Verdict
from spark_ssp.operations.metrics.catalogue import METRICS
from spark_ssp.operations.metrics.readings import QueryStates
from spark_ssp.operations.observed_queries import ObservedQueries
from spark_ssp.operations.snapshot import query_snapshot
from tests.support.kinesis.planning import shard_id
from tests.support.operations.reports import end_offset, kafka_end_offset, report, status


def values(states: QueryStates, name: str) -> dict[tuple[str, ...], float]:
    return {one.labels[1:]: one.value for one in states.readings() if one.metric.name == name}


def test_a_trigger_sets_the_values_of_its_query() -> None:
    states = QueryStates(series=10)
    states.update(query_snapshot(report(end_offset(2), status({0: 5, 1: 70}))))
    assert values(states, "ssp_shard_delay_seconds") == {
        ("orders", shard_id(0)): 0.005,
        ("orders", shard_id(1)): 0.07,
    }
    assert values(states, "ssp_planned_delay_seconds") == {("orders",): 0.07}
    assert values(states, "ssp_shards")["orders", "open"] == 2
    assert values(states, "ssp_slots") == {(): 4}
    assert values(states, "ssp_leases") == {
        ("orders", "anne"): 2,
        ("orders", "bert"): 1,
        ("orders", "(none)"): 1,
    }
    assert values(states, "ssp_unread_shards") == {
        ("orders", "free"): 1,
        ("orders", "stale"): 0,
        ("orders", "malformed"): 2,
    }
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


def test_the_series_of_a_stream_are_bounded_and_do_not_come_and_go() -> None:
    for series, shown in ((4, 4), (3, 0), (0, 0)):
        states = QueryStates(series=series)
        states.update(query_snapshot(report(end_offset(4), status({0: 9, 1: 1, 2: 7, 3: 0}))))
        assert len(values(states, "ssp_shard_delay_seconds")) == shown
        assert values(states, "ssp_series_not_shown") == {("orders",): 4 - shown}
        assert values(states, "ssp_planned_delay_seconds") == {("orders",): 0.009}


def test_an_ended_shard_and_a_query_without_a_status_have_no_lag() -> None:
    states = QueryStates(series=10)
    states.update(query_snapshot(report(end_offset(2, ended=(0,)), status({0: 0, 1: 3}))))
    assert values(states, "ssp_shard_delay_seconds") == {("orders", shard_id(1)): 0.003}
    states.update(query_snapshot(report(end_offset(2), None, batch=8)))
    assert values(states, "ssp_shard_delay_seconds") == {}
    assert values(states, "ssp_planned_delay_seconds") == {}
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


def test_a_query_that_fails_leaves_its_verdict_and_its_failures() -> None:
    queries = ObservedQueries()
    now = 0
    states = QueryStates(series=1, now_ms=lambda: now)
    states.attach(queries)
    snapshot = query_snapshot(report(end_offset(1), status({0: 7})))
    now = snapshot.time_ms
    queries.publish(snapshot)
    states.update(snapshot)
    states.remove("another run")
    assert values(states, "ssp_committed_delay_seconds") == {(): 0.007}
    assert values(states, "ssp_running_queries") == {(): 1}
    now += 60_000  # nothing is reported: the results are older than they were
    assert values(states, "ssp_committed_delay_seconds") == {(): 60.007}
    assert values(states, "ssp_unmeasured_parts") == {(): 0}
    queries.ended("run-1", "data-loss", now)
    states.remove("run-1")
    assert {one.metric.name for one in states.readings()} == {
        "ssp_running_queries",
        "ssp_query_verdict",
        "ssp_query_failures_total",
    }
    verdicts = values(states, "ssp_query_verdict")
    assert verdicts == {(verdict,): verdict is Verdict.FAILED for verdict in Verdict}
    assert values(states, "ssp_query_failures_total") == {(): 1}


def test_a_stream_and_a_topic_of_one_name_have_one_series() -> None:
    queries, states = ObservedQueries(), QueryStates(series=10, now_ms=lambda: 0)
    states.attach(queries)
    lags = {"offsetsBehindLatest": {"0": 0}, "maxOffsetsBehindLatest": 0}
    latest = {"topics": {"orders": lags | {"sumOffsetsBehindLatest": 0}}} | lags
    both = report(end_offset(1), status({0: 70}))
    both["sources"] += report(kafka_end_offset("orders", 1, 3), latest)["sources"]
    snapshot = query_snapshot(both)
    queries.publish(snapshot)
    states.update(snapshot)
    found = [one for one in states.readings() if one.metric.name == "ssp_planned_delay_seconds"]
    assert [(one.labels, one.value) for one in found] == [(("etl", "orders"), 0.07)]
    series = [(one.metric, one.labels) for one in states.readings()]
    assert len(series) == len(set(series))


def test_the_delays_of_a_topic_are_in_seconds_too() -> None:
    queries, states = ObservedQueries(), QueryStates(series=10, now_ms=lambda: 0)
    states.attach(queries)
    end = kafka_end_offset("orders", 2, 3)
    lags = {"offsetsBehindLatest": {"0": 0, "1": 0}, "maxOffsetsBehindLatest": 0}
    latest = {"topics": {"orders": lags | {"sumOffsetsBehindLatest": 0}}} | lags
    snapshot = query_snapshot(report(end, latest))
    queries.publish(snapshot)
    states.update(snapshot)
    assert values(states, "ssp_planned_delay_seconds") == {("orders",): 0}
    assert values(states, "ssp_shard_delay_seconds") == {("orders", "0"): 0, ("orders", "1"): 0}
    assert values(states, "ssp_topic_offsets_behind") == {("orders",): 0}
