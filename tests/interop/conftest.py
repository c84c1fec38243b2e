"""The services, started once, and a new stream's scene for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.interop.report import FINDINGS, Report
from tests.interop.scenarios import SHARDS
from tests.interop.scene import STREAM, Producer, Scene, Watch
from tests.support.kinesis.feeds import EmbeddedFeed, Feed, RemoteFeed
from tests.support.kinesis.http2 import Http2Kinesis
from tests.support.leases.stores import client
from tests.support.servers.kinesis_mock import KinesisMock

# On first use the servers and the KCL are fetched.
_TIMEOUT = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.timeout(_TIMEOUT))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    findings = config.stash.get(FINDINGS, [])
    if findings:
        terminalreporter.section("workers side by side")
        for line in findings:
            terminalreporter.write_line(line)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    findings = request.config.stash.setdefault(FINDINGS, [])
    return Report(request.node.name, findings)


@pytest.fixture
def scene(kinesis_mock: KinesisMock, dynamodb_local: str, tmp_path: Path) -> Iterator[Scene]:
    kinesis = boto3.session.Session().client("kinesis", **kinesis_mock.client_settings())
    feed = RemoteFeed(kinesis, kinesis_mock)
    with _scene(feed, kinesis_mock.endpoint_url, dynamodb_local, tmp_path) as found:
        yield found
    feed.delete_all()
    kinesis.close()


@pytest.fixture
def kinesis() -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis() as service:
        yield service


@pytest.fixture
def pushed_scene(kinesis: EmbeddedKinesis, dynamodb_local: str, tmp_path: Path) -> Iterator[Scene]:
    """A scene of the embedded service, which the KCL reaches by HTTP/2 without TLS."""
    with (
        Http2Kinesis(kinesis.state, has_tls=False) as server,
        _scene(EmbeddedFeed(kinesis), server.endpoint_url, dynamodb_local, tmp_path) as found,
    ):
        yield found


@contextmanager
def _scene(feed: Feed, kinesis_url: str, dynamodb_url: str, folder: Path) -> Iterator[Scene]:
    dynamodb = client(dynamodb_url)
    feed.create(STREAM, shards=SHARDS)
    application = f"orders-etl-{folder.name}"
    producer = Producer(feed)
    with Watch(dynamodb, application) as watch:
        producer.start()
        yield Scene(
            folder=folder,
            feed=feed,
            producer=producer,
            watch=watch,
            application=application,
            kinesis_url=kinesis_url,
            dynamodb_url=dynamodb_url,
            workers=[],
        )
        producer.end()
    dynamodb.close()
