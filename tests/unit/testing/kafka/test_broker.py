"""Brokers that do not start, and a frozen one that is stopped."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest

from spark_ssp.testing.kafka.broker import LocalKafka, LocalKafkaCluster, free_ports


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


def test_a_host_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="not available"):
        free_ports("192.0.2.1", 1)


def test_a_frozen_broker_is_thawed_before_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []
    monkeypatch.setattr(LocalKafka, "_start", lambda *_: None)
    monkeypatch.setattr(LocalKafka, "pid", 1)
    monkeypatch.setattr(LocalKafka, "stop", lambda _: events.append("stop"))
    monkeypatch.setattr(os, "kill", lambda _, number: events.append(number))
    with LocalKafkaCluster() as cluster:
        cluster.freeze(2)
        cluster.stop(2)
        cluster.stop(3)
    assert events == [signal.SIGSTOP, signal.SIGCONT, "stop", "stop"]
