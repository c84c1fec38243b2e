"""Fixtures and hooks of all tests: the effort, their order, a check for leftover processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.kafka.topics import KafkaTopics
from tests.support.servers import cache
from tests.support.servers.dynamodb_local import DynamoDbLocal
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.kinesis_mock import KinesisMock
from tests.support.simulation import effort
from tests.support.spark import processes

effort.load_hypothesis_profile()
cache.use()
processes.mark_this_process()


_TESTS: Final = Path(__file__).parent

# Files and folders. Where processes share the tests, those that take minutes start first, so that
# only short ones remain for a process that becomes idle.
_FIRST: Final = (
    "spark/pipelines/test_real.py",
    "spark/system/test_killed_driver.py",
    "spark/system/test_examples.py",
    "spark/kinesis/test_separate_processes.py",
    "spark/system/test_demo.py",
    "spark/pipelines/test_tables.py",
    "spark/kafka/test_faults.py",
    "spark/system/test_leases.py",
    "spark",
    "contract",
    "simulation",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {_TESTS / name: rank for rank, name in enumerate(_FIRST)}

    def rank(item: pytest.Item) -> int:
        return min(ranks.get(path, len(_FIRST)) for path in (item.path, *item.path.parents))

    items.sort(key=rank)
    for item in items:
        # In a report, the outcomes of a scenario are found by it.
        item.user_properties += [("scenario", mark.args[0]) for mark in item.iter_markers("core")]


def pytest_report_header() -> str:
    return f"effort: {effort.EFFORT} ({effort.AMOUNT})"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail if processes are left. Set up before every other fixture, thus torn down last."""
    yield
    # The guards of batch reads all begin when Spark's JVM ends, and each asks a service that has
    # ended for up to 23 seconds.
    left = processes.leftovers(patience_seconds=60)
    assert not left, "processes were still running at the end:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def kinesis_mock() -> Iterator[KinesisMock]:
    """Start kinesis-mock for all tests of this process."""
    with KinesisMock() as service:
        yield service


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[str]:
    """The endpoint of DynamoDB Local."""
    with DynamoDbLocal() as server:
        yield server.endpoint_url


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """Start a broker for all tests of this process. Tests that stop a broker start their own."""
    with KafkaBroker() as broker:
        yield broker
        assert broker.is_running, broker.log


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Iterator[KafkaTopics]:
    """Create the topics of one test at `kafka_broker`, and delete them after it."""
    with KafkaTopics({"bootstrap.servers": kafka_broker.bootstrap_servers}) as topics_of_test:
        yield topics_of_test
