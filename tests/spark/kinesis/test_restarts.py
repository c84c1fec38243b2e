"""A restarted query resumes exactly where it stopped: with other slots, shards and limits."""

from __future__ import annotations

import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.kinesis.feeds import FEEDS
from tests.support.spark.queries import Trial, check_tasks, failure_of, planned_offsets


@pytest.mark.core("restart")
@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_with_other_numbers_of_slots(trial: Trial) -> None:
    trial.create(shards=2)
    used: list[set[int]] = []
    for slots in ("2", "1", "5", "5", None):
        trial.put(60)
        before = trial.sink.count
        query = trial.run_to_end({} if slots is None else {"slots": slots})
        used.append({row.slot for row in trial.sink.rows[before:]})
        assert planned_offsets(trial.checkpoint)[-1]["slots"] == int(slots or 3)
        check_tasks(trial.spark, query, slots=int(slots or 3))
        if slots == "1":
            # The next run reads the children in the slot of their parent, whose end is to come.
            trial.feed.split_first("orders")
    trial.check()
    both, alone, _, roomy, one_to_one = used
    assert both == {0, 1}
    assert alone == {0}
    assert len(roomy) >= 3, "with room for all, each shard has a separate slot"
    assert roomy <= set(range(5))
    assert one_to_one == {0, 1, 2}


def test_slots_by_hash_range_keep_the_keys(trial: Trial, kinesis: EmbeddedKinesis) -> None:
    trial.create(shards=2)
    for _ in range(3):
        trial.feed.put("orders", 80, keys=40)
        trial.run_to_end({"slots": "4", "slotAssignment": "hash-range"})
        trial.feed.split_first("orders")
    trial.check()
    for row in trial.sink.rows:
        of = kinesis.state.shard("orders", row.record.shard).hash_range
        assert row.slot == (of.first + of.last) // 2 * 4 >> 128
    assert {row.slot for row in trial.sink.rows} == {0, 1, 2}


@pytest.mark.core("replayed batch")
@pytest.mark.parametrize("feed", FEEDS, indirect=True)
def test_an_unfinished_batch_is_repeated_row_by_row(trial: Trial) -> None:
    """The very first batch as well as a later one; then more records come, shards are split,
    and the restart has other slots and limits."""
    trial.create(70, shards=2)
    feed, sink = trial.feed, trial.sink
    sink.broken = True
    assert "the sink is broken" in trial.failure()

    trial.put(30)
    feed.split_first("orders")
    trial.put(30)
    sink.broken = False
    with trial.running({"slots": "1"}) as query:
        trial.wait_for_all(query)
        sink.broken = True
        trial.put(40)
        assert "the sink is broken" in failure_of(query)

    trial.put(40)
    feed.merge_first("orders")
    trial.put(10)
    sink.broken = False
    with trial.running({"maxRecordsPerTrigger": "7", "trigger": "processingTime"}) as query:
        trial.wait_for_all(query)
    trial.check()
    repeated = [batch for batch, _ in sink.attempts]
    assert len(repeated) - len(set(repeated)) == 2, "two batches were to be repeated"


def test_a_stream_can_be_added(trial: Trial) -> None:
    trial.create(10)
    trial.feed.create("returns")
    trial.feed.put("returns", 10)
    trial.run_to_end()
    assert {row.record.stream for row in trial.sink.rows} == {"orders"}
    trial.run_to_end({"streamName": "orders,returns"})
    trial.check()
