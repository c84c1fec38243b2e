"""Queries that end by themselves: Trigger.AvailableNow and Trigger.Once."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from tests.support.spark.queries import Trial, await_end, check_tasks, start


@pytest.mark.core("availableNow and once with limits")
@pytest.mark.parametrize(
    ("feed", "limit"),
    [
        ("embedded", None),
        ("embedded", 40),
        ("kinesis_mock", 90),
    ],
    indirect=["feed"],
)
def test_stops_at_the_latest_record_of_its_start(trial: Trial, limit: int | None) -> None:
    trial.create(60, shards=2)
    lower, _ = trial.feed.split_first("orders")
    trial.put(60)
    trial.feed.split("orders", lower)
    trial.put(60)
    there = list(trial.feed.records)

    def continues(batch: int) -> None:
        trial.put(20)
        if batch == 0:
            trial.feed.merge_first("orders")
            trial.put(20)

    sink = trial.sink
    sink.meanwhile = continues
    limited = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
    if PASSES_LIMITS:
        query = trial.run_to_end(limited)
        trial.check(there)
        check_tasks(trial.spark, query, slots=4)
        if limit is not None:
            assert max(sink.sizes()) <= limit
            assert len(sink.sizes()) >= 180 / limit
    else:
        if limit is not None:
            _check_refusal(trial, limited)
        await_end(start(trial.load(), sink, trial.checkpoint, "available now"))
        (size,) = sink.sizes()
        assert {row.record for row in sink.rows} <= set(there)
        assert size >= 60, "at least the records of the shards that the first split left"

    sink.meanwhile = None
    trial.run_to_end()
    trial.check()


def _check_refusal(trial: Trial, options: dict[str, str]) -> None:
    """Check that a PySpark that does not pass limits refuses to load a query with these options."""
    with pytest.raises(PySparkException) as caught:
        trial.load(options)
    message = str(caught.value)
    parts = ("[invalid-options]", "PySpark 4.2", "trigger=processingTime", *options)
    assert all(part in message for part in parts)


@pytest.mark.parametrize("position", ["trim_horizon", "latest"])
def test_an_empty_stream_ends_at_once_and_the_next_run_continues(
    trial: Trial, position: str
) -> None:
    trial.create(shards=2)
    trial.options["startingPosition"] = position
    trial.run_to_end()
    assert trial.sink.rows == []
    trial.put(30)
    for _ in range(2):
        trial.run_to_end()
        trial.check()


@pytest.mark.core("availableNow and once with limits")
def test_trigger_once_takes_all_in_one_batch_with_any_limits(trial: Trial) -> None:
    trial.create(50, shards=2)
    limited = {"maxRecordsPerTrigger": "5", "maxBytesPerTrigger": "10"}
    if not PASSES_LIMITS:
        _check_refusal(trial, limited)
        limited = {}
    trial.run_to_end(limited, "once")
    trial.check()
    assert trial.sink.sizes() == [50]


def test_trigger_once_from_latest_stores_its_position_first(trial: Trial) -> None:
    trial.create(10)
    trial.options["startingPosition"] = "latest"
    trial.run_to_end(trigger="once")
    assert trial.sink.rows == []
    after = trial.put(10)
    trial.run_to_end(trigger="once")
    trial.check(after)
