"""The pace of tasks that write to one shard at full rate, in simulated time."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

from spark_ssp.kinesis_source.sink.encoding import encode_rows
from spark_ssp.kinesis_source.sink.pacing import (
    RECORDS_PER_SECOND,
    ShardPacer,
    ShardQueue,
    first_share,
)
from tests.support.kinesis.sink_rows import Entry, rows_of

_LOOK_S = 0.05


@dataclass
class Shard:
    """Stores records as Kinesis does: at most so many within a second."""

    uses: deque[tuple[float, int]] = field(default_factory=deque)
    stored: int = 0
    refused: int = 0

    def put(self, now: float, count: int) -> int:
        while self.uses and self.uses[0][0] <= now - 1:
            self.uses.popleft()
        left = RECORDS_PER_SECOND - sum(used for _, used in self.uses)
        taken = min(count, left)
        self.uses.append((now, taken))
        self.stored += taken
        self.refused += count - taken
        return taken


@dataclass
class Tasks:
    """Tasks that write as much as their pacers allow. A request reaches the shard within `delay`
    seconds, and its answer takes up to half as long."""

    shard: Shard
    delay: float
    pacers: list[ShardPacer]
    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    _backoff: dict[int, float] = field(default_factory=dict)

    def run(self, until: float, writing: int | None = None) -> None:
        """Let the first tasks, or all, write until a time in seconds."""
        chance = random.Random(len(self.pacers))
        self._events.clear()
        for pacer in self.pacers[:writing]:
            self._look(pacer, chance)
        while self._events[0][0] < until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _look(self, pacer: ShardPacer, chance: random.Random) -> None:
        """Send what the pacer allows, and look again a little later."""
        while self.now >= self._backoff.get(id(pacer), 0.0):
            allowed, _ = pacer.budget(self.now)
            if allowed < pacer.part(self.now):
                break
            self._send(pacer, min(allowed, 500), chance)
        pause = _LOOK_S * chance.uniform(0.8, 1.2)
        self._at(self.now + pause, lambda: self._look(pacer, chance))

    def _send(self, pacer: ShardPacer, records: int, chance: random.Random) -> None:
        use = pacer.begin(self.now, records, records)

        def arrive() -> None:
            stored = self.shard.put(self.now, records)
            self._at(self.now + chance.uniform(0, self.delay / 2), lambda: answer(stored))

        def answer(stored: int) -> None:
            pacer.end(use, self.now)
            if stored < records:
                pacer.throttled(self.now, stored / records)
                self._backoff[id(pacer)] = self.now + chance.uniform(0.1, 0.2)

        self._at(self.now + chance.uniform(0, self.delay), arrive)


@pytest.mark.parametrize("delay", [0.02, 0.2])
@pytest.mark.parametrize(("tasks", "throttled"), [(1, 0.0), (2, 0.02), (4, 0.02), (16, 0.04)])
def test_tasks_use_a_shard_nearly_without_throttling(
    tasks: int, throttled: float, delay: float
) -> None:
    shard = Shard()
    writers = Tasks(shard, delay, [ShardPacer(0) for _ in range(tasks)])
    writers.run(until=10)
    shard.stored = shard.refused = 0
    writers.run(until=100)
    assert shard.refused <= throttled * (shard.refused + shard.stored)
    # A task waits for a second from an answer on, so that no delay of a request is throttled.
    assert shard.stored >= (0.9 - delay) * 90 * RECORDS_PER_SECOND


def test_a_task_uses_the_shard_of_those_that_have_ended() -> None:
    shard = Shard()
    writers = Tasks(shard, 0.05, [ShardPacer(0) for _ in range(4)])
    writers.run(until=30)
    before = shard.stored
    writers.run(until=60, writing=1)
    assert shard.stored - before >= 0.5 * 30 * RECORDS_PER_SECOND


def test_a_request_without_an_answer_holds_back_others_for_some_seconds_only() -> None:
    pacer = ShardPacer(0)
    for _ in range(2):
        pacer.begin(0, 500, 500)
    assert pacer.budget(4.9)[0] < pacer.part(4.9)
    assert pacer.next_budget(4.9, 250) == 5
    assert pacer.budget(5)[0] == RECORDS_PER_SECOND


def test_a_slow_request_does_not_hold_back_those_that_were_answered() -> None:
    pacer = ShardPacer(0)
    slow, fast = pacer.begin(0, 500, 500), pacer.begin(0, 500, 500)
    pacer.end(fast, 0.05)
    assert pacer.next_budget(0.1, 250) == 1.05
    assert pacer.budget(1.1)[0] == 500
    pacer.end(slow, 3)
    assert pacer.budget(3.9)[0] == 500
    assert pacer.budget(4)[0] == RECORDS_PER_SECOND


def test_records_of_a_slow_shard_do_not_keep_those_of_others() -> None:
    rows = encode_rows(rows_of([Entry(bytes(10), "k")] * 100))
    queue = ShardQueue(ShardPacer(0))
    for _ in range(20):
        queue.age()
        queue.add(rows.part(0, 2))
        queue.add(rows.part(2, 3))
    taken = queue.take(30, 10_000, 10_000)
    assert [len(run.text) for run, _ in taken] == [len(run.entries) for run, _ in taken]
    for _ in range(2):
        queue.age()
        queue.add(rows.part(3, 4))
    runs = [run for run, _ in queue.take_all()]
    assert sum(run.count for run in runs) == 32
    shared = [run for run in runs if len(run.text) > len(run.entries)]
    assert len(shared) == 6


def test_tasks_that_start_together_leave_room_for_each_other() -> None:
    """Each knows only that there are as many tasks as its number. Those of the next batch know
    what these have learned."""

    def refused(shares: list[float]) -> tuple[float, float]:
        shard = Shard()
        tasks = Tasks(shard, 0.05, [ShardPacer(0, share=share) for share in shares])
        tasks.run(6.0)
        first, stored = shard.refused, shard.stored
        for pacer in tasks.pacers:
            pacer.rest(30.0)
        shard.refused = shard.stored = 0
        tasks.now += 30.0
        tasks.run(tasks.now + 6.0)
        return first / stored, shard.refused / shard.stored

    begun_with_all, _ = refused([1.0] * 8)
    begun_with_a_part, next_batch = refused([first_share(number) for number in range(1, 9)])
    assert begun_with_a_part < begun_with_all / 4
    assert next_batch < 0.05


def test_the_first_share_of_a_task_doubles_until_it_is_throttled() -> None:
    pacer = ShardPacer(0, share=1 / 8)
    assert [pacer.budget(second)[0] for second in range(5)] == [125, 250, 500, 1000, 1000]
    pacer.throttled(4.0, 0.5)
    assert pacer.budget(5.0)[0] < 1000
