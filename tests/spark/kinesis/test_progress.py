"""The lag of each shard in a query's progress, also while the query is idle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import (
    Sink,
    load,
    run_to_end,
    running,
    wait_for_idle_reports,
    wait_for_rows,
)

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def _lags(progress: Any) -> dict[str, Any]:
    found = json.loads(progress["sources"][0]["latestOffset"])
    assert isinstance(found, dict)
    return found


def test_progress_tells_the_lag_of_each_shard(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    feed.put("orders", 40)
    sink = Sink()
    with running(load(spark, options), sink, tmp_path) as query:
        wait_for_rows(query, sink, 40)

        wait_for_idle_reports(query, 1)
        progress = query.recentProgress[-1]
        entry = _lags(progress)["orders"]
        assert set(entry.pop("counters").values()) == {0}
        assert entry == {
            "millisBehindLatest": {FIRST: 0, SECOND: 0},
            "maxMillisBehindLatest": 0,
            "sumMillisBehindLatest": 0,
            "shards": {"open": 2, "closed": 0, "waiting": 0, "ended": 0},
        }
        wait_for_idle_reports(query, 1)
        assert sum(report["numInputRows"] for report in query.recentProgress) == 40


def test_a_query_that_falls_behind_says_so(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders")
    feed.put("orders", 30)
    sink = Sink()
    query = run_to_end(load(spark, options | {"maxRecordsPerTrigger": "10"}), sink, tmp_path)
    first, *_, last = [p for p in query.recentProgress if p["numInputRows"]]
    assert _lags(first)["orders"]["maxMillisBehindLatest"] > 0
    assert _lags(first)["orders"]["millisBehindLatest"][FIRST] > 0
    assert _lags(last)["orders"]["maxMillisBehindLatest"] == 0
