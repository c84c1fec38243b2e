"""A service with the limits of the real one, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.testing.kinesis import EmbeddedKinesis, Limits
from tests.contract.subjects import over_boto3


@pytest.fixture
def kinesis() -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(limits=Limits.strict()) as running:
        yield running


@pytest.fixture
def connected(kinesis: EmbeddedKinesis) -> Iterator[Boto3Kinesis]:
    kinesis.state.create_stream("orders", shards=1)
    client = over_boto3(kinesis.endpoint_url)
    yield client
    client.close()
