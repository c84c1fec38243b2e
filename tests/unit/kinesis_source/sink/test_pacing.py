"""The pace of tasks that write to one shard at full rate, in simulated time."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from kinesis_source.sink.pacing import RECORDS_PER_SECOND, ShardPacer

_STEP_S = 0.02


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


def write(shard: Shard, tasks: list[ShardPacer], *, begin: float, end: float) -> None:
    """Let the tasks write as much as their pacers allow, for a time in seconds."""
    chance = random.Random(len(tasks))
    not_before = [0.0] * len(tasks)
    for step in range(round(begin / _STEP_S), round(end / _STEP_S)):
        now = step * _STEP_S
        for number in chance.sample(range(len(tasks)), len(tasks)):
            pacer = tasks[number]
            count, _ = pacer.budget(now)
            if now < not_before[number] or count < pacer.part(now):
                continue
            count = min(count, 500)
            pacer.sent(now, count, count)
            taken = shard.put(now + chance.uniform(0, _STEP_S), count)
            if taken < count:
                pacer.throttled(now, taken / count)
                not_before[number] = now + chance.uniform(0.1, 0.2)


@pytest.mark.parametrize(("tasks", "throttled"), [(1, 0.0), (2, 0.02), (4, 0.02), (16, 0.12)])
def test_tasks_use_a_shard_nearly_without_throttling(tasks: int, throttled: float) -> None:
    shard, pacers = Shard(), [ShardPacer(0) for _ in range(tasks)]
    write(shard, pacers, begin=0, end=10)
    shard.stored = shard.refused = 0
    write(shard, pacers, begin=10, end=100)
    assert shard.refused <= throttled * (shard.refused + shard.stored)
    assert shard.stored >= 0.85 * 90 * RECORDS_PER_SECOND


def test_a_task_uses_the_shard_of_those_that_have_ended() -> None:
    shard, pacers = Shard(), [ShardPacer(0) for _ in range(4)]
    write(shard, pacers, begin=0, end=30)
    before = shard.stored
    write(shard, pacers[:1], begin=30, end=60)
    assert shard.stored - before >= 0.5 * 30 * RECORDS_PER_SECOND
