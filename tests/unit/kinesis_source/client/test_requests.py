"""The client's requests over real HTTP, and the values of each answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_ssp.common.errors import (
    AccessError,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.kinesis_source.client.api import ShardNotFoundError
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    SequenceNumber,
    StreamRef,
    TrimHorizon,
)
from tests.support.fakes.clocks import ManualTime
from tests.support.fakes.scripted_http import (
    BY_ARN,
    DATE,
    DESCRIBED,
    GOOD,
    ITERATOR,
    ORDERS,
    PAGE,
    SHARD,
    SUMMARY,
    Reply,
    ScriptedHttp,
    Step,
    client,
    fetch,
    refusal,
    reply,
    shard_entry,
)

# --- Requests ------------------------------------------------------------------------------------


def test_a_timestamp_is_sent_with_its_milliseconds() -> None:
    with ScriptedHttp(reply({"ShardIterator": "AAAA"})) as server:
        service = client(server.url)
        at = AtTimestamp(millis=EpochMillis(1_600_000_000_987))
        assert service.open_iterator(ORDERS, SHARD, at) == "AAAA"
        service.close()
    asked = server.requests[0].json()
    assert asked == {
        "StreamName": "orders",
        "ShardId": SHARD,
        "ShardIteratorType": "AT_TIMESTAMP",
        "Timestamp": 1_600_000_000.987,
    }


def test_a_timestamp_just_ahead_of_what_is_known_of_the_clock_is_asked_for_as_it_is() -> None:
    with ScriptedHttp(DESCRIBED, reply({"ShardIterator": "AAAA"})) as server:
        service = client(server.url)
        service.describe(ORDERS)
        ahead = AtTimestamp(millis=EpochMillis(DATE * 1000 + 999))
        service.open_iterator(ORDERS, SHARD, ahead)
        service.close()
    assert server.requests[1].json()["Timestamp"] == DATE + 0.999


@pytest.mark.parametrize("before", [[], [reply({"ShardIterator": "A"}, date=DATE + 7200)]])
def test_a_refused_timestamp_tells_the_time(before: list[Step]) -> None:
    refused = refusal("InvalidArgumentException", "The timestampInMillis parameter is ahead")
    with ScriptedHttp(*before, refused, reply({"ShardIterator": "AAAA"})) as server:
        service = client(server.url)
        for _ in before:
            service.open_iterator(ORDERS, SHARD, TrimHorizon())
        at = AtTimestamp(millis=EpochMillis((DATE + 3600) * 1000))
        assert service.open_iterator(ORDERS, SHARD, at) == "AAAA"
        service.close()
    times = [request.json().get("Timestamp") for request in server.requests[len(before) :]]
    assert times == [DATE + 3600, DATE]


def test_a_timestamp_that_is_refused_again_is_an_error() -> None:
    refused = refusal("InvalidArgumentException", "The timestampInMillis parameter is ahead")
    with ScriptedHttp(refused) as server:
        service = client(server.url)
        with pytest.raises(InvalidRequestError, match="timestampInMillis"):
            service.open_iterator(ORDERS, SHARD, AtTimestamp(millis=EpochMillis(1)))
        service.close()
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("work", "name_in"),
    [
        (lambda service, stream: service.describe(stream), True),
        (lambda service, stream: service.list_shards(stream), True),
        (lambda service, stream: service.open_iterator(stream, SHARD, TrimHorizon()), True),
        (lambda service, stream: service.get_records(stream, SHARD, ITERATOR, limit=1), False),
    ],
    ids=["describe", "list", "open", "get"],
)
@pytest.mark.parametrize("stream", [ORDERS, BY_ARN], ids=["name", "arn"])
def test_an_arn_is_sent_where_given(
    work: Callable[[Boto3Kinesis, StreamRef], object], name_in: bool, stream: StreamRef
) -> None:
    answer = {
        **PAGE,
        "StreamDescriptionSummary": SUMMARY,
        "Shards": [],
        "ShardIterator": "AAAA",
    }
    with ScriptedHttp(reply(answer)) as server:
        service = client(server.url)
        work(service, stream)
        service.close()
    asked = server.requests[0].json()
    assert asked.get("StreamARN") == stream.arn
    assert asked.get("StreamName") == ("orders" if name_in and stream.arn is None else None)


# --- ListShards ----------------------------------------------------------------------------------


def test_all_pages_are_listed_and_a_token_stands_alone() -> None:
    pages: list[Step] = [
        reply({"Shards": [shard_entry(3)], "NextToken": "one"}),
        reply({"Shards": [shard_entry(1)], "NextToken": "two"}),
        refusal("LimitExceededException"),
        reply({"Shards": [shard_entry(2)]}),
    ]
    with ScriptedHttp(*pages) as server:
        service = client(server.url)
        shards = service.list_shards(BY_ARN)
        service.close()
    assert [shard.shard_id[-1] for shard in shards] == ["1", "2", "3"]
    assert [request.json() for request in server.requests[1:]] == [
        {"NextToken": "one"},
        {"NextToken": "two"},
        {"NextToken": "two"},
    ]


def test_an_expired_token_starts_the_list_anew() -> None:
    first = reply({"Shards": [shard_entry(1)], "NextToken": "one"})
    pages: list[Step] = [
        first,
        refusal("ExpiredNextTokenException"),
        first,
        reply({"Shards": [shard_entry(2)]}),
    ]
    with ScriptedHttp(*pages) as server:
        service = client(server.url)
        shards = service.list_shards(ORDERS)
        service.close()
    assert [shard.shard_id[-1] for shard in shards] == ["1", "2"]
    assert service.retries() == {("ListShards", "ExpiredTokenError"): 1}


def test_a_token_that_always_expires_is_an_error() -> None:
    with ScriptedHttp(refusal("ExpiredNextTokenException")) as server:
        service = client(server.url)
        with pytest.raises(InvalidRequestError, match="ExpiredNextTokenException"):
            service.list_shards(ORDERS)
        service.close()
    assert len(server.requests) == 4


# --- DescribeStreamSummary -----------------------------------------------------------------------


def with_status(status: str) -> Reply:
    return reply({"StreamDescriptionSummary": SUMMARY | {"StreamStatus": status}})


def test_a_stream_being_created_is_waited_for() -> None:
    clock = ManualTime()
    with ScriptedHttp(with_status("CREATING"), with_status("CREATING"), DESCRIBED) as server:
        service = client(server.url, clock)
        found = service.describe(ORDERS)
        service.close()
    assert (found.name, found.arn) == ("orders", BY_ARN.arn)
    assert (found.created, found.retention_ms) == (1_600_000_000_123, 86_400_000)
    assert len(clock.slept) == 2


def test_a_stream_that_stays_in_creation_is_an_error() -> None:
    with ScriptedHttp(with_status("CREATING")) as server:
        service = client(server.url)
        with pytest.raises(ServiceUnavailableError, match="CREATING"):
            service.describe(ORDERS)
        service.close()


def test_a_stream_being_deleted_is_gone() -> None:
    with ScriptedHttp(with_status("DELETING")) as server:
        service = client(server.url)
        with pytest.raises(StreamNotFoundError, match="DELETING"):
            service.describe(ORDERS)
        service.close()
    assert len(server.requests) == 1


# --- Stream or shard -----------------------------------------------------------------------------

GONE = refusal("ResourceNotFoundException", "Not there.")


def reads() -> list[Callable[[Boto3Kinesis], object]]:
    after = AfterRecord(sequence_number=SequenceNumber("49"))
    return [
        lambda service: service.open_iterator(ORDERS, SHARD, after),
        lambda service: service.get_records(ORDERS, SHARD, ITERATOR, limit=1),
    ]


@pytest.mark.parametrize("read", reads(), ids=["open", "get"])
@pytest.mark.parametrize(
    ("answers", "expected", "calls"),
    [
        ([GONE, DESCRIBED], ShardNotFoundError, 2),
        ([GONE, GONE], StreamNotFoundError, 2),
        ([GONE, with_status("DELETING")], StreamNotFoundError, 2),
        (
            [refusal("ResourceNotFoundException", f"Shard {SHARD} is no more")],
            ShardNotFoundError,
            1,
        ),
    ],
    ids=["shard", "stream", "deleting", "named"],
)
def test_a_missing_shard_is_distinguished_from_a_missing_stream(
    read: Callable[[Boto3Kinesis], object],
    answers: list[Step],
    expected: type[SspError],
    calls: int,
) -> None:
    with ScriptedHttp(*answers) as server:
        service = client(server.url)
        with pytest.raises(expected, match="orders"):
            read(service)
        service.close()
    assert len(server.requests) == calls


# --- The service's time --------------------------------------------------------------------------


def test_the_time_comes_from_the_last_answer_and_goes_on() -> None:
    clock = ManualTime()
    with ScriptedHttp(GOOD) as server:
        service = client(server.url, clock)
        page = service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        assert page.service_time == DATE * 1000
        assert service.service_time() == DATE * 1000
        clock.now += 10
        assert DATE * 1000 + 9_990 <= service.service_time() <= DATE * 1000 + 10_000
        service.close()
    assert server.operations() == ["GetRecords"]


@pytest.mark.parametrize(
    "answer",
    [reply({"ShardLimit": 1, "OpenShardCount": 1}), refusal("AccessDeniedException", status=403)],
    ids=["allowed", "denied"],
)
def test_the_time_is_asked_for_once_if_nothing_was_asked_before(answer: Step) -> None:
    with ScriptedHttp(answer) as server:
        service = client(server.url)
        assert service.service_time() == DATE * 1000
        assert service.service_time() == DATE * 1000
        service.close()
    assert server.operations() == ["DescribeLimits"]


def test_a_balancer_that_fails_does_not_tell_the_time() -> None:
    wrong = Reply(status=503, body=b"", date=DATE + 86_400)
    with ScriptedHttp(wrong, GOOD) as server:
        service = client(server.url)
        fetch(service)
        assert service.service_time() < (DATE + 60) * 1000
        service.close()


def test_a_service_that_never_tells_the_time_is_refused() -> None:
    with ScriptedHttp(reply(PAGE, date=None)) as server:
        service = client(server.url)
        with pytest.raises(ServiceUnavailableError, match="Date"):
            fetch(service)
        with pytest.raises(ServiceUnavailableError, match="Date"):
            service.service_time()
        service.close()


def test_a_first_answer_without_a_date_does_not_stop_a_start() -> None:
    with ScriptedHttp(reply(PAGE, date=None), GOOD) as server:
        service = client(server.url)
        assert service.service_time() >= DATE * 1000
        service.close()
    assert server.operations() == ["DescribeLimits"] * 2


def test_one_answer_without_a_date_is_no_harm() -> None:
    with ScriptedHttp(GOOD, reply(PAGE, date=None)) as server:
        service = client(server.url)
        fetch(service)
        page = service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    assert page.service_time == DATE * 1000


def test_no_permission_is_said_at_once_with_the_action() -> None:
    with ScriptedHttp(refusal("AccessDeniedException", "User: me", status=400)) as server:
        service = client(server.url)
        with pytest.raises(AccessError, match="kinesis:ListShards"):
            service.list_shards(ORDERS)
        service.close()
    assert len(server.requests) == 1
