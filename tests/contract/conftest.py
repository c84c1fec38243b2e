"""The services, started once for the whole suite."""

from __future__ import annotations

import time
from collections.abc import Iterator

import boto3
import pytest
from botocore.config import Config

from embedded_kinesis import EmbeddedKinesis
from embedded_kinesis.service import ClientSettings
from tests.contract.services import QUIRKS, Service
from tests.support.kinesis_mock import KinesisMock


class ShiftedClock:
    """The machine's clock, which can be moved forward."""

    def __init__(self) -> None:
        self._shift_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def advance(self, milliseconds: int) -> None:
        self._shift_ms += milliseconds


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
    name: str, settings: ClientSettings, clock: ShiftedClock | KinesisMock
) -> Iterator[Service]:
    once = Config(retries={"total_max_attempts": 1})
    client = boto3.session.Session().client("kinesis", config=once, **settings)
    yield Service(name=name, client=client, now_ms=clock.now_ms, advance=clock.advance)
    client.close()


@pytest.fixture(params=sorted(QUIRKS))
def service(request: pytest.FixtureRequest) -> Service:
    """Every service in turn."""
    found = request.getfixturevalue(request.param.replace("-", "_"))
    assert isinstance(found, Service)
    return found
