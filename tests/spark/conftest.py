"""A Spark session for the tests of real queries, on this machine's loopback alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from spark_ssp.testing.kafka.broker import free_ports
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.fakes.clocks import ShiftedClock
from tests.support.kinesis.fan_out_mode import pushed_everywhere
from tests.support.kinesis.feeds import EmbeddedFeed, Feed, RemoteFeed, options_for
from tests.support.servers import spark_kafka
from tests.support.servers.kinesis_mock import KinesisMock
from tests.support.spark.drivers import ENVIRONMENT, spark_home
from tests.support.spark.queries import Trial

# Seconds for a test that does not say otherwise: its deadlines are to strike first, each with a
# better message, also on a busy machine.
_TIMEOUT = 600


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT))
        if folder in item.path.parents and not PASSES_LIMITS:
            # PySpark 4.0 and 4.1 leave the sockets of `collect` to the garbage collection.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The environment of every Spark process, set before the first one starts."""
    home = spark_home(tmp_path_factory.mktemp("spark-home"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (ENVIRONMENT | {"SPARK_HOME": str(home)}).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(
    spark_environment: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """One `local[2]` session for all tests; its JVM ends with it."""
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("spark-ssp-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        # An idle query says so soon, not only each ten seconds.
        .config("spark.sql.streaming.noDataProgressEventInterval", "200ms")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.extraClassPath", spark_kafka.install())
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    try:
        session.stop()
    finally:
        _end_jvm()


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def kinesis() -> Iterator[EmbeddedKinesis]:
    """An embedded service for one test, which may change its faults, limits and state, and restart
    it."""
    (port,) = free_ports("127.0.0.1", 1)
    with EmbeddedKinesis(port=port) as service, pushed_everywhere(service):
        yield service


@pytest.fixture
def embedded_feed(kinesis: EmbeddedKinesis) -> Feed:
    return EmbeddedFeed(kinesis)


@pytest.fixture
def kinesis_mock_feed(kinesis_mock: KinesisMock) -> Iterator[Feed]:
    client = boto3.session.Session().client("kinesis", **kinesis_mock.client_settings())
    feed = RemoteFeed(client, kinesis_mock)
    yield feed
    feed.delete_all()
    client.close()


@pytest.fixture
def feed(request: pytest.FixtureRequest) -> Feed:
    """The embedded service, or the one that a test's parameter names."""
    found = request.getfixturevalue(f"{getattr(request, 'param', 'embedded')}_feed")
    assert isinstance(found, Feed)
    return found


@pytest.fixture
def options(feed: Feed) -> dict[str, str]:
    """Those of a query of the stream `orders` from its beginning."""
    return options_for(feed.endpoint_url) | {
        "streamName": "orders",
        "startingPosition": "trim_horizon",
    }


@pytest.fixture
def trial(spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path) -> Trial:
    return Trial(spark=spark, feed=feed, options=options, checkpoint=tmp_path)


def _end_jvm() -> None:
    """End the JVM, then the gateway. The JVM ends when its standard input does. While it lives,
    py4j may wait for ever to close a connection that another thread reads."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=30)
    gateway.shutdown()
