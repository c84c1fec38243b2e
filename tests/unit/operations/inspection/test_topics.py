"""The offsets of topics, by a model of the brokers."""

from __future__ import annotations

import pytest

from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.operations.inspection import topics
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.partitions import ssp


def test_the_latest_offset_is_after_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a position after the start of one is that of another log."""

    def connect(options: KafkaOptions) -> FakeKafka:
        kafka = FakeKafka(options.isolation_level)
        kafka.create(1, name="orders")
        kafka.fill("orders", 8)
        kafka.log(ssp("orders", 0)).open_since = 5
        return kafka

    monkeypatch.setattr(topics, "connect", connect)
    options = {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.isolation.level": "read_committed",
    }
    assert topics.latest_offsets([ssp("orders", 0)], options) == {ssp("orders", 0): 8}
