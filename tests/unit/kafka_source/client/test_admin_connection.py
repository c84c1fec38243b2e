"""What a client says aside is kept until brokers answer."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kafka_source.client.admin_client import KafkaAdminClient
from kafka_source.client.admin_connection import ClientErrors, run_in_thread
from kafka_source.model.topic import Subscribe
from kafka_source.properties.translation import ClientProperties
from ssp_common.errors import AccessError
from task_grouping.identifiers import StreamName

REFUSED = KafkaError(KafkaError._TRANSPORT, "Connection refused")
WRONG = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")


def test_nothing_is_heard_at_first() -> None:
    errors = ClientErrors()
    assert errors.access_error() is None
    assert errors.connection_error() is None


def test_the_last_of_each_kind_is_kept_until_brokers_answer() -> None:
    errors = ClientErrors()
    errors.record(KafkaError(KafkaError._RESOLVE))
    errors.record(REFUSED)
    errors.record(WRONG)
    # It sums up the others, and would hide them.
    errors.record(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert errors.connection_error() is REFUSED
    assert errors.access_error() is WRONG

    errors.clear()
    assert errors.connection_error() is None
    assert errors.access_error() is None

    errors.record(REFUSED)
    assert errors.connection_error() is REFUSED
    assert errors.access_error() is None


def test_a_refusal_counts_for_the_calls_that_it_meets() -> None:
    errors = ClientErrors()
    errors.record(WRONG)
    begun = errors.mark()
    assert errors.access_error(begun) is None
    assert errors.access_error() is WRONG
    errors.record(WRONG)
    assert errors.access_error(begun) is WRONG


@dataclass
class SlowAdmin:
    """Answers when it was looked for several times, and reports `meanwhile` before."""

    errors: ClientErrors
    meanwhile: KafkaError | None
    now: float = 0.0
    futures: list[Future[Any]] = field(default_factory=list)

    def describe_topics(self, topics: object, request_timeout: float) -> dict[str, Future[Any]]:
        self.futures = [Future()]
        return {"orders": self.futures[0]}

    def monotonic(self) -> float:
        self.now += 1.0
        if self.now > 2 and self.meanwhile is not None:
            self.errors.record(self.meanwhile)
        if self.now > 8 and not self.futures[0].done():
            partition = SimpleNamespace(leader=SimpleNamespace(id=1))
            self.futures[0].set_result(
                SimpleNamespace(
                    name="orders", topic_id="id", is_internal=False, partitions=[partition]
                )
            )
        return self.now


@pytest.mark.parametrize("meanwhile", [None, WRONG])
def test_a_slow_call_is_not_ended_by_a_refusal_from_before(meanwhile: KafkaError | None) -> None:
    errors = ClientErrors()
    errors.record(WRONG)
    admin = SlowAdmin(errors, meanwhile)
    connection = SimpleNamespace(
        errors=errors,
        admin=admin,
        has_responded=True,
        properties=ClientProperties(),
        check_process=lambda: None,
    )
    kafka = KafkaAdminClient(
        connection,  # type: ignore[arg-type]
        monotonic=admin.monotonic,
        sleep=lambda _: None,
    )
    topics = Subscribe(topics=(StreamName("orders"),))
    if meanwhile is None:
        assert kafka.describe(topics).keys() == {"orders"}
    else:
        with pytest.raises(AccessError):
            kafka.describe(topics)


def test_a_blocking_call_is_a_future() -> None:
    assert run_in_thread(lambda: 5).result(10) == 5
    error = run_in_thread(lambda: 1 // 0).exception(10)
    assert isinstance(error, ZeroDivisionError)
