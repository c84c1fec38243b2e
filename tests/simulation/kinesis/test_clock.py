"""The clock of the simulated world: a thread is ahead of it by its own waits and by no other's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.reading.shard_retry import Clock
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.reading import shard_range
from tests.support.simulation.query import Trigger
from tests.support.simulation.scene import STREAM, scene
from tests.support.simulation.world import ReadingTime, SimulatedClock

START_MS = SimulatedClock().now_ms()


def side_by_side(*works: Callable[[], int]) -> list[int]:
    """What each gives, each in a thread of its own."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [job.result() for job in [pool.submit(work) for work in works]]


def test_threads_wait_by_themselves_and_the_longest_wait_is_noted() -> None:
    clock = SimulatedClock()
    shards = [shard_range(shard_id(number)) for number in range(3)]
    time = ReadingTime(clock, shards)
    timing, order = time.clock, time.order(shards)

    def waiting(*seconds: float) -> Callable[[], int]:
        def work() -> int:
            order.next()
            before = timing.monotonic()
            for wait in seconds:
                timing.wait(threading.Event(), wait)
            return round((timing.monotonic() - before) * 1000)

        return work

    assert side_by_side(waiting(0.5, 2), waiting(), waiting(1)) == [2502, 0, 1001]
    assert time.longest_ms == 2502
    assert clock.now_ms() == START_MS


def test_a_shard_begins_when_those_before_it_have_been_read() -> None:
    clock = SimulatedClock()
    parents = [shard_range(shard_id(number)) for number in range(2)]
    child = replace(shard_range(shard_id(2)), after=(shard_id(0), shard_id(1)))
    time = ReadingTime(clock, [*parents, child])
    order = time.order([*parents, child])

    def work() -> int:
        began = 0
        while (shard := order.next()) is not None:
            if shard is child:
                began = clock.ahead_ms()
            time.clock.wait(threading.Event(), 1 if shard is parents[0] else 3)
            order.finished(shard)
        return began

    assert sum(side_by_side(work, work, work)) == 3001
    assert time.longest_ms == 6002


def test_what_others_do_to_the_clock_is_seen_by_a_thread_that_is_ahead() -> None:
    clock = SimulatedClock()

    def work() -> int:
        clock.wait(1)
        clock.advance(10)
        return clock.now_ms() - START_MS

    assert side_by_side(work) == [1011]
    assert clock.now_ms() == START_MS + 10


def test_each_read_begins_at_the_worlds_time() -> None:
    clock = SimulatedClock()
    for _ in range(2):
        timing = ReadingTime(clock, [shard_range()]).clock

        def work(timing: Clock = timing) -> int:
            before = clock.now_ms()
            timing.wait(threading.Event(), 1)
            return before

        assert side_by_side(work) == [START_MS]


def test_a_history_takes_the_same_time_and_calls_each_time(scenes: ExitStack) -> None:
    """Many shards in one task, each with something hidden for another time."""
    times: set[int] = set()
    calls: set[tuple[tuple[str, int], ...]] = set()
    for _ in range(6):
        orders = scene(scenes, 6, slots="1")
        for number, life in enumerate(orders.world.open_shards(STREAM)):
            orders.world.put(STREAM, "key-1", into=life.shard)
            orders.world.put(STREAM, "key-1", into=life.shard, hidden_ms=700 * number)
        for number in range(6):
            orders.world.split(STREAM, 2 * number)
        orders.start(Trigger.AVAILABLE_NOW)
        orders.run_out()
        orders.check_all_read()
        times.add(orders.world.clock.now_ms())
        calls.add(tuple(orders.world.state.calls.by_operation().items()))
    assert len(times) == len(calls) == 1
    assert times.pop() > START_MS + 3500
