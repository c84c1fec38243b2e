"""The consumers of a query: found, registered, awaited, looked up again."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from spark_ssp.common.errors import AccessError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.client.consumers import (
    LOOKUP_PERIOD_S,
    MISSING_LOOKUP_PERIOD_S,
    WAIT_S,
    Consumer,
    ConsumerError,
    ConsumerService,
    QueryConsumers,
)
from spark_ssp.kinesis_source.model.shard import ConsumerArn, StreamRef
from spark_ssp.kinesis_source.options.values import ConsumerLifecycle, FanOutOptions

ORDERS = StreamRef(name=StreamName("orders"))
STREAM_ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
ARN = ConsumerArn(f"{STREAM_ARN}/consumer/etl:1")
JOB = FanOutOptions(consumer_name="etl")
SELF = FanOutOptions(consumer_name="etl", lifecycle=ConsumerLifecycle.SELF)
BY_ARN = FanOutOptions(consumer_arns=((ORDERS.name, ARN),), lifecycle=ConsumerLifecycle.SELF)


class FakeConsumers(ConsumerService):
    """Consumers of one stream. A registered one is active `creating` seconds later."""

    def __init__(self, *, creating: float = 3.0) -> None:
        self.now = 0.0
        self.creating = creating
        self.found: tuple[float, str] | None = None
        """The time from which it is active, and its status before."""
        self.registered = 0
        self.refusal: Exception | None = None

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def find(self, stream: StreamRef, name: str) -> Consumer | None:
        assert (stream.arn, name) == (STREAM_ARN, "etl")
        return self.find_by_arn(stream, ARN)

    def find_by_arn(self, stream: StreamRef, arn: ConsumerArn) -> Consumer | None:
        if self.refusal is not None:
            raise self.refusal
        if self.found is None:
            return None
        until, status = self.found
        if self.now >= until and status == "DELETING":
            return None
        return Consumer(name="etl", arn=arn, status="ACTIVE" if self.now >= until else status)

    def register(self, stream: StreamRef, name: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.registered += 1
        self.found = self.now + self.creating, "CREATING"

    def deregister(self, stream: StreamRef, arn: ConsumerArn) -> None:
        self.found = None


def consumers(service: FakeConsumers, options: FanOutOptions = JOB) -> QueryConsumers:
    return QueryConsumers(
        options,
        service,
        describe_arn=lambda _: STREAM_ARN,
        monotonic=lambda: service.now,
        sleep=service.sleep,
    )


def test_a_missing_consumer_is_registered_and_awaited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    service = FakeConsumers()
    assert consumers(service).active((ORDERS,)) == {ORDERS.name: ARN}
    assert service.registered == 1
    assert service.now == pytest.approx(3.0, abs=1.0)
    assert len([text for text in caplog.messages if "waiting until it is active" in text]) == 1


def test_one_that_is_being_deregistered_is_registered_afterwards() -> None:
    service = FakeConsumers()
    service.found = 5.0, "DELETING"
    assert consumers(service).active((ORDERS,)) == {ORDERS.name: ARN}
    assert service.registered == 1


@pytest.mark.parametrize("options", [SELF, BY_ARN])
def test_a_consumer_of_the_user_is_never_registered(options: FanOutOptions) -> None:
    service = FakeConsumers()
    with pytest.raises(ConsumerError, match="no consumer of that name"):
        consumers(service, options).active((ORDERS,))
    assert service.registered == 0
    service.found = 2.0, "CREATING"
    assert consumers(service, options).active((ORDERS,)) == {ORDERS.name: ARN}


def test_after_a_time_the_query_polls_until_the_consumer_is_active(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = FakeConsumers(creating=100.0)
    found = consumers(service)
    assert found.active((ORDERS,)) == {}
    assert service.now == pytest.approx(WAIT_S, abs=2.0)
    assert "still CREATING" in caplog.text
    service.now += LOOKUP_PERIOD_S
    assert found.active((ORDERS,)) == {ORDERS.name: ARN}


def _limit() -> Exception:
    error = ThrottledError("s", found="too many", expected="fewer", next_step="none")
    error.code = "LimitExceededException"
    return error


def _denied() -> Exception:
    return AccessError("s", found="no permission", expected="one", next_step="none")


@pytest.mark.parametrize("refusal", [_denied, _limit])
def test_a_refusal_fails_the_start_and_later_only_warns(
    refusal: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    service = FakeConsumers()
    service.refusal = refusal()
    with pytest.raises((AccessError, ThrottledError)):
        consumers(service).active((ORDERS,))
    service.refusal = None
    found = consumers(service)
    assert found.active((ORDERS,))
    service.refusal = refusal()
    assert found.active((ORDERS,)), "not looked up again before its time"
    service.now += LOOKUP_PERIOD_S
    assert found.active((ORDERS,)) == {ORDERS.name: ARN}, "it is not known to be gone"
    assert "could not be looked up" in caplog.text


def test_a_consumer_that_the_user_deregisters_is_missed_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = FakeConsumers(creating=0.0)
    service.found = 0.0, "ACTIVE"
    found = consumers(service, SELF)
    assert found.active((ORDERS,))
    service.found = None
    service.now += LOOKUP_PERIOD_S
    assert found.active((ORDERS,)) == {}
    assert "is polled" in caplog.text


def _refused(code: str) -> Exception:
    error = ThrottledError("s", found=code, expected="an answer", next_step="none")
    error.code = code
    return error


@pytest.mark.parametrize("code", ["ResourceInUseException", "LimitExceededException"])
def test_a_refused_registration_is_repeated(code: str, caplog: pytest.LogCaptureFixture) -> None:
    """A stream is being resharded, or other queries register at the same time."""
    caplog.set_level(logging.INFO)
    service = FakeConsumers()
    register = service.register

    def refuse(stream: StreamRef, name: str) -> None:
        if service.now < WAIT_S / 2:
            raise _refused(code)
        register(stream, name)

    service.register = refuse  # type: ignore[method-assign]
    assert consumers(service).active((ORDERS,)) == {ORDERS.name: ARN}
    assert service.registered == 1
    assert len([text for text in caplog.messages if text.startswith("registered")]) == 1


def test_a_stream_with_too_many_consumers_is_an_error_with_a_next_step() -> None:
    service = FakeConsumers()

    def refuse(stream: StreamRef, name: str) -> None:
        raise _limit()

    service.register = refuse  # type: ignore[method-assign]
    with pytest.raises(ConsumerError, match="deregister consumers that nobody uses"):
        consumers(service).active((ORDERS,))
    assert service.now >= WAIT_S


def test_a_consumer_that_was_deregistered_by_hand_is_registered_again() -> None:
    service = FakeConsumers(creating=0.0)
    found = consumers(service)
    assert found.active((ORDERS,))
    service.deregister(ORDERS, ARN)
    service.now += LOOKUP_PERIOD_S
    assert found.active((ORDERS,)) == {}
    service.now += MISSING_LOOKUP_PERIOD_S
    assert found.active((ORDERS,)) == {ORDERS.name: ARN}
    assert service.registered == 2
