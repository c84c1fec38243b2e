"""Direct calls: when they are made, and that their results are the same as those of the SDK."""

from __future__ import annotations

import gzip
import io
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import orjson
import pytest
from boto3 import Session
from botocore import UNSIGNED, xform_name
from botocore.awsrequest import AWSResponse
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, HTTPClientError, NoCredentialsError
from urllib3 import HTTPConnectionPool, HTTPResponse

from spark_ssp.common.aws.botocore_bypass import CallsInFlight, DirectCalls
from spark_ssp.common.aws.clients import client_config
from spark_ssp.common.aws.error_translation import BODY_ERRORS, Severity, quoted, severity_of
from spark_ssp.common.aws.http_exchange import Response
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, ShardKey
from spark_ssp.kinesis_source.client import messages
from spark_ssp.kinesis_source.client.api import FailedCall, ThrottledError
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    RecordPage,
    SequenceNumber,
    ShardIterator,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    ProbeResult,
    ProbeSteps,
    ShardCursor,
    fetch_page,
)
from spark_ssp.kinesis_source.probing.probe_runner import (
    MAX_CALLS,
    MAX_PROBE_THREADS,
    ProbeRunner,
)
from tests.support.fakes.direct_calls import (
    ASKED,
    SDK_TELLS,
    direct,
    in_flight,
    outcome,
    sdk_client,
    short_ways,
    signed_again,
)
from tests.support.fakes.scripted_http import (
    BY_ARN,
    GOOD,
    HTML,
    ITERATOR,
    JSON,
    KEYS,
    ORDERS,
    SESSION,
    SHARD,
    Cut,
    Drop,
    Packets,
    Reply,
    ScriptedHttp,
    Silence,
    Step,
    client,
    fetch,
    refusal,
    reply,
)
from tests.support.kinesis.certificates import write_certificates
from tests.support.waiting import until

# --- It is taken ---------------------------------------------------------------------------------


def test_all_calls_after_the_first_of_their_kind_go_the_short_way() -> None:
    answer = reply({"ShardIterator": "AAAA"})
    after = AfterRecord(sequence_number=SequenceNumber("49"))
    with ScriptedHttp(GOOD, GOOD, GOOD, GOOD, answer) as server:
        service = client(server.url)
        for stream in (ORDERS, BY_ARN):
            for _ in range(2):
                service.get_records(stream, SHARD, ITERATOR, limit=10)
        for _ in range(3):
            assert service.open_iterator(BY_ARN, SHARD, after) == "AAAA"
        service.close()
    assert short_ways(server) == [False, True, False, True, False, True, True]
    first, second, *_ = server.requests
    assert first.json() == second.json()
    told = {SDK_TELLS, "amz-sdk-request"}
    sent = [{name.lower() for name in request.headers} for request in (first, second)]
    assert sent[0] - told == sent[1]
    changing = {"X-Amz-Date", "Authorization", "Content-Length"}
    for name in set(second.headers) - changing:
        assert first.headers[name] == second.headers[name]


def test_a_time_is_sent_to_the_millisecond_either_way() -> None:
    times = [1_600_000_000_123, 1_600_000_000_123, 1_763_000_000_001, 1_763_000_000_000]
    with ScriptedHttp(reply({"ShardIterator": "AAAA"})) as server:
        service = client(server.url)
        for millis in times:
            service.open_iterator(ORDERS, SHARD, AtTimestamp(millis=EpochMillis(millis)))
        service.close()
    assert short_ways(server) == [False, True, True, True]
    first, second, *_ = server.requests
    assert first.json() == second.json()
    sent = [request.json()["Timestamp"] for request in server.requests]
    assert sent == [millis / 1000 for millis in times]


def test_closed_connections_are_opened_by_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        service = client(server.url)
        for _ in range(2):
            fetch(service)
            fetch(service)
            service.close()
    assert short_ways(server) == [False, True, False, True]
    assert server.connections == 2


def test_many_threads_share_what_was_learned() -> None:
    with ScriptedHttp(GOOD) as server, ThreadPoolExecutor(16) as pool:
        service = client(server.url)
        fetch(service)
        together = threading.Barrier(16)

        def work(_: int) -> list[list[bytes]]:
            together.wait()
            return [fetch(service) for _ in range(20)]

        assert list(pool.map(work, range(16))) == [[[b"hello"]] * 20] * 16
        service.close()
    assert short_ways(server) == [False] + [True] * 320
    assert server.connections <= 16


@pytest.mark.parametrize("token", [None, "token/+=="])
def test_signatures_are_of_the_day_and_the_token(token: str | None) -> None:
    day = [datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC).timestamp()]
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url, Session(aws_session_token=token, **KEYS))
        calls = DirectCalls(sdk, messages.DECODERS, now=lambda: day[0])
        sdk.get_records(**ASKED)
        assert calls.call("GetRecords", ASKED) is not None
        day[0] += 1
        assert calls.call("GetRecords", ASKED) is not None
        sdk.close()
    last, next_ = server.requests[1:]
    assert (last.headers["X-Amz-Date"], next_.headers["X-Amz-Date"]) == (
        "20261130T235959Z",
        "20261201T000000Z",
    )
    for request in (last, next_):
        assert request.headers.get("X-Amz-Security-Token") == token
        assert request.headers["Authorization"] == signed_again(
            request.headers, request.body, Credentials("test", "test-secret", token)
        )


def test_a_call_whose_signature_was_too_old_is_signed_with_the_time_of_the_next_try() -> None:
    """As after a machine slept between signing and sending."""
    text = "Signature expired: 20261130T100000Z is now earlier than 20261130T120000Z"
    refusal = reply({"__type": "InvalidSignatureException", "message": text}, status=400)
    now = [datetime(2026, 11, 30, 10, tzinfo=UTC).timestamp()]
    with ScriptedHttp(GOOD, refusal, GOOD) as server:
        sdk = sdk_client(server.url, Session(**KEYS))
        calls = DirectCalls(sdk, messages.DECODERS, now=lambda: now[0])
        sdk.get_records(**ASKED)
        with pytest.raises(ClientError) as raised:
            calls.call("GetRecords", ASKED)
        assert severity_of(raised.value) is Severity.FAULT
        now[0] += 7_200
        assert calls.call("GetRecords", ASKED) is not None
        sdk.close()
    assert short_ways(server) == [False, True, True]
    slept, awake = (request.headers for request in server.requests[1:])
    assert (slept["X-Amz-Date"], awake["X-Amz-Date"]) == ("20261130T100000Z", "20261130T120000Z")
    assert slept["Authorization"] != awake["Authorization"]


def test_each_stream_goes_where_the_sdk_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an explicit endpoint: the host may depend on the account and on the operation."""
    asked: list[tuple[str, str]] = []

    def urlopen(pool: HTTPConnectionPool, *_: object, **request: Any) -> HTTPResponse:
        assert SDK_TELLS in {name.lower() for name in request["headers"]}
        asked.append((f"{pool.scheme}://{pool.host}:{pool.port}", "long"))
        return HTTPResponse(io.BytesIO(GOOD.body), status=200, preload_content=False)

    def post(pool: HTTPConnectionPool, *_: object) -> Response:
        asked.append((f"{pool.scheme}://{pool.host}:{pool.port}", "short"))
        return Response(200, {}, GOOD.body, 0.0)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", urlopen)
    monkeypatch.setattr("spark_ssp.common.aws.botocore_bypass.post", post)
    session = Session(**KEYS)
    sdk = session.client("kinesis", config=client_config(ConnectionOptions()))
    credentials: Any = session.get_credentials()
    calls = DirectCalls(sdk, messages.DECODERS)
    for arn in (None, BY_ARN.arn, "arn:aws:kinesis:us-east-1:210987654321:stream/orders"):
        request = ASKED | ({} if arn is None else {"StreamARN": arn})
        sdk.get_records(**request)
        assert calls.call("GetRecords", request) is not None
    for owner in ("111111111111", "111111111111", "222222222222"):
        credentials.account_id = owner
        if calls.call("GetRecords", ASKED) is None:
            sdk.get_records(**ASKED)
    sdk.close()
    assert [way for _, way in asked[:6]] == ["long", "short"] * 3
    hosts = [place for place, _ in asked]
    assert hosts[0:6:2] == hosts[1:6:2]
    assert len(set(hosts[:6])) == 3
    if hasattr(credentials.get_frozen_credentials(), "account_id"):
        assert [way for _, way in asked[6:]] == ["long", "short", "long"]
        assert "111111111111" in hosts[6]
        assert hosts[6] == hosts[7]
        assert "222222222222" in hosts[8]
    else:  # an older botocore chooses no host by the credentials
        assert asked[6:] == [(hosts[0], "short")] * 3


# --- Unusual answers are left to the SDK ---------------------------------------------------------


def _a_header(request: Any, **_: object) -> None:
    request.headers["X-Audit"] = "yes"


def _a_query(request: Any, **_: object) -> None:
    request.url += "?place=here"


@pytest.mark.parametrize(
    ("event", "change"),
    [
        ("before-sign.kinesis.GetRecords", _a_header),
        ("before-sign.kinesis.GetRecords", _a_query),
        ("before-send", _a_header),
    ],
    ids=["header", "query", "header by a general handler"],
)
def test_requests_that_someone_changes_stay_with_the_sdk(event: str, change: Any) -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        sdk.meta.events.register(event, change)
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


def test_an_endpoint_with_a_path_stays_with_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url + "/aws")
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


def test_a_proxy_stays_with_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client("http://kinesis.invalid", proxies={"http": server.url})
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


@pytest.mark.parametrize("event", ["before-send", "before-send.kinesis"])
def test_answers_that_a_handler_makes_up_stay_with_the_sdk(event: str) -> None:
    no_headers: Any = {}

    def answer(request: Any, **_: object) -> AWSResponse:
        class Raw(io.BytesIO):
            def stream(self) -> Iterator[bytes]:
                yield self.read()

        return AWSResponse(request.url, 200, no_headers, Raw(GOOD.body))

    sdk = sdk_client("http://127.0.0.1:1")
    sdk.meta.events.register(event, answer)
    assert direct(sdk).call("GetRecords", ASKED) is None
    sdk.close()


@pytest.mark.parametrize("error", [AttributeError("gone"), TypeError("another signature")])
def test_a_botocore_with_other_private_parts_is_used_as_it_is(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*_: object) -> None:
        raise error

    monkeypatch.setattr("spark_ssp.common.aws.botocore_bypass._pool", changed)
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()
    assert short_ways(server) == [False]


def test_unsigned_requests_stay_with_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url, signature_version=UNSIGNED)
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


def test_text_that_is_not_unicode_stays_with_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        assert calls.call("GetRecords", ASKED) is not None
        odd = {"ShardIterator": "\ud800", "Limit": 1}
        assert calls.call("GetRecords", odd) is None
        sdk.get_records(**odd)
        sdk.close()
    assert short_ways(server) == [False, True, False]


def head(*more: str, status: int = 200, version: str = "1.1") -> bytes:
    """Of an answer, with these headers beside the usual ones."""
    lines = [f"HTTP/{version} {status} Said", "Date: Tue, 14 Nov 2023 22:13:20 GMT"]
    return "\r\n".join([*lines, f"Content-Type: {JSON}", *more, "", ""]).encode()


def pieces(whole: bytes, size: int) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def chunk(body: bytes) -> bytes:
    """As HTTP frames it."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def chunks(body: bytes, size: int) -> list[bytes]:
    return [chunk(piece) for piece in pieces(body, size)]


LAST_CHUNK = chunk(b"")
LONG = head(f"Content-Length: {len(GOOD.body)}")
NO = refusal("ExpiredIteratorException", "too old")
CHUNKED = head("Transfer-Encoding: chunked")
CHUNKED_NO = head("Transfer-Encoding: chunked", status=400)

STEPS: dict[str, Step] = {
    "records": GOOD,
    "none": reply({"Records": [], "MillisBehindLatest": 7}),
    "no date": reply({"Records": []}, date=None),
    "no key": Reply(body=GOOD.body.replace(b'"PartitionKey"', b'"Key"')),
    "null": Reply(body=b"null"),
    "nothing": Reply(body=b""),
    "text": Reply(body=b"<html>captive</html>", content_type="text/html"),
    "base64": Reply(body=GOOD.body.replace(b"aGVsbG8=", b"aGVsbG8")),
    "accepted": Reply(status=202, body=GOOD.body),
    "throttled": refusal("ProvisionedThroughputExceededException", "slow down"),
    "expired": refusal("ExpiredIteratorException", "too old"),
    "unknown": refusal("com.amazon.coral.service#NewException", "who knows"),
    "colon": refusal("ResourceNotFoundException:http://internal.amazon.com/", "no such shard"),
    "denied": refusal("AccessDeniedException", "not you", status=403),
    "failure": refusal("InternalFailure", status=500),
    "html 502": Reply(status=502, body=HTML, content_type="text/html"),
    "list 500": Reply(status=500, body=b"[]"),
    "empty 400": Reply(status=400, body=b""),
    "empty 503": Reply(status=503, body=b""),
    "elsewhere": Reply(status=307, body=b"", headers={"Location": "http://127.0.0.1:1/"}),
    "dropped": Drop(),
    "refused in chunks": Packets([CHUNKED_NO, *chunks(NO.body, 40), LAST_CHUNK]),
    "cut in a chunk": Packets([CHUNKED, b"ff\r\n{"], kept=False),
    "the head cut": Packets([LONG[:30]], kept=False),
    "compressed": replace(NO, body=gzip.compress(NO.body), headers={"Content-Encoding": "gzip"}),
}

SAME_PAGE: dict[str, Step] = {
    "chunked": Packets([CHUNKED, *chunks(GOOD.body, 40), LAST_CHUNK]),
    "one chunk": Packets([CHUNKED + chunk(GOOD.body) + LAST_CHUNK]),
    "closed": replace(GOOD, headers={"Connection": "close"}),
    "until the end": Packets([head("Connection: close"), GOOD.body], kept=False),
    "HTTP 1.0": Packets([head(version="1.0"), GOOD.body], kept=False),
    "the head in packets": Packets([*pieces(LONG, 25), GOOD.body]),
    "the head's end with the body": Packets([LONG[:-3], LONG[-3:] + GOOD.body]),
    "the body in packets": Packets([LONG, *pieces(GOOD.body, 40)]),
    "continue first": Packets([b"HTTP/1.1 100 Continue\r\n\r\n", LONG, GOOD.body]),
}
"""The content of `GOOD`, sent in other ways."""


@pytest.mark.parametrize("step", SAME_PAGE.values(), ids=SAME_PAGE.keys())
def test_a_page_is_the_same_however_it_is_sent(step: Step) -> None:
    with ScriptedHttp(GOOD, GOOD, step) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        usual = outcome(lambda: sdk.get_records(**ASKED))
        assert outcome(lambda: in_flight(calls)) == usual
        for _ in range(2):  # The second one in any state of the connection.
            assert outcome(lambda: calls.call("GetRecords", ASKED)) == usual
            assert outcome(lambda: sdk.get_records(**ASKED)) == usual
        sdk.close()
    assert short_ways(server) == [False, False, True, True, False, True, False]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_all_ways_come_to_the_same(step: Step) -> None:
    with ScriptedHttp(GOOD, step) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        among_others = outcome(lambda: in_flight(calls))
        short = outcome(lambda: calls.call("GetRecords", ASKED))
        long = outcome(lambda: sdk.get_records(**ASKED))
        sdk.close()
    assert among_others == short == long
    assert short_ways(server) == [False, True, True, False]


def test_silence_is_the_same_error() -> None:
    with ScriptedHttp(GOOD, Silence()) as server:
        sdk = sdk_client(server.url, read_timeout=0.5)
        calls = direct(sdk)
        among_others = outcome(lambda: in_flight(calls))
        assert among_others == outcome(lambda: calls.call("GetRecords", ASKED))
        assert among_others == outcome(lambda: sdk.get_records(**ASKED)) == "ReadTimeoutError"
        sdk.close()
    assert short_ways(server) == [False, True, True, False]


def test_a_truncated_body_is_reported_as_one() -> None:
    """The long way finds a body that does not parse; all are tried again."""
    with ScriptedHttp(GOOD, Cut(body=GOOD.body, sent=50)) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        assert outcome(lambda: in_flight(calls)) == "ConnectionClosedError"
        assert outcome(lambda: calls.call("GetRecords", ASKED)) == "ConnectionClosedError"
        assert outcome(lambda: sdk.get_records(**ASKED)) == "unreadable"
        sdk.close()


def _come_to_the_same(
    operation: str, asked: dict[str, Any], first: Reply, body: bytes, read: Callable[[Any], object]
) -> None:
    """Return the values or the error of this body. `first` is the answer to learn from."""

    def said(call: Callable[[], Any]) -> object:
        try:
            return read(call())
        except BODY_ERRORS as error:
            return type(error)

    with ScriptedHttp(first, Reply(body=body)) as server:
        sdk = sdk_client(server.url)
        calls = DirectCalls(sdk, messages.DECODERS)
        long: Callable[..., Any] = getattr(sdk, xform_name(operation))
        long(**asked)
        short = said(lambda: calls.call(operation, asked))
        assert short == said(lambda: long(**asked))
        sdk.close()
    assert short_ways(server) == [False, True, False]


@pytest.mark.parametrize(
    "body", [b'{"ShardIterator": "AAAA"}', b"{}", b'{"ShardIterator": null}', b"[]", b"", b"{"]
)
def test_iterators_come_to_the_same(body: bytes) -> None:
    asked = {"StreamName": "orders", "ShardId": SHARD, "ShardIteratorType": "TRIM_HORIZON"}
    first = reply({"ShardIterator": "A"})
    _come_to_the_same("GetShardIterator", asked, first, body, lambda a: a.get("ShardIterator"))


def _listed(**more: object) -> dict[str, object]:
    return {
        "ShardId": SHARD,
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
        "SequenceNumberRange": {"StartingSequenceNumber": "49"},
        **more,
    }


LISTINGS: dict[str, object] = {
    "one": {"Shards": [_listed()], "NextToken": "more"},
    "none": {"Shards": []},
    "merged": {"Shards": [_listed(ParentShardId="a", AdjacentParentShardId="b")]},
    "closed": {
        "Shards": [
            _listed(
                SequenceNumberRange={"StartingSequenceNumber": "49", "EndingSequenceNumber": "50"}
            )
        ]
    },
    "new members": {"Shards": [_listed(Colour="red")], "Total": 7},
    "nulls": {"Shards": [_listed(ParentShardId=None)], "NextToken": None},
    "no keys": {"Shards": [_listed(HashKeyRange={"StartingHashKey": "0"})]},
    "a number": {"Shards": [_listed(ShardId=7)]},
    "no shards": {"NextToken": "more"},
    "null": {"Shards": None},
}


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS.keys())
def test_listings_come_to_the_same(listing: object) -> None:
    asked = {"StreamName": "orders"}

    def read(answer: Any) -> object:
        return messages.parse_shards(answer), answer.get("NextToken")

    body = orjson.dumps(listing)
    _come_to_the_same("ListShards", asked, reply({"Shards": []}), body, read)


def test_an_endpoint_that_went_away_is_the_same_error() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
    short = outcome(lambda: calls.call("GetRecords", ASKED))
    assert short == outcome(lambda: sdk.get_records(**ASKED)) == "EndpointConnectionError"
    sdk.close()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("token", "private\nwords"),
        ("access_key", "private\ud800words"),
        ("secret_key", "private\ud800words"),
    ],
)
def test_a_header_that_cannot_be_sent_is_not_shown(part: str, value: str) -> None:
    with ScriptedHttp(GOOD) as server:
        session = Session(aws_session_token="token", **KEYS)
        sdk = sdk_client(server.url, session)
        calls = direct(sdk)
        credentials = session.get_credentials()
        assert credentials is not None
        setattr(credentials, part, value)
        ways: list[Callable[[], object]] = [
            lambda: in_flight(calls),
            lambda: calls.call("GetRecords", ASKED),
        ]
        if part == "token":  # botocore raises UnicodeEncodeError for the keys
            ways.append(lambda: sdk.get_records(**ASKED))
        for call in ways:
            with pytest.raises(HTTPClientError) as caught:
                call()
            assert "private" not in quoted(caught.value)
            assert "words" not in quoted(caught.value)
        sdk.close()


# --- Many calls of one thread ---------------------------------------------------------------------


class Meeting:
    """Holds up a server's answers until so many requests wait, while `count` is more than 0."""

    def __init__(self) -> None:
        self._barrier: threading.Barrier | None = None

    def of(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=30) if count else None

    def __call__(self) -> None:
        if self._barrier is not None:
            self._barrier.wait()


def opened(sdk: Any, connections: int, meeting: Meeting) -> DirectCalls:
    """Return calls that have so many open connections; each takes one of a server's steps."""
    calls = direct(sdk)
    meeting.of(connections)
    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(lambda _: sdk.get_records(**ASKED), range(connections)))
    meeting.of(0)
    return calls


def test_many_calls_of_one_thread_wait_together() -> None:
    """The service answers none before it has all of them."""
    count, meeting = 8, Meeting()
    with ScriptedHttp(GOOD, before=meeting) as server:
        sdk = sdk_client(server.url)
        calls = opened(sdk, count, meeting)
        connections = server.connections
        meeting.of(count)
        flight = CallsInFlight[int](calls, count)
        for _ in range(2):
            assert all(flight.begin("GetRecords", ASKED, tag) for tag in range(count))
            assert not flight.begin("GetRecords", ASKED, count)
            answered: list[int] = []
            while len(flight):
                answered += [tag for tag, answer in flight.answers() if _is_page(answer)]
            assert sorted(answered) == list(range(count))
        flight.close()
        meeting.of(0)
        assert outcome(lambda: calls.call("GetRecords", ASKED)) == outcome(
            lambda: sdk.get_records(**ASKED)
        )
        assert server.connections == connections
        sdk.close()


def _is_page(answer: object) -> bool:
    return not isinstance(answer, Exception)


def test_a_silent_call_holds_up_no_other_one_and_times_out() -> None:
    meeting = Meeting()
    with ScriptedHttp(GOOD, GOOD, GOOD, Silence(), GOOD, before=meeting) as server:
        sdk = sdk_client(server.url, read_timeout=1.5)
        flight = CallsInFlight[str](opened(sdk, 2, meeting), 2)
        assert flight.begin("GetRecords", ASKED, "silent")
        until(lambda: len(server.requests) == 4, "the silent call has arrived")
        for _ in range(20):
            assert flight.begin("GetRecords", ASKED, "other")
            ((tag, answer),) = flight.answers()
            assert (tag, _is_page(answer)) == ("other", True)
        ((tag, answer),) = flight.answers()
        assert (tag, type(answer).__name__) == ("silent", "ReadTimeoutError")
        assert len(flight) == 0
        assert not all(flight.begin("GetRecords", ASKED, "two") for _ in range(2))
        flight.close()
        sdk.close()


def test_calls_under_way_end_with_their_connections() -> None:
    with ScriptedHttp(GOOD, Silence(), GOOD) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        flight = CallsInFlight[str](calls, 2)
        assert flight.begin("GetRecords", ASKED, "silent")
        until(lambda: len(server.requests) == 2, "the silent call has arrived")
        flight.close()
        assert outcome(lambda: calls.call("GetRecords", ASKED)) == outcome(
            lambda: sdk.get_records(**ASKED)
        )
        sdk.close()


def test_a_connection_that_the_service_closed_meanwhile_is_not_used() -> None:
    """Two have no call under way, one has."""
    meeting = Meeting()
    with ScriptedHttp(*[GOOD] * 5, Silence(), before=meeting) as server:
        sdk = sdk_client(server.url)
        flight = CallsInFlight[str](opened(sdk, 3, meeting), 3)
        assert flight.begin("GetRecords", ASKED, "first")
        ((tag, answer),) = flight.answers()
        assert (tag, _is_page(answer)) == ("first", True)
        assert flight.begin("GetRecords", ASKED, "lost")
        until(lambda: len(server.requests) == 6, "the call has arrived")
    assert not flight.begin("GetRecords", ASKED, "late")
    ((tag, answer),) = flight.answers()
    assert (tag, type(answer).__name__) == ("lost", "ConnectionClosedError")
    assert len(flight) == 0
    flight.close()
    sdk.close()


def test_bytes_that_no_request_asked_for_are_no_answer() -> None:
    twice = Packets([LONG + GOOD.body + LONG + GOOD.body])
    for more in (twice, Packets([LONG + GOOD.body, LONG + GOOD.body])):
        with ScriptedHttp(GOOD, more) as server:
            sdk = sdk_client(server.url)
            flight = CallsInFlight[str](direct(sdk), 1)
            assert flight.begin("GetRecords", ASKED, "first")
            ((tag, answer),) = flight.answers()
            assert (tag, _is_page(answer)) == ("first", True)
            time.sleep(0.1)  # the second packet has come
            assert not flight.begin("GetRecords", ASKED, "second")
            flight.close()
            sdk.close()


# --- A thread that goes on after a failed attempt -------------------------------------------------


def pending(service: Boto3Kinesis) -> RecordPage | ShardIterator | FailedCall:
    """Return the result of a call of GetRecords that is under way alone."""
    calls = service.pending_calls(2)
    try:
        assert calls.begin_records(ORDERS, SHARD, ITERATOR, limit=10, tag="mine")
        ((tag, result),) = calls.answers()
        assert tag == "mine"
        return result
    finally:
        calls.close()


@pytest.mark.parametrize("retry", [True, False])
def test_a_failed_attempt_is_the_first_of_the_usual_ones(retry: bool) -> None:
    throttled = refusal("ProvisionedThroughputExceededException", "slow down")
    with ScriptedHttp(GOOD, throttled, throttled, GOOD) as server:
        service = client(server.url)
        assert fetch(service) == [b"hello"]
        failed = pending(service)
        assert isinstance(failed, FailedCall)
        assert len(server.requests) == 2
        if retry:
            page = failed.finish(True)
            assert isinstance(page, RecordPage)
            assert list(page.data) == [b"hello"]
        else:
            with pytest.raises(ThrottledError):
                failed.finish(False)
        service.close()
    assert len(server.requests) == (4 if retry else 2)
    retried = {("GetRecords", "ProvisionedThroughputExceededException"): 2}
    assert service.retries() == (retried if retry else {})


def test_retries_after_a_failed_attempt_are_limited_with_it() -> None:
    with ScriptedHttp(GOOD, refusal("InternalFailure", status=500)) as server:
        service = client(server.url)
        fetch(service)
        failed = pending(service)
        assert isinstance(failed, FailedCall)
        with pytest.raises(ServiceUnavailableError, match="4 times"):
            failed.finish(True)
        service.close()
    assert len(server.requests) == 1 + 4


def probe(record_bytes: float | None) -> Callable[[], ProbeSteps]:
    def steps() -> ProbeSteps:
        page = yield from fetch_page(ITERATOR, 10, record_bytes)
        return ProbeResult(records=page.records, time=page.time, cursor=ShardCursor())

    return steps


MANY = [ShardKey(stream=ORDERS.name, shard=ShardId(f"shardId-{n:012}")) for n in range(1_000)]


def test_the_first_probes_of_a_process_open_the_connections_of_the_others() -> None:
    with ScriptedHttp(GOOD, before=lambda: time.sleep(0.02)) as server:
        service = client(server.url)
        runner = ProbeRunner(service)
        for _ in range(2):
            outcomes = runner.run_all(
                dict.fromkeys(MANY, probe(100)), {ORDERS.name: ORDERS}, patient=lambda _: False
            )
            assert all(isinstance(outcome, ProbeResult) for outcome in outcomes.values())
        runner.close()
        service.close()
    assert len(server.requests) == 2 * len(MANY)
    assert short_ways(server).count(False) <= MAX_PROBE_THREADS
    assert MAX_PROBE_THREADS < server.connections <= MAX_CALLS + MAX_PROBE_THREADS


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "AssumeRole"),
        RuntimeError("Credentials were refreshed, but the refreshed credentials are still expired"),
        NoCredentialsError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_without_credentials_each_probe_has_the_usual_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none waits for ever for the memory of pages that are not fetched."""

    def refused(*_: object) -> NoReturn:
        raise error

    with ScriptedHttp(GOOD) as server:
        service = client(server.url)
        fetch(service)
        runner = ProbeRunner(service)
        monkeypatch.setattr("spark_ssp.common.aws.botocore_bypass._credentials", refused)
        monkeypatch.setattr("botocore.signers.RequestSigner.get_auth_instance", refused)
        outcomes = runner.run_all(
            dict.fromkeys(MANY, probe(None)), {ORDERS.name: ORDERS}, patient=lambda _: False
        )
        with pytest.raises(SspError) as usual:
            fetch(service, retry=False)
        runner.close()
        service.close()
    assert {type(outcome) for outcome in outcomes.values()} == {type(usual.value)}
    assert len(outcomes) == len(MANY)


# --- TLS -----------------------------------------------------------------------------------------


def tls(folder: Path) -> ssl.SSLContext:
    """A server with a certificate of a private authority, `ca.pem`."""
    folder.mkdir()
    write_certificates(folder, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def test_certificates_are_checked_on_the_short_way_too(tmp_path: Path) -> None:
    with ScriptedHttp(GOOD, tls=tls(tmp_path / "known")) as server:
        sdk = SESSION.client(
            "kinesis",
            endpoint_url=server.url,
            verify=str(tmp_path / "known" / "ca.pem"),
            config=client_config(ConnectionOptions()),
        )
        calls = direct(sdk)
        page = outcome(lambda: in_flight(calls))
        assert page == outcome(lambda: calls.call("GetRecords", ASKED))
        assert page == outcome(lambda: sdk.get_records(**ASKED))
    assert short_ways(server) == [False, True, True, False]
    port = int(server.url.rpartition(":")[2])
    with ScriptedHttp(GOOD, tls=tls(tmp_path / "other"), port=port) as impostor:
        assert outcome(lambda: calls.call("GetRecords", ASKED)) == "SSLError"
        assert outcome(lambda: sdk.get_records(**ASKED)) == "SSLError"
    assert impostor.requests == []
    sdk.close()
