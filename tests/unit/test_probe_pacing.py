"""When the driver may look at a shard again."""

from __future__ import annotations

import pytest

from kinesis_source.probe_pacing import PATIENT_AFTER, Pacing
from tests.support.shards import key


class Time:
    """A clock in seconds that sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def pacing(time: Time, period_ms: int = 400) -> Pacing:
    return Pacing(period_ms=period_ms, monotonic=time.monotonic, sleep=time.sleep)


A, B = key(0), key(1)


def test_a_shard_never_looked_at_is_due(time: Time) -> None:
    paces = pacing(time)
    assert paces.due(A)
    paces.wait([A, B])
    paces.wait([])
    assert time.slept == []


@pytest.mark.parametrize(
    ("period_ms", "busy", "seconds"),
    [(400, False, 0.4), (400, True, 1.0), (5000, False, 5.0), (5000, True, 5.0), (0, False, 0.0)],
)
def test_a_look_is_repeated_after_its_period(
    time: Time, period_ms: int, busy: bool, seconds: float
) -> None:
    paces = pacing(time, period_ms)
    paces.looked(A, busy=busy)
    assert paces.due(A) is (seconds == 0)
    time.now += seconds
    assert paces.due(A)
    assert paces.due(B)


def test_waiting_ends_with_the_first_shard_that_is_due(time: Time) -> None:
    paces = pacing(time)
    paces.looked(A, busy=True)
    time.now += 0.1
    paces.looked(B, busy=False)
    paces.wait([A, B])
    assert time.slept == [pytest.approx(0.4)]
    assert (paces.due(A), paces.due(B)) == (False, True)
    paces.wait([A, B])
    assert len(time.slept) == 1


def test_waiting_is_bounded(time: Time) -> None:
    paces = pacing(time)
    time.now += 3600
    paces.looked(A, busy=True)
    time.now -= 3600
    paces.wait([A])
    assert time.slept == [1.0]


def test_a_throttled_shard_is_left_alone_and_takes_no_harm(time: Time) -> None:
    paces = pacing(time)
    for _ in range(PATIENT_AFTER + 1):
        paces.throttled(A)
    assert not paces.due(A)
    assert not paces.patience_is_due(A)
    time.now += 1
    assert paces.due(A)


def test_faults_in_a_row_make_for_patience(time: Time) -> None:
    paces = pacing(time)
    for _ in range(PATIENT_AFTER - 1):
        paces.failed(A)
        assert not paces.patience_is_due(A)
    paces.throttled(A)
    paces.failed(A)
    assert paces.patience_is_due(A)
    assert not paces.due(A)
    assert not paces.patience_is_due(B)
    paces.looked(A, busy=False)
    assert not paces.patience_is_due(A)


def test_shards_that_have_left_are_forgotten(time: Time) -> None:
    paces = pacing(time)
    for shard in (A, B):
        for _ in range(PATIENT_AFTER):
            paces.failed(shard)
    paces.forget_all_but([B])
    assert (paces.due(A), paces.due(B)) == (True, False)
    assert (paces.patience_is_due(A), paces.patience_is_due(B)) == (False, True)
