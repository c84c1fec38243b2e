"""Clusters over a network: master, workers, drivers and services on hosts without a common
loopback, and a link that is down for 20 seconds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from spark_ssp.checkpoint.leases.lease import Lease, Processed
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.cluster.network import Network
from tests.support.cluster.standalone import (
    PackedEnvironment,
    StandaloneCluster,
    cluster_driver,
    cluster_records,
    records_by_batch,
    wait_for,
    wait_for_records,
)
from tests.support.kafka.feed import KafkaFeed, kafka_traffic, query_options
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import EmbeddedFeed, Record
from tests.support.leases.stores import open_store
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.drivers import Driver, committed_rows
from tests.support.waiting import Background

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OUTAGE_S: Final = 20
CLUSTER: Final = ("master", "worker-1", "worker-2")


@contextmanager
def at(network: Network, host: str, driver: Driver) -> Iterator[None]:
    """Run a driver at a host until the block ends."""
    with ExitStack() as running:
        with network.inside(host):
            running.enter_context(driver)
        yield


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(*CLUSTER, "driver-1", "driver-2", "kinesis", "dynamodb", "kafka") as made:
        yield made


@pytest.fixture
def cluster(network: Network, tmp_path: Path) -> Iterator[StandaloneCluster]:
    hosts = {name: network.addresses[name] for name in CLUSTER}
    with StandaloneCluster(tmp_path / "cluster", hosts, network.inside) as made:
        yield made


@pytest.fixture
def kinesis(network: Network) -> Iterator[EmbeddedKinesis]:
    with ExitStack() as running:
        with network.inside("kinesis"):
            service = EmbeddedKinesis(host=network.addresses["kinesis"])
            running.enter_context(service)
        yield service


@pytest.fixture
def dynamodb(network: Network) -> Iterator[EmbeddedKinesis]:
    with ExitStack() as running:
        with network.inside("dynamodb"):
            service = EmbeddedKinesis(host=network.addresses["dynamodb"], dynamodb=True)
            running.enter_context(service)
        yield service


@pytest.fixture
def feed(kinesis: EmbeddedKinesis) -> EmbeddedFeed:
    return EmbeddedFeed(kinesis)


@pytest.fixture
def options(options: dict[str, str]) -> dict[str, str]:
    return options | {"slots": "2"}


def _wait(seconds: float) -> None:
    """Let an outage last."""
    threading.Event().wait(seconds)


def test_a_link_is_down_during_a_query(
    network: Network,
    cluster: StandaloneCluster,
    packed: PackedEnvironment,
    feed: EmbeddedFeed,
    options: dict[str, str],
    tmp_path: Path,
) -> None:
    """In turn that of Kinesis, of a worker with its tasks, and of the driver."""
    feed.create("orders", shards=2)
    feed.put("orders", 60)
    folder = tmp_path / "driver"
    host = network.addresses["driver-1"]
    driver = cluster_driver(folder, [options], cluster, packed, host=host)
    outputs = [folder / "output-0"]
    with at(network, "driver-1", driver):
        wait_for_records(driver, outputs, feed.records)
        for cut in ("kinesis", "worker-1", "driver-1"):
            with Background(lambda: feed.put("orders", 2), pause_s=0.1):
                _wait(2)
                with network.without_link(cut):
                    _wait(OUTAGE_S / 2)
                    feed.split_first("orders")
                    _wait(OUTAGE_S / 2)
            wait_for_records(driver, outputs, feed.records)
    assert cluster_records(outputs[0]) == Counter(feed.records)


@pytest.mark.parametrize(
    ("failover", "services"),
    [("60s", ("kinesis", "dynamodb")), ("5s", ("kinesis", "dynamodb")), ("5s", ("dynamodb",))],
)
def test_one_of_two_queries_that_share_leases_is_cut_off(
    network: Network,
    cluster: StandaloneCluster,
    packed: PackedEnvironment,
    feed: EmbeddedFeed,
    options: dict[str, str],
    dynamodb: EmbeddedKinesis,
    failover: str,
    services: tuple[str, ...],
    tmp_path: Path,
) -> None:
    """Within the fail-over time, nothing is read twice; after it, at most the records of the query
    that was cut off that its leases did not contain as processed."""
    feed.create("orders", shards=4)
    feed.put("orders", 60)
    shared = options | {
        "applicationName": tmp_path.name,
        "dynamodbEndpointUrl": dynamodb.dynamodb_endpoint_url,
        "failoverTime": failover,
        "leaseMaxOutage": "2m",
        "checkpointInterval": "1s",
    }
    first, second = (
        cluster_driver(
            tmp_path / name,
            [shared | {"workerId": name}],
            cluster,
            packed,
            host=network.addresses[name],
            cores=1,
        )
        for name in ("driver-1", "driver-2")
    )
    outputs = [tmp_path / name / "output-0" for name in ("driver-1", "driver-2")]
    rows = _lease_table(network, dynamodb, tmp_path.name)

    def both_own() -> bool:
        return Counter(row.holder for row in rows()) == {"driver-1": 2, "driver-2": 2}

    with (
        at(network, "driver-1", first),
        at(network, "driver-2", second),
        Background(lambda: feed.put("orders", 2), pause_s=0.1),
    ):
        wait_for(second, "leases of both", both_own)
        wait_for_records(second, outputs, feed.records)
        last = max(batch for batch, _ in records_by_batch(outputs[0]))
        with ExitStack() as outage:
            for service in services:
                outage.enter_context(network.without_path("driver-1", service))
            _wait(1)  # for requests that had arrived
            at_cut = {str(row.shard): row for row in rows()}
            _wait(OUTAGE_S)
            during = Counter(row.holder for row in rows())
        wait_for(second, "leases of both after the outage", both_own)
        until = len(feed.records) + 40
        wait_for(second, "more records", lambda: len(feed.records) > until)
        feed_ended = list(feed.records)
        wait_for_records(second, outputs, feed_ended)
    print(f"owners at the end of the outage: {dict(during)}")
    _check(feed_ended, outputs, at_cut if failover == "5s" else {}, last)


def _check(
    expected: list[Record], outputs: list[Path], at_cut: dict[str, Lease], last: int
) -> None:
    """Check that nothing is lost, and which records are repeated: only those of shards that the
    first query had to give up, `at_cut`, after the progress in the lease. That progress contains
    all batches but `last`, the one before the running one, and one whose progress may not have
    been written yet when the link failed."""
    first, second = (cluster_records(output) for output in outputs)
    both = first + second
    assert set(expected) <= set(both), "lost"
    assert max(first.values()) == max(second.values()) == 1
    repeated = {record for record, count in both.items() if count > 1}
    batches = {record: batch for batch, record in records_by_batch(outputs[0])}
    print(f"repeated: {len(repeated)} of {len(both)}")
    for record in repeated:
        lease = at_cut[record.shard]
        assert batches[record] >= last - 1
        assert lease.holder == "driver-1"
        assert isinstance(lease.progress, Processed)
        assert record.sequence > int(lease.progress.sequence_number)


def _lease_table(
    network: Network, dynamodb: EmbeddedKinesis, application: str
) -> Callable[[], list[Lease]]:
    """Return a function that reads the leases, at DynamoDB's host."""
    connection = ConnectionOptions(
        region="us-east-1",
        endpoint_url=dynamodb.dynamodb_endpoint_url,
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )

    def rows() -> list[Lease]:
        with network.inside("dynamodb"):
            store = open_store(connection, TableSettings(name=application))
            try:
                store.prepare()
                return list(store.scan().leases)
            finally:
                store.close()

    return rows


def test_the_broker_s_link_is_down_under_a_source_and_a_sink(
    network: Network, cluster: StandaloneCluster, packed: PackedEnvironment, tmp_path: Path
) -> None:
    with ExitStack() as running:
        # Threads and processes that start here are at the broker's host.
        with network.inside("kafka"):
            broker = running.enter_context(KafkaBroker(host=network.addresses["kafka"]))
            topics = running.enter_context(
                KafkaTopics({"bootstrap.servers": broker.bootstrap_servers})
            )
            start, end = topics.create(4), topics.create(2)
        feed = KafkaFeed(topics)
        folder = tmp_path / "driver"
        driver = cluster_driver(
            folder,
            [query_options(broker.options, start), query_options(broker.options, end)],
            cluster,
            packed,
            host=network.addresses["driver-1"],
            sources=("kafka-ssp", "kafka-ssp"),
            sinks={0: {**broker.options, "topic": end}},
        )
        output = folder / "output-1"

        def copied() -> Counter[bytes]:
            return Counter(row["value"] for row in committed_rows(output, ["value"]))

        with at(network, "driver-1", driver):
            traffic = kafka_traffic(feed, start)
            with network.inside("kafka"):
                traffic.start()
            wait_for(driver, "the first rows", lambda: bool(copied()))
            with network.without_link("kafka"):
                _wait(OUTAGE_S)
            _wait(2)
            with network.inside("kafka"):
                traffic.end()
            put = {one.record.value for one in feed.records if one.record.value is not None}
            wait_for(driver, "all rows", lambda: put <= copied().keys())
        with network.inside("kafka"):
            running.close()
    assert copied() == Counter(put)
