"""Brokers that do not start."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from spark_ssp.testing.kafka.broker import LocalKafka, LocalKafkaCluster


def test_a_cluster_raises_the_error_of_a_broker_and_ends_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[LocalKafka] = []
    ended: list[LocalKafka] = []

    def start(broker: LocalKafka, resources: ExitStack) -> None:
        if broker.address("PLAINTEXT") == cluster.address(2):
            raise OSError("no Java")
        started.append(broker)
        resources.callback(ended.append, broker)

    monkeypatch.setattr(LocalKafka, "_start", start)
    cluster = LocalKafkaCluster()
    with pytest.raises(OSError, match="no Java"), cluster:
        pass
    assert len(started) == 2
    assert set(ended) == set(started)
