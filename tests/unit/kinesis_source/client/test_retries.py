"""Pauses between attempts, exhausted retries, and their log."""

from __future__ import annotations

import logging

import botocore.exceptions as sdk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.aws.error_translation import Severity
from spark_ssp.common.aws.service_calls import Retrier, RetryLog, RetrySettings, backoff
from spark_ssp.kinesis_source.client.error_translation import severity_of
from spark_ssp.kinesis_source.client.messages import MalformedAnswerError
from tests.support.fakes.clocks import ManualTime

DOWN = sdk.EndpointConnectionError(endpoint_url="http://127.0.0.1:1/")
LOGGER = "spark_ssp.common.aws.service_calls"


class Failing:
    """Raises each of `errors` once, then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def throttled() -> sdk.ClientError:
    return sdk.ClientError(
        {"Error": {"Code": "ProvisionedThroughputExceededException", "Message": ""}}, "GetRecords"
    )


def retrier(clock: ManualTime, *, attempts: int = 8, draw: float = 1.0) -> Retrier:
    return Retrier(
        RetrySettings(max_attempts=attempts, max_backoff=10.0),
        log=RetryLog(clock.monotonic),
        sleep=clock.sleep,
        random=lambda: draw,
        severity_of=severity_of,
    )


def run(with_: Retrier, function: Failing) -> str:
    return with_.run(function, operation="GetRecords", subject="stream orders")


def test_waits_double_up_to_the_longest() -> None:
    clock = ManualTime()
    assert run(retrier(clock), Failing(*[DOWN] * 7)) == "done"
    assert clock.slept == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0])


def test_throttling_is_given_more_time() -> None:
    clock = ManualTime()
    assert run(retrier(clock, draw=0.5), Failing(*[throttled() for _ in range(7)])) == "done"
    assert clock.slept == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0])


def test_gives_up_after_the_last_attempt_with_its_error() -> None:
    clock = ManualTime()
    function = Failing(*[MalformedAnswerError(str(number)) for number in range(9)])
    with pytest.raises(MalformedAnswerError, match="2"):
        run(retrier(clock, attempts=3), function)
    assert function.calls == 3
    assert len(clock.slept) == 2


def test_throttling_that_is_to_be_outlasted_uses_up_no_attempts() -> None:
    clock = ManualTime()
    errors = [error for _ in range(40) for error in (throttled(), DOWN, DOWN, throttled())]
    with_ = retrier(clock, attempts=3)
    assert (
        with_.run(Failing(*errors), operation="x", subject="y", outlast_throttling=True) == "done"
    )
    with pytest.raises(sdk.EndpointConnectionError):
        with_.run(Failing(*[DOWN] * 3), operation="x", subject="y", outlast_throttling=True)
    with pytest.raises(sdk.ClientError):
        run(with_, Failing(*[throttled()] * 3))


def test_throttling_is_outlasted_for_a_limited_time() -> None:
    clock = ManualTime()
    function = Failing(*[throttled() for _ in range(1_000)])
    with pytest.raises(sdk.ClientError):
        retrier(clock).run(
            function, operation="x", subject="y", outlast_throttling=True, within=120.0
        )
    assert 120.0 <= sum(clock.slept) <= 130.0


@pytest.mark.parametrize("error", [sdk.NoCredentialsError(), ValueError("x")])
def test_does_not_repeat_what_cannot_pass(error: Exception) -> None:
    clock = ManualTime()
    function = Failing(error)
    with pytest.raises(type(error)):
        run(retrier(clock), function)
    assert (function.calls, clock.slept) == (1, [])


@given(
    st.sampled_from(Severity),
    st.integers(1, 10_000),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 60),
)
def test_a_wait_is_never_negative_nor_longer_than_allowed(
    severity: Severity, attempt: int, draw: float, longest: float
) -> None:
    settings = RetrySettings(max_attempts=3, max_backoff=longest)
    assert 0 <= backoff(settings, severity, attempt, draw) <= longest


def test_the_jitter_is_full() -> None:
    settings = RetrySettings(max_attempts=3, max_backoff=10)
    assert backoff(settings, Severity.FAULT, 4, 0.0) == 0
    assert backoff(settings, Severity.FAULT, 4, 0.5) == pytest.approx(0.8)


def test_every_retry_is_counted_and_warned_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualTime()
    log = RetryLog(clock.monotonic)
    with caplog.at_level(logging.WARNING, LOGGER):
        for _ in range(5):
            log.note("GetRecords", "stream orders", throttled(), 0.1)
        log.note("GetRecords", "stream orders", DOWN, 0.1)
        clock.now += 31
        log.note("GetRecords", "stream orders", throttled(), 0.1)
    assert log.counts() == {
        ("GetRecords", "EndpointConnectionError"): 1,
        ("GetRecords", "ProvisionedThroughputExceededException"): 6,
    }
    told = [record.getMessage() for record in caplog.records]
    assert [message.split(" on ")[0] for message in told] == [
        "ProvisionedThroughputExceededException",
        "EndpointConnectionError",
        "ProvisionedThroughputExceededException",
    ]
    assert told[0].endswith("trying again in 100 ms")
    assert told[2].endswith("trying again in 100 ms; 4 more such retries since the last warning")
    assert all("stream orders" in message for message in told)
