"""Implementations of `KinesisService` over a service that fails."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from spark_ssp.common.errors import AccessError, ServiceUnavailableError, SspError
from spark_ssp.kinesis_source.client.api import ExpiredIteratorError, ThrottledError
from spark_ssp.kinesis_source.model.shard import ShardIterator, StreamRef, TrimHorizon
from spark_ssp.testing.kinesis.state.faults import (
    AccessDenied,
    Call,
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    Fault,
    Faults,
    InternalFailure,
    LostReply,
    Throttle,
)
from tests.contract.subjects import ATTEMPTS, FIRST, Subject

OPERATIONS: dict[str, Callable[[Subject, StreamRef, ShardIterator], object]] = {
    "DescribeStreamSummary": lambda subject, stream, _: subject.kinesis.describe(stream),
    "ListShards": lambda subject, stream, _: subject.kinesis.list_shards(stream),
    "GetShardIterator": lambda subject, stream, _: subject.open(stream, TrimHorizon()),
    "GetRecords": lambda subject, stream, token: subject.page(stream, token),
}


@pytest.mark.parametrize(
    "fault", [InternalFailure(), InternalFailure(status=503), DropConnection()], ids=str
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_transient_faults(faulty: tuple[Subject, Faults], operation: str, fault: Fault) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    work = OPERATIONS[operation]
    injected = faults.add(fault, operation=operation, count=ATTEMPTS - 1)
    work(subject, stream, token)
    assert injected.hits == ATTEMPTS - 1
    injected = faults.add(fault, operation=operation, count=None)
    with pytest.raises(ServiceUnavailableError, match=stream.name):
        work(subject, stream, token)
    assert injected.hits == ATTEMPTS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_throttling_is_outlasted_and_starts_the_count_of_faults_afresh(
    faulty: tuple[Subject, Faults], operation: str
) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    injected = [
        faults.add(fault, operation=operation, nth=nth, count=count)
        for fault, nth, count in (
            (InternalFailure(), 1, ATTEMPTS - 1),
            (Throttle(), ATTEMPTS, 3 * ATTEMPTS),
            (InternalFailure(), 4 * ATTEMPTS, ATTEMPTS - 1),
        )
    ]
    OPERATIONS[operation](subject, stream, token)
    assert [each.hits for each in injected] == [ATTEMPTS - 1, 3 * ATTEMPTS, ATTEMPTS - 1]


@pytest.mark.parametrize("fault", [Throttle(), InternalFailure(), DropConnection()], ids=str)
def test_an_impatient_call_tries_once(faulty: tuple[Subject, Faults], fault: Fault) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    injected = faults.add(fault, count=None)
    with pytest.raises(ThrottledError):
        subject.kinesis.get_records(stream, FIRST, token, limit=1, retry=False)
    with pytest.raises(ThrottledError):
        subject.kinesis.open_iterator(stream, FIRST, TrimHorizon(), retry=False)
    with pytest.raises(ThrottledError):
        subject.kinesis.describe(stream, retry=False)
    assert injected.hits == 3


def test_a_listing_of_ten_thousand_shards_is_whole(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream(10_000)
    by_arn = StreamRef(name=stream.name, arn=subject.kinesis.describe(stream).arn)
    everything = [f"shardId-{number:012}" for number in range(10_000)]
    calls: list[Call] = []

    def listed(ref: StreamRef) -> tuple[list[str], int]:
        calls.clear()
        return [shard.shard_id for shard in subject.kinesis.list_shards(ref)], len(calls)

    def count_and_let_the_sixth_token_expire(call: Call) -> bool:
        calls.append(call)
        if expiring and len(calls) == 6:
            subject.service.advance(301_000)
        return False

    expiring = False
    faults.add(
        Throttle(), operation="ListShards", when=count_and_let_the_sixth_token_expire, count=None
    )
    assert listed(by_arn) == (everything, 10)
    throttled = faults.add(Throttle(), operation="ListShards", nth=5, count=3)
    assert listed(by_arn) == (everything, 10 + 3)
    assert throttled.hits == 3
    expiring = True
    assert listed(stream) == (everything, 6 + 1 + 10)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_permission_is_said_at_once(faulty: tuple[Subject, Faults], operation: str) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    injected = faults.add(AccessDenied(), operation=operation, count=None)
    with pytest.raises(AccessError) as caught:
        OPERATIONS[operation](subject, stream, token)
    assert operation in str(caught.value)
    assert stream.name in str(caught.value)
    assert injected.hits == 1


def test_an_expired_iterator_is_said_at_once(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream()
    token = subject.open(stream, TrimHorizon())
    injected = faults.add(ExpiredIterator(), count=None, operation="GetRecords")
    with pytest.raises(ExpiredIteratorError):
        subject.page(stream, token)
    assert injected.hits == 1


def test_a_lost_answer_to_a_read_loses_no_record(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream()
    subject.put(stream, *"abc")
    token = subject.open(stream, TrimHorizon())
    injected = faults.add(LostReply(), operation="GetRecords", count=2)
    assert subject.texts(stream, token) == "abc"
    assert injected.hits == 2


def test_an_empty_page_is_not_the_end_of_the_shard(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream()
    subject.put(stream, "a")
    faults.add(EmptyPage(millis_behind_latest=5000), operation="GetRecords")
    page = subject.page(stream, subject.open(stream, TrimHorizon()))
    assert (len(page), page.millis_behind_latest) == (0, 5000)
    assert page.next_iterator is not None
    assert subject.texts(stream, page.next_iterator) == "a"


def test_errors_survive_the_way_to_the_driver(faulty: tuple[Subject, Faults]) -> None:
    subject, faults = faulty
    stream = subject.stream()
    faults.add(InternalFailure(), operation="DescribeStreamSummary", count=None)
    with pytest.raises(SspError) as caught:
        subject.kinesis.describe(stream)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
