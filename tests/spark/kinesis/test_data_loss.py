"""Records that are gone before they were read: an error, or a warning under `failOnDataLoss=false`.
Every record that is left is read, and a trim of read records is not a data loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.fakes.clocks import ShiftedClock
from tests.support.kinesis.fan_out_mode import pushed_everywhere
from tests.support.spark.queries import (
    Trial,
    check_exactly_once,
    failure_of,
    planned_offsets,
    wait_until,
)

FIRST = "shardId-000000000000"
HOUR_MS = 3_600_000


@pytest.fixture
def kinesis(clock: ShiftedClock) -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(clock=clock) as service, pushed_everywhere(service):
        yield service


def test_a_stream_deleted_under_the_query(trial: Trial, kinesis: EmbeddedKinesis) -> None:
    trial.create(10)
    with trial.running() as query:
        trial.wait_for_all(query)
        kinesis.state.delete_stream("orders")
        text = failure_of(query)
    assert "[stream-not-found] stream orders" in text
    trial.check()


def test_one_of_two_streams_is_deleted_and_dropped(trial: Trial, kinesis: EmbeddedKinesis) -> None:
    """With the streams that are left the query reads on from the same checkpoint."""
    trial.create(10)
    trial.feed.create("clicks")
    trial.feed.put("clicks", 10)
    trial.options["streamName"] = "clicks,orders"
    trial.run_to_end()
    kinesis.state.delete_stream("clicks")
    text = trial.failure()
    assert "[stream-not-found] stream clicks" in text
    assert "dropStreams" in text
    trial.options["streamName"] = "orders"
    text = trial.failure()
    assert "[incompatible-state]" in text
    assert "dropStreams to clicks" in text
    trial.put(10)
    trial.run_to_end({"dropStreams": "clicks"})
    trial.put(10)
    trial.run_to_end()
    trial.check()


@pytest.mark.parametrize("while_running", [True, False])
def test_a_stream_deleted_and_created_again(
    trial: Trial, kinesis: EmbeddedKinesis, while_running: bool
) -> None:
    trial.create(20, shards=2)

    def recreate() -> None:
        with kinesis.state.lock:
            kinesis.state.delete_stream("orders")
            kinesis.state.create_stream("orders", shards=3)

    if while_running:
        with trial.running() as query:
            trial.wait_for_all(query)
            recreate()
            text = failure_of(query)
    else:
        trial.run_to_end()
        recreate()
        text = trial.failure()
    assert "[data-loss]" in text
    assert "failOnDataLoss" in text
    # The new stream is read from its beginning, if the user accepts the loss.
    trial.put(30)
    with trial.running({"failOnDataLoss": "false"}) as query:
        trial.wait_for_all(query)
        trial.put(10)
        trial.wait_for_all(query)
    trial.check()


def test_records_trimmed_before_they_were_read(trial: Trial, clock: ShiftedClock) -> None:
    """The query was stopped for longer than the retention."""
    trial.create(10)
    trial.run_to_end()
    lost = trial.put(10)
    clock.advance(25 * HOUR_MS)
    trial.put(10)
    text = trial.failure()
    assert f"[data-loss] shard orders/{FIRST}" in text
    assert "failOnDataLoss" in text
    trial.run_to_end({"failOnDataLoss": "false"})
    check_exactly_once(trial.sink, [record for record in trial.feed.records if record not in lost])


def test_a_start_record_trimmed_after_all_had_been_read_is_no_loss(
    trial: Trial, kinesis: EmbeddedKinesis, clock: ShiftedClock
) -> None:
    """A quiet shard: its last record goes, and nothing came after it until the query had looked."""
    trial.create(10)
    with trial.running() as query:
        trial.wait_for_all(query)
        for _ in range(5):
            clock.advance(6 * HOUR_MS)
            wait_until(lambda: _proven(trial.checkpoint, clock), "a new proof of the tip", query)
    assert kinesis.state.records("orders") == [], "the records were to be trimmed"
    trial.put(10)
    trial.run_to_end()
    trial.check()


def _proven(checkpoint: Path, clock: ShiftedClock) -> bool:
    """Return whether the shard was caught up recently, by the last offset."""
    offset = planned_offsets(checkpoint)[-1]
    state = offset["ssp"]["0"]["orders"][FIRST]
    return bool(clock.now_ms() - state.get("seen", 0) < HOUR_MS)


def test_the_records_of_a_planned_batch_trimmed_before_its_tasks_read_them(
    trial: Trial, clock: ShiftedClock
) -> None:
    """After the first committed batch: before it, a start at the oldest record has lost nothing."""
    trial.create(10)
    trial.run_to_end()
    lost = trial.put(5)
    clock.advance(12 * HOUR_MS)
    trial.put(5)
    trial.sink.broken = True
    trial.failure()
    # The batch is planned and logged. Its first half is trimmed, more records come.
    clock.advance(13 * HOUR_MS)
    trial.put(5)
    trial.sink.broken = False
    text = trial.failure()
    assert f"[data-loss] shard orders/{FIRST}" in text
    trial.sink.attempts.clear()  # those before the loss, which cannot be repeated
    trial.run_to_end({"failOnDataLoss": "false"})
    check_exactly_once(trial.sink, [record for record in trial.feed.records if record not in lost])
