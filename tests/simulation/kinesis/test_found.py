"""What the histories found, told plainly: one test for each, so that it stays found."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from spark_ssp.common.errors import DataLossError, ServiceUnavailableError
from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.model.offset import decode
from spark_ssp.kinesis_source.model.ranges import ShardRange, SlotRange
from spark_ssp.kinesis_source.model.shard import EpochMillis, ShardEnd, StreamRef, TrimHorizon
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.probing import batch_end_probe, probe_protocol
from spark_ssp.kinesis_source.reading.process_wide import ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.testing.kinesis import UnusualAnswers
from spark_ssp.testing.kinesis.state.faults import EmptyPage, ExpiredIterator, Throttle
from tests.support.fakes.scripted import FakeTime
from tests.support.simulation.query import Disturbance, Outcome, Stage, Trigger
from tests.support.simulation.scene import STREAM, Scene, scene
from tests.support.simulation.world import HOUR_MS, LONGEST_HIDDEN_MS


def test_iterators_that_expire_again_and_again_are_opened_again(scenes: ExitStack) -> None:
    orders = scene(scenes)
    orders.put(3)
    orders.start()
    orders.world.inject(ExpiredIterator(), "GetRecords", orders.world.lives(STREAM)[0], 4)
    orders.run()
    orders.check_all_read()


def test_a_replay_does_not_take_a_new_streams_records_for_an_empty_shards(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes, failOnDataLoss="false")
    orders.world.split(STREAM, 0)
    orders.start()
    assert orders.trigger(Disturbance(dies_after=Stage.LOGGED)) is Outcome.DIED
    orders.world.recreate(STREAM, 1)
    orders.put(5)
    orders.start()
    orders.run()
    orders.check_all_read()


def test_a_new_stream_is_not_looked_at_by_an_iterator_of_the_deleted_one(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes, failOnDataLoss="false")
    orders.start()
    orders.run()  # the shard is empty, and the iterator at its tip is kept
    orders.world.recreate(STREAM, 1)
    orders.put(5)
    orders.run()
    orders.check_all_read()


def test_a_closed_shard_that_hides_its_last_records_is_not_taken_for_empty(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes)
    orders.world.put(STREAM, "key-1", hidden_ms=3000)
    orders.world.split(STREAM, 0)
    orders.start()
    orders.run(8)
    orders.world.pass_time(HOUR_MS)
    orders.run()
    orders.check_all_read()


def read_to_the_end_of_a_parent(orders: Scene) -> None:
    """Read, split the shard, read the parent to its end, stop; then the children get records."""
    orders.put(2)
    orders.start()
    orders.run()
    orders.world.split(STREAM, 0)
    orders.start()
    assert orders.trigger() is Outcome.BATCH
    assert '"SHARD_END"' in orders.query.offset_log[-1]
    orders.query.stop()
    orders.put(3)


def check_loss_is_reported(orders: Scene) -> None:
    """Check that a start fails by the loss, and that all other records are read if tolerated."""
    orders.start()
    assert isinstance(orders.failure(), DataLossError)
    orders.start(failOnDataLoss="false")
    orders.run()
    orders.check_all_read()


def test_the_loss_of_records_that_came_while_the_query_was_stopped_is_no_secret(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes)
    orders.put(3)
    orders.start()
    orders.run()
    orders.query.stop()
    orders.put(3)
    orders.world.pass_time(30 * HOUR_MS)
    orders.put(3)
    check_loss_is_reported(orders)


def test_the_loss_of_a_child_that_was_never_begun_is_no_secret(scenes: ExitStack) -> None:
    orders = scene(scenes)
    read_to_the_end_of_a_parent(orders)
    orders.world.pass_time(30 * HOUR_MS)
    check_loss_is_reported(orders)


@pytest.mark.parametrize("late_shard_end", [False, True])
def test_a_closed_shard_says_nothing_about_the_time_after_its_end(
    late_shard_end: bool, scenes: ExitStack
) -> None:
    orders = scene(scenes, maxRecordsPerTrigger="2")
    orders.world.state.answers = UnusualAnswers(late_shard_end=late_shard_end)
    orders.put(2)
    orders.start()
    orders.run(1)
    orders.query.stop()
    orders.put(2)
    orders.world.split(STREAM, 0)
    orders.put(2)
    orders.world.pass_time(20 * HOUR_MS)
    orders.start()
    for child in orders.world.open_shards(STREAM):
        orders.world.inject(Throttle(), "GetRecords", child, 100)
    orders.run(4)  # the rest of the parent, hours after it was closed
    assert '"TRIM_HORIZON"' in orders.query.offset_log[-1]
    orders.query.stop()
    orders.world.pass_time(5 * HOUR_MS)
    orders.world.state.faults.clear()
    check_loss_is_reported(orders)


def test_a_shard_that_was_closed_after_the_last_listing_proves_nothing_of_the_time_since(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes, shardDiscoveryInterval="10m")
    orders.world.state.answers = UnusualAnswers(late_shard_end=True)
    orders.put(2)
    orders.start()
    orders.run(1)
    orders.world.split(STREAM, 0)
    for child in orders.world.open_shards(STREAM):
        orders.world.inject(Throttle(), "GetRecords", child, 100)
    orders.put(2)
    orders.world.pass_time(8 * 60_000)
    orders.run(1)  # by the listing the parent is still open
    orders.world.pass_time(3 * 60_000)
    orders.run(3)
    assert '"TRIM_HORIZON"' in orders.query.offset_log[-1]
    orders.query.stop()
    orders.world.pass_time(24 * HOUR_MS - 8 * 60_000)
    orders.world.state.faults.clear()
    check_loss_is_reported(orders)


@pytest.mark.parametrize("trigger", [Trigger.PROCESSING_TIME, Trigger.AVAILABLE_NOW])
def test_a_limit_holds_for_records_that_a_closed_shard_does_not_show_yet(
    trigger: Trigger, scenes: ExitStack
) -> None:
    orders = scene(scenes, maxRecordsPerTrigger="2")
    orders.put(1)
    orders.start()
    orders.run(1)
    orders.query.stop()
    for _ in range(5):
        orders.world.put(STREAM, "key-1", hidden_ms=700)
    orders.world.split(STREAM, 0)
    orders.start(trigger)
    orders.run()
    orders.check_all_read()


def test_a_run_to_the_present_does_not_wait_for_an_empty_shard_that_ends_as_it_begins(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes, shards=2, maxRecordsPerTrigger="1")
    orders.start()
    orders.run(2)
    orders.query.stop()
    orders.world.pass_time(20_000)
    for number in range(8):  # in both shards
        orders.put(1, key=f"key-{number}")
        orders.world.pass_time(1000)
    orders.world.split(STREAM, 1)
    child = orders.world.open_shards(STREAM)[1]
    orders.world.service.interrupt(child, 1, lambda: orders.world.split(STREAM, 1))
    orders.start(Trigger.AVAILABLE_NOW)
    orders.run_out()
    assert orders.world.state.calls.count("GetRecords", shard=child.shard)
    orders.check_all_read()


def test_records_that_are_trimmed_while_they_wait_for_a_limit_cost_no_trigger_each(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes, maxRecordsPerTrigger="1", failOnDataLoss="false")
    orders.put(20)
    orders.start()
    orders.run(2)  # the others are known from here on
    orders.world.pass_time(25 * HOUR_MS)
    orders.put(2)
    orders.run(4)
    orders.check_all_read()


def test_nothing_is_lost_after_the_last_record_of_a_closed_shard(scenes: ExitStack) -> None:
    """It may be trimmed before its shard expires."""
    orders = scene(scenes, maxRecordsPerTrigger="100")
    orders.world.state.answers = UnusualAnswers(late_shard_end=True)
    orders.put(4)
    orders.world.pass_time(4 * HOUR_MS)
    orders.world.split(STREAM, 0)
    orders.put(4)
    orders.world.pass_time(19 * HOUR_MS)
    orders.start()
    assert orders.trigger() is Outcome.BATCH
    orders.query.stop()
    orders.world.pass_time(2 * HOUR_MS)
    orders.start()
    orders.run()
    orders.check_all_read()


def test_the_loss_of_a_child_that_came_and_went_is_no_secret(scenes: ExitStack) -> None:
    orders = scene(scenes)
    read_to_the_end_of_a_parent(orders)
    for index in (0, 2):
        orders.world.split(STREAM, index)
    orders.put(3)
    orders.world.pass_time(30 * HOUR_MS)
    orders.put(3)
    check_loss_is_reported(orders)


def test_a_child_that_was_never_begun_is_no_loss_within_retention(scenes: ExitStack) -> None:
    orders = scene(scenes)
    orders.put(2)
    orders.start()
    orders.run()
    # No batch: the offset's proof grows old, up to an eighth of the retention.
    orders.world.pass_time(2 * HOUR_MS)
    orders.run()
    orders.world.split(STREAM, 0)
    orders.world.pass_time(20_000)
    assert orders.trigger() is Outcome.BATCH
    assert '"SHARD_END"' in orders.query.offset_log[-1]
    orders.query.stop()
    orders.put(3)
    orders.world.pass_time(23 * HOUR_MS)
    orders.start()
    orders.run()
    orders.check_all_read()
    assert not orders.judge.losses


def test_the_loss_of_a_child_that_was_let_in_and_never_seen_is_no_secret(
    scenes: ExitStack,
) -> None:
    """Nor was its parent ever read to the tip: no proof of anything but the stream's creation."""
    orders = scene(scenes, maxRecordsPerTrigger="2")
    orders.put(4)
    orders.world.split(STREAM, 0)
    orders.put(3)
    for life in orders.world.open_shards(STREAM):
        orders.world.inject(Throttle(), "GetRecords", life, 100)
    orders.start()
    orders.run(8)
    assert set(decode(json.loads(orders.query.offset_log[-1])).states) == {
        ShardKey(stream=StreamName(STREAM), shard=ShardId(life.shard))
        for life in orders.world.open_shards(STREAM)
    }
    orders.query.stop()
    orders.world.state.faults.clear()
    orders.world.pass_time(30 * HOUR_MS)
    orders.put(3)
    check_loss_is_reported(orders)


def test_the_loss_of_a_shard_that_a_limit_kept_waiting_is_no_secret(scenes: ExitStack) -> None:
    orders = scene(scenes, shards=2, maxRecordsPerTrigger="1")
    for life in orders.world.open_shards(STREAM):
        orders.world.put(STREAM, "key-1", into=life.shard)
        orders.world.put(STREAM, "key-1", into=life.shard)
    orders.start()
    assert orders.trigger() is Outcome.BATCH
    assert '"TRIM_HORIZON"' in orders.query.offset_log[-1]
    orders.query.stop()
    orders.world.pass_time(30 * HOUR_MS)
    orders.start(failOnDataLoss="false")
    orders.run()
    orders.check_all_read()


def test_what_shards_leave_of_a_limit_is_shared_out_once(
    scenes: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (probe_protocol, batch_end_probe):
        monkeypatch.setattr(module, "PAGE_RECORDS", 12)
    monkeypatch.setattr(batch_end_probe, "PEEK_RECORDS", 3)
    orders = scene(scenes, shards=3, maxBytesPerTrigger="60000")
    small, large, _ = [life.shard for life in orders.world.open_shards(STREAM)]
    orders.world.put(STREAM, "key-1", into=small)
    orders.world.put(STREAM, "key-2", into=large, padding=7000)
    orders.start()
    orders.run()
    for _ in range(40):
        orders.world.put(STREAM, "key-1", into=small)
        orders.world.put(STREAM, "key-2", into=large, padding=7000)
        orders.world.pass_time(300)
    orders.run(40)
    orders.check_all_read()


def test_a_shards_end_that_does_not_come_is_no_data_loss(scenes: ExitStack) -> None:
    orders = scene(scenes)
    reading = ShardRange(
        stream=StreamRef(name=StreamName(STREAM)),
        shard=ShardId(orders.world.lives(STREAM)[0].shard),
        hash_range=None,
        created=EpochMillis(orders.world.lives(STREAM)[0].created),
        start=TrimHorizon(),
        start_caught_up_ms=None,
        expect_first=None,
        end=ShardEnd(),
    )
    rows = read_slot(
        SlotRange(slot=SlotId(0), shards=(reading,)),
        parse_options(orders.options),
        orders.world.service,
        clock=FakeTime().clock,
        rates=ReadRates(),
    )
    with pytest.raises(ServiceUnavailableError):
        list(rows)


def test_an_available_now_run_waits_for_a_parents_last_record(scenes: ExitStack) -> None:
    orders = scene(scenes)
    orders.start()
    orders.run()
    orders.world.put(STREAM, "key-1", hidden_ms=700)
    orders.world.split(STREAM, 0)
    orders.put(60)
    orders.start(Trigger.AVAILABLE_NOW)
    orders.run_out()
    orders.check_all_read()


def test_an_available_now_run_reads_a_stream_that_was_recreated_before_it(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes, failOnDataLoss="false")
    orders.put(3)
    orders.start()
    orders.run()
    orders.world.recreate(STREAM, 1)
    orders.put(5)
    orders.start(Trigger.AVAILABLE_NOW)
    orders.run_out()
    orders.check_all_read()


def test_a_read_goes_on_until_a_hidden_record_shows(scenes: ExitStack) -> None:
    """However many records the closed shard holds behind it."""
    orders = scene(scenes)
    orders.put(1)
    orders.world.put(STREAM, "key-1", hidden_ms=LONGEST_HIDDEN_MS)
    orders.put(50)
    orders.world.split(STREAM, 0)
    orders.start(Trigger.AVAILABLE_NOW)
    orders.run_out()
    orders.check_all_read()


def test_an_available_now_run_does_not_wait_for_what_came_before_its_start(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes)
    orders.put(2)
    orders.world.pass_time(1000)
    start = orders.world.clock.now_ms()
    orders.start(Trigger.AVAILABLE_NOW, startingPosition=f"at_timestamp {start}")
    orders.run_out()
    assert orders.query.sink == {0: []}


def test_a_quiet_trigger_of_a_starved_shard_is_one_call(scenes: ExitStack) -> None:
    orders = scene(scenes)
    orders.world.pushes = True
    orders.put(20)
    orders.start()
    orders.run()
    orders.world.inject(Throttle(), "GetRecords", orders.world.lives(STREAM)[0], 1)
    orders.run(3)
    calls = orders.world.state.calls
    calls.reset()
    assert orders.trigger() is Outcome.NO_NEWS
    assert calls.by_operation() == {"GetRecords": 1}
    orders.check_all_read()


def test_a_subscription_that_fails_within_a_polled_range_is_no_data_loss(
    scenes: ExitStack,
) -> None:
    """Half of the subscriptions fail; they are made again while the range is polled."""
    orders = scene(scenes, shards=10, maxRecordsPerFetch="1")
    orders.world.pushes = True
    for life in orders.world.lives(STREAM):
        for _ in range(100):
            orders.world.put(STREAM, "key-1", into=life.shard)
    orders.start()
    orders.run()
    orders.check_all_read()


def test_a_batch_does_not_read_the_parents_of_a_child_that_does_not_answer_ahead_of_others(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes, startingPosition="latest")
    orders.start(Trigger.ONCE)
    orders.run(1)
    orders.query.stop()
    orders.world.split(STREAM, 0)
    for number in range(120):
        orders.put(1, key=f"key-{number}")
        orders.world.pass_time(10_000 if number % 60 == 59 else 50)
    orders.world.split(STREAM, 0)
    orders.world.inject(EmptyPage(), "GetRecords", orders.world.lives(STREAM)[3], 30)
    orders.start()
    orders.run(20)
    orders.check_all_read()
    assert orders.world.happened["aligned with an unread record"]


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_parent_is_read_at_once_while_its_children_are_throttled(
    scenes: ExitStack, in_turn: bool
) -> None:
    orders = scene(scenes)
    orders.put(5)
    orders.start()
    orders.run(3)
    orders.query.stop()
    for number in range(600):
        orders.put(1, key=f"key-{number}")
        orders.world.pass_time(50)
    orders.world.split(STREAM, 0)
    for number in range(20):
        orders.put(1, key=f"key-{number}")
    parent, *children = orders.world.lives(STREAM)
    orders.start()
    for number in range(10):
        orders.world.state.faults.clear()
        child = children[number % 2 if in_turn else 0]
        orders.world.inject(Throttle(), "GetRecords", child, 100)
        orders.run(1)
        assert parent not in orders.judge.missing()
    orders.world.state.faults.clear()
    orders.run(10)
    orders.check_all_read()


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "2000"}])
def test_a_query_keeps_up_while_a_third_of_its_calls_are_throttled(
    scenes: ExitStack, limit: dict[str, str]
) -> None:
    """Other consumers use up the calls of eight shards; a failed probe of each would hold the other
    seven back."""
    orders = scene(scenes, shards=8, **limit)
    orders.put(5)
    luck, service = random.Random(7), orders.world.service
    answer = service.get_records

    def get_records(*arguments: Any, **options: Any) -> Any:
        if service.listening and luck.random() < 0.35:
            raise ThrottledError("GetRecords", found="it", expected="less", next_step="wait")
        return answer(*arguments, **options)

    with patch.object(service, "get_records", get_records):
        orders.start()
        for number in range(60):
            for key in range(80):
                orders.put(1, key=f"key-{(80 * number + key) % 97}")
                orders.world.pass_time(12)
            orders.run(1)
        assert sum(orders.judge.missing().values()) < 1000
        orders.run(20)
        orders.check_all_read()


def test_a_shard_that_closes_while_its_latest_record_is_looked_up_waits_at_its_end(
    scenes: ExitStack,
) -> None:
    orders = scene(scenes)
    orders.world.split(STREAM, 0)
    first, second = orders.world.open_shards(STREAM)
    by_shard = {first.shard: "trim_horizon", second.shard: "latest"}
    position = json.dumps({STREAM: by_shard, "default": "trim_horizon"})
    orders.world.service.interrupt(second, 1, lambda: orders.world.split(STREAM, 1))
    orders.start(startingPosition=position)
    orders.run()
    orders.put(20)
    orders.run(20)
    orders.check_all_read()


def test_a_limit_is_not_spent_on_shards_that_the_batch_cuts(scenes: ExitStack) -> None:
    """The records of a child claim to be older than those of its parent, and of the other shards,
    to which the limit of one record would go each time."""
    orders = scene(scenes, shards=3, maxRecordsPerTrigger="1")
    for number in range(60):
        orders.put(1, key=f"key-{number}")
    orders.world.split(STREAM, 1)
    for number in range(20):
        orders.world.put(STREAM, f"key-{number}", shift_ms=-900)
    orders.start(trigger=Trigger.AVAILABLE_NOW)
    orders.run(100)
    orders.check_all_read()
