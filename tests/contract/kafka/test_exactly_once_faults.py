"""Exactly-once delivery while drivers, tasks and brokers fail, read by the Java client."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.support.kafka.exactly_once_faults import FAULTS, cluster, rehearse
from tests.support.servers.java_client import JavaClient, java_client
from tests.support.servers.kafka_broker import KafkaBrokers
from tests.support.simulation.effort import AMOUNT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaBrokers]:
    with cluster() as found:
        yield found


@pytest.fixture(scope="module")
def reader() -> Iterator[JavaClient]:
    with java_client() as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS)
def test_each_row_is_visible_once_and_in_order(
    fault: str, brokers: KafkaBrokers, reader: JavaClient
) -> None:
    seed = secrets.randbelow(2**32)
    outcome = rehearse(fault, AMOUNT.kills, brokers, reader, seed=seed)
    assert outcome.is_right, outcome
