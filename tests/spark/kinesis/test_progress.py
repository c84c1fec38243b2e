"""The lag of each shard in a query's progress, also while the query is idle."""

from __future__ import annotations

import json
from typing import Any

from tests.support.spark.queries import Trial, wait_for_idle_reports

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def _lags(progress: Any) -> dict[str, Any]:
    found = json.loads(progress["sources"][0]["latestOffset"])
    assert isinstance(found, dict)
    return found


def test_progress_has_the_lag_of_each_shard(trial: Trial) -> None:
    trial.create(40, shards=2)
    with trial.running() as query:
        trial.wait_for_all(query)
        wait_for_idle_reports(query, 1)
        progress = query.recentProgress[-1]
        entry = _lags(progress)["orders"]
        assert set(entry.pop("counters").values()) == {0}
        assert entry == {
            "millisBehindLatest": {FIRST: 0, SECOND: 0},
            "maxMillisBehindLatest": 0,
            "sumMillisBehindLatest": 0,
            "retentionMillis": 86_400_000,
            "shards": {"open": 2, "closed": 0, "waiting": 0, "ended": 0},
            "alignment": {"spreadMillis": 0, "leftBehind": 0},
        }
        wait_for_idle_reports(query, 1)
        assert sum(report["numInputRows"] for report in query.recentProgress) == 40


def test_the_lag_of_a_query_that_falls_behind(trial: Trial) -> None:
    trial.create(30)
    query = trial.run_to_end({"maxRecordsPerTrigger": "10"})
    first, *_, last = [p for p in query.recentProgress if p["numInputRows"]]
    assert _lags(first)["orders"]["maxMillisBehindLatest"] > 0
    assert _lags(first)["orders"]["millisBehindLatest"][FIRST] > 0
    assert _lags(last)["orders"]["maxMillisBehindLatest"] == 0
