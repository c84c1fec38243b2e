"""The interval of a trigger, told from the duration of batches."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.kinesis_source.probing.batch_limits import Limits
from spark_ssp.kinesis_source.probing.intake_rate import INTAKE_BYTES_PER_MS
from spark_ssp.kinesis_source.source import TriggerInterval
from tests.support.fakes.planner_world import World

START_S = 1_700_000_123.4


class Driver:
    """Spark's loop around one source: a trigger with an interval, or with none (0)."""

    def __init__(self, interval_s: float, seed: int = 0) -> None:
        self.now = START_S
        self._every = interval_s
        self._random = random.Random(seed)
        self._triggers = TriggerInterval(lambda: self.now)

    def trigger(self, batch_s: float) -> int:
        """One trigger, the interval known at its begin; the clock then stands at the next one."""
        began = self.now
        self.now += self._random.uniform(0.01, 0.15)
        known = self._triggers.begin()
        self.now += batch_s * self._random.uniform(0.9, 1.1)
        if self._every:
            self.now = max(self.now, began - began % self._every + self._every)
        return known


@pytest.mark.parametrize("interval_s", [10, 60, 300, 600, 3600, 86_400])
def test_the_interval_of_a_trigger_is_found_out(interval_s: int) -> None:
    driver = Driver(interval_s)
    assert [driver.trigger(interval_s / 3) for _ in range(7)][4:] == [interval_s * 1000] * 3


@pytest.mark.parametrize("mebibytes", [1, 256])
@pytest.mark.parametrize("seed", range(10))
def test_batches_do_not_grow_with_the_time_that_they_take(seed: int, mebibytes: int) -> None:
    """A sink that is slower than a shard: each batch takes longer than what it holds took to
    arrive. Were that taken for an interval, the next would hold more."""
    driver = Driver(0, seed)
    limits = Limits(max_shard_bytes=mebibytes << 20)
    bound = limits
    for _ in range(100):
        batch_s = (bound.max_shard_bytes or 0) / INTAKE_BYTES_PER_MS / 1000 / 0.4
        bound = limits.for_interval(driver.trigger(batch_s))
    assert bound == limits


def test_a_batch_that_was_late_leaves_what_is_known() -> None:
    driver = Driver(300)
    for _ in range(5):
        driver.trigger(100)
    assert driver.trigger(700) == 300_000
    assert [driver.trigger(100) for _ in range(6)] == [300_000] * 6


BODY = b"x" * 40_000


@given(
    interval_s=st.integers(1, 60),
    used=st.floats(0.05, 0.7),
    intake=st.floats(0.02, 0.3),
    busy=st.integers(1, 4),
    is_aligned=st.booleans(),
    of_records=st.booleans(),
)
@example(interval_s=60, used=0.6, intake=0.1, busy=1, is_aligned=True, of_records=False)
@example(interval_s=60, used=0.6, intake=0.1, busy=1, is_aligned=False, of_records=True)
@example(interval_s=60, used=0.7, intake=0.2, busy=3, is_aligned=True, of_records=False)
def test_a_query_whose_limit_is_above_the_intake_catches_up(
    interval_s: int, used: float, intake: float, busy: int, is_aligned: bool, of_records: bool
) -> None:
    """`used`: the intake of an interval, in units of the limit; `intake`: that of the busiest
    shard, in units of the quota; `busy`: how many times as much it takes in as the other."""
    interval_ms = interval_s * 1000
    shards = 2 if busy > 1 and is_aligned else 1
    total = intake * INTAKE_BYTES_PER_MS * interval_ms * (1 + (shards - 1) / busy)
    count = max(1, round(total / len(BODY)))
    most = math.ceil(count / used)
    limit = Limits(max_records=most) if of_records else Limits(max_bytes=most * len(BODY))
    world = World(shards=shards, align_batches=is_aligned)

    def put() -> None:
        for n in range(count):
            other = shards > 1 and n % (1 + busy) == 0
            world.state.put("orders", "b" if other else "a", BODY)
            world.clock.advance((n + 1) * interval_ms // count - n * interval_ms // count)

    for _ in range(2):
        put()
    lags: list[int] = []
    for _ in range(10):
        began = world.clock.now_ms()
        world.trigger(limit.for_interval(interval_ms))
        lags.append(max(world.planner.lag()["orders"].values()))
        world.clock.advance(began - world.clock.now_ms())
        put()
    assert lags[-1] <= max(interval_ms, 10_000)
