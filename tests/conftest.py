"""What holds for every test: how hard to try, and that nothing is left running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka.topics import KafkaTopics
from tests.support.servers import cache
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.simulation import effort
from tests.support.spark import processes

effort.load_hypothesis_profile()
cache.use()
processes.mark_this_process()


# Of folders and files. Where processes share the tests, those that take minutes are to start first:
# a core that has done its part has only short ones to take over then.
_FIRST = (
    "test_pipeline_real.py",
    "test_killed_driver.py",
    "test_interop_ci.py",
    "test_examples.py",
    "test_separate_processes.py",
    "test_demo.py",
    "test_pipelines_tables.py",
    "test_kafka_faults.py",
    "test_leases.py",
    "spark",
    "contract",
    "simulation",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(_FIRST)}

    def place(item: pytest.Item) -> int:
        by_file = places.get(item.path.name, len(_FIRST))
        return min(by_file, places.get(item.path.parent.name, len(_FIRST)))

    items.sort(key=place)


def pytest_report_header() -> str:
    return f"effort: {effort.EFFORT} ({effort.AMOUNT})"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Set up before any other fixture, hence torn down after all of them."""
    yield
    left = processes.leftovers(patience_seconds=30)
    assert not left, "processes were still running at the end:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A broker for all tests of this process. A test that stops or kills one has its own."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Iterator[KafkaTopics]:
    """Topics of one test at `kafka_broker`."""
    with KafkaTopics({"bootstrap.servers": kafka_broker.bootstrap_servers}) as found:
        yield found
