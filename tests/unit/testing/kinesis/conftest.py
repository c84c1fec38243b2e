"""A clock that the tests of the embedded Kinesis move, and a service that follows it."""

from __future__ import annotations

import pytest

from spark_ssp.testing.kinesis import KinesisState, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state(clock: ManualClock) -> KinesisState:
    """A service with the stream `orders` of one shard."""
    service = KinesisState(clock=clock)
    service.create_stream("orders")
    return service
