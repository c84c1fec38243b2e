"""`startingPosition`: the records that a new query reads, and those that it skips."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.errors import StreamingQueryException

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.feeds import FEEDS, Record
from tests.support.spark.queries import Trial, planned_offsets, wait_for_rows, wait_until

FIRST = "shardId-000000000000"
LATEST = {"startingPosition": "latest"}


@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_latest_begins_once_the_first_batch_is_planned(trial: Trial) -> None:
    trial.create(30, shards=2)
    trial.feed.split_first("orders")
    trial.put(30)
    with trial.running(LATEST) as query:
        wait_until(lambda: planned_offsets(trial.checkpoint) != [], "the first plan", query)
        after = trial.put(30)
        trial.feed.split_first("orders")
        after += trial.put(30)
        wait_for_rows(query, trial.sink, 60)
    trial.check(after)


def test_latest_is_not_moved_by_a_restart_before_any_data(trial: Trial) -> None:
    trial.create(30, shards=2)
    with trial.running(LATEST) as query:
        wait_until(lambda: planned_offsets(trial.checkpoint) != [], "the first plan", query)
    after = trial.put(30)
    trial.run_to_end(LATEST)
    trial.check(after)


def _spread(kinesis: EmbeddedKinesis, now_ms: int) -> list[Record]:
    """Ten records, which arrived a second apart; the last of them now."""
    kinesis.state.create_stream("orders")
    put: list[Record] = []
    for number in range(10):
        record = kinesis.state.put(
            "orders", f"key-{number}", b"%d" % number, arrival_ms=now_ms - (9 - number) * 1000
        )
        put.append(
            Record("orders", FIRST, int(record.sequence_number), f"key-{number}", record.data)
        )
    return put


def test_at_timestamp_begins_with_the_record_of_that_moment(
    trial: Trial, kinesis: EmbeddedKinesis
) -> None:
    now_ms = kinesis.clock.now_ms()
    put = _spread(kinesis, now_ms)
    at_ms = now_ms - 4000
    iso = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    trial.run_to_end({"startingPosition": f"at_timestamp {iso}"})
    trial.check(put[5:])
    assert [row.arrival_ms for row in trial.sink.rows] == [at_ms + 1000 * n for n in range(5)]


def test_by_shard_with_a_default(trial: Trial) -> None:
    trial.create(shards=4)
    feed = trial.feed
    put = feed.put("orders", 120, keys=40)
    of = {shard: [r for r in put if r.shard == shard] for shard in feed.open_shards("orders")}
    first, second, third, fourth = of
    position = {
        first: "trim_horizon",
        second: "latest",
        third: {"after_sequence_number": str(of[third][4].sequence)},
        "default": "latest",
    }
    given = {"startingPosition": json.dumps(position)}
    trial.run_to_end(given)
    expected = of[first] + of[third][5:]
    trial.check(expected)
    # A shard that appears later is read from its beginning, with any default.
    feed.split("orders", fourth)
    expected += feed.put("orders", 60, keys=40)
    trial.run_to_end(given)
    trial.check(expected)


TRIGGERS = ["available now", "once", "processing time"]


def _run(trial: Trial, changed: dict[str, str], trigger: str) -> None:
    """Run until all rows are there."""
    if trigger == "processing time":
        with trial.running(changed) as query:
            trial.wait_for_all(query)
    else:
        trial.run_to_end(changed, "once" if trigger == "once" else "available now")


def _failure(trial: Trial, changed: dict[str, str], trigger: str) -> str:
    if trigger == "processing time":
        return trial.failure(changed)
    with pytest.raises(StreamingQueryException) as caught:
        _run(trial, changed, trigger)
    return str(caught.value)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_position_of_another_shard_is_refused_or_all_of_the_shard_is_read(
    trial: Trial, trigger: str
) -> None:
    trial.create(shards=2)
    put = trial.put(60)
    first, second = trial.feed.open_shards("orders")
    foreign = [record for record in put if record.shard == second][-1]
    position = {
        first: {"after_sequence_number": str(foreign.sequence)},
        "default": "trim_horizon",
    }
    given = {"startingPosition": json.dumps(position)}
    text = _failure(trial, given, trigger)
    assert f"[invalid-position] shard orders/{first}" in text
    assert "startingPosition" in text
    assert trial.sink.count == 0
    # The advice: the corrected option, on the same checkpoint, or failOnDataLoss.
    _run(trial, {} if trigger == "once" else given | {"failOnDataLoss": "false"}, trigger)
    trial.check()
    trial.put(20)
    _run(trial, {}, trigger)
    trial.check()
