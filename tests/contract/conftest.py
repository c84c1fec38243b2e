"""The services, started once for the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from botocore.config import Config

from spark_ssp.kafka_source.client.admin_client import disconnect_kafka
from spark_ssp.kafka_source.reading import task_reader
from spark_ssp.testing.kinesis import EmbeddedKinesis, UnusualAnswers
from spark_ssp.testing.kinesis.server import DynamoDbServer
from spark_ssp.testing.kinesis.service import ClientSettings
from spark_ssp.testing.kinesis.state.faults import Faults
from tests.contract.services import Service
from tests.contract.subjects import ATTEMPTS, Subject, over_boto3
from tests.support.fakes.clocks import RealClock, ShiftedClock
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.leases.stores import Maker, in_memory, on_dynamodb
from tests.support.servers.kinesis_mock import KinesisMock
from tests.support.servers.ministack import Ministack
from tests.support.servers.moto_server import MotoServer


@pytest.fixture(autouse=True)
def no_brokers_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Drop the process's connection, which would keep logging about a broker that has stopped."""
    monkeypatch.setattr(task_reader, "_checkers", {})
    yield
    disconnect_kafka()


@pytest.fixture(scope="session")
def embedded() -> Iterator[Service]:
    clock = ShiftedClock()
    with EmbeddedKinesis(clock=clock) as kinesis:
        yield from _service("embedded", kinesis.client_settings(), clock)


@pytest.fixture(scope="session")
def kinesis_mock() -> Iterator[Service]:
    with KinesisMock() as kinesis:
        yield from _service("kinesis-mock", kinesis.client_settings(), kinesis)


def _service(
    name: str, settings: ClientSettings, clock: ShiftedClock | RealClock | KinesisMock
) -> Iterator[Service]:
    once = Config(retries={"total_max_attempts": 1})
    client = boto3.session.Session().client("kinesis", config=once, **settings)
    yield Service(name=name, client=client, now_ms=clock.now_ms, advance=clock.advance)
    client.close()


@pytest.fixture(params=["embedded", "kinesis-mock"])
def service(request: pytest.FixtureRequest) -> Service:
    """Every service in turn; ministack is only for consumers."""
    found = request.getfixturevalue(request.param.replace("-", "_"))
    assert isinstance(found, Service)
    return found


@pytest.fixture(scope="session")
def ministack() -> Iterator[Service]:
    with Ministack() as running:
        yield from _service("ministack", running.client_settings(), RealClock())


@pytest.fixture(params=["embedded", pytest.param("ministack", marks=pytest.mark.long)])
def fan_out_service(request: pytest.FixtureRequest) -> Service:
    """Every service that has SubscribeToShard in turn; kinesis-mock has not."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Service)
    return found


# --- Implementations of KinesisService -----------------------------------------------------------


@pytest.fixture(scope="module")
def embedded_kinesis() -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(clock=ShiftedClock()) as running:
        yield running


@pytest.fixture(scope="module")
def embedded_subjects(embedded_kinesis: EmbeddedKinesis) -> Iterator[dict[str, Subject]]:
    running, clock = embedded_kinesis, embedded_kinesis.clock
    assert isinstance(clock, ShiftedClock)
    kinesis = over_boto3(running.endpoint_url)
    client = boto3.session.Session().client("kinesis", **running.client_settings())
    service = Service(name="embedded", client=client, now_ms=clock.now_ms, advance=clock.advance)
    in_process = InProcessKinesis(running.state, attempts=ATTEMPTS)
    yield {
        "boto3-embedded": Subject(kinesis=kinesis, service=service, faults=running.faults),
        "in-process": Subject(kinesis=in_process, service=service, faults=running.faults),
    }
    client.close()
    kinesis.close()


@pytest.fixture(scope="module")
def mock_subject(kinesis_mock: Service) -> Iterator[Subject]:
    kinesis = over_boto3(kinesis_mock.client.meta.endpoint_url)
    yield Subject(kinesis=kinesis, service=kinesis_mock)
    kinesis.close()


@pytest.fixture(params=["boto3-embedded", "boto3-kinesis-mock", "in-process"])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Every implementation in turn."""
    if request.param == "boto3-kinesis-mock":
        found = request.getfixturevalue("mock_subject")
    else:
        found = request.getfixturevalue("embedded_subjects")[request.param]
    assert isinstance(found, Subject)
    return found


@pytest.fixture(params=["boto3-embedded", "in-process"])
def faulty(
    request: pytest.FixtureRequest, embedded_subjects: dict[str, Subject]
) -> Iterator[tuple[Subject, Faults]]:
    """The implementations whose service can be made to fail."""
    found = embedded_subjects[request.param]
    assert found.faults is not None
    yield found, found.faults
    found.faults.clear()


@pytest.fixture(params=["boto3-embedded", "in-process"])
def unusual(
    request: pytest.FixtureRequest,
    embedded_kinesis: EmbeddedKinesis,
    embedded_subjects: dict[str, Subject],
) -> Iterator[Subject]:
    """The implementations over a service that gives unusual answers."""
    embedded_kinesis.state.answers = UnusualAnswers.all()
    yield embedded_subjects[request.param]
    embedded_kinesis.state.answers = UnusualAnswers()


# --- Tables of leases ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def memory_leases() -> Maker:
    return in_memory


@pytest.fixture(scope="session")
def moto_dynamodb() -> Iterator[str]:
    """The endpoint of moto's DynamoDB."""
    server = DynamoDbServer()
    server.start()
    yield server.endpoint_url
    server.stop()


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The endpoint of moto's S3 and DynamoDB."""
    server = MotoServer()
    yield server.endpoint_url
    server.stop()


@pytest.fixture(scope="session")
def moto_leases(moto_dynamodb: str) -> Maker:
    return lambda: on_dynamodb(moto_dynamodb)


@pytest.fixture(scope="session")
def dynamodb_local_leases(dynamodb_local: str) -> Maker:
    return lambda: on_dynamodb(dynamodb_local)
