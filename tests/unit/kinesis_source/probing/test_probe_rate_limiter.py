"""When the driver may look at a shard again."""

from __future__ import annotations

import pytest

from spark_ssp.kinesis_source.client.api import BYTES_PER_SECOND
from spark_ssp.kinesis_source.planning.shard_discovery import ShardDiscovery
from spark_ssp.kinesis_source.probing.fixed_targets import FixedTargets
from spark_ssp.kinesis_source.probing.probe_rate_limiter import (
    CALLS_PER_SECOND,
    RETRY_AFTER_FAULTS,
    SHARE,
    ProbeRateLimiter,
)
from spark_ssp.kinesis_source.probing.shard_prober import ShardProber
from tests.support.fakes.clocks import ManualTime
from tests.support.fakes.planner_world import World
from tests.support.kinesis.shards import key


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


def pacing(time: ManualTime, period_ms: int = 400) -> ProbeRateLimiter:
    return ProbeRateLimiter(period_ms=period_ms, monotonic=time.monotonic, sleep=time.sleep)


A, B = key(0), key(1)


def test_a_shard_never_looked_at_is_due(time: ManualTime) -> None:
    paces = pacing(time)
    assert paces.is_due(A)
    paces.wait([A, B])
    paces.wait([])
    assert time.slept == []


CALL = 1 / (SHARE * CALLS_PER_SECOND)
"""How much of a query's share a call takes, in seconds."""


@pytest.mark.parametrize(
    ("period_ms", "calls", "seconds"),
    [(400, 1, 0.4), (400, 3, 3 * CALL), (5000, 1, 5.0), (5000, 3, 5.0), (0, 1, 0), (200, 3, 0.6)],
)
def test_a_look_is_repeated_after_its_period_and_within_the_querys_share(
    time: ManualTime, period_ms: int, calls: int, seconds: float
) -> None:
    paces = pacing(time, period_ms)
    paces.record_probe(A, calls=calls)
    assert paces.is_due(A) is (seconds == 0)
    time.now += seconds
    assert paces.is_due(A)
    assert paces.is_due(B)


def test_what_tasks_will_fetch_counts_as_calls_and_bytes(time: ManualTime) -> None:
    paces = pacing(time)
    paces.record_probe(A, calls=1)
    paces.reserve_reads(A, calls=1, size=0)
    time.now += 2 * CALL - 0.01
    assert not paces.is_due(A)
    time.now += 0.02
    assert paces.is_due(A)
    paces.record_probe(A, calls=1, size=BYTES_PER_SECOND // 2)
    paces.reserve_reads(A, calls=1, size=BYTES_PER_SECOND)
    time.now += 1.49
    assert not paces.is_due(A)
    time.now += 0.02
    assert paces.is_due(A)
    paces.reserve_reads(B, calls=1, size=BYTES_PER_SECOND)
    assert paces.is_due(B)


def test_a_service_on_this_machine_need_not_keep_to_the_read_rate(time: ManualTime) -> None:
    paces = ProbeRateLimiter(
        period_ms=400, enforced=False, monotonic=time.monotonic, sleep=time.sleep
    )
    for seconds in (2 * CALL, 10.0):
        paces.record_probe(A, calls=1)
        paces.reserve_reads(A, calls=1, size=10 * BYTES_PER_SECOND)
        time.now += seconds - 0.01
        assert not paces.is_due(A)
        time.now += 0.1
        assert paces.is_due(A)
        paces.record_throttle(A)
        time.now += 10


@pytest.mark.parametrize("late", [0, 0.05, 0.3])
def test_calls_keep_to_the_share_on_average(time: ManualTime, late: float) -> None:
    """However late each look comes, the calls of a minute are the query's share or fewer."""
    paces = pacing(time)
    calls = 0
    began = time.now
    while time.now < began + 60:
        time.now += late
        if paces.is_due(A):
            paces.record_probe(A, calls=1)
            paces.reserve_reads(A, calls=1, size=1000)
            calls += 2
        paces.wait([A])
    assert calls <= SHARE * CALLS_PER_SECOND * 60 + 5
    assert late or calls >= SHARE * CALLS_PER_SECOND * 60 - 2


def test_waiting_ends_with_the_first_shard_that_is_due(time: ManualTime) -> None:
    paces = pacing(time)
    paces.record_probe(A, calls=4)
    time.now += 0.1
    paces.record_probe(B, calls=1)
    paces.wait([A, B])
    assert time.slept == [pytest.approx(0.4)]
    assert (paces.is_due(A), paces.is_due(B)) == (False, True)
    paces.wait([A, B])
    assert len(time.slept) == 1


def test_waiting_is_bounded(time: ManualTime) -> None:
    paces = pacing(time)
    time.now += 3600
    paces.record_probe(A, calls=1)
    time.now -= 3600
    assert not paces.wait([A]), "too short"
    assert time.slept == [1.0]


def test_waiting_for_all_ends_with_the_last_shard_that_is_due(time: ManualTime) -> None:
    paces = pacing(time)
    paces.record_probe(A, calls=1)
    time.now += 0.1
    paces.record_probe(B, calls=1)
    assert paces.wait([A, B], for_all=True)
    assert time.slept == [pytest.approx(0.4)]
    paces.record_probe(B, calls=5)
    assert paces.wait([A, B]), "one of them is due"
    assert not paces.wait([A, B], for_all=True)
    assert len(time.slept) == 2


def test_a_throttled_shard_is_left_alone_and_takes_no_harm(time: ManualTime) -> None:
    paces = pacing(time)
    for _ in range(RETRY_AFTER_FAULTS + 1):
        paces.record_throttle(A)
    assert not paces.is_due(A)
    assert not paces.is_retry_due(A)
    time.now += (RETRY_AFTER_FAULTS + 1) * CALL
    assert paces.is_due(A)


def test_faults_in_a_row_make_for_patience(time: ManualTime) -> None:
    paces = pacing(time)
    for _ in range(RETRY_AFTER_FAULTS - 1):
        paces.record_failure(A)
        assert not paces.is_retry_due(A)
    paces.record_throttle(A)
    paces.record_failure(A)
    assert paces.is_retry_due(A)
    assert not paces.is_due(A)
    assert not paces.is_retry_due(B)
    paces.record_probe(A, calls=1)
    assert not paces.is_retry_due(A)


def test_shards_that_have_left_are_forgotten(time: ManualTime) -> None:
    paces = pacing(time)
    for shard in (A, B):
        for _ in range(RETRY_AFTER_FAULTS):
            paces.record_failure(shard)
    paces.retain([B])
    assert (paces.is_due(A), paces.is_due(B)) == (True, False)
    assert (paces.is_retry_due(A), paces.is_retry_due(B)) == (False, True)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "pause"),
    [([MIB], 0), ([MIB, MIB - 1], 0), ([2 * MIB], 1.0), ([MIB, 2 * MIB], 1.0), ([10 * MIB], 5.0)],
)
def test_tasks_begin_when_the_shard_answers_again(
    time: ManualTime, sizes: list[int], pause: float
) -> None:
    paces = pacing(time)
    for size in sizes:
        paces.record_probe(A, calls=1, size=size)
    paces.record_probe(B, calls=1)
    paces.wait_for_tasks([A, B])
    assert sum(time.slept) == pytest.approx(pause)
    paces.wait_for_tasks([A, B])
    assert sum(time.slept) == pytest.approx(pause)


def test_a_run_to_fixed_targets_waits_for_a_throttled_shard_but_not_for_the_period() -> None:
    world = World(min_fetch_period_ms=120_000)
    discovery = ShardDiscovery(world.service, interval_ms=60_000, monotonic=world.monotonic)
    prober = ShardProber(
        world.options, world.service, discovery, monotonic=world.monotonic, sleep=world.sleep
    )
    targets = FixedTargets(prober, discovery, world.options.streams, fail=True)
    targets.fix()
    limiter, shard = prober.limiter, key(0)
    limiter.record_probe(shard, calls=1)
    assert (limiter.is_due(shard), targets.may_probe(shard)) == (False, True)
    limiter.record_throttle(shard)
    assert not targets.may_probe(shard)
    world.clock.advance(1000)
    assert targets.may_probe(shard)
    targets.release()
    assert not targets.may_probe(shard)
    prober.close()


def test_the_first_pause_after_throttling_is_half_as_long(time: ManualTime) -> None:
    paces = pacing(time)
    for pause in (0.5, 1.0, 1.0):
        paces.record_throttle(A)
        paces.wait([A])
        assert time.slept[-1] == pytest.approx(pause)
    paces.record_probe(A, calls=1)
    paces.record_throttle(A)
    time.now += 0.5
    assert paces.is_due(A)
