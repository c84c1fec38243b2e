"""Shards come and go under a query: each record once, keys in order, tasks never above slots."""

from __future__ import annotations

import pytest

from tests.support.kinesis.feeds import FEEDS
from tests.support.spark.queries import Trial, check_tasks


@pytest.mark.core("split while running")
@pytest.mark.parametrize("feed", ["embedded", "kinesis_mock"], indirect=True)
def test_while_the_query_runs(trial: Trial) -> None:
    trial.create(100, shards=2)
    with trial.running() as query:
        trial.wait_for_all(query)
        trial.feed.split_first("orders")
        trial.put(50)
        trial.wait_for_all(query)
        trial.feed.merge_first("orders")
        trial.put(50)
        # The child is split before its parents, or itself, can have been read.
        trial.feed.split_first("orders")
        trial.put(50)
        trial.wait_for_all(query)
        check_tasks(trial.spark, query, slots=2)
    trial.check()
    assert {row.slot for row in trial.sink.rows} <= {0, 1}


@pytest.mark.core("merge while stopped")
@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_while_the_query_is_stopped(trial: Trial) -> None:
    trial.create(100, shards=2)
    slots = {"slots": "2"}
    trial.run_to_end(slots)
    trial.check()
    trial.put(50)
    lower, _ = trial.feed.split_first("orders")
    trial.put(50)
    trial.feed.split("orders", lower)
    trial.put(50)
    trial.feed.merge_first("orders")
    trial.put(50)
    query = trial.run_to_end(slots)
    trial.check()
    check_tasks(trial.spark, query, slots=2)


@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_before_the_start_with_closed_shards_unread(trial: Trial) -> None:
    trial.create(50, shards=2)
    trial.feed.split_first("orders")
    trial.put(50)
    trial.feed.merge_first("orders")
    trial.put(50)
    query = trial.run_to_end()
    trial.check()
    check_tasks(trial.spark, query, slots=2)
    closed = {record.shard for record in trial.feed.records}
    closed -= set(trial.feed.open_shards("orders"))
    assert len(closed) == 3, "the records of three closed shards were to be read"
