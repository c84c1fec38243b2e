"""The estimate of the service's clock: never ahead, close, and able to follow a step back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kinesis_source.client.boto3_client import ClockReading, ServerClock, update_estimate
from spark_ssp.kinesis_source.model.shard import EpochMillis

START = 1_700_000_000_000


def date(millis: float) -> EpochMillis:
    """Return the `Date` header at `millis`."""
    return EpochMillis(int(millis // 1000) * 1000)


answers = st.lists(
    st.tuples(
        st.floats(0, 5_000),  # ms until the request is sent
        st.floats(0, 2_000),  # ms until the service answers
        st.floats(0, 2_000),  # ms until the answer is here
    ),
    min_size=1,
    max_size=30,
)


@given(answers, st.floats(-0.0004, 0.0004), st.floats(0, 1000))
def test_never_ahead_of_a_service_whose_clock_only_drifts(
    script: list[tuple[float, float, float]], drift: float, phase: float
) -> None:
    local = 0.0
    clock = ServerClock()

    def service(at: float) -> float:
        return START + phase + at * (1 + drift)

    for before, there, back in script:
        asked = local + before
        answered = asked + there
        local = answered + back
        told = clock.record(
            date(service(answered)), requested_at=asked / 1000, received=local / 1000
        )
        assert told <= service(answered)
        now = clock.now(local / 1000)
        assert now is not None
        assert date(service(answered)) <= now <= service(local)
        later = clock.now((local + 60_000) / 1000)
        assert later is not None
        assert later <= service(local + 60_000)


def test_comes_close_when_answers_fall_on_all_parts_of_a_second() -> None:
    clock = ServerClock()
    for step in range(100):
        moment = step * 0.07
        clock.record(date(START + 990 + moment * 1000), requested_at=moment, received=moment)
    now = clock.now(7.0)
    assert now is not None
    assert 0 <= START + 990 + 7000 - now <= 80


def test_follows_a_step_back_at_once_to_within_a_second() -> None:
    clock = ServerClock()
    clock.record(EpochMillis(START + 3_600_000), requested_at=0.0, received=0.0)
    clock.record(EpochMillis(START), requested_at=1.0, received=1.0)
    now = clock.now(1.0)
    assert now is not None
    assert START <= now <= START + 1000
    assert clock.last_date() == START


def test_follows_a_step_forward_at_once() -> None:
    clock = ServerClock()
    clock.record(EpochMillis(START), requested_at=0.0, received=0.0)
    clock.record(EpochMillis(START + 3_600_000), requested_at=1.0, received=1.0)
    assert clock.now(1.0) == START + 3_600_000


def test_a_response_reported_late_does_not_set_the_clock_back() -> None:
    newer = ClockReading(epoch_ms=START + 5000, local_s=5.0)
    after = update_estimate(newer, date=EpochMillis(START + 1000), requested_at=0.9, received=1.0)
    assert after.local_s == 5.0
    assert START + 4990 <= after.epoch_ms <= START + 5000


def test_knows_nothing_before_the_first_answer() -> None:
    clock = ServerClock()
    assert clock.now(1.0) is None
    assert clock.last_date() is None


def test_the_time_of_an_answer_is_not_that_of_its_arrival_here() -> None:
    clock = ServerClock()
    clock.record(EpochMillis(START), requested_at=0.0, received=0.0)
    told = clock.record(EpochMillis(START + 2000), requested_at=2.0, received=12.0)
    assert told == START + 2000


def test_a_local_clock_that_runs_fast_does_not_carry_the_estimate_ahead() -> None:
    clock = ServerClock()
    clock.record(EpochMillis(START), requested_at=0.0, received=0.0)
    hour = 3_600
    truth = START + hour * 1000 * (1 - 0.0004)
    now = clock.now(float(hour))
    assert now is not None
    assert truth - 1000 <= now <= truth
