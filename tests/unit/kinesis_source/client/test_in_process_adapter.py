"""The in-process `KinesisService` keeps the contract of `spark_ssp.kinesis_source.client.api`."""

from __future__ import annotations

import pytest

from spark_ssp.common.errors import AccessError, ServiceUnavailableError, StreamNotFoundError
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
    ThrottledError,
)
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.testing.kinesis import KinesisState, ManualClock
from spark_ssp.testing.kinesis.state.faults import (
    AccessDenied,
    DropConnection,
    ExpiredIterator,
    InternalFailure,
    Throttle,
)
from tests.support.fakes.in_process import InProcessKinesis

ORDERS = StreamRef(name=StreamName("orders"))
FIRST = ShardId("shardId-000000000000")


@pytest.fixture
def state() -> KinesisState:
    service = KinesisState(clock=ManualClock())
    service.create_stream("orders", 2)
    return service


def test_reads_through_a_split(state: KinesisState) -> None:
    service: KinesisService = InProcessKinesis(state)
    last = [state.put("orders", "k", b"x", explicit_hash_key=0) for _ in range(3)][-1]
    lower, upper = state.split("orders", FIRST)
    shards = service.list_shards(ORDERS)
    assert [(s.shard_id, s.closed, s.parents) for s in shards] == [
        (FIRST, True, ()),
        ("shardId-000000000001", False, ()),
        (lower, False, (FIRST,)),
        (upper, False, (FIRST,)),
    ]
    page = service.get_records(
        ORDERS, FIRST, service.open_iterator(ORDERS, FIRST, TrimHorizon()), limit=10
    )
    assert (len(page), page.next_iterator, page.millis_behind_latest) == (3, None, 0)
    position = AfterRecord(sequence_number=page.sequence_numbers[-1])
    assert page.sequence_numbers[-1] == last.sequence_number
    for inclusive, count in ((True, 1), (False, 0)):
        token = service.open_iterator(ORDERS, FIRST, position, inclusive=inclusive)
        assert len(service.get_records(ORDERS, FIRST, token, limit=10)) == count
    with pytest.raises(InvalidPositionError):
        service.open_iterator(ORDERS, ShardId(lower), position)


def test_patience_rides_out_transient_faults(state: KinesisState) -> None:
    waits: list[None] = []
    service = InProcessKinesis(state, attempts=4, between_tries=lambda: waits.append(None))
    for fault in (Throttle(), InternalFailure(), DropConnection()):
        state.faults.add(fault, operation="GetShardIterator")
    at = AtTimestamp(millis=EpochMillis(1))
    with pytest.raises(ThrottledError):
        service.open_iterator(ORDERS, FIRST, at, retry=False)
    service.open_iterator(ORDERS, FIRST, at)
    assert len(waits) == 0  # all three hit the single call: the earliest decided, none is left
    state.faults.add(Throttle(), count=30)
    service.open_iterator(ORDERS, FIRST, at)
    assert len(waits) == 30
    state.faults.add(InternalFailure(), count=4)
    with pytest.raises(ServiceUnavailableError):
        service.open_iterator(ORDERS, FIRST, at)


def test_lasting_errors_are_distinguished(state: KinesisState) -> None:
    service = InProcessKinesis(state)
    token = service.open_iterator(ORDERS, FIRST, TrimHorizon())
    state.faults.add(ExpiredIterator(), operation="GetRecords")
    with pytest.raises(ExpiredIteratorError):
        service.get_records(ORDERS, FIRST, token, limit=1)
    state.faults.add(AccessDenied())
    with pytest.raises(AccessError):
        service.list_shards(ORDERS)
    with pytest.raises(ShardNotFoundError):
        service.open_iterator(ORDERS, ShardId("shardId-000000000009"), TrimHorizon())
    with pytest.raises(StreamNotFoundError):
        service.describe(StreamRef(name=StreamName("none")))
