"""What a client says aside is kept until brokers answer."""

from __future__ import annotations

from confluent_kafka import KafkaError

from kafka_source.admin_connection import Heard, in_thread

REFUSED = KafkaError(KafkaError._TRANSPORT, "Connection refused")
WRONG = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")


def test_nothing_is_heard_at_first() -> None:
    heard = Heard()
    assert heard.refusal() is None
    assert heard.reason() is None


def test_the_last_of_each_kind_is_kept_until_brokers_answer() -> None:
    heard = Heard()
    heard.hear(KafkaError(KafkaError._RESOLVE))
    heard.hear(REFUSED)
    heard.hear(WRONG)
    # It sums up the others, and would hide them.
    heard.hear(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert heard.reason() is REFUSED
    assert heard.refusal() is WRONG

    heard.settle()
    assert heard.reason() is None
    assert heard.refusal() is None

    heard.hear(REFUSED)
    assert heard.reason() is REFUSED
    assert heard.refusal() is None


def test_a_blocking_call_is_a_future() -> None:
    assert in_thread(lambda: 5).result(10) == 5
    error = in_thread(lambda: 1 // 0).exception(10)
    assert isinstance(error, ZeroDivisionError)
