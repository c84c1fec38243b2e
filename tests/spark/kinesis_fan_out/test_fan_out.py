"""Queries that are pushed to: the same batches as by polling, and consumers that come and go."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from spark_ssp import publish_metrics
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import Trial, wait_for_rows, wait_until

EFO = {"consumerMode": "efo", "consumerName": "etl"}
RECORDS = 3_000
KEYS = 100
"""So many that each of two shards gets 1.4 MB or more of the records: ranges below 1 MiB are
polled, and the first batch may end after the 64 KiB of the first probe."""


@pytest.fixture
def pushed(trial: Trial) -> Trial:
    trial.options |= EFO
    return trial


def put(feed: Feed, count: int) -> None:
    first = len(feed.records)
    for number in range(first, first + count):
        feed.put_data("orders", f"key-{number % KEYS}", b"%01000d" % number)


def consumers(kinesis: EmbeddedKinesis) -> list[str]:
    state = kinesis.state
    return [each.name for each in state.consumers("orders").all(state.clock.now_ms())]


def subscriptions(kinesis: EmbeddedKinesis) -> int:
    return kinesis.state.calls.count("SubscribeToShard")


@pytest.mark.core("enhanced fan-out")
def test_large_ranges_are_pushed_through_reshards_and_restarts(
    kinesis: EmbeddedKinesis, feed: Feed, pushed: Trial
) -> None:
    pushed.create(0, shards=2)
    put(feed, RECORDS)
    registry = CollectorRegistry()
    published = publish_metrics(pushed.spark, prometheus=registry)
    with ExitStack() as stack:
        stack.callback(published.stop)
        query = stack.enter_context(pushed.running())
        labels = {"query": str(query.id), "stream": "orders", "mode": "pushed"}
        shards: set[float | None] = set()

        def are_read() -> bool:
            # The metric is of the last batch: a small one, with what the first left, is polled.
            shards.add(registry.get_sample_value("ssp_fan_out_shards", labels))
            return pushed.sink.count >= RECORDS and 2 in shards

        wait_until(are_read, "all rows, and the metric of both shards", query)
        first = subscriptions(kinesis)
        assert first == 2
        assert consumers(kinesis) == ["etl"]
        feed.split_first("orders")
        put(feed, RECORDS)
        wait_for_rows(query, pushed.sink, 2 * RECORDS)
    wait_until(lambda: not consumers(kinesis), "the consumer is deregistered")
    feed.merge_first("orders")
    put(feed, RECORDS)
    pushed.run_to_end()
    assert subscriptions(kinesis) > first
    pushed.check()
